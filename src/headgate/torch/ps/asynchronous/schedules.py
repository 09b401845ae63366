"""Learning-rate schedulers where workers go at their own pace."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any


@dataclass
class PassProgress:
    """How far a pass over the training data is.

    Attributes:
        batches: Global batches that it has; None where the loader does not tell.
        first: Number of its first batch, which a resume may have moved.
        reached: One more than the largest number that this worker was given.
        taken: Batches that this worker was given.
        over: Whether no batch is left to be given.
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
    """Has a scheduler that is stepped with the batches count those of all workers, as it would in
    one process.

    A worker takes some batches of a pass. Of a scheduler that the script steps with each of them
    (or with every so many), a step stands for as many as the pass has come on. One that is stepped
    between passes, or told where it is (`step(metric)`), is left as it is.

    Args:
        scheduler: Its class is exchanged for a subclass with another `step`: an attribute of its
            own would be saved with its state.
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
        """A pass begins."""
        self.finish()
        self._progress, self._calls, self._made = progress, 0, 0

    def finish(self) -> None:
        """The pass is over for all workers."""
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
