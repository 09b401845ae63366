"""A model of an engine: jobs progress as fast as their grants allow."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from headgate.model.actions import SetShare, StartTask
from headgate.model.cluster import Node
from headgate.model.events import StepPace
from headgate.model.identifiers import JobId, TaskId
from headgate.model.limits import Limits
from headgate.model.shares import WEIGHT_DEFAULT, Share, fill
from headgate.planning.interference import Interference
from headgate.planning.memory import misfit
from headgate.simulation.modelled import Curve, Modelled
from headgate.simulation.speeds import Speeds
from headgate.simulation.traces import TraceJob

_AHEAD = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Fractions of a job's remaining work at which its loss is predicted."""


@dataclass(slots=True, eq=False)
class RunningTask:
    """A task: its node, its grant, and the resulting speed.

    Args:
        threads: Its compute threads; it cannot use more cores.
        entitled: Cores that it gets if all tasks want theirs.
        at: Since when it has its present use.
        told: When its use was last read.
        cores: Its used cores; on GPUs those that feed them.
        speed: Work a second, relative to the job alone with all it requests.
        had: Core-seconds used from `told` to `at`.
    """

    id: TaskId
    work: Work
    node: str
    gpus: tuple[int, ...]
    share: Share
    threads: int
    entitled: float
    at: float
    told: float
    cores: float = 0.0
    speed: float = 0.0
    had: float = 0.0

    @property
    def most(self) -> float:
        """Cores that it can use now."""
        cap, most = self.share.cpu_cap_cores, self.work.most
        if not self.work.job.starves:
            most = min(most, self.threads)
        return min(cap, most) if isinstance(cap, int | float) else most

    def pace(self, cores: float) -> StepPace | None:
        """What its steps wait for with this many cores; None: no spans tell it."""
        if not self.work.job.starves or self.work.starting:
            return None
        most = self.work.most
        waiting = max(most, 1.0) - cores if cores < most else 0.0
        return StepPace(waiting, 0.0, max(1.0 - cores / most, 0.0))

    def use(self, now: float, cores: float) -> None:
        """Set its used cores from now on."""
        self.had += self.cores * (now - self.at)
        self.at, self.cores = now, cores

    def used(self, now: float) -> float:
        """Mean cores since the last call."""
        self.use(now, self.cores)
        mean = self.had / (now - self.told) if now > self.told else self.cores
        self.told, self.had = now, 0.0
        return mean


@dataclass(slots=True, eq=False)
class Work:
    """A live job.

    Args:
        left: Seconds that it would still take alone as of `at`, including its startup.
        speed: Speed of its slowest task; 0 until all of them run.
        version: Number of changes of its speed, so that ends predicted with another speed are
            recognized as stale.
        needs: Number of its tasks.
        starting: Whether it is in its startup, on one core.
        curve: Its speed on its tasks' nodes, if it has a profile.
    """

    id: JobId
    job: TraceJob
    needs: int
    left: float
    at: float = 0.0
    speed: float = 0.0
    version: int = 0
    starting: bool = False
    curve: Curve | None = None
    tasks: dict[TaskId, RunningTask] = field(default_factory=dict)

    @property
    def most(self) -> float:
        """Cores that each of its tasks can use now, if it has threads for them."""
        if self.job.gpus:
            return 1.0  # one core feeds its GPUs
        cores = self.job.cores / self.needs
        return min(cores, 1.0) if self.starting else cores

    def remaining(self, now: float) -> float:
        """Seconds that it would still take alone."""
        return max(self.left - (now - self.at) * self.speed, 0.0)

    def fraction(self, now: float) -> float:
        """The done fraction of its work; negative during startup, or while it makes up for a
        restart.
        """
        return 1.0 - self.remaining(now) / self.job.seconds


class SimulatedEngine:
    """Runs tasks without processes.

    A task with an exclusive GPU gets its full speed. Tasks that take turns get their granted
    fraction of time each. Tasks that run side by side get the measured speed of the pair, or equal
    time. Cores go by weight, within caps and the threads of each job; others use what one leaves. A
    job is as fast as its slowest task.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        speeds: Speeds,
        interference: Interference,
        modelled: Modelled | None = None,
    ) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._gpu_names = {
            (node.name, gpu.index): gpu.name.lower()
            for node in self._nodes.values()
            for gpu in node.gpus
        }
        self._speeds = speeds
        self._interference = interference
        self._modelled = modelled
        self._on_gpu: dict[tuple[str, int], dict[TaskId, RunningTask]] = {}
        self._on_cores: dict[str, dict[TaskId, RunningTask]] = {name: {} for name in self._nodes}
        self._tasks: dict[TaskId, RunningTask] = {}
        self._stale_nodes: dict[str, None] = {}
        self._stale_tasks: dict[TaskId, RunningTask] = {}
        self._count = Counter[str]()  # tasks on each node
        # model and nodes of jobs without a started task yet
        self._settled: dict[JobId, tuple[str, tuple[str, ...]]] = {}
        self.gpus_held = 0
        self.cores_used = 0.0
        self._users: dict[str, tuple[float, float]] = {}

    def divide(self, user: str, weight: float, most_cores: float) -> None:
        """Set a user's CPU weight, and the most cores of the user's tasks together."""
        self._users[user] = weight, most_cores
        self._stale_nodes.update(dict.fromkeys(self._nodes))

    def used_by(self) -> dict[str, float]:
        """Cores that the tasks of each user use."""
        used = dict.fromkeys(self._users, 0.0)
        for task in self._tasks.values():
            used[task.work.job.user] += task.cores
        return used

    def start(self, action: StartTask, work: Work, now: float) -> None:
        """Start a task."""
        gpus, threads, entitled = action.gpus or (), action.threads, action.entitled_cores
        task = RunningTask(
            action.task, work, action.node, gpus, action.share, threads, entitled, now, now
        )
        work.tasks[action.task] = self._tasks[action.task] = task
        self._count.subtract(self._settled.pop(work.id, ("", ()))[1])
        self._count[action.node] += 1
        if self._modelled is not None and work.job.profile and len(work.tasks) == work.needs:
            work.curve = self._modelled.curve(
                work.job, [simulated.node for simulated in work.tasks.values()]
            )
        if work.job.gpus:
            for gpu in gpus:
                beside = self._on_gpu.setdefault((action.node, gpu), {})
                beside[task.id] = task
                self._stale_tasks.update(beside)
                self.gpus_held += len(beside) == 1
        else:
            self._on_cores[action.node][task.id] = task
            self._stale_nodes[action.node] = None

    def grant(self, action: SetShare) -> None:
        """Change a task's share."""
        task = self._tasks.get(action.task)
        if task is None:
            return
        task.share, task.entitled = task.share.merged(action.share), action.entitled_cores
        if task.work.job.threads_follow:
            task.threads = action.threads
        if task.work.job.gpus:
            self._stale_tasks[task.id] = task
        else:
            self._stale_nodes[task.node] = None

    def begin(self, work: Work, now: float) -> None:
        """End the startup of a job."""
        halt(work, now)
        work.starting = False
        for task in work.tasks.values():
            if work.job.gpus:
                for gpu in task.gpus:
                    self._stale_tasks.update(self._on_gpu[task.node, gpu])
            else:
                self._stale_nodes[task.node] = None

    def end(self, id: TaskId) -> None:
        """End a task."""
        task = self._tasks.pop(id)
        del task.work.tasks[id]
        self._count[task.node] -= 1
        self._stale_tasks.pop(id, None)
        if task.work.job.gpus:
            for gpu in task.gpus:
                beside = self._on_gpu[task.node, gpu]
                del beside[id]
                self._stale_tasks.update(beside)
                self.gpus_held -= not beside
        else:
            self.cores_used -= task.cores
            del self._on_cores[task.node][id]
            self._stale_nodes[task.node] = None

    def settle_on(self, id: JobId, model: str, workers: int, limits: Limits) -> tuple[str, ...]:
        """Choose a node for each worker of a job that shares its resources, and may still wait.

        The node has the fewest present or planned tasks relative to its capacity, among nodes with
        the number and size of GPUs in the job's limits. If pairs slow each other, a task counts for
        more.
        """
        chosen, gpus = list[str](), limits.gpus or 0
        on_gpus = replace(limits, memory_bytes=None)  # the memory limit may exceed a node's memory
        for _ in range(workers):
            fitting = [node for node in self._nodes.values() if misfit(node, on_gpus) is None]
            crowd = {
                node.name: self._crowd(node, model, gpus > 0) + chosen.count(node.name)
                for node in fitting
            }
            sizes = {node.name: len(node.gpus) if gpus else node.cores for node in fitting}
            chosen.append(min(crowd, key=lambda name: crowd[name] / sizes[name]))
        self._settled[id] = model, tuple(chosen)
        self._count.update(chosen)
        return tuple(chosen)

    def _crowd(self, node: Node, model: str, on_gpus: bool) -> float:
        """How many tasks the present and planned tasks on a node count as for one more."""
        if not self._interference:
            return self._count[node.name]
        models = [task.work.job.model for task in self._tasks.values() if task.node == node.name]
        models += [
            soon for soon, nodes in self._settled.values() for name in nodes if name == node.name
        ]
        device = node.gpus[0].name.lower() if on_gpus else node.kind
        return self._interference.crowd(device, model, models)

    def relative(self, work: Work, cores: float) -> float:
        """Speed of a job with this many cores for each task, relative to all that they can use."""
        if work.starting:
            return cores / work.most
        if work.curve is not None:
            return work.curve.at(cores)
        return self._speeds.relative(work.job.model, cores, work.most)

    def settle(self, now: float) -> list[Work]:
        """Update the speed of every job. Returns the jobs whose speed changed."""
        touched: dict[JobId, Work] = {}
        for name in self._stale_nodes:
            self._divide(name, now)
            touched.update((task.work.id, task.work) for task in self._on_cores[name].values())
        for task in self._stale_tasks.values():
            task.speed = self._speed_on_gpus(task)
            task.use(now, task.speed)
            touched[task.work.id] = task.work
        self._stale_nodes.clear()
        self._stale_tasks.clear()
        return [work for work in touched.values() if _repace(work, now)]

    def _divide(self, name: str, now: float) -> None:
        """Divide the cores of a node among its tasks."""
        node, tasks = self._nodes[name], self._on_cores[name]
        claims = {
            task.id: (task.share.cpu_weight or WEIGHT_DEFAULT, task.most) for task in tasks.values()
        }
        given = self._by_users(node, tasks, claims) if self._users else fill(node.cores, claims)
        for task in tasks.values():
            self.cores_used += given[task.id] - task.cores
            task.use(now, given[task.id])
        for task in tasks.values():
            kept = self._kept(node, task) if self._interference and not task.work.starting else 1.0
            task.speed = kept * self.relative(task.work, task.cores)

    def _by_users(
        self,
        node: Node,
        tasks: Mapping[TaskId, RunningTask],
        claims: Mapping[TaskId, tuple[float, float]],
    ) -> dict[TaskId, float]:
        """Divide cores between users, and those of each user among the user's tasks."""
        of_users: dict[str, dict[TaskId, tuple[float, float]]] = {}
        for id, claim in claims.items():
            of_users.setdefault(tasks[id].work.job.user, {})[id] = claim
        wanted = {}
        for user, own in of_users.items():
            weight, most = self._users[user]
            wanted[user] = weight, min(most, sum(cap for _, cap in own.values()))
        cores = fill(node.cores, wanted)
        given: dict[TaskId, float] = {}
        for user, own in of_users.items():
            given |= fill(cores[user], own)
        return given

    def _kept(self, node: Node, task: RunningTask) -> float:
        """The fraction of its speed that a task keeps beside other jobs. Interference within its
        own job is part of the job's seconds.
        """
        others, cores_left = [], node.cores
        for held in self._on_cores[node.name].values():
            if held.work is task.work:
                cores_left -= held.cores
            else:
                others.append((held.work.job.model, held.cores))
        return self._interference.on_cores(
            node.kind, task.work.job.model, node.cores, cores_left, others
        )

    def _speed_on_gpus(self, task: RunningTask) -> float:
        if task.work.starting:
            return 1.0
        full_speed = task.work.curve.whole if task.work.curve is not None else 1.0
        return full_speed * self._part_of_gpus(task) / self._users_beside(task)

    def _users_beside(self, task: RunningTask) -> int:
        """How many users have tasks on a GPU of a task, whose hubs do not know of each other."""
        if not self._users:
            return 1
        beside = (self._on_gpu[task.node, gpu].values() for gpu in task.gpus)
        return max(len({other.work.job.user for other in tasks}) for tasks in beside)

    def _part_of_gpus(self, task: RunningTask) -> float:
        fraction, speed = _fraction(task), 1.0
        if fraction is not None:
            return fraction
        for gpu in task.gpus:
            beside = self._on_gpu[task.node, gpu]
            if len(beside) > 1:
                others = [
                    other
                    for other in beside.values()
                    if other is not task and not other.work.starting
                ]
                # turns granted to others are theirs
                free = 1.0 - sum(_fraction(other) or 0.0 for other in others)
                models = (other.work.job.model for other in others if _fraction(other) is None)
                kept = self._interference.on_gpu(
                    self._gpu_names[task.node, gpu], task.work.job.model, models
                )
                speed = min(speed, free * kept)
        return speed


def _fraction(task: RunningTask) -> float | None:
    """The granted fraction of its GPUs' time; None: it takes no turns."""
    fraction = task.share.gpu_fraction
    return fraction if isinstance(fraction, int | float) else None


def _repace(work: Work, now: float) -> bool:
    tasks = work.tasks
    speed = min(task.speed for task in tasks.values()) if len(tasks) == work.needs else 0.0
    if speed == work.speed:
        return False
    work.left, work.at = work.remaining(now), now
    work.speed = speed
    work.version += 1
    return True


def halt(work: Work, now: float) -> None:
    """Stop a job's progress: it is preempted, or lost a task."""
    work.left, work.at = work.remaining(now), now
    work.speed = 0.0
    work.version += 1


def ends_at(work: Work) -> float:
    """When a job will be done, or end its startup, if nothing changes."""
    left = work.left - work.job.seconds if work.starting else work.left
    return work.at + left / work.speed if work.speed > 0 else math.inf


def loss_at(losses: tuple[tuple[float, float], ...], fraction: float) -> float:
    """The last reported loss at this done fraction."""
    return losses[max(bisect_right(losses, (fraction, math.inf)) - 1, 0)][1]


def drops_ahead(
    losses: tuple[tuple[float, float], ...], fraction: float, whole: float
) -> tuple[tuple[float, float], ...]:
    """Future core-seconds up to the job's end, each with the drop of the loss during them; empty
    without losses.

    Args:
        losses: Done fraction with the loss then.
        fraction: Present done fraction.
        whole: Core-seconds of the whole job.
    """
    if not losses:
        return ()
    now, left = loss_at(losses, fraction), 1.0 - fraction
    ahead = (left * part for part in _AHEAD if left > 0)
    return tuple((step * whole, now - loss_at(losses, fraction + step)) for step in ahead)
