"""Selects the optimizer whose steps are the steps of a job, if a script has several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class MainOptimizer:
    """The steps of a job are those of the optimizer prepared first.

    A later loop over epochs has the first optimizer that trains in it. So has a script that
    prepares another one after this one has trained.

    Args:
        optimizers: The optimizers in the order in which they were prepared; may grow.
    """

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self._leader = 0
        self._is_idle = False

    def begins(self) -> None:
        """Begin another loop over epochs."""
        self._is_idle = True

    def added(self, has_trained: Callable[[int], bool]) -> None:
        """Note that an optimizer was prepared.

        Args:
            has_trained: Whether the optimizer of this number has taken a step.
        """
        self._is_idle = self._is_idle or has_trained(self._leader)

    def is_step(self, optimizer: Any, is_counted: bool) -> bool:
        """Whether a step of an optimizer is one of the job.

        Args:
            optimizer: The optimizer.
            is_counted: Whether a step was counted for this batch.
        """
        if self._leader < len(self._optimizers) and optimizer is self._optimizers[self._leader]:
            self._is_idle = False
            return True
        if not self._is_idle:
            return False
        number = next((n for n, known in enumerate(self._optimizers) if known is optimizer), None)
        if number is None:
            return False
        before, self._leader, self._is_idle = self._leader, number, False
        return number > before or not is_counted
