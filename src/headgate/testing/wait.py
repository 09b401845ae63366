"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(predicate: Callable[[], T], seconds: float = 10.0, what: str = "the condition") -> T:
    """The first true value of `predicate`, polled every 10 ms.

    Raises:
        TimeoutError: It stayed false for `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come true within {seconds:g} s")
        time.sleep(0.01)
