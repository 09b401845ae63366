"""Reads from a GPU without waiting for it."""

from __future__ import annotations

import time
from typing import Callable

import torch

_LOOK_SECONDS = 0.5
_NAP_SECONDS = 0.0002


class DeferredReads:
    """Reads numbers from a GPU one call after they were computed.

    Args:
        look: Called at intervals during a wait for them.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._numbers: torch.Tensor | None = None
        self._there: torch.cuda.Event | None = None

    def swap(self, numbers: torch.Tensor) -> list[float] | None:
        """Begin to read `numbers`. Returns the numbers of the last call, None at the first."""
        before = None
        if self._numbers is not None and self._there is not None:
            looks_at = time.monotonic() + _LOOK_SECONDS
            while not self._there.query():  # type: ignore[no-untyped-call]
                time.sleep(_NAP_SECONDS)
                if time.monotonic() > looks_at:
                    self._look()
                    looks_at = time.monotonic() + _LOOK_SECONDS
            before = self._numbers.tolist()
        self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._numbers.copy_(numbers, non_blocking=True)
        self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._there.record()
        return before
