"""Paces the chunks sent to a server, in step with the other workers, so that sums return from the
first moment on.

TCP divides a server's NIC unfairly between workers for seconds. If one worker got far ahead, no sum
could be formed until the others had caught up. Then all sums would return at the end, with nothing
sent the other way. So only a few chunks are in flight before their sums return. If the others have
not begun, a worker continues at its usual rate, because the NIC would be idle otherwise.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from headgate.torch.ps.rounds.chunks import Chunk
from headgate.torch.ps.transport.loop import Loop

WINDOW = 8
"""Chunks in flight to a server."""
_FIRST_SECONDS = 0.05
_PATIENCE = 4
"""Usual intervals without a sum after which the others are assumed not to have begun."""
_WEIGHT = 0.1


class SumInterval:
    """The usual interval between two sums of a server.

    Attributes:
        seconds: The interval.
    """

    def __init__(self) -> None:
        self.seconds = _FIRST_SECONDS

    def observe(self, seconds: float) -> None:
        """Note the time that a sum took. Pauses do not count."""
        if seconds < 2 * _PATIENCE * self.seconds:
            self.seconds += _WEIGHT * (seconds - self.seconds)


class SendWindow:
    """The chunks of a round for one server. Use only in the loop's thread.

    Args:
        loop: Keeps the time.
        interval: The usual interval between sums of that server.
        push: Sends a chunk.
    """

    def __init__(self, loop: Loop, interval: SumInterval, push: Callable[[Chunk], None]) -> None:
        self._loop = loop
        self._interval = interval
        self._push = push
        self._waiting: deque[Chunk] = deque()
        self._under_way = 0
        self._moved = time.monotonic()
        self._timed = False
        self._closed = False

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk."""
        self._waiting.append(chunk)
        self._go_on()

    def came(self, now: float) -> None:
        """Note that a sum has arrived."""
        if self._under_way > 1:
            self._interval.observe(now - self._moved)
        self._moved = now
        self._under_way = max(0, self._under_way - 1)
        self._go_on()

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop queued chunks."""
        gone = set(numbers)
        self._waiting = deque(chunk for chunk in self._waiting if chunk.number not in gone)

    def close(self) -> None:
        """Drop all queued chunks."""
        self._waiting.clear()
        self._closed = True

    def _go_on(self) -> None:
        while self._waiting and self._under_way < WINDOW:
            self._send()
        if self._waiting and not self._timed:
            self._timed = True
            self._loop.after(_PATIENCE * self._interval.seconds, self._look)

    def _send(self) -> None:
        self._under_way += 1
        self._push(self._waiting.popleft())

    def _look(self) -> None:
        self._timed = False
        if self._closed or not self._waiting:
            return
        again = self._moved + _PATIENCE * self._interval.seconds - time.monotonic()
        if again <= 0:
            self._send()
            again = self._interval.seconds
        self._timed = True
        self._loop.after(again, self._look)
