"""Holds a task at its step boundaries to its grant: a fraction of the time, or of the CPU.

It controls what no cgroup divides: a GPU, and the CPU if cgroups cannot be written. A step is never
interrupted. The next step waits until an overdrawn grant is made up for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headgate.task.grants import Bucket, Grant, Pause, Turns
from headgate.task.overheads import overheads

if TYPE_CHECKING:
    from headgate.task.channel import Channel


_LOOKS = 20
"""Step boundaries at which the gate checks which GPUs the task uses, until it uses one."""


class Gate:
    """The gate of one task. Without a grant it costs a comparison per step.

    Args:
        channel: The channel with the grants. A request that arrives during a hold ends it, and is
            handled first.
        settle: Called before a step counts as finished. Waits for the work that it has started on a
            device.
        gpus: Indices of the GPUs that the task uses, as this process numbers them. They are
            reported once.
        clock: Seconds of a monotonic clock.
        used: CPU seconds that this process has used.

    Attributes:
        held: Seconds that steps were held so far.
    """

    def __init__(
        self,
        channel: Channel,
        settle: Callable[[], object] | None = None,
        gpus: Callable[[], Iterable[int]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        self._channel = channel
        self._settle = settle
        self._gpus = gpus
        self._looks = _LOOKS
        self._clock = clock
        self._used = used
        self._grant: Grant | None = None
        self._regulator: Bucket | Pause | Turns | None = None
        self._known_since = -1.0
        self.held = 0.0

    def boundary(self) -> None:
        """End a step. Returns when the next one may begin."""
        if self._looks:
            self._look()
        if self._channel.gate is None and self._grant is None:
            return
        if self._settle is not None:
            self._settle()
        began = self._clock()
        if self._regulator is not None:
            self._regulator.over(began, self._used())
        self._hold()
        held = self._clock() - began
        self.held += held
        if self._grant is not None and not self._grant.cores and not self._grant.paused:
            overheads.add("turns", held)

    def pause(self) -> None:
        """Let other tasks use the device during work that is no step."""
        if self._regulator is not None:
            self._regulator.over(self._clock(), self._used())
            self._regulator.release()

    def _look(self) -> None:
        self._looks -= 1
        if gpus := sorted(self._gpus()):
            self._looks = 0
            self._channel.send({"type": "gpus", "gpus": sorted({_number(gpu) for gpu in gpus})})

    def _hold(self) -> None:
        channel, first = self._channel, self._regulator is None
        while True:
            grant = self._follow()
            if grant is None or self._regulator is None:
                return
            seconds = self._regulator.wait(self._clock(), self._used())
            # The first step under a gate is not held, because its cost is unknown.
            if seconds <= 0.0 or (first and isinstance(self._regulator, Bucket)):
                return
            if self._is_ordered():
                self._regulator.release()
                return
            self._stay(grant, seconds)
            if not channel.connected:
                return

    def _stay(self, grant: Grant, seconds: float) -> None:
        self._channel.wait_for(lambda: self._channel.gate is not grant or self._is_news(), seconds)

    def _is_news(self) -> bool:
        """Whether a pending request has not ended a hold yet."""
        return self._channel.pending and self._channel.pending_since != self._known_since

    def _is_ordered(self) -> bool:
        """Like `_is_news`, but a pending request opens the gate only once."""
        ordered = self._is_news()
        if ordered:
            self._known_since = self._channel.pending_since
        return ordered or bool(self._channel.stopping)

    def _follow(self) -> Grant | None:
        """The limiter of the current grant."""
        grant = self._channel.gate
        if grant is self._grant:
            return grant
        before, self._grant = self._regulator, grant
        if (
            before is not None
            and grant is not None
            and before.follows(grant, self._clock(), self._used())
        ):
            return grant
        if before is not None:
            before.close()
        self._regulator = None
        if grant is not None and grant.paused:
            self._regulator = Pause(self._clock())
        elif grant is not None:
            self._regulator = Turns.open(grant) or Bucket(grant, self._clock(), self._used())
        return grant


def _number(index: int) -> int:
    """The node's number of a GPU that this process calls `index`. A script may see only some of its
    container's GPUs, and a container counts GPUs from 0.
    """
    for variable in ("CUDA_VISIBLE_DEVICES", "HEADGATE_GPUS"):
        seen = os.environ.get(variable, "").split(",")
        if index < len(seen) and seen[index].strip().isdigit():
            index = int(seen[index])
    return index
