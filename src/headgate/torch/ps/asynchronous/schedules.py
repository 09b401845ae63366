"""Learning-rate schedulers of workers that do not wait for each other."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any


@dataclass
class PassProgress:
    """How far a pass over the training data has come.

    Attributes:
        batches: Number of its global batches; None if the loader does not tell.
        first: Number of its first batch, which a resume may have moved.
        reached: One more than the largest number given to this worker.
        taken: Batches given to this worker.
        over: Whether no batch is left.
    """

    batches: int | None
    first: int
    reached: int = 0
    taken: int = 0
    over: bool = False

    def given(self, number: int) -> None:
        self.taken += 1
        self.reached = max(self.reached, number + 1)

    @property
    def end(self) -> int:
        return self.reached if self.batches is None else self.batches


class Schedule:
    """Makes a scheduler that is stepped by batch count the batches of all workers, as in one
    process.

    A worker takes only some batches of a pass. If the script steps a scheduler with each batch, or
    every so many, a step stands for the progress of the whole pass. A scheduler that is stepped
    between passes, or with an argument (`step(metric)`), is left as it is.

    Args:
        scheduler: Its class is replaced by a subclass with another `step`, because an attribute of
            its own would be saved with its state.
    """

    def __init__(self, scheduler: Any) -> None:
        kind = type(scheduler)
        self._step = functools.partial(kind.step, scheduler)
        self._progress: PassProgress | None = None
        self._calls = 0
        self._made = 0
        namespace = {
            "step": lambda _, *args, **kwargs: self._stepped(*args, **kwargs),
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
        }
        scheduler.__class__ = type(kind.__name__, (kind,), namespace)

    def enter(self, progress: PassProgress) -> None:
        """Begin a pass."""
        self.finish()
        self._progress, self._calls, self._made = progress, 0, 0

    def finish(self) -> None:
        """End the pass, for all workers."""
        if self._progress is not None and self._calls:
            self._reach(self._progress, self._progress.end)

    def _stepped(self, *args: Any, **kwargs: Any) -> None:
        progress = self._progress
        if (
            args
            or kwargs
            or progress is None
            or not progress.taken
            or (progress.over and not self._calls)
        ):
            self._step(*args, **kwargs)
            return
        self._calls += 1
        self._reach(progress, progress.reached)

    def _reach(self, progress: PassProgress, number: int) -> None:
        target = round((number - progress.first) * self._calls / progress.taken)
        for _ in range(target - self._made):
            self._step()
        self._made = max(self._made, target)
