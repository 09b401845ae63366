"""Freezes the tasks of paused jobs, and lets them go on.

Whatever ends a job lets it go on first. If the hub dies, its watchdog lets it go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.arbiter.records import Resumes
from headgate.engines.base import LOCAL
from headgate.hub.parts import Component
from headgate.hub.state.attempt import Attempt
from headgate.hub.state.job import LiveJob
from headgate.hub.state.runs import LiveRuns
from headgate.isolation.base import Box, Holder
from headgate.model.actions import Action, HoldJob, StopTask
from headgate.model.errors import IsolationError, UsageError
from headgate.model.events import Event, PauseRequested, TaskStarted, UnpauseRequested
from headgate.model.identifiers import JobId, TaskId
from headgate.model.job_states import ENDED
from headgate.model.reasons import PauseKind, Reason, ReasonKind
from headgate.model.units import say_first
from headgate.scripts import resume_arguments

_SAID = 5
"""At most so many jobs are said one by one to be in another state."""


@dataclass(slots=True, eq=False)
class _Hold:
    """A job that is being held, or is held.

    Args:
        attempt: Its attempt.
        gated: Whether its workers are held between two steps. They keep the process, but neither
            a turn on a GPU nor a core.
        boxes: The boxes of its frozen tasks.
        work: Freezes them, or lets them go on.
        over: Whether it goes on.
    """

    attempt: Attempt | None
    gated: bool
    boxes: list[Box] = field(default_factory=list)
    work: asyncio.Future[None] | None = None
    over: bool = False


class JobHolder(Component):
    """Carries out `HoldJob`: all tasks of a job stand still together.

    A worker that takes turns on a GPU is held between two steps, so that it gives up its turn.

    Args:
        live_runs: The runs of the jobs.
        boxes: The boxes of the tasks on this machine.
        step: Hands the controller an event.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        boxes: Callable[[], Mapping[TaskId, Box]],
        step: Callable[[Event], None],
    ) -> None:
        self._live_runs = live_runs
        self._boxes = boxes
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._holds: dict[JobId, _Hold] = {}

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case HoldJob(job, True):
                    self._hold(job)
                case HoldJob(job, False):
                    self._release(job)
                case StopTask(task):
                    self._release(task.job)
        if isinstance(event, TaskStarted) and event.task.job in self._holds:
            self._hold(event.task.job)  # it stands in for a lost one

    def forget(self, run: str) -> None:
        for job in [job for job in self._holds if job.run == run]:
            self._release(job)

    def close(self) -> None:
        for job in list(self._holds):
            self._release(job)

    # --- requests of clients

    async def pause(self, run: str, jobs: Sequence[str] | None, release: bool) -> list[str]:
        """Pause jobs of a run, or of its sweeps (None: all that can be). Returns their names once
        they stand still, or are asked to end (`release`).

        Raises:
            UsageError: A named job cannot be paused. Nothing is changed.
            IsolationError: A job could not be frozen. It runs on.
        """
        chosen = self._live_runs.chosen(run, jobs)
        refusals = {
            name: refusal
            for name, live in chosen.jobs.items()
            if (refusal := self._why_not_paused(run, live, release))
        }
        able = [name for name in chosen.jobs if name not in refusals]
        if refusals and not (able and chosen.named.isdisjoint(refusals)):
            first = "; ".join(list(refusals.values())[:_SAID])
            others = f"; and {len(refusals) - _SAID:,} others" if len(refusals) > _SAID else ""
            raise UsageError(first + others)
        # those that wait first: else each would begin as another gives up its place
        for name in sorted(able, key=lambda name: chosen.jobs[name].state != "waiting"):
            self._step(PauseRequested(JobId.of(run, name), release))
        for name in able:
            hold = self._holds.get(JobId.of(run, name))
            if hold is not None and hold.work is not None:
                await hold.work
        return able

    async def unpause(self, run: str, jobs: Sequence[str] | None) -> list[str]:
        """Let paused jobs of a run (None: all) go on. Returns their names once none is frozen.

        Raises:
            UsageError: A named job is not paused, or none is.
        """
        chosen = self._live_runs.chosen(run, jobs)
        others = {name: live for name, live in chosen.jobs.items() if not _is_paused(live)}
        paused = [name for name in chosen.jobs if name not in others]
        if others and not (paused and chosen.named.isdisjoint(others)):
            states = [f"job {name!r} is {live.state}" for name, live in others.items()]
            raise UsageError(f"{say_first(states, _SAID)}; only a paused one can be unpaused")
        ids = [JobId.of(run, name) for name in paused]
        holds = [self._holds[job] for job in ids if job in self._holds]
        for job in ids:
            self._step(UnpauseRequested(job))
        for hold in holds:
            if hold.work is not None:
                await hold.work
        return paused

    def _why_not_paused(self, run: str, live: LiveJob, release: bool) -> str:
        """Why a job cannot be paused now; empty: it can."""
        name, state = live.spec.name, live.state
        engine = self._live_runs.runs[run].submission.engine
        if state in ENDED:
            return f"job {name!r} is {state}; only one that has not ended can be paused"
        if state == "stopping":
            return f"job {name!r} is being stopped already: {live.text}"
        if state == "paused" and not (release and live.reason.facts["keeps"] == PauseKind.FROZEN):
            return f"job {name!r} is paused already; `headgate unpause {name}` lets it go on"
        if state == "waiting":
            is_starting = live.reason.kind is ReasonKind.BEING_STARTED
            return f"job {name!r} is just being started; try again in a moment" * is_starting
        if release:
            if live.is_unconnected:
                return f"job {name!r} has not connected yet; try again once it trains"
            again = (
                f"job {name!r} would begin anew: Headgate knows of no checkpoint of it; leave out "
                "--release, or say `resumes: true` in its job file if it goes on from its own"
            )
            return again if resumes(live) is Resumes.NO else ""
        if engine != LOCAL:
            return (
                f"job {name!r} runs on {engine}; only tasks of this machine can be frozen: add "
                "--release"
            )
        if not live.spec.pausable:
            return f"job {name!r} says `pausable: false`; add --release, which ends it instead"
        return ""

    # --- holding

    def _hold(self, job: JobId) -> None:
        run, live = self._live_runs.find(job)
        if (engine := run.submission.engine) != LOCAL:
            text = f"it runs on {engine}, and only tasks of this machine can be frozen"
            self._loop.call_soon(self._refuse, job, text)
            return
        attempt = live.current
        hold = _Hold(attempt, gated=attempt is not None and attempt.pauses_by_gate)
        hold.boxes = [
            box
            for task, box in self._boxes().items()
            if task.job == job and not (hold.gated and task.name.is_worker)
        ]
        self._holds[job] = hold
        if hold.gated and attempt is not None:
            attempt.pause(True, Holder.PAUSE)
        hold.work = self._loop.run_in_executor(None, _freeze, hold)
        hold.work.add_done_callback(lambda work: self._frozen(job, hold, work))

    def _frozen(self, job: JobId, hold: _Hold, work: asyncio.Future[None]) -> None:
        if work.cancelled() or (error := work.exception()) is None:
            return
        if self._holds.get(job) is hold:
            self._refuse(job, str(error))

    def _refuse(self, job: JobId, text: str) -> None:
        run, live = self._live_runs.find(job)
        reason = Reason.of(ReasonKind.NOT_PAUSED, text=text)
        self._live_runs.event(run, "warning", reason, live.spec.name)
        self._step(UnpauseRequested(job, refused=True))

    def _release(self, job: JobId) -> None:
        if (hold := self._holds.pop(job, None)) is None:
            return
        hold.over = True
        if hold.gated and hold.attempt is not None:
            hold.attempt.pause(False, Holder.PAUSE)
        hold.work = self._loop.run_in_executor(None, _thaw, hold)


def _is_paused(live: LiveJob) -> bool:
    """Whether a job is paused, or ends for that."""
    ends = live.state == "stopping" and live.reason.kind is ReasonKind.PAUSES
    return ends or live.state == "paused"


def resumes(live: LiveJob) -> Resumes:
    """From where a job goes on if it is ended now."""
    if live.saver is not None:
        return Resumes.FROM_NOW
    is_own = live.checkpoint is not None and live.checkpoint.own
    is_from_own = is_own and resume_arguments.way(live.spec, live.facts) is not None
    has_headgates = live.checkpoint is not None and not is_own
    goes_on = live.spec.resumes or is_from_own or has_headgates
    return Resumes.FROM_EARLIER if goes_on else Resumes.NO


def _freeze(hold: _Hold) -> None:
    """Freeze the tasks of a job, all or none.

    Raises:
        IsolationError: They cannot be frozen.
    """
    try:
        for box in hold.boxes:
            box.hold(Holder.PAUSE)
    except IsolationError:
        _thaw(hold)
        raise
    if hold.over:  # meanwhile
        _thaw(hold)


def _thaw(hold: _Hold) -> None:
    for box in hold.boxes:
        box.release(Holder.PAUSE)
