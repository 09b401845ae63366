"""Messages about a run as it begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from headgate import isolation
from headgate.engines.base import LOCAL, Engine
from headgate.engines.remote.environment import more
from headgate.hub.submission import Submission
from headgate.isolation.spawning import OWN
from headgate.machine import gpu_visibility
from headgate.machine.allocation import slurm_share
from headgate.model.cluster import Gpu, Node
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import Lever
from headgate.sampling.gpu_holders import missing_nvml

_DISK_LEVERS = frozenset({Lever.DISK_RATE, Lever.BUFFERED_WRITES})


class OpeningMessage(NamedTuple):
    """A message about a run.

    Args:
        kind: `warning` or `note`.
        reason: What it says.
        job: The job that it concerns; None: the run.
    """

    kind: str
    reason: Reason
    job: str | None = None


def opening(
    submission: Submission,
    machine: Node,
    engine: Engine,
    limits_disk: bool,
    withheld: Collection[str],
) -> Iterator[OpeningMessage]:
    """The messages about a run, in order.

    Args:
        submission: How it was submitted.
        machine: This machine.
        engine: What starts its tasks.
        limits_disk: Whether the policy sets disk rates.
        withheld: Variables of its user that do not go to the nodes of its engine.
    """
    unused = frozenset[Lever]() if limits_disk else _DISK_LEVERS
    levers = [limit.lever for limit in engine.uncontrolled() if limit.lever not in unused]
    if levers:
        missing = tuple(map(str, dict.fromkeys(levers)))
        yield OpeningMessage("warning", Reason.of(ReasonKind.LEVERS_MISSING, levers=missing))
    if variables := sorted(name for name in withheld if not name.startswith("HEADGATE_")):
        variable = more(submission.engine.name)
        not_sent = Reason.of(ReasonKind.VARIABLES_NOT_SENT, variables=variables, variable=variable)
        yield OpeningMessage("note", not_sent)
    is_here = submission.engine == LOCAL and not submission.nodes
    if is_here and (share := slurm_share()) is not None:
        yield OpeningMessage("note" if share.here else "warning", share.reason())
    for doubt in of(submission, machine.gpus):
        yield OpeningMessage("warning", doubt)
    for kind, texts in (("warning", submission.warnings), ("note", submission.notes)):
        for job, text in texts.items():
            yield OpeningMessage(kind, Reason.of(ReasonKind.CLIENT_SAYS, text=text), job)


def of(submission: Submission, gpus: Sequence[Gpu]) -> list[Reason]:
    """What may not work as the user expects, each warning once.

    Args:
        gpus: GPUs of this machine.
    """
    nvml = _missing_nvml(submission, gpus)
    missing = dict.fromkeys(_missing_gpus(submission, gpus))
    all_doubts = (
        Reason.of(ReasonKind.GPUS_NOT_SEEN, text=nvml) if nvml else None,
        *(Reason.of(ReasonKind.GPU_MISSING, text=text) for text in missing if text),
        _out_of_reach(submission),
        _emulated_guests(submission),
    )
    return [doubt for doubt in all_doubts if doubt is not None]


def _missing_nvml(submission: Submission, gpus: Sequence[Gpu]) -> str:
    """Why no GPU of this machine is found although a job may use one."""
    asked = any(job.limits.gpus != 0 for job in submission.jobs)
    if submission.engine != LOCAL or gpus or not asked or (missing := missing_nvml()) is None:
        return ""
    return missing.in_words()


def _missing_gpus(submission: Submission, gpus: Sequence[Gpu]) -> list[str]:
    """GPUs named in the environment of the user or a job that do not exist here."""
    if submission.engine != LOCAL or submission.nodes:
        return []
    return [
        gpu_visibility.missing({**submission.environment, **job.env}, gpus)
        for job in submission.jobs
    ]


def _out_of_reach(submission: Submission) -> Reason | None:
    """Resources of the submitting terminal that this hub cannot give to tasks."""
    if submission.attributes is None or submission.engine != LOCAL:
        return None
    lacks = tuple(submission.attributes.out_of_reach(OWN))
    return Reason.of(ReasonKind.OUT_OF_REACH, lacks=lacks) if lacks else None


def _emulated_guests(submission: Submission) -> Reason | None:
    """Jobs that run in emulated guests; empty: none."""
    from headgate.isolation.vm import probe

    jobs = tuple(
        job.name
        for job in submission.jobs
        if job.isolation in isolation.IN_GUESTS and submission.engine == LOCAL
    )
    if not jobs or not (emulation := probe.emulation()):
        return None
    return Reason.of(ReasonKind.GUESTS_EMULATED, jobs=jobs, text=emulation)
