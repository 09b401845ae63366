"""Reads what a task prints, in the engine's thread."""

from __future__ import annotations

import errno
import os
import selectors
import time
from collections.abc import Callable

from headgate.engines.log import TaskLog
from headgate.model.reasons import Reason

_READ_BYTES = 1 << 16
_DRAIN_READS = 64


class TaskOutput:
    """The pipe or terminal that a task prints to, read no faster than its log can take.

    Args:
        fd: The end that is read; it does not block. It is closed with this object.
        log: Where the output goes.
        selector: The selector of the engine's thread. The data of each entry is the function to
            call.
        printed: Called with lines.
        warned: Called when the log can no longer be written, or can again.
    """

    def __init__(
        self,
        fd: int,
        log: TaskLog,
        selector: selectors.BaseSelector,
        printed: Callable[[list[str]], None],
        warned: Callable[[Reason], None],
    ) -> None:
        self._fd = fd
        self._log = log
        self._selector = selector
        self._printed = printed
        self._warned = warned
        self._trouble: str | None = None  # of the log, as last warned of
        self.reads_again: float | None = None
        """When `watch` has to be called, by `time.monotonic`; None: it is watched, or at its
        end.
        """

    def watch(self) -> None:
        """Read whenever something is printed."""
        self.reads_again = None
        self._selector.register(self._fd, selectors.EVENT_READ, self._readable)

    def drain(self) -> None:
        """Read what is left by a task that has ended. Another process may print on."""
        for _ in range(_DRAIN_READS):
            if not self._read():
                break

    def close(self) -> None:
        """Pass on the last lines, and read no more."""
        if self._fd in self._selector.get_map():
            self._selector.unregister(self._fd)
        self.reads_again = None
        if lines := self._log.rest():
            self._printed(lines)
        self._log.close()
        os.close(self._fd)

    def _readable(self) -> None:
        ended = not self._read()
        pause = self._log.resumes_in(now := time.monotonic())
        if ended or pause > 0:
            self._selector.unregister(self._fd)
            self.reads_again = None if ended else now + pause

    def _read(self) -> bool:
        """Read once. Returns False at the end of the output."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # the end of a pseudo-terminal
        if lines := self._log.write(data, time.monotonic()):
            self._printed(lines)
        if self._log.trouble != self._trouble:
            self._trouble = self._log.trouble
            self._warned(self._log.state())
        return bool(data)
