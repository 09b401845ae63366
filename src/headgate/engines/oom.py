"""Detects processes of a task that the kernel kills for lack of memory, and attributes the task's
end to them.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from headgate.isolation.base import Box
from headgate.model.endings import Exit
from headgate.model.reasons import Reason, ReasonKind

LOOK_SECONDS = 0.5
"""Interval at which the kernel's counter is read."""
_MAIN_SECONDS = 10.0
"""The kernel counts a kill at once, but a large process takes this time to disappear."""
_NAMED_SECONDS = 120.0
"""An exit that names an OOM kill is attributed to it within this time."""
_SOON_SECONDS = 5.0
"""An exit that a kill may well have caused is attributed to it within this time."""
_MOST_PAUSE_SECONDS = 60.0
"""Longest interval between two reports about a task whose processes are repeatedly started and
killed.
"""
_LINES = 200

_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Warning)\b")
_NAMED = re.compile(
    r"BrokenProcessPool|TerminatedWorker|WorkerLost|terminated abruptly|exited "
    r"unexpectedly|died unexpectedly|SIGKILL|"
    r"\bKilled\b|killed by|signal:? 9\b|(exit|return)\w*[ "
    r"_-]?(code|status)?\W+(-9|137)\b|\bError 137\b"
)
_LIKELY = re.compile(
    r"EOFError|BrokenPipeError|Connection(Reset|Refused|Aborted)Error|ChildProcessError|exitcode|returncode|"
    r"\b(died|dead|killed|crashed|terminated)\b"
)


class OomMonitor:
    """Follows the counter of one task.

    Args:
        box: The task's box.
    """

    def __init__(self, box: Box) -> None:
        self._box = box
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._count = 0
        self._last: float | None = None
        self._untold = 0
        self._tells_at = 0.0
        self._pause = LOOK_SECONDS

    def read(self, lines: Sequence[str]) -> None:
        """Note lines that the task printed."""
        self._lines += lines

    def look(self, now: float) -> Reason | None:
        """Read the counter. Returns a reason about kills since the last look that the task
        survived.

        Args:
            now: Seconds of a monotonic clock.
        """
        notice = None
        if self._untold and now >= self._tells_at:
            notice = self._killed(waits=True)
            self._tells_at, self._pause = (
                now + self._pause,
                min(2 * self._pause, _MOST_PAUSE_SECONDS),
            )
        self._note(self._box.kills(), now)
        return notice

    def ended(self, exit: Exit, now: float, by_us: bool) -> tuple[Exit, Reason | None]:
        """How the task ended, with OOM kills as the reason only if they caused it; and a reason
        about other kills.

        Args:
            exit: The result of `Box.reap`, which attributes any bad end to kills.
            now: As in `look`.
            by_us: Whether Headgate killed it.
        """
        self._note(exit.kills, now)
        # a container's cgroup may be gone before it was read
        exit = replace(exit, kills=self._count)
        main = exit.signal == signal.SIGKILL or exit.code == 128 + signal.SIGKILL
        if exit.kills and (by_us or not self._caused(exit, main, now)):
            exit = replace(exit, over_memory=False, reason=None, limit_bytes=None)
        elif main:
            self._untold = 0
        elif exit.kills:
            how = replace(exit, reason=None).in_words()
            exit = replace(exit, reason=f"{how}, after one of its processes was {exit.reason}")
        return exit, self._killed() if self._untold else None

    def _note(self, count: int, now: float) -> None:
        if count > self._count:
            self._untold += count - self._count
            self._count, self._last = count, now

    def _killed(self, waits: bool = False) -> Reason:
        count, self._untold = self._untold, 0
        facts = {"count": count, "shortage": self._box.shortage(), "waits": waits}
        return Reason(ReasonKind.PROCESSES_KILLED, facts)

    def _caused(self, exit: Exit, main: bool, now: float) -> bool:
        """Whether kills caused the end: the first process was killed, or the output names a lost
        process, or it failed soon after and names no other cause.
        """
        if exit.ok or self._last is None:
            return False
        since, last_words = now - self._last, "\n".join(_last_words(self._lines))
        if main:
            return since <= _MAIN_SECONDS
        if _NAMED.search(last_words):
            return since <= _NAMED_SECONDS
        other = any(map(_EXCEPTION.match, last_words.split("\n")))
        return since <= _SOON_SECONDS and (not other or _LIKELY.search(last_words) is not None)


def _last_words(lines: Sequence[str]) -> Sequence[str]:
    """The last traceback of an output, with its causes; without any, the last lines."""
    kept = list(lines)
    starts = [i for i, line in enumerate(kept) if _TRACEBACK in line]
    if not starts:
        return kept[-20:]
    start = starts.pop()
    while starts and kept[start - 1].lstrip().startswith(_CHAINED):
        start = starts.pop()
    return kept[start:]
