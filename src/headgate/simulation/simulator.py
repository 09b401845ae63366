"""The simulation loop: a simulated clock around the live controller."""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from math import exp, inf

from headgate.arbiter.records import Span
from headgate.controller.core import Controller
from headgate.controller.pairing import Pairing
from headgate.controller.queue_orders import FifoOrder
from headgate.controller.queueing import Queue
from headgate.forecast.remaining import answer
from headgate.model.actions import (
    Action,
    MarkIdle,
    MarkJob,
    PlanJob,
    SetShare,
    StartTask,
    StopTask,
    Warn,
)
from headgate.model.cluster import Cluster
from headgate.model.endings import Exit
from headgate.model.errors import UsageError
from headgate.model.events import (
    Event,
    GpusUsed,
    JobPlanned,
    JobSubmitted,
    NodeJoined,
    Predicted,
    TaskExited,
    Usage,
    Wake,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.job_states import ENDED
from headgate.model.plans import Plan
from headgate.model.reason_text import in_words
from headgate.policies import NoPolicy
from headgate.simulation import named_policies
from headgate.simulation.engine import SimulatedEngine, Work, drops_ahead, ends_at, halt
from headgate.simulation.job_reports import JobReports
from headgate.simulation.modelled import Modelled
from headgate.simulation.named_policies import NamedPolicy
from headgate.simulation.outcomes import LONGEST, Assumptions, JobOutcome, Outcome
from headgate.simulation.specs import Specs, against
from headgate.simulation.traces import Trace, TraceJob
from headgate.simulation.user_hubs import UserHubs, UserSharing, stated, users_of

_NINE_OF_TEN = 1.645
"""Standard deviations on each side of the mean for a 90 % band."""
_ROUNDS = 10.0
"""Most rounds of a policy between two reports of a job."""
_ONLY_SIMULATED = (
    "this order is only simulated: live, no job is stopped for another that waits for whole GPUs. "
    "Live jobs share the GPUs of a machine, as with --share-gpus; on a cluster they wait in "
    "the order of arrival"
)
_DONE = Exit(code=0, cpu_seconds=0.0)
_STOPPED = Exit(code=None, signal=15)


def simulate(
    trace: Trace,
    cluster: Cluster,
    policy: str,
    assumptions: Assumptions | None = None,
    watcher: Callable[[int, float], None] | None = None,
    sharing: UserSharing | None = None,
) -> Outcome:
    """Run the jobs of a trace under a policy.

    Args:
        trace: The jobs.
        cluster: The nodes.
        policy: Name of a policy, or of a queue order (`fifo`).
        assumptions: Assumptions where the trace says nothing; default: `Assumptions()`.
        watcher: Called repeatedly with the number of ended jobs and the time on the trace's clock
            (s).
        sharing: How the users of the trace share its one node, each with a hub and the policy;
            None: one hub has all jobs.

    Raises:
        UsageError: No such policy exists, or the cluster cannot hold a job.
    """
    began = time.perf_counter()
    simulation = _Simulation(trace, cluster, policy, assumptions or Assumptions(), sharing)
    with _uncollected():
        simulation.run(watcher or (lambda ended, now: None))
    outcome = simulation.outcome
    outcome.wall_seconds = time.perf_counter() - began
    return outcome


@contextmanager
def _uncollected() -> Iterator[None]:
    """Turn off garbage collection: ended jobs are in no cycles, and collection would cost 10 to 20
    % of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# Simultaneous events happen in this order.
_END, _EXIT, _ARRIVAL, _FIRST_REPORT, _REPORT = range(5)


class _Simulation:
    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        policy: str,
        assumptions: Assumptions,
        sharing: UserSharing | None = None,
    ) -> None:
        if sharing is not None:  # hubs have the GPUs that their jobs state, as live ones
            trace = stated(trace, cluster.nodes[0], sharing.division)
            assumptions = replace(assumptions, share_gpus=True)
        self._given = assumptions
        self._report_seconds = (
            trace.report_seconds
            if assumptions.report_seconds is None
            else assumptions.report_seconds
        )
        self._nodes = {node.name: node for node in cluster.nodes}
        self._specs = Specs([len(node.gpus) for node in cluster.nodes])
        profiled = any(job.profile for job in trace.jobs)
        modelled = (
            Modelled(cluster, assumptions.profiles, assumptions.measured_on) if profiled else None
        )
        self._engine = SimulatedEngine(
            cluster.nodes, assumptions.speeds, assumptions.interference, modelled
        )
        self._works: dict[JobId, Work] = {}
        self._reports: dict[JobId, JobReports] = {}
        self._outcomes: dict[JobId, JobOutcome] = {}
        self._random = random.Random(assumptions.seed)
        self._off: dict[JobId, float] = {}
        self._arrivals = iter(trace.jobs)
        self._now = 0.0
        self._wake_at: float | None = None
        self._coming: list[tuple[float, int, int, Callable[[], None]]] = []
        self._count = self._ended = 0
        self._on_gpus = trace.on_gpus
        # jobs have whole GPUs exclusively
        self._holds = trace.on_gpus and not assumptions.share_gpus
        shared = assumptions.share_gpus or not all(job.gpus for job in trace.jobs)
        chosen = named_policies.choose(policy, self._remaining, shared=shared)
        self._listens = chosen.listens and self._report_seconds > 0
        self._predicts = self._listens and chosen.predicts
        self._queue = self._queued(trace, chosen) if sharing is None else None
        self._controller: Controller | UserHubs
        if sharing is None:
            self._controller = Controller(chosen.policy, self._queue, tracks=self._predicts)
        else:
            self._controller = UserHubs(
                cluster.nodes[0],
                users_of(trace),
                policy,
                sharing,
                job=lambda id: self._works[id].job,
                cores=lambda job: self._useful(self._works[job.id]),
                left=self._left,
                divide=self._engine.divide,
                used=self._engine.used_by,
            )
        gpus, cores = (
            float(sum(column))
            for column in zip(*((len(node.gpus), node.cores) for node in cluster.nodes))
        )
        capacity = gpus if self._on_gpus else cores
        order = self._queue.order.name if self._queue is not None else ""
        as_live = self._queue is None or not self._queue.order.preempts
        warnings = [note for note in (chosen.note, "" if as_live else _ONLY_SIMULATED) if note]
        self.outcome = Outcome(
            policy, order, as_live, [], [(0.0, 0.0)], capacity, cores, 0, 0.0, warnings, modelled
        )
        self._check(trace)

    def _queued(self, trace: Trace, chosen: NamedPolicy) -> Queue | None:
        """The queue: for whole GPUs, by the order. If jobs share GPUs, for memory, by arrival as in
        a live hub.
        """
        if self._holds:
            return Queue(chosen.order)
        if any(job.memory_bytes or job.gpu_memory_bytes for job in trace.jobs):
            by_turns = not isinstance(chosen.policy, NoPolicy)
            pairing = Pairing(
                lambda: self._given.interference,
                lambda job: self._works[job.id].job.model,
                by_turns,
            )
            return Queue(FifoOrder(), gpus_are_shared=True, pairing=pairing)
        return None

    def _check(self, trace: Trace) -> None:
        """Check that each job could run alone.

        Raises:
            UsageError: A job could not.
        """
        memory = max(node.memory_bytes for node in self._nodes.values())
        on_gpu = max(
            (gpu.memory_bytes for node in self._nodes.values() for gpu in node.gpus), default=0
        )
        for job in trace.jobs:
            if (reason := against(job, self._specs)) is not None:
                raise UsageError(reason)
            if job.profile and job.profile not in self._given.profiles:
                raise UsageError(
                    f"job {job.name!r} names the profile {job.profile!r}, which is not given"
                )
            if self._holds and job.memory_bytes is not None and job.memory_bytes > memory:
                raise UsageError(
                    f"job {job.name!r} asks for more memory than any node of the cluster has"
                )
            if job.gpus and (job.gpu_memory_bytes or 0) > on_gpu:
                raise UsageError(
                    f"job {job.name!r} needs more GPU memory than any GPU of the cluster has"
                )

    def run(self, watcher: Callable[[int, float], None]) -> None:
        """Run until no events are left."""
        rounds_apart, woken = self._report_seconds / _ROUNDS, -inf
        for node in self._nodes.values():
            self._step(NodeJoined(node))
        self._await_next()
        while self._coming:
            when, _, _, happen = self._coming[0]
            watcher(self._ended, self._now)
            if self._wake_at is not None and (wake_at := self._wakes(woken + rounds_apart)) < when:
                self._now, self._wake_at = max(self._now, wake_at), None
                woken = self._now
                self._step(Wake())
                continue
            heappop(self._coming)
            self._now = when
            happen()

    def _wakes(self, soonest: float) -> float:
        """When to wake the controller: for a policy not before `soonest`, for its queue when it
        asked.
        """
        asked = self._wake_at if self._wake_at is not None else inf
        queue = self._queue.wake_at if self._queue is not None else None
        return min(max(asked, soonest), queue if queue is not None else inf)

    def _at(self, when: float, kind: int, happen: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._coming, (when, kind, self._count, happen))

    # --- events -----------------------------------------------------------------------------------

    def _await_next(self) -> None:
        job = next(self._arrivals, None)
        if job is not None:
            self._at(job.submitted, _ARRIVAL, partial(self._arrive, job))

    def _arrive(self, job: TraceJob) -> None:
        # each job is a run of its own, so that it can be forgotten after its end
        id = JobId.of(job.name, "job")
        own = job.startup_core_seconds
        startup = own if own is not None else self._given.startup_core_seconds
        self._outcomes[id] = outcome = JobOutcome(job, startup)
        self.outcome.jobs.append(outcome)
        if self._given.prediction_error > 0:
            self._off[id] = exp(self._random.gauss(0.0, self._given.prediction_error))
        work = self._works[id] = Work(
            id, job, self._specs.divided(job)[0], job.seconds, starting=startup > 0
        )
        work.left += startup / work.most
        self._step(JobSubmitted(id, self._specs.spec(job)[0]))
        self._await_next()

    def _end(self, work: Work, version: int) -> None:
        if work.version != version:
            return
        if work.starting:
            self._engine.begin(work, self._now)
            self._compute(work)
            self._settle()  # predictions depend on its cores
            self._predict(work)
            return
        halt(work, self._now)
        for task in list(work.tasks):
            self._exit(task, _DONE)

    def _compute(self, work: Work) -> None:
        """A job starts to use GPUs that it may share."""
        if work.job.gpus and self._given.share_gpus:
            for task in list(work.tasks.values()):
                self._step(GpusUsed(task.id, task.gpus))

    def _exit(self, task: TaskId, exit: Exit) -> None:
        self._engine.end(task)
        self._step(TaskExited(task, exit))

    def _first_report(self, work: Work, start: int) -> None:
        self._predict(work)
        self._report_next(work, start)

    def _report_next(self, work: Work, start: int) -> None:
        """Schedule the next report. All jobs report at the same times, as a live hub reads them."""
        # it may be slightly before a report time
        number = int(self._now / self._report_seconds + 0.01) + 1
        self._at(number * self._report_seconds, _REPORT, partial(self._report, work, start))

    def _report(self, work: Work, start: int) -> None:
        outcome = self._outcomes[work.id]
        if not work.tasks or outcome.starts != start:
            return
        self._report_next(work, start)
        watched, tasks = self._reports[work.id], list(work.tasks.values())
        seconds = self._now - tasks[0].told
        used = [task.used(self._now) for task in tasks]
        watched.used(self._now, sum(used))
        for task, cores in zip(tasks, used, strict=True):
            memory, pace = float(work.job.memory_bytes or 0), task.pace(cores)
            self._step(Usage(task.id, cores, memory, seconds=seconds, pace=pace))
        progress = watched.told(self._now)
        if progress is not None:
            self._step(progress)
        self._predict(work)

    def _predict(self, work: Work) -> None:
        if not self._predicts or not self._shares(work.job) or not work.tasks or work.starting:
            return
        watched = self._reports[work.id]
        left = self._fitted(work) if work.job.foretold else self._known(work)
        if left is not None:
            cores, follows = watched.useful(), work.job.threads_follow
            self._step(replace(left, cores=cores, follows=follows))

    def _fitted(self, work: Work) -> Predicted | None:
        """Remaining work predicted from a job's reports, as in a live hub; None: nothing new."""
        tracker = self._controller.tracker(work.id)
        if tracker is None or len(self._works) < 2:
            return None
        question = tracker.due()
        return answer(work.id, question) if question is not None else None

    def _known(self, work: Work) -> Predicted | None:
        """Known remaining work with the assumed prediction error; None: the job has not reported
        yet.
        """
        job, cost = work.job, self._cost(work)
        left, done = work.remaining(self._now) * cost, work.fraction(self._now)
        if job.losses and done < job.losses[0][0]:
            return None
        likely, spread = (
            left * self._off.get(work.id, 1.0),
            exp(_NINE_OF_TEN * self._given.prediction_error),
        )
        final = job.losses[-1][1] if job.losses else None
        return Predicted(
            work.id,
            likely,
            likely / spread,
            likely * spread,
            final,
            drops_ahead(job.losses, done, job.seconds * cost),
        )

    # --- actions of the controller ----------------------------------------------------------------

    def _step(self, event: Event) -> None:
        events: deque[Event] = deque((event,))
        ended: list[JobId] = []
        while events:
            self.outcome.events += 1
            actions, self._wake_at = self._controller.step(self._now, events.popleft())
            for action in actions:
                self._act(action, events, ended)
        self._settle()
        for id in ended:
            self._controller.forget(id.run)

    def _settle(self) -> None:
        for work in self._engine.settle(self._now):
            if work.speed > 0:
                self._at(ends_at(work), _END, partial(self._end, work, work.version))
        busy = float(self._engine.gpus_held) if self._on_gpus else self._engine.cores_used
        if busy != self.outcome.busy[-1][1]:
            self.outcome.busy.append((self._now, busy))

    def _act(self, action: Action, events: deque[Event], ended: list[JobId]) -> None:
        match action:
            case MarkJob():
                outcome = self._outcomes[action.job]
                outcome.state = action.state
                if action.state in ENDED:
                    outcome.ended = self._now
                    self._ended += 1
                    del self._works[action.job]
                    self._reports.pop(action.job, None)
                    ended.append(action.job)
            case StartTask():
                work, outcome = self._works[action.job], self._outcomes[action.job]
                if not work.tasks:
                    self._begin(work, outcome)
                self._engine.start(action, work, self._now)
            case SetShare():
                self._engine.grant(action)
            case PlanJob():
                events.append(
                    JobPlanned(action.job, action.revision, self._planned(self._works[action.job]))
                )
            case StopTask():
                halt(self._works[action.task.job], self._now)
                self._at(self._now, _EXIT, partial(self._exit, action.task, _STOPPED))
            case MarkIdle():
                pass
            case Warn():
                self.outcome.warnings.append(in_words(action.reason))

    def _begin(self, work: Work, outcome: JobOutcome) -> None:
        """The first task of an attempt starts."""
        if outcome.started is None:
            outcome.started = self._now
        else:
            work.left, work.at = work.remaining(self._now) + self._given.restart_seconds, self._now
        outcome.starts += 1
        shares = self._shares(work.job)
        if shares and not work.starting and work.job.gpus:
            self._at(self._now, _FIRST_REPORT, partial(self._compute, work))
        if shares and self._listens:
            self._reports[work.id] = JobReports(work, self._now, self._predicts)
            self._at(self._now, _FIRST_REPORT, partial(self._first_report, work, outcome.starts))

    # --- input of the controller and its queue
    # ------------------------------------------------------

    def _shares(self, job: TraceJob) -> bool:
        """Whether a job shares its resources."""
        return not job.gpus or self._given.share_gpus

    @staticmethod
    def _cost(work: Work) -> float:
        """Core-seconds with its present cores for what a job does in a second alone. On GPUs each
        worker keeps one core busy.
        """
        if work.job.gpus:
            return float(work.needs)
        return (
            sum(task.cores for task in work.tasks.values()) / work.speed
            if work.speed > 0
            else work.job.cores
        )

    @staticmethod
    def _useful(work: Work) -> float:
        return float(work.needs) if work.job.gpus else work.job.cores

    def _left(self, id: JobId) -> Span | None:
        """Seconds that a job takes or has left, with the assumed error; with its present cores if
        it runs.
        """
        work = self._works[id]
        seconds = work.remaining(self._now) * self._off.get(id, 1.0) / (work.speed or 1.0)
        spread = exp(_NINE_OF_TEN * self._given.prediction_error)
        span = (min(part, LONGEST) for part in (seconds, seconds / spread, seconds * spread))
        return Span(*span)

    def _remaining(self, id: JobId, now: float) -> float:
        return self._works[id].remaining(now) * self._off.get(id, 1.0)

    def _planned(self, work: Work) -> Plan:
        job = work.job
        spec, plan = self._specs.spec(job)
        if not self._shares(job):
            return plan  # the queue finds its nodes when there is room
        return replace(
            plan, worker_nodes=self._engine.settle_on(work.id, job.model, plan.workers, spec.limits)
        )
