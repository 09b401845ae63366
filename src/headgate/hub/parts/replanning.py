"""Finds a better plan for a job that runs, and moves it there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headgate.hub.parts import Component
from headgate.hub.parts.engines import Engines
from headgate.hub.parts.forecasting import Forecasting
from headgate.hub.parts.nodes import Nodes
from headgate.hub.parts.planning import InitialPlanner
from headgate.hub.state.job import LiveJob
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import Action
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import HeadgateError
from headgate.model.events import (
    CheckpointDone,
    Event,
    MoveRequested,
    Predicted,
    TaskExited,
    TaskStarted,
)
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import read
from headgate.planning.candidates import tells
from headgate.planning.choosing import grown, has_choice
from headgate.planning.joining import alone
from headgate.planning.moving import Move, Standing, better
from headgate.profiling.calibration import calibrated
from headgate.profiling.history import FEWEST_STEPS, samples_of
from headgate.scripts import inspection
from headgate.verification.verdict import Verification

_EFFORT = 30.0  # seconds between two looks, for each CPU second of the last one


@dataclass(slots=True)
class _Starts:
    """Cost of a job's starts.

    Args:
        attempt: The latest attempt.
        began: Its beginning, minus the time that the end of the previous attempt took; None: the
            job has reported since.
        seen: When the job last reported.
        ending: Seconds from then to the end of the attempt.
        cost: Seconds of the latest start.
    """

    attempt: int = 0
    began: float | None = None
    seen: float | None = None
    ending: float = 0.0
    cost: float | None = None


@dataclass(slots=True)
class _ReplannedJob:
    """State of a job that may be moved.

    Args:
        profile: Profile of the job as a whole.
        measured: Samples a second of the plans that it has run with.
        moves: How often it was moved.
        move: The move to make once it has saved a checkpoint.
        not_before: When it may be looked at again.
    """

    profile: Profile
    measured: dict[Plan, float] = field(default_factory=dict)
    moves: int = 0
    move: Move | None = None
    looking: bool = False
    not_before: float = 0.0


class Replanning(Component):
    """Moves running jobs to better plans.

    If another plan saves more than a move costs, the job saves a checkpoint and then resumes with
    that plan.

    Args:
        home: Headgate's folder.
        live_runs: The runs.
        nodes: Nodes for tasks.
        engines: Engines that deliver orders to tasks.
        forecasting: Gives the speed of jobs.
        initial_planner: Knows which nodes are taken.
        machine: The node that stored profiles were measured on.
        step: Sends an event to the controller.
        barred: As of `InitialPlanner`.
    """

    def __init__(
        self,
        home: Path,
        live_runs: LiveRuns,
        nodes: Nodes,
        engines: Engines,
        forecasting: Forecasting,
        initial_planner: InitialPlanner,
        machine: Node,
        step: Callable[[Event], None],
        barred: Callable[[JobId, Plan], Verification | None],
    ) -> None:
        self._barred = barred
        self._home = home
        self._live_runs = live_runs
        self._nodes = nodes
        self._engines = engines
        self._forecasting = forecasting
        self._initial_planner = initial_planner
        self._machine = machine
        self._step = step
        self._watched: dict[JobId, _ReplannedJob | None] = {}  # None: never moved
        self._starts: dict[JobId, _Starts] = {}
        self._work: set[asyncio.Task[None]] = set()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case TaskStarted(task):
                self._begins(task.job)
            case Progress(task, step) if step is not None:
                self._reported(task.job)
            case Predicted(job, seconds=float(left)) if (
                watched := self._watched.get(job)
            ) and self.considers(job):
                watched.looking = True
                looking = asyncio.get_running_loop().create_task(self._look(job, watched, left))
                self._work.add(looking)
                looking.add_done_callback(self._work.discard)
            case CheckpointDone(task):
                self._saved(task.job)
            case TaskExited(task):
                self._ends(task.job)

    def considers(self, job: JobId) -> bool:
        """Whether it would move a job now, given enough remaining work."""
        watched = self._watched.get(job)
        if (
            watched is None
            or watched.looking
            or watched.move is not None
            or time.monotonic() < watched.not_before
        ):
            return False
        live = self._live_runs.find(job)[1]
        return live.state == "running" and watched.moves < live.spec.moves

    def forget(self, run: str) -> None:
        for kept in (self._watched, self._starts):
            for job in [job for job in kept if job.run == run]:
                del kept[job]

    def close(self) -> None:
        for task in self._work:
            task.cancel()

    # --- events -----------------------------------------------------------------------------------

    def _begins(self, job: JobId) -> None:
        """A task of a job has started. The first of an attempt marks its beginning; waiting for
        room is not a cost of the start.
        """
        starts, attempt = (
            self._starts.setdefault(job, _Starts()),
            self._live_runs.find(job)[1].attempt,
        )
        if starts.attempt != attempt:
            starts.attempt, starts.began = attempt, time.monotonic() - starts.ending

    def _reported(self, job: JobId) -> None:
        now, starts = time.monotonic(), self._starts.setdefault(job, _Starts())
        if starts.began is not None:
            starts.cost, starts.began = now - starts.began, None
        starts.seen = now
        self._watch(job)

    def _ends(self, job: JobId) -> None:
        if (starts := self._starts.get(job)) is not None and starts.seen is not None:
            starts.ending = time.monotonic() - starts.seen
        if (watched := self._watched.get(job)) is not None:
            watched.move = None  # the attempt is ending: what it saves now is not for the move

    def _watch(self, job: JobId) -> None:
        """Start to watch a job if it may ever be moved."""
        run, live = self._live_runs.find(job)
        if live.profile is None or live.current is None or job in self._watched:
            return
        spec, profile = live.spec, read(Profile, live.profile)
        self._watched[job] = None
        if (
            spec.plan is not None
            or spec.moves == 0
            or run.submission.mode != "run"
            or not tells(profile)
        ):
            return
        if profile.observed and (not spec.resumes or alone(spec, profile)):
            return
        # reported when it was planned
        if inspection.other_cluster(spec, {**run.submission.environment, **spec.env}):
            return
        with suppress(HeadgateError):  # a node was just lost
            if has_choice(self._nodes.cluster(run.submission), spec):
                self._watched[job] = _ReplannedJob(profile)

    async def _look(self, job: JobId, watched: _ReplannedJob, seconds_left: float) -> None:
        """Check whether another plan is worth a move."""
        run, live = self._live_runs.find(job)
        attempt, effort = live.attempt, 0.0
        try:
            if live.current is None or (lowest := live.current.lowest) is None:
                return
            if live.spec.contract is None and not live.current.is_connected(lowest):
                return
            standing = self._standing(job, watched, live, live.current.plan, seconds_left)
            if standing is None or not standing.could_pay:
                return
            cluster = self._nodes.cluster(run.submission)
            if run.submission.cluster:
                cluster = calibrated(run.submission.cluster, cluster, self._machine, self._home)
            used = self._initial_planner.used(cluster, job)
            move, effort = await asyncio.to_thread(
                self._better, live.spec, watched, standing, cluster, used
            )
            if (
                move is None
                or live.attempt != attempt
                or live.state != "running"
                or self._barred(job, move.plan)
            ):
                return
            watched.move = move
            if live.spec.contract is not None:
                self._saved(job)
            else:
                self._engines.of(job.run).send(job.task(lowest), {"type": "checkpoint"})
        except (HeadgateError, ValueError, ArithmeticError, KeyError):
            # a node was lost, the run has ended, or no prediction is possible: the job stays
            return
        finally:
            watched.looking = False
            watched.not_before = time.monotonic() + _EFFORT * effort

    def _standing(
        self, job: JobId, watched: _ReplannedJob, live: LiveJob, plan: Plan, seconds_left: float
    ) -> Standing | None:
        """The present state of a job; None: not known yet."""
        seconds, samples = (
            self._forecasting.step_seconds(job, FEWEST_STEPS),
            samples_of(plan, watched.profile),
        )
        restart = self._starts[job].cost
        if seconds is None or samples is None or restart is None:
            return None
        rate = watched.measured[plan] = samples / seconds
        return Standing(plan, rate, seconds_left, restart, live.spec.moves - watched.moves)

    def _better(
        self,
        spec: Job,
        watched: _ReplannedJob,
        standing: Standing,
        cluster: Cluster,
        used: Collection[str],
    ) -> tuple[Move | None, float]:
        """The worthwhile move, if any, and the CPU seconds of this search; runs in a thread."""
        from headgate.planning.correcting import (
            Corrected,  # imported late: its numerics take half a second
        )

        began = time.thread_time()
        corrected = Corrected(
            spec,
            cluster,
            watched.profile,
            list(watched.measured.items()),
            used=used,
            measured_on=self._machine,
        )
        [best] = corrected.ranked(1)
        move = better(standing, best) if best.plan != corrected.like(standing.plan) else None
        return move, time.thread_time() - began

    def _saved(self, job: JobId) -> None:
        """A job may restart: it has saved a checkpoint, or will save when it ends."""
        watched = self._watched.get(job)
        if watched is None or watched.move is None:
            return
        move, watched.move = watched.move, None
        run, live = self._live_runs.find(job)
        if live.state in ENDED or live.own_states:
            return
        watched.moves += 1
        more = {"note": note} if (note := grown(live.spec, watched.profile, move.plan)) else {}
        moved = Reason(ReasonKind.MOVED, {**move.reason.facts, **more})
        self._live_runs.event(run, "plan", moved, live.spec.name)
        self._step(MoveRequested(job, move.plan, Reason(ReasonKind.BETTER_PLAN)))
