"""The controller's record of a task."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.model.actions import StopTask
from headgate.model.events import CONNECTED_GRACE_SECONDS, GRACE_SECONDS, Usage
from headgate.model.identifiers import TaskId, TaskName
from headgate.model.reasons import Reason
from headgate.model.shares import NOTHING, Share

_IDLE_PART = 1 / 16
_IDLE_CORES = 0.05
"""A task is idle below this fraction of its entitled cores, or below this fraction of one core."""
_IDLE_SECONDS = 20.0
"""How long its use has to stay below that."""


@dataclass(slots=True, eq=False)
class TaskRecord:
    """A task that was started and has not ended.

    Args:
        gpus: Numbers of the GPUs that it may see; None: all of its node.
        computes_on: GPUs that it reported to use.
        is_worker: Whether the job ends with it and its like: a worker, or a task of the ending
            role. Other tasks serve these.
        joins: It waits for the state of running workers.
        leaving: It ends before the others, who go on.
        stopping: It was asked to end.
        again: It was started again in this attempt.
        saves: Its script may save its own checkpoint at a stop request.
        grace: Seconds that it has to save at a stop request.
        most_bytes: The most memory that it used.
        most_gpu_bytes: The same of GPU memory.
        idle: It has used hardly any of its entitled cores for a while.
    """

    id: TaskId
    node: str
    gpus: tuple[int, ...] | None
    joins: bool = False
    is_worker: bool = True
    again: bool = False
    saves: bool = False
    grace: float = CONNECTED_GRACE_SECONDS
    leaving: bool = False
    stopping: bool = False
    connected: bool = False
    share: Share = NOTHING
    threads: int = 0
    entitled: float = 0.0
    used: Usage | None = None
    most_bytes: float = 0.0
    most_gpu_bytes: float = 0.0
    idle: bool = False
    computes_on: tuple[int, ...] = ()
    _busy_at: float = 0.0
    _used_at: float = -math.inf

    @property
    def name(self) -> TaskName:
        return self.id.name

    @property
    def index(self) -> int:
        return self.id.index

    @property
    def idle_cores(self) -> float:
        """The most cores that it uses while idle."""
        return max(_IDLE_PART * self.entitled, _IDLE_CORES)

    def use(self, now: float, usage: Usage) -> bool:
        """Record its present use. Returns whether it became idle or busy."""
        self.used, self.most_bytes = usage, max(self.most_bytes, usage.memory_bytes)
        self.most_gpu_bytes = max(self.most_gpu_bytes, usage.gpu_memory_bytes)
        if now - self._used_at > _IDLE_SECONDS or usage.cpu_cores > self.idle_cores:
            self._busy_at = now  # or it sent no readings meanwhile
        self._used_at = now
        # Without weights every task is entitled to all cores.
        idle = self.share.cpu_weight is not None and now - self._busy_at >= _IDLE_SECONDS
        before, self.idle = self.idle, idle
        return before != self.idle

    def stop(self, reason: Reason, *, kill: bool = False, broken: bool = False) -> StopTask:
        """Stop the task: at once, or within its grace period.

        The period is short if tasks that it trains with are gone (`broken`) and its script cannot
        save.
        """
        self.stopping = True
        saves = self.connected or (self.saves and not broken)
        grace = self.grace if saves else min(self.grace, GRACE_SECONDS)
        if kill:
            grace = 0.0
        return StopTask(self.id, grace, reason, self.leaving)
