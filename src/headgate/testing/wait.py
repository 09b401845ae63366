"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(predicate: Callable[[], T], seconds: float = 60.0, what: str = "the condition") -> T:
    """Wait for the first true value of `predicate`. It is polled every 10 ms at first, then less
    often.

    Otherwise a predicate that runs a command or reads all of /proc would slow down what it waits
    for.

    Raises:
        TimeoutError: It stayed false for `seconds`.
    """
    began = time.monotonic()
    while True:
        value = predicate()
        if value:
            return value
        waited = time.monotonic() - began
        if waited > seconds:
            raise TimeoutError(f"{what} did not come true within {seconds:g} s")
        time.sleep(min(max(0.01, waited / 20), 0.1))
