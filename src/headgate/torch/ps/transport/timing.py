"""Divides the time of a server's rounds into `receive`, `update`, `send` and `idle`, and reports it
for some rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headgate.torch.ps.transport.loop import Loop

_FIRST = range(3, 8)
_EVERY = 50
_IN_A_ROW = 2


class RoundSpans:
    """Times rounds, and reports those of the workers' measured steps.

    Args:
        loop: The thread that does everything.
        send: Takes the `spans` message.

    Attributes:
        bytes_in: Bytes received in the running round.
        bytes_out: Bytes sent in it.
        update: Seconds of summing in it.
        send: Seconds of sending in it.
    """

    def __init__(self, loop: Loop, send: Callable[[Mapping[str, object], bool], None]) -> None:
        self._loop = loop
        self._tell = send
        self._restart()

    def completed(self, step: int) -> None:
        """End a round of the workers' step `step`, from 1; 0 for a round of no step."""
        now, idle = time.monotonic(), self._loop.idle_seconds
        if step in _FIRST or (step > _FIRST[-1] and step % _EVERY < _IN_A_ROW):
            seconds = now - self._since
            waited = idle - self._idle
            receiving = max(0.0, seconds - waited - self.update - self.send)
            spans = (
                ("receive", receiving, self.bytes_in, None),
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
