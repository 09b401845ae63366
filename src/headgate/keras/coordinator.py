"""TensorFlow's `ClusterCoordinator` where a task is alone: what is scheduled is done at once, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


class Result(tf.distribute.coordinator.RemoteValue):  # type: ignore[misc]
    """What a function that was scheduled has returned.

    Args:
        value: Of any kind.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def fetch(self) -> Any:
        """It as arrays."""
        return tf.nest.map_structure(lambda each: each.numpy() if hasattr(each, "numpy") else each, self._value)

    def get(self) -> Any:
        """It as it was returned."""
        return self._value


class LocalCoordinator:
    """What `ClusterCoordinator(strategy)` gives for the strategy of a task that is alone.

    Args:
        strategy: That strategy.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy

    def schedule(self, fn: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None) -> Result:
        """Call `fn`, which raises here what TensorFlow's coordinator raises later."""
        return Result(fn(*(args or ()), **(kwargs or {})))

    def create_per_worker_dataset(self, dataset_fn: Any) -> Any:
        """The data set, or what makes it, for the only worker."""
        return dataset_fn() if callable(dataset_fn) else dataset_fn

    def join(self) -> None:
        """Wait for what was scheduled: it is done."""

    def done(self) -> bool:
        """Whether what was scheduled is done."""
        return True

    def fetch(self, val: Any) -> Any:
        """Results in a structure as arrays, all else as it is."""
        return tf.nest.map_structure(lambda each: each.fetch() if isinstance(each, Result) else each, val)


def coordinate_alone(strategy: Any) -> None:
    """Let `ClusterCoordinator(strategy)` give a `LocalCoordinator`: TensorFlow hands out what the strategy has."""
    if getattr(strategy, "_cluster_coordinator", None) is None:
        strategy._cluster_coordinator = LocalCoordinator(strategy)
