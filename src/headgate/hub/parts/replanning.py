"""Has jobs whose plans Headgate chose go on by a better plan, where what is left of them is worth it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headgate.cluster import Cluster, Node
from headgate.engines import scripts
from headgate.errors import HeadgateError
from headgate.events import (
    ENDED,
    Action,
    CheckpointDone,
    Event,
    Fitted,
    MoveRequested,
    Progress,
    TaskExited,
    TaskStarted,
)
from headgate.hub.parts.choosing import Choosing
from headgate.hub.parts.engines import Engines
from headgate.hub.parts.forecasting import Forecasting
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.job import LiveJob
from headgate.hub.state.live_runs import Component, LiveRuns
from headgate.identifiers import JobId
from headgate.jobs import Job
from headgate.planning.candidates import tells
from headgate.planning.choosing import has_choice
from headgate.planning.moving import Move, Standing, better
from headgate.plans import Plan
from headgate.profiles import Profile
from headgate.profiling import store
from headgate.profiling.calibration import calibrated
from headgate.profiling.history import FEWEST_STEPS, samples_of

_EFFORT = 30.0  # seconds between two looks for each CPU second that the last one took


@dataclass(slots=True)
class _Starts:
    """What starts of a job cost.

    Args:
        attempt: Which began last.
        began: When it did, before that what the end of the former one took; None: it has reported since.
        seen: When the job reported last.
        ending: Seconds from that to the end of the attempt.
        cost: Seconds of the latest start.
    """

    attempt: int = 0
    began: float | None = None
    seen: float | None = None
    ending: float = 0.0
    cost: float | None = None


@dataclass(slots=True)
class _ReplannedJob:
    """What is known of a job that may be moved.

    Args:
        profile: Of the job as a whole.
        measured: Samples a second of the plans that it ran by.
        moves: How often it was moved.
        move: What is to be done once it has saved a checkpoint.
        not_before: When it may be looked at again.
    """

    profile: Profile
    measured: dict[Plan, float] = field(default_factory=dict)
    moves: int = 0
    move: Move | None = None
    looking: bool = False
    not_before: float = 0.0


class Replanning(Component):
    """Hears what is left of jobs. Where another plan saves more than it costs, it has the job save a checkpoint and,
    once that is there, go on from it by the other plan.

    Args:
        home: Headgate's folder.
        live_runs: Where the runs are.
        nodes: Where tasks can go.
        engines: What brings an order to a task.
        forecasting: Knows how fast jobs are.
        choosing: Knows which nodes are taken.
        machine: The node that stored profiles were measured on.
        step: Tells the controller.
    """

    def __init__(
        self,
        home: Path,
        live_runs: LiveRuns,
        nodes: Nodes,
        engines: Engines,
        forecasting: Forecasting,
        choosing: Choosing,
        machine: Node,
        step: Callable[[Event], None],
    ) -> None:
        self._home = home
        self._live_runs = live_runs
        self._nodes = nodes
        self._engines = engines
        self._forecasting = forecasting
        self._choosing = choosing
        self._machine = machine
        self._step = step
        self._watched: dict[JobId, _ReplannedJob | None] = {}  # None: it is never moved
        self._starts: dict[JobId, _Starts] = {}
        self._work: set[asyncio.Task[None]] = set()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case TaskStarted(task):
                self._begins(task.job)
            case Progress(task, step) if step is not None:
                self._reported(task.job)
            case Fitted(job, seconds=float(left)) if (watched := self._watched.get(job)) and self.considers(job):
                watched.looking = True
                looking = asyncio.get_running_loop().create_task(self._look(job, watched, left))
                self._work.add(looking)
                looking.add_done_callback(self._work.discard)
            case CheckpointDone(task):
                self._saved(task.job)
            case TaskExited(task):
                self._ends(task.job)

    def considers(self, job: JobId) -> bool:
        """Whether it would move a job now, if enough is left of it."""
        watched = self._watched.get(job)
        if watched is None or watched.looking or watched.move is not None or time.monotonic() < watched.not_before:
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

    # --- what happens -----------------------------------------------------------------------------------------------

    def _begins(self, job: JobId) -> None:
        """A task of a job has started: the first of an attempt tells when that began. What it waited for room before is
        no cost of a start."""
        starts, attempt = self._starts.setdefault(job, _Starts()), self._live_runs.find(job)[1].attempt
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
            watched.move = None  # the attempt is ending: what it saves now is no answer

    def _watch(self, job: JobId) -> None:
        """Begin to watch a job, where it may ever be moved."""
        run, live = self._live_runs.find(job)
        if live.profile is None or live.current is None or job in self._watched:
            return
        spec, profile = live.spec, store.parse(json.loads(live.profile))
        self._watched[job] = None
        if spec.plan is not None or spec.moves == 0 or run.submission.mode != "run" or not tells(profile):
            return
        if scripts.other_cluster(spec, {**run.submission.environment, **spec.env}):  # said when it was planned
            return
        with suppress(HeadgateError):  # a node has just gone
            if has_choice(self._nodes.cluster(run.submission), spec):
                self._watched[job] = _ReplannedJob(profile)

    async def _look(self, job: JobId, watched: _ReplannedJob, seconds_left: float) -> None:
        """See whether another plan is worth it."""
        run, live = self._live_runs.find(job)
        attempt, effort = live.attempt, 0.0
        try:
            if live.current is None or (lowest := live.current.lowest) is None:
                return
            if not live.current.is_connected(lowest):
                return
            standing = self._standing(job, watched, live, live.current.plan, seconds_left)
            if standing is None or not standing.could_pay:
                return
            cluster = self._nodes.cluster(run.submission)
            if run.submission.cluster:
                cluster = calibrated(run.submission.cluster, cluster, self._machine, self._home)
            used = self._choosing.used(cluster, job)
            move, effort = await asyncio.to_thread(self._better, live.spec, watched, standing, cluster, used)
            if move is None or live.attempt != attempt or live.state != "running":
                return
            watched.move = move
            self._engines.of(job.run).send(job.task(lowest), {"type": "checkpoint"})
        except (HeadgateError, ValueError, ArithmeticError, KeyError):
            return  # a node has gone, the run has ended, or nothing can be said: the job goes on as it is
        finally:
            watched.looking = False
            watched.not_before = time.monotonic() + _EFFORT * effort

    def _standing(
        self, job: JobId, watched: _ReplannedJob, live: LiveJob, plan: Plan, seconds_left: float
    ) -> Standing | None:
        """How a job stands; None: nobody knows yet."""
        seconds, samples = self._forecasting.step_seconds(job, FEWEST_STEPS), samples_of(plan, watched.profile)
        restart = self._starts[job].cost
        if seconds is None or samples is None or restart is None:
            return None
        rate = watched.measured[plan] = samples / seconds
        return Standing(plan, rate, seconds_left, restart, live.spec.moves - watched.moves)

    def _better(
        self, spec: Job, watched: _ReplannedJob, standing: Standing, cluster: Cluster, used: Collection[str]
    ) -> tuple[Move | None, float]:
        """The move that is worth it, and the CPU seconds that it took to know; in a thread of its own."""
        from headgate.planning.correcting import Corrected  # its numerics take half a second to import

        began = time.thread_time()
        corrected = Corrected(
            spec, cluster, watched.profile, list(watched.measured.items()), used=used, measured_on=self._machine
        )
        [best] = corrected.ranked(1)
        move = better(standing, best) if best.plan != corrected.like(standing.plan) else None
        return move, time.thread_time() - began

    def _saved(self, job: JobId) -> None:
        watched = self._watched.get(job)
        if watched is None or watched.move is None:
            return
        move, watched.move = watched.move, None
        run, live = self._live_runs.find(job)
        if live.state in ENDED:
            return
        watched.moves += 1
        self._live_runs.event(run, "plan", move.why, live.spec.name)
        self._step(MoveRequested(job, move.plan, "moved to a better plan"))
