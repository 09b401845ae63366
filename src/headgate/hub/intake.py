"""Takes runs into a hub: new ones, and those whose hub died."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from headgate.config import settings
from headgate.engines.base import LOCAL, Engine
from headgate.engines.launch import inject
from headgate.engines.remote import environment as engine_environment
from headgate.hub import doubts
from headgate.hub.admission import StoredKnowledge
from headgate.hub.checking import InspectedJob, checked
from headgate.hub.claiming import claimed
from headgate.hub.event_log import EventLog
from headgate.hub.housekeeping import Housekeeping
from headgate.hub.parts.engines import Engines
from headgate.hub.parts.nodes import Nodes
from headgate.hub.parts.stopping_early import StoppingEarly
from headgate.hub.standard_input import GivenInput
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission
from headgate.hub.taking_up import FormerJob, FormerRun
from headgate.machine import gpu_visibility
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import HeadgateError
from headgate.model.events import Event, PauseRequested, SlotsStated, StopRequested, TakenUp
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import text_of
from headgate.policies import Policy
from headgate.scripts.arguments import TrainingLength
from headgate.scripts.facts import ScriptFacts

_log = logging.getLogger(__name__)

_PAUSED_SECONDS = 1.0


class _Arrival(NamedTuple):
    """A run that comes in.

    Args:
        run: The run.
        cluster: The nodes that it may use.
        usual: How many jobs of its user run at once where nothing else is said.
    """

    run: LiveRun
    cluster: Cluster
    usual: int | Literal["auto"] | None


class _Admission(NamedTuple):
    """What tells the controller of a job that is taken up, and whether that job goes on."""

    goes_on: bool
    admit: Callable[[], None]


class Intake:
    """Checks runs, opens them, and tells the controller of their jobs.

    Args:
        home: Headgate's folder.
        machine: This machine.
        live_runs: Gets the runs.
        nodes: Told of the runs' nodes.
        engines: Opened for the runs.
        event_log: Begins with each run.
        housekeeping: Told of each run.
        stopping_early: Told of the runs whose hub died.
        policy: The present policy.
        step: Hands the controller an event.
    """

    def __init__(
        self,
        home: Path,
        machine: Node,
        live_runs: LiveRuns,
        nodes: Nodes,
        engines: Engines,
        event_log: EventLog,
        housekeeping: Housekeeping,
        stopping_early: StoppingEarly,
        policy: Callable[[], Policy],
        step: Callable[[Event], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._home = home
        self._machine = machine
        self._live_runs = live_runs
        self._nodes = nodes
        self._engines = engines
        self._event_log = event_log
        self._housekeeping = housekeeping
        self._stopping_early = stopping_early
        self._policy = policy
        self._step = step
        self._coming = 0  # runs that are being submitted
        # one after the other: each sees the nodes of the one before
        self._taking_in = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether a run is being submitted."""
        return self._coming > 0

    # --- new runs

    async def submit(self, submission: Submission, given: GivenInput | None = None) -> LiveRun:
        """Take in a run; its only task reads `given`.

        Raises:
            HeadgateError: It cannot run here. Nothing of it is kept.
        """
        self._coming += 1
        try:
            async with (
                self._engines.opened(submission.engine) as engine,
                self._taking_in,
                claimed(self._home, submission),
            ):
                return await self._take_in(submission, engine, given)
        finally:
            self._coming -= 1

    async def _take_in(
        self, submitted: Submission, engine: Engine, given: GivenInput | None
    ) -> LiveRun:
        usual = settings.at_once(submitted.environment)
        submission = _for_engine(submitted)
        cluster = self._nodes.cluster(submission)
        within = gpu_visibility.within(self._machine, submission.environment)
        recorded = (within, *submission.nodes) if submission.engine == LOCAL else cluster.nodes
        inspected = await asyncio.to_thread(checked, submission, cluster, within)
        inject(self._home / "inject")
        run = LiveRun(
            submission,
            recorded,
            self._policy().name,
            time.monotonic(),
            self._live_runs.trouble,
            given,
        )
        await asyncio.to_thread(run.confirm)
        arrival = _Arrival(run, cluster, usual)
        self._open(arrival)
        for name, job in inspected.items():
            self._admit(arrival, name, job)
        withheld = submitted.environment.keys() - submission.environment.keys()
        limits_disk = self._policy().limits_disk
        for message in doubts.opening(submission, self._machine, engine, limits_disk, withheld):
            self._tell_soon(run, *message)
        self._housekeeping.begin(run)
        return run

    # --- runs whose hub died

    async def take_up(self, formers: Sequence[FormerRun]) -> None:
        """Go on with runs: first with what runs, so that what waits sees its use."""
        inject(self._home / "inject")
        admissions = list[_Admission]()
        for former in formers:
            try:
                admissions += await self._taken_up(former)
            except (HeadgateError, OSError) as error:
                print(f"run {former.folder.name} cannot be taken up: {error}", file=sys.stderr)
        for admission in sorted(admissions, key=lambda admission: not admission.goes_on):
            admission.admit()

    async def _taken_up(self, former: FormerRun) -> list[_Admission]:
        """Restore a run.

        Raises:
            HeadgateError: It cannot go on here.
        """
        submission = former.submission
        cluster = self._nodes.cluster(submission)
        within = gpu_visibility.within(self._machine, submission.environment)
        inspected = {}
        for job in submission.jobs:
            inspected[job.name] = InspectedJob(ScriptFacts(), "", TrainingLength(), {}, "")
            if former.jobs[job.name].then.state not in ENDED:
                with suppress(HeadgateError):  # its script is gone; it may be running
                    alone = replace(submission, jobs=(job,))
                    inspected |= await asyncio.to_thread(checked, alone, cluster, within)
        run = LiveRun(
            submission,
            (within,),
            self._policy().name,
            former.began,
            self._live_runs.trouble,
            former=former,
        )
        self._stopping_early.take_up(run)
        arrival = _Arrival(run, cluster, settings.at_once(submission.environment))
        self._open(arrival)
        gap = Reason.of(ReasonKind.HUB_CAME_AGAIN, seconds=former.seconds)
        self._live_runs.event(run, "warning", gap)
        self._housekeeping.begin(run, is_taken_up=True)
        return [
            _Admission(
                job.then.goes_on, partial(self._admit_again, arrival, name, inspected[name], job)
            )
            for name, job in former.jobs.items()
        ]

    def _admit_again(
        self, arrival: _Arrival, name: str, inspected: InspectedJob, former: FormerJob
    ) -> None:
        """Tell the controller of a job as it stood when its hub died."""
        job, then = JobId.of(arrival.run.id, name), former.then
        if then.plan is not None:
            then = replace(then, plan=replace(then.plan, worker_nodes=(self._machine.name,)))
        self._admit(arrival, name, inspected, then)
        if former.urgent is not None:
            delay = _PAUSED_SECONDS if then.goes_on else 0.0  # its engine takes it up meanwhile
            self._loop.call_later(delay, self._step, PauseRequested(job, urgent=former.urgent))
        if former.is_stopping and arrival.run.jobs[name].state not in ENDED:
            self._step(StopRequested(job))

    # --- both

    def _open(self, arrival: _Arrival) -> None:
        """Add a run to those that are live."""
        run, usual = arrival.run, arrival.usual
        self._live_runs.runs[run.id] = run
        self._event_log.begin(run)
        _log.info("run %s is taken in, with %d jobs", run.id, len(run.jobs))
        self._nodes.join(run.submission)
        self._step(SlotsStated(usual if isinstance(usual, int) else None))

    def _admit(
        self,
        arrival: _Arrival,
        name: str,
        inspected: InspectedJob,
        taken_up: TakenUp | None = None,
    ) -> None:
        """Tell the controller of a job, with what is known of such jobs."""
        run, cluster, usual = arrival
        live = run.jobs[name]
        live.take_in(inspected)
        if path := live.namesake:
            self._tell_soon(run, "note", Reason.of(ReasonKind.HAS_NAMESAKE, path=path), name)
        stored = StoredKnowledge(self._home, live)
        if stored.profile is not None:
            live.profile = text_of(stored.profile)
        job = JobId.of(run.id, name)
        event = stored.submitted(job, run.submission, cluster, self._machine, usual, taken_up)
        self._step(event)
        is_unknown = event.gpu_memory_bytes is None and stored.profile is None
        if is_unknown and event.uses_gpus != "no":
            text = stored.gpu_need.known
            self._tell_soon(run, "note", Reason.of(ReasonKind.GPU_NEED_UNKNOWN, text=text), name)

    def _tell_soon(self, run: LiveRun, kind: str, reason: Reason, job: str | None = None) -> None:
        """Send a message about a run once its submitting client watches it."""
        self._loop.call_soon(self._live_runs.event, run, kind, reason, job)


def _for_engine(submission: Submission) -> Submission:
    """A submission with only those variables that go to the nodes of its engine."""
    if submission.engine == LOCAL:
        return submission
    environment = engine_environment.sent(submission.environment, submission.engine.name)
    return replace(submission, environment=environment)
