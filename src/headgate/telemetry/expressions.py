"""A user's own regular expression, searched with a deadline."""

from __future__ import annotations

import re
import signal
import threading
import time
import warnings
from types import FrameType

LONGEST_SEARCH_SECONDS = 0.1
"""CPU time that one search may take."""

_AT_FIRST_SECONDS, _PART = 1.0, 0.1
"""All searches of an expression may take so much, and this part of the time that goes by."""


class TooSlowError(Exception):
    """An expression takes more time than it may; the message says how much."""


class Expression:
    """A compiled expression, for the main thread: `re` looks for signals while it searches, and Python runs their
    handlers there alone. In another thread a search takes as long as it takes.

    Args:
        pattern: What is searched for.
    """

    def __init__(self, pattern: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.pattern = re.compile(pattern)
        self._began = time.monotonic()
        self._spent = 0.0
        self._searching = False

    def search(self, text: str) -> re.Match[str] | None:
        """As `re.Pattern.search`.

        Raises:
            TooSlowError: It took too long, this time or together with the searches before.
        """
        began = time.thread_time()
        try:
            match = self._within_deadline(text)
        finally:
            seconds = time.thread_time() - began
            self._spent += seconds
        if seconds > LONGEST_SEARCH_SECONDS:
            raise TooSlowError(f"took {seconds:.1f} s for one line of output")
        elapsed = time.monotonic() - self._began
        if self._spent > _AT_FIRST_SECONDS + _PART * elapsed:
            raise TooSlowError(f"took {self._spent:.1f} of {elapsed:.1f} s")
        return match

    def _within_deadline(self, text: str) -> re.Match[str] | None:
        if threading.current_thread() is not threading.main_thread():
            return self.pattern.search(text)
        before = signal.signal(signal.SIGVTALRM, self._interrupt)
        try:
            self._searching = True
            signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_SEARCH_SECONDS)
            match = self.pattern.search(text)
            self._searching = False  # a signal that comes late is of no interest
            return match
        except TooSlowError:
            raise TooSlowError(f"took more than {LONGEST_SEARCH_SECONDS:g} s for one line of output") from None
        finally:
            self._searching = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._searching:
            self._searching = False
            raise TooSlowError
