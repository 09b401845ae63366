"""What the loaders of an observed script have yielded."""

from __future__ import annotations

from typing import Any, Callable


class Load:
    """What a process's loaders have yielded in a step.

    Attributes:
        seconds: Time spent waiting for batches.
        batches: Number of batches.
        samples: Their samples.
        size: Bytes of their tensors.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.batches = self.samples = self.size = 0


class Loads:
    """The batches that a process's loaders have yielded since the last `take`.

    Attributes:
        measure: Returns the samples and the bytes of a batch; None: batches are not noted.
        dataset: The dataset of the latest batch; None: unknown.
        here: Whether the training process reads the data itself, without worker processes.
    """

    def __init__(self) -> None:
        self.measure: Callable[[Any], tuple[int, int]] | None = None
        self.here = True
        self.dataset: Any = None
        self._load = Load()

    def add(self, loader: Any, batch: Any, seconds: float) -> None:
        samples, size = (0, 0) if self.measure is None else self.measure(batch)
        load = self._load
        load.seconds += seconds
        load.batches += 1
        load.samples += samples
        load.size += size
        self.here = not getattr(loader, "_num_workers", 0)
        self.dataset = getattr(loader, "_dataset", None)

    def take(self) -> Load:
        """Take and forget what was noted."""
        taken, self._load = self._load, Load()
        return taken

    def close(self) -> None:
        """Note no more, and hold on to nothing."""
        self.measure = self.dataset = None
