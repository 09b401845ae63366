"""Grants of a gate, and their limiters: a token bucket, or turns."""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TURNS = "HEADGATE_TURNS"
"""The variable with the folder of the lock files by which tasks take turns."""
BURST_SECONDS = 1.0
"""Most seconds of an unused grant that may be used later."""
MOST_HELD_SECONDS = 30.0
"""Longest hold at a step boundary. The job's other workers wait for this one within a step."""
ROUND_SECONDS = 1.0
"""Length of a round of turns. Each task has its fraction of a round."""
MOST_WAITED_SECONDS = 10.0
"""Longest wait for a turn, because its holder may be doing something else than steps. After such a
wait the task does not wait again until the turn was free once.
"""
MOST_PAUSED_SECONDS = 1.0
"""Longest pause, even if whoever asked for it is gone."""
_ASIDE_SECONDS = 0.01
"""How long a task leaves the device to others after its turn. It is longer than they take to
notice.
"""
_NOTICE_SECONDS = 0.002


@dataclass(frozen=True)
class Grant:
    """What a gate lets through.

    Args:
        rate: The fraction of time in which steps may run. With `cores`, CPU seconds per second.
        cores: Whether CPU time counts instead of wall-clock time.
        turns: Paths of the lock files by which tasks take turns, one for each device; empty: no
            turns.
        paused: Whether nothing may run for a moment.
    """

    rate: float
    cores: bool = False
    turns: tuple[str, ...] = ()
    paused: bool = False

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> Grant | None:
        """The grant of a `gate` message. None if it lifts the gate, or is malformed."""
        if message.get("paused") is True:
            return cls(1.0, paused=True)
        for name in ("fraction", "cores"):
            rate = message.get(name)
            if isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0:
                folder = os.environ.get(TURNS)
                names = map(str, message.get("turns") or ()) if folder else ()
                return cls(
                    float(rate),
                    name == "cores",
                    tuple(os.path.join(str(folder), file) for file in names),
                )
        return None


class Bucket:
    """How far a task is ahead of its grant: a token bucket that a step may overdraw.

    Args:
        grant: The grant.
        now: Seconds of any clock.
        used: CPU seconds that the task has used so far.
    """

    def __init__(self, grant: Grant, now: float, used: float) -> None:
        self._grant = grant
        self._left = 0.0
        self._now, self._used = now, used

    def over(self, now: float, used: float) -> None:
        """Note the end of a step. It began when `wait` allowed it."""
        self._pass(now, used, ran=True)

    def wait(self, now: float, used: float) -> float:
        """Seconds until the next step may be tried again; 0: it may begin."""
        self._pass(now, used, ran=False)
        seconds = -self._left / self._grant.rate
        return seconds if seconds > 1e-6 else 0.0

    def follows(self, grant: Grant, now: float, used: float) -> bool:
        """Switch to another grant. Returns whether this limiter can."""
        if grant.turns or grant.cores != self._grant.cores:
            return False
        self._pass(now, used, ran=False)
        self._grant = grant
        return True

    def release(self) -> None:
        """Stop holding others back."""

    def close(self) -> None:
        """Release all resources."""

    def _pass(self, now: float, used: float, ran: bool) -> None:
        passed, rate = max(now - self._now, 0.0), self._grant.rate
        if self._grant.cores:
            cost = used - self._used
        else:
            cost = passed if ran else 0.0
        most = max(BURST_SECONDS, cost)  # what a step longer than that waited for is its own
        self._left = min(max(self._left + rate * passed - cost, -rate * MOST_HELD_SECONDS), most)
        self._now, self._used = now, used


class Pause:
    """Holds everything until another grant arrives, at most for `MOST_PAUSED_SECONDS`.

    Args:
        now: Seconds of any clock.
    """

    def __init__(self, now: float) -> None:
        self._until = now + MOST_PAUSED_SECONDS

    def over(self, now: float, used: float) -> None:
        """A step is over."""

    def wait(self, now: float, used: float) -> float:
        """Seconds until the next step may be tried again; 0: it may begin."""
        return max(self._until - now, 0.0)

    def follows(self, grant: Grant, now: float, used: float) -> bool:
        """Switch to another grant. Returns whether this limiter can."""
        return False

    def release(self) -> None:
        """Others need not wait for this task."""

    def close(self) -> None:
        """It is no longer used."""


class Turns:
    """Runs the steps of one task at a time on a device, in a round robin by file locks. Each task
    has its fraction of a round.

    Other tasks may use the time that one leaves: a task that waits alone continues. After a step
    longer than its turn, a task skips turns (deficit round robin, Shreedhar and Varghese 1995), for
    `MOST_HELD_SECONDS` at most. A task on several devices needs the locks of all. All tasks take
    the locks in the same order.

    Args:
        grant: The grant.
        files: Descriptors of the lock files, in that order; owned by this object.
    """

    def __init__(self, grant: Grant, files: Sequence[int]) -> None:
        self._grant = grant
        self._files = files
        self._locked = 0
        self._left = 0.0  # of its turn
        self._began = 0.0
        self._again_at = float("-inf")
        self._waits_since: float | None = None
        self._waits = True

    @classmethod
    def open(cls, grant: Grant) -> Turns | None:
        """Open the lock files that a grant names. None if it names none, or they cannot be reached
        from this process.
        """
        files: list[int] = []
        try:
            for path in sorted(grant.turns):
                files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # noqa: PERF401  # closed below
        except OSError:  # as in a container, or on another machine
            for file in files:
                os.close(file)
            return None
        return cls(grant, files) if files else None

    def over(self, now: float, used: float) -> None:
        """Note the end of a step. It began when `wait` allowed it."""
        if not self._has:
            return
        rate = self._grant.rate
        # other tasks have the rest of a round
        most = MOST_HELD_SECONDS * rate / (1.0 - rate) if rate < 1.0 else math.inf
        self._left = max(self._left - max(now - self._began, 0.0), -most)
        self._began = now
        if self._left <= 0.0:
            self.release()
            self._again_at = now + _ASIDE_SECONDS

    def wait(self, now: float, used: float) -> float:
        """Seconds until the next step may be tried again; 0: it may begin."""
        if self._waits_since is None:
            self._waits_since = now
        if not self._has:
            if now < self._again_at:
                return self._again_at - now
            if self._lock():
                self._waits = True
                self._left = min(self._left, 0.0) + self._grant.rate * ROUND_SECONDS
                if self._left <= 0.0:
                    self.release()
                    self._again_at = now + _ASIDE_SECONDS
                    return _ASIDE_SECONDS
            elif self._waits and now - self._waits_since < MOST_WAITED_SECONDS:
                return _NOTICE_SECONDS
            else:
                self._waits = False
                self.release()
        self._waits_since, self._began = None, now
        return 0.0

    def follows(self, grant: Grant, now: float, used: float) -> bool:
        """Switch to another grant. Returns whether this limiter can."""
        if grant.turns != self._grant.turns:
            return False
        self._grant = grant
        return True

    def release(self) -> None:
        """Stop holding others back."""
        for file in self._files[: self._locked]:
            fcntl.flock(file, fcntl.LOCK_UN)
        self._locked, self._waits_since = 0, None

    def close(self) -> None:
        """Release all resources."""
        self.release()
        for file in self._files:
            os.close(file)

    @property
    def _has(self) -> bool:
        return self._locked == len(self._files)

    def _lock(self) -> bool:
        """Take the missing locks that are free. Returns whether the task holds all."""
        try:
            for file in self._files[self._locked :]:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._locked += 1
        except OSError:  # another one's turn
            return False
        return True
