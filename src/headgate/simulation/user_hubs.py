"""One simulated machine and its users: a hub's controller for each, with the arbiter or without."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf

from headgate.arbiter import asking
from headgate.arbiter.core import Arbiter
from headgate.arbiter.events import ArbiterAction, JobTakenBack, MachineUsed, UserUsed
from headgate.arbiter.records import Hub, ResourceGrant, Resumes, Span, UserPart
from headgate.controller.core import live_controller
from headgate.controller.records import JobRecord
from headgate.forecast.job_tracker import JobTracker
from headgate.model.actions import Action, StartTask
from headgate.model.cluster import Node
from headgate.model.events import (
    Event,
    GpuMemoryUsed,
    JobPlanned,
    JobSubmitted,
    MachineShared,
    NodeJoined,
    Predicted,
    TaskExited,
    Usage,
    Wake,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.progress import Progress
from headgate.model.shares import WEIGHT_DEFAULT
from headgate.model.sharing import SharingRules
from headgate.policies import make
from headgate.simulation.traces import Trace, TraceJob

_REPEAT_SECONDS = 5.0
"""A hub states again what is left of its jobs after this time."""
_LEAST_CORES = 0.1
_LITTLE_BYTES = 1
"""Memory of a job where the trace does not tell it."""
_OF_JOBS = (JobSubmitted, JobPlanned, Predicted)


class Division(StrEnum):
    """How users share a machine."""

    ARBITER = "arbiter"
    TOGETHER = "together"
    """The arbiter, with `users: together`."""
    TAKING_BACK = "taking-back"
    """The arbiter, with `take_back: shares`."""
    NONE = "none"
    """Each hub takes the whole machine for its own, and the kernel divides it."""
    SLICES = "slices"
    """Each user has an equal part, and nobody uses what another leaves."""


@dataclass(frozen=True, slots=True)
class UserSharing:
    """How the users of a simulated machine share it.

    Args:
        division: How.
        rules: The administrator's rules, for the arbiter.
    """

    division: Division
    rules: SharingRules = field(default_factory=SharingRules)


def users_of(trace: Trace) -> list[str]:
    """The users of a trace, sorted."""
    return sorted({job.user for job in trace.jobs})


def slices(node: Node, users: Sequence[str]) -> dict[str, Node]:
    """An equal part of a machine for each user. Where GPUs are fewer than users, several users
    have the same one.
    """
    count, gpus = len(users), len(node.gpus)
    parts = {}
    for place, user in enumerate(users):
        begin = place * gpus // count
        end = max((place + 1) * gpus // count, begin + 1)
        parts[user] = replace(
            node,
            cores=node.cores / count,
            memory_bytes=node.memory_bytes // count,
            gpus=node.gpus[begin:end],
        )
    return parts


def stated(trace: Trace, node: Node, division: Division) -> Trace:
    """The jobs as their hubs have them: each GPU whole. A job that asks for more than a slice has
    of GPUs takes those of the slice, and as much longer.
    """
    parts = slices(node, users_of(trace)) if division is Division.SLICES else {}

    def as_stated(job: TraceJob) -> TraceJob:
        part = parts.get(job.user, node)
        gpus = min(job.gpus, len(part.gpus))
        memory = min(job.memory_bytes or _LITTLE_BYTES, part.memory_bytes)
        if not job.gpus:
            return replace(job, memory_bytes=memory)
        most = max(gpu.memory_bytes for gpu in node.gpus)
        return replace(
            job,
            gpus=gpus,
            seconds=job.seconds * job.gpus / gpus,
            memory_bytes=memory,
            gpu_memory_bytes=job.gpu_memory_bytes or most,
        )

    return replace(trace, jobs=tuple(map(as_stated, trace.jobs)))


class UserHubs:
    """The controllers of users, driven as one.

    Args:
        node: The machine.
        users: Its users.
        policy: Name of each user's policy.
        sharing: How they share it.
        job: A job by its id.
        cores: Cores that a job can put to good use.
        left: Seconds that a job takes or has left.
        divide: Takes a user's CPU weight and most cores.
        used: Cores that each user's jobs use now.
    """

    def __init__(
        self,
        node: Node,
        users: Sequence[str],
        policy: str,
        sharing: UserSharing,
        *,
        job: Callable[[JobId], TraceJob],
        cores: Callable[[JobRecord], float],
        left: Callable[[JobId], Span | None],
        divide: Callable[[str, float, float], None],
        used: Callable[[], dict[str, float]],
    ) -> None:
        self._job, self._cores, self._left, self._divide = job, cores, left, divide
        self._used = used
        self._nodes = dict.fromkeys(users, node)
        self._hubs = {name: live_controller(make(policy)) for name in users}
        self._wakes: dict[str, float | None] = {}
        self._users: dict[str, str] = {}  # of runs
        self._stated: dict[str, tuple[object, ...]] = {}
        self._stated_at: dict[str, float] = {}
        self._on_gpus: dict[str, dict[TaskId, dict[int, float]]] = {name: {} for name in users}
        self._sees = sharing.division is Division.NONE
        self._arbiter: Arbiter | None = None
        most = inf
        match sharing.division:
            case Division.ARBITER:
                self._arbiter = Arbiter(node, sharing.rules)
            case Division.TOGETHER:
                self._arbiter = Arbiter(node, replace(sharing.rules, users="together"))
            case Division.TAKING_BACK:
                self._arbiter = Arbiter(node, replace(sharing.rules, take_back="shares"))
            case Division.SLICES:
                self._nodes, most = slices(node, users), node.cores / len(users)
        for name in users:
            divide(name, WEIGHT_DEFAULT, most)

    def step(self, now: float, event: Event) -> tuple[list[Action], float | None]:
        """Have the hubs that an event concerns react to it, and the arbiter to what they state."""
        actions: list[Action] = []
        match event:
            case NodeJoined(node):
                for name in self._hubs:
                    actions += self._tell(now, name, NodeJoined(self._nodes[name]))
                    if self._arbiter is not None:
                        actions += self._tell(now, name, MachineShared(True, node.name))
                concerned = []
            case Wake():
                concerned = [
                    name for name, at in self._wakes.items() if at is not None and at <= now
                ]
                for name in concerned:
                    actions += self._tell(now, name, event)
            case _:
                name = self._user_of(event)
                concerned = [name]
                actions += self._tell(now, name, event)
        if self._arbiter is not None:
            if isinstance(event, Wake):
                used = {name: UserUsed(cores) for name, cores in self._used().items()}
                free = float(self._arbiter.room.node.memory_bytes)
                reading = MachineUsed(free, 0.0, {}, users=used)
                actions += self._hear(now, self._arbiter.step(now, reading))
            is_report = isinstance(event, Usage | Progress | Predicted)
            actions += self._state(now, concerned, is_report)
        if self._sees:
            actions += self._see(now, event, actions)
        times = [at for at in self._wakes.values() if at is not None]
        if self._arbiter is not None and self._arbiter.wake_at is not None:
            times.append(self._arbiter.wake_at)
        return actions, min(times, default=None)

    def tracker(self, job: JobId) -> JobTracker | None:
        """The tracker of a job: `Controller.tracker`."""
        return self._hubs[self._users[job.run]].tracker(job)

    def forget(self, run: str) -> None:
        """Drop the jobs of an ended run."""
        self._hubs[self._users.pop(run)].forget(run)

    def _user_of(self, event: Event) -> str:
        job = event.job if isinstance(event, _OF_JOBS) else TaskId(event.task).job  # type: ignore[union-attr]
        if job.run not in self._users:
            self._users[job.run] = self._job(job).user
        return self._users[job.run]

    def _tell(self, now: float, user: str, event: Event) -> list[Action]:
        actions, self._wakes[user] = self._hubs[user].step(now, event)
        return actions

    def _see(self, now: float, event: Event, actions: Iterable[Action]) -> list[Action]:
        """Each hub sees the GPU memory in use, as a live one reads it."""
        has_other = self._holds(actions)
        if isinstance(event, TaskExited):
            has_other = self._on_gpus[self._user_of(event)].pop(event.task, None) is not None
        more: list[Action] = []
        name = next(iter(self._nodes.values())).name
        while has_other:
            used = Counter[int]()
            for held in self._on_gpus.values():
                for sizes in held.values():
                    used.update(sizes)
            has_other = False
            for user, held in self._on_gpus.items():
                whole = {gpu.index: float(used[gpu.index]) for gpu in self._nodes[user].gpus}
                began = self._tell(now, user, GpuMemoryUsed(name, whole, dict(held)))
                more += began
                if self._holds(began):
                    has_other = True
                    break
        return more

    def _holds(self, actions: Iterable[Action]) -> bool:
        """Record the GPU memory of tasks that start. Returns whether any did."""
        starts = [action for action in actions if isinstance(action, StartTask) and action.gpus]
        for start in starts:
            job = self._job(start.job)
            sizes = dict.fromkeys(start.gpus or (), float(job.gpu_memory_bytes or 0))
            self._on_gpus[job.user][start.task] = sizes
        return bool(starts)

    def _state(self, now: float, users: Iterable[str], is_report: bool) -> list[Action]:
        """Hubs state their jobs, if that is news or was long ago, until no more is granted."""
        actions: list[Action] = []
        waiting = deque(users)
        while waiting and self._arbiter is not None:
            user = waiting.popleft()
            is_due = now >= self._stated_at.get(user, -inf) + _REPEAT_SECONDS
            if is_report and not is_due:
                continue
            demand = asking.demand(
                Hub(user), self._hubs[user], self._cores, self._left, lambda _: Resumes.FROM_NOW
            )
            news = tuple(
                tuple(job.needs for job in jobs) for jobs in (demand.waiting, demand.running)
            )
            if news != self._stated.get(user) or is_due:
                self._stated[user], self._stated_at[user] = news, now
                answers = self._arbiter.step(now, demand)
                actions += self._hear(now, answers)
                waiting += {
                    answer.job.hub.user: None
                    for answer in answers
                    if isinstance(answer, ResourceGrant)
                }
        return actions

    def _hear(self, now: float, answers: Iterable[ArbiterAction]) -> list[Action]:
        actions: list[Action] = []
        for answer in answers:
            match answer:
                case ResourceGrant(job):
                    actions += self._tell(now, job.hub.user, asking.granted(answer))
                case JobTakenBack(job, act):
                    actions += self._tell(now, job.hub.user, asking.given_back(act))
                case UserPart(user, cores, weight, most):
                    self._divide(user, weight, inf if most is None else most)
                    node, whole = self._nodes[user], self._arbiter
                    cores = max(round(cores, 1), _LEAST_CORES)
                    cores = min(cores, whole.room.node.cores) if whole is not None else cores
                    if cores != node.cores:
                        self._nodes[user] = replace(node, cores=cores)
                        actions += self._tell(now, user, NodeJoined(self._nodes[user]))
        return actions
