"""Where the time of a server's rounds goes: `receive, update, send, idle`, told for some rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headgate.torch.ps.transport.loop import Loop

_FIRST = range(3, 8)
_EVERY = 50
_IN_A_ROW = 2


class RoundSpans:
    """Times one round after another, and tells of those that a worker's sampled steps fall on.

    Args:
        loop: The thread that everything is done in.
        send: Takes the `spans` message.

    Attributes:
        bytes_in: Bytes received in the running round.
        bytes_out: Bytes sent in it.
        update: Seconds of adding up in it.
        send: Seconds of sending in it.
    """

    def __init__(self, loop: Loop, send: Callable[[Mapping[str, object], bool], None]) -> None:
        self._loop = loop
        self._tell = send
        self._restart()

    def completed(self, step: int) -> None:
        """A round of the workers' step of this number, counted from 1, is complete; one of no step
        has number 0.
        """
        now, idle = time.monotonic(), self._loop.idle_seconds
        if step in _FIRST or (step > _FIRST[-1] and step % _EVERY < _IN_A_ROW):
            seconds = now - self._since
            waited = idle - self._idle
            rest = max(0.0, seconds - waited - self.update - self.send)
            spans = (
                ("receive", rest, self.bytes_in, None),
                ("update", self.update, None, None),
                ("send", self.send, None, self.bytes_out),
                ("idle", waited, None, None),
            )
            names = ("name", "seconds", "bytes_in", "bytes_out")
            listed = [dict(zip(names, span)) for span in spans]
            self._tell(
                {"type": "spans", "step": step, "epoch": None, "seconds": seconds, "spans": listed},
                True,
            )
        self._restart()

    def _restart(self) -> None:
        self._since, self._idle = time.monotonic(), self._loop.idle_seconds
        self.bytes_in = self.bytes_out = 0
        self.update = self.send = 0.0
