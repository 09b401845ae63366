"""A clock that a test can put forward, in place of the module `time` of an engine."""

from __future__ import annotations

import time


class Clock:
    """The seconds of `time.monotonic`, and those that it was put forward."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_seconds
