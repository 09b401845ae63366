"""Watches the step times of jobs whose plans Headgate chose, and has those moved that a better plan is worth it for."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headgate.analysis.forecast import Outlook, Question, answer
from headgate.cluster import Cluster, Node
from headgate.engines import scripts
from headgate.errors import HeadgateError
from headgate.events import (
    ENDED,
    Action,
    CheckpointDone,
    Event,
    JobId,
    MoveRequested,
    Progress,
    TaskExited,
    TaskStarted,
)
from headgate.hub.choosing import Choosing
from headgate.hub.component import Component
from headgate.hub.engines import Engines
from headgate.hub.job import LiveJob
from headgate.hub.live_runs import LiveRuns
from headgate.hub.nodes import Nodes
from headgate.hub.run import LiveRun
from headgate.jobs import Job
from headgate.planning.candidates import tells
from headgate.planning.choosing import has_choice
from headgate.planning.moving import Move, Standing, better
from headgate.plans import Plan
from headgate.profiles import Profile
from headgate.profiling import store
from headgate.profiling.calibration import calibrated
from headgate.profiling.history import samples_of, step_seconds

_REPORTS = 256  # of the latest steps that tell how long one takes
_EFFORT = 30.0  # seconds between two looks for each CPU second that the last one took


@dataclass(slots=True)
class _ReplannedJob:
    """What is known of a job.

    Args:
        profile: Of the job as a whole.
        outlook: What is left of it.
        began: When its attempt began, with the last report of the former one; None: it has reported since.
        seen: When it reported last.
        restart_seconds: What its latest start cost.
        reports: When it was at which step, of this attempt.
        measured: Samples a second of the plans that it ran by.
        moves: How often it was moved.
        move: What is to be done once it has saved a checkpoint.
        not_before: When it may be looked at again.
    """

    profile: Profile
    outlook: Outlook
    attempt: int = 0
    began: float | None = None
    seen: float | None = None
    restart_seconds: float | None = None
    reports: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_REPORTS))
    measured: dict[Plan, float] = field(default_factory=dict)
    moves: int = 0
    move: Move | None = None
    looking: bool = False
    not_before: float = 0.0


class Replanning(Component):
    """Hears what jobs report. Where another plan saves more than it costs, it has the job save a checkpoint and, once
    that is there, go on from it by the other plan.

    Args:
        home: Headgate's folder.
        live_runs: Where the runs are.
        nodes: Where tasks can go.
        engines: What brings an order to a task.
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
        choosing: Choosing,
        machine: Node,
        step: Callable[[Event], None],
    ) -> None:
        self._home = home
        self._live_runs = live_runs
        self._nodes = nodes
        self._engines = engines
        self._choosing = choosing
        self._machine = machine
        self._step = step
        self._watched: dict[JobId, _ReplannedJob] = {}
        self._started: dict[JobId, float] = {}  # of jobs that have not reported yet
        self._start_cost: dict[JobId, float] = {}  # of those that have
        self._settled: set[JobId] = set()  # of which is known whether they are watched
        self._work: set[asyncio.Task[None]] = set()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case TaskStarted(task):
                self._begins(task.rsplit("/", 1)[0])
            case Progress(task):
                self._reported(task.rsplit("/", 1)[0], event)
            case CheckpointDone(task):
                self._saved(task.rsplit("/", 1)[0])
            case TaskExited(task):
                job = task.rsplit("/", 1)[0]
                if (watched := self._watched.get(job)) is not None:
                    watched.move = None  # the attempt is ending: what it saves now is no answer

    def forget(self, run: str) -> None:
        for kept in (self._watched, self._started, self._start_cost):
            for job in [job for job in kept if job.split("/")[0] == run]:
                del kept[job]
        self._settled = {job for job in self._settled if job.split("/")[0] != run}

    def close(self) -> None:
        for task in self._work:
            task.cancel()

    # --- what happens -----------------------------------------------------------------------------------------------

    def _begins(self, job: JobId) -> None:
        """A task of a job has started: the first of an attempt tells when that began."""
        _, live = self._live_runs.find(job)
        watched = self._watched.get(job)
        if watched is None:
            if job not in self._start_cost:
                self._started.setdefault(job, time.monotonic())
        elif watched.attempt != live.attempt:
            watched.attempt, watched.began = live.attempt, watched.seen or time.monotonic()
            watched.reports.clear()

    def _reported(self, job: JobId, told: Progress) -> None:
        run, live = self._live_runs.find(job)
        if (started := self._started.pop(job, None)) is not None:
            self._start_cost[job] = time.monotonic() - started
        watched = self._watched.get(job) or self._watch(job, run, live)
        value = live.spec.progress.of(told.loss, told.metrics)
        if watched is None or told.step is None or value is None or live.state != "running":
            return
        now = time.monotonic()
        if watched.began is not None:
            watched.restart_seconds, watched.began = now - watched.began, None
        watched.seen = now
        watched.reports.append((now, told.step))
        watched.outlook.stopping = live.spec.progress.stopping
        watched.outlook.used(now, 1.0)  # what is left is counted in seconds, not in core-seconds
        question = watched.outlook.reported(
            now,
            value,
            step=told.step,
            epoch=told.epoch,
            epochs=told.epochs,
            count=told.count,
            within=told.within,
            steps=told.steps,
        )
        may = live.spec.plan is None and watched.moves < live.spec.moves and watched.move is None
        if question is not None and may and not watched.looking and now >= watched.not_before:
            watched.looking = True
            task = asyncio.get_running_loop().create_task(self._look(job, watched, question))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    def _watch(self, job: JobId, run: LiveRun, live: LiveJob) -> _ReplannedJob | None:
        """Begin to watch a job, where it may ever be moved."""
        if live.profile is None or live.current is None or job in self._settled:
            return None
        spec, profile = live.spec, store.parse(json.loads(live.profile))
        self._settled.add(job)
        if spec.plan is not None or spec.moves == 0 or run.submission.mode != "run" or not tells(profile):
            return None
        if scripts.other_cluster(spec, {**run.submission.environment, **spec.env}):  # said when it was planned
            return None
        try:
            if not has_choice(self._nodes.cluster(run.submission), spec):
                return None
        except HeadgateError:  # a node has just gone
            return None
        outlook = Outlook(time.monotonic(), goal=spec.progress.goal, rising=spec.progress.rising)
        watched = _ReplannedJob(profile, outlook, live.attempt, restart_seconds=self._start_cost.get(job))
        self._watched[job] = watched
        return watched

    async def _look(self, job: JobId, watched: _ReplannedJob, question: Question) -> None:
        """See whether another plan is worth it."""
        run, live = self._live_runs.find(job)
        attempt, effort = live.attempt, 0.0
        try:
            if live.current is None or (lowest := live.current.lowest) is None:
                return
            if not live.current.is_connected(lowest):
                return
            cluster = self._nodes.cluster(run.submission)
            if run.submission.cluster:
                cluster = calibrated(run.submission.cluster, cluster, self._machine, self._home)
            used = self._choosing.used(cluster, job)
            plan = live.current.plan
            move, effort = await asyncio.to_thread(self._better, live.spec, watched, question, plan, cluster, used)
            if move is None or live.attempt != attempt or live.state != "running":
                return
            watched.move = move
            self._engines.of(job).send(f"{job}/{lowest}", {"type": "checkpoint"})
        except (HeadgateError, ValueError, ArithmeticError, KeyError):
            return  # a node has gone, the run has ended, or nothing can be said: the job goes on as it is
        finally:
            watched.looking = False
            watched.not_before = time.monotonic() + _EFFORT * effort

    def _better(
        self, spec: Job, watched: _ReplannedJob, question: Question, plan: Plan, cluster: Cluster, used: Collection[str]
    ) -> tuple[Move | None, float]:
        """The move that is worth it, and the CPU seconds that it took to know; in a thread of its own."""
        from headgate.planning.correcting import Corrected  # its numerics take half a second to import

        began = time.thread_time()
        left, seconds = answer(question), step_seconds(list(watched.reports))
        samples = samples_of(plan, watched.profile)
        if left is None or seconds is None or samples is None or watched.restart_seconds is None:
            return None, 0.0
        rate = watched.measured[plan] = samples / seconds
        moves_left = spec.moves - watched.moves
        standing = Standing(plan, rate, left.work, watched.restart_seconds, moves_left)
        if not standing.could_pay:
            return None, 0.0
        corrected = Corrected(
            spec, cluster, watched.profile, list(watched.measured.items()), used=used, measured_on=self._machine
        )
        [best] = corrected.ranked(1)
        move = better(standing, best) if best.plan != corrected.like(plan) else None
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
