"""A user's own regular expression, checked before use and searched with a deadline."""

from __future__ import annotations

import re
import signal
import threading
import time
import warnings
from importlib import import_module
from types import FrameType
from typing import Any

LONGEST_SEARCH_SECONDS = 0.1
"""Longest CPU time of one search."""

_AT_FIRST_SECONDS, _PART = 1.0, 0.1
"""Total time allowed for all searches of an expression: a start value, and a fraction of the
elapsed time.
"""
_LONGEST_PATTERN = 1000
_MANY = 16  # a repeat of at most so many turns cannot blow up a search


class TooSlowError(Exception):
    """An expression takes more time than allowed. The message says how much."""


class Expression:
    """A compiled expression with a deadline, for the main thread.

    `re` checks for signals while it searches, and Python runs their handlers only in the main
    thread. In another thread there is no deadline.

    Args:
        pattern: The regular expression.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern, _ = _compiled(pattern)
        self._began = time.monotonic()
        self._spent = 0.0
        self._searching = False

    def search(self, text: str) -> re.Match[str] | None:
        """As `re.Pattern.search`.

        Raises:
            TooSlowError: It took too long, alone or together with earlier searches.
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
            raise TooSlowError(
                f"took more than {LONGEST_SEARCH_SECONDS:g} s for one line of output"
            ) from None
        finally:
            self._searching = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._searching:
            self._searching = False
            raise TooSlowError


def check_pattern(pattern: str, metric: str = "loss") -> str | None:
    """Why a job's own regular expression cannot be used, None if it can.

    It needs a named group for the metric (`(?P<loss>...)`, `(?P<value>...)` or the metric's own
    name). The groups `step`, `epoch` and `epochs` are optional.
    """
    if (wrong := check_expression(pattern)) is not None:
        return wrong
    if group_of(_compiled(pattern)[0], metric) is None:
        name = metric if metric.isidentifier() else "value"
        return f"it has no named group for the metric; put (?P<{name}>...) around it"
    return None


def check_expression(pattern: str) -> str | None:
    """Why a user's expression cannot be used, None if it can.

    An expression is refused if its search could take time exponential in the line's length: a
    repeat of something that itself repeats or has alternatives.
    """
    if len(pattern) > _LONGEST_PATTERN:
        return f"it has {len(pattern)} characters; expected at most {_LONGEST_PATTERN}"
    try:
        _, tree = _compiled(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"it is no regular expression: {error}"
    if _explodes(tree, inside=False):
        return (
            "it repeats something that itself repeats or offers alternatives, and could search for "
            "ever; make the inner part possessive, as in (?:\\d++,)*, or write it out"
        )
    return None


def group_of(pattern: re.Pattern[str], metric: str) -> str | None:
    """The name of the metric's group; None: it has none."""
    return next((name for name in (metric, "loss", "value") if name in pattern.groupindex), None)


def _compiled(pattern: str) -> tuple[re.Pattern[str], Any]:
    """An expression, compiled and parsed."""
    with warnings.catch_warnings():  # of what Python may read otherwise one day, such as `[[]`
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern), import_module("re._parser").parse(pattern)


def _explodes(tree: Any, *, inside: bool) -> bool:
    """Whether a parsed expression has a long, not possessive repeat of something that can match in
    several ways.
    """
    for operation, argument in tree:
        kind = str(operation)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, body = argument
            if inside and low != high:
                return True
            if _explodes(body, inside=inside or int(high) > _MANY):
                return True
        elif kind == "POSSESSIVE_REPEAT":
            if _explodes(argument[2], inside=False):
                return True
        elif kind == "ATOMIC_GROUP":
            if _explodes(argument, inside=False):
                return True
        elif kind == "BRANCH":
            if inside or any(_explodes(branch, inside=False) for branch in argument[1]):
                return True
        elif kind in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            if _explodes(argument[-1], inside=inside):
                return True
        elif kind == "GROUPREF_EXISTS" and any(
            branch is not None and _explodes(branch, inside=inside) for branch in argument[1:]
        ):
            return True
    return False
