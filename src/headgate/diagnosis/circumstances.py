"""The circumstances of a job: what verdict and advice need besides the account of its time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile

from headgate.diagnosis.convergence import Plateau
from headgate.diagnosis.findings import CreepFacts, Finding, SlowerFacts
from headgate.diagnosis.granted import ThreadGrant
from headgate.diagnosis.grid import Grid
from headgate.diagnosis.sequencing import SoloTime
from headgate.diagnosis.what_if import Speedups
from headgate.model.reasons import Reason, ReasonKind
from headgate.recorded.jobs import STATES, CoresSetting, RecordedJob, RecordedNode, RecordedTask
from headgate.sampling.outside_programs import OutsideProgram

_AWAITED = (ReasonKind.AFTER_JOBS, ReasonKind.NEEDS_ROOM, ReasonKind.AWAITS_NODES, ReasonKind.TEXT)
"""Notable reasons to wait; a run of an earlier version has only text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """The circumstances of a job while it waited and ran.

    Args:
        own_causes: Causes within the job, regardless of cost.
        plateau: Where it stopped learning; None: it did not.
        creep: How its memory creeps up; None: it does not.
        gpu_creep: How its GPU memory creeps up; None: it does not.
        slower: How it is slower than in earlier runs; None: it is not, or there are none.
        waited_for: Why it waited before its start; None: neither for a job nor for room.
        overtaken_by: Jobs that came later and started before it.
        excess_threads: Mean number of waiting threads beyond those that the cores could run.
        helper_cores: Cores that its loader's workers ran on or waited for.
        grant: Its thread count while other jobs ran; None: as many as alone.
        speedups: What more of each resource would gain.
        cores: Cores of its tasks' nodes.
        fewer_workers: The number of workers with a core each, at most one less than it had.
        threads: The number of threads of each task with a core each.
        cores_setting: The user's setting that limits its cores; None: none does.
        provable: Whether pausing other jobs can prove their cost, and has not been done.
        after: The `after:` of each job.
        solo_times: What each job of the run would have needed alone.
        together: Jobs connected by mutual slowdowns with it, in their best order; empty: none.
        meanwhile: Other runs on its nodes at the same time; their use counts as outside its own
            run.
        programs: The programs outside Headgate that used most during its run.
    """

    own_causes: Sequence[Finding] = ()
    plateau: Plateau | None = None
    creep: CreepFacts | None = None
    gpu_creep: CreepFacts | None = None
    slower: SlowerFacts | None = None
    waited_for: Reason | None = None
    overtaken_by: tuple[str, ...] = ()
    excess_threads: float = 0.0
    helper_cores: float = 0.0
    grant: ThreadGrant | None = None
    speedups: Speedups = field(default_factory=Speedups)
    cores: float = 0.0
    fewer_workers: int = 1
    threads: int = 1
    cores_setting: CoresSetting | None = None
    provable: bool = True
    after: Mapping[str, str] = field(default_factory=dict)
    solo_times: Mapping[str, SoloTime] = field(default_factory=dict)
    together: tuple[str, ...] = ()
    meanwhile: tuple[str, ...] = ()
    programs: Sequence[OutsideProgram] = ()


def before_start(job: RecordedJob, others: Sequence[RecordedJob]) -> Circumstances:
    """The last reason for which a job waited before it first ran, and the jobs that overtook it."""
    changes = (event for event in job.events if event.kind in STATES)
    waits = list(takewhile(lambda event: event.kind == "waiting", changes))
    reason = waits[-1].reason() if waits else None
    if reason is None or reason.kind not in _AWAITED:
        return Circumstances()
    return Circumstances(waited_for=reason, overtaken_by=_overtaken_by(job, others))


def pauses(job: RecordedJob, until: float) -> float:
    """Seconds until a time in which a job was paused."""
    phases = (phase for phase in job.phases if phase.state == "paused")
    return sum(max(min(phase.end, until) - phase.start, 0.0) for phase in phases)


def waits(job: RecordedJob, began: float, until: float) -> float:
    """Seconds until a time in which a job waited: before it began, and to start again after pauses
    that gave back what it held.
    """
    again = sum(
        max(min(phase.end, until) - phase.start, 0.0)
        for before, phase in pairwise(job.phases)
        if phase.start > began and (before.state, phase.state) == ("paused", "waiting")
    )
    return max(began - job.submitted - pauses(job, began), 0.0) + again


def _overtaken_by(job: RecordedJob, others: Sequence[RecordedJob]) -> tuple[str, ...]:
    """Jobs that came later and started first, because they ran better beside the running jobs."""
    return tuple(
        other.name
        for other in others
        if any(_overtook(event.reason(), job) for event in other.events if event.kind == "running")
    )


def _overtook(reason: Reason | None, job: RecordedJob) -> bool:
    return reason is not None and reason.facts.get("overtook") == job.name


def on_nodes(
    before: Circumstances,
    job: RecordedJob,
    others: Sequence[RecordedJob],
    grid: Grid,
    held_back: RecordedTask,
) -> Circumstances:
    """Add what a job's settings and nodes allowed it while it ran.

    Args:
        held_back: Its task that waited most for cores.
    """
    return replace(
        before,
        cores=sum(grid.nodes[name].cores or 0.0 for name in job.nodes if name in grid.nodes),
        fewer_workers=_fewer_workers(job, grid.nodes),
        threads=_threads(job, grid),
        cores_setting=job.cores_setting(held_back, grid.cores(held_back)),
        provable=not job.spec.prove and any(other.spec.pausable for other in others),
        after={
            recorded.name: ", ".join(recorded.spec.forerunners)
            for recorded in (job, *others)
            if recorded.spec.forerunners
        },
    )


def _fewer_workers(job: RecordedJob, nodes: Mapping[str, RecordedNode]) -> int:
    known = [nodes[name].cores or 1.0 for name in job.nodes if name in nodes]
    cores = sum(max(math.floor(count), 1) for count in known)
    servers = sum(task.is_server for task in job.tasks)
    return max(min(cores, len(job.tasks) - 1) - servers, job.least_workers)


def _threads(job: RecordedJob, grid: Grid) -> int:
    """Threads of each task with a core each, on the node with most of its tasks."""
    beside = Counter(task.node for task in job.tasks)
    allowed = {task.id: job.allowed_cores(task, grid.cores(task)) for task in job.tasks}
    least = min(min(grid.cores(task) / beside[task.node], allowed[task.id]) for task in job.tasks)
    return max(math.floor(least), 1) if math.isfinite(least) else 1
