"""Recognises the lines of Python's tracebacks, whose source code is no progress."""

from __future__ import annotations

_BEGINS = "Traceback (most recent call last)"


class TracebackLines:
    """Follows the output of a task."""

    def __init__(self) -> None:
        self._prefix: str | None = None  # of each line of the one that is open, such as `[rank0]: `
        self._frames = 0  # lines of it so far

    def holds(self, line: str) -> bool:
        """Whether the next line belongs to a traceback, from its heading to its exception."""
        before, heading, _ = line.partition(_BEGINS)
        if heading:
            self._prefix, self._frames = before, 0
            return True
        if self._prefix is None:
            return False
        body = line.removeprefix(self._prefix)
        if not body.strip() or body[0].isspace():
            self._frames += 1
            return True
        self._prefix = None
        return self._frames > 0  # else it is one that was only spoken of
