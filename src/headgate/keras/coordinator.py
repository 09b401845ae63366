"""Stands for TensorFlow's `ClusterCoordinator` in a job of one task: it calls a scheduled function
at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


class Result(tf.distribute.coordinator.RemoteValue):  # type: ignore[misc]
    """What a scheduled function has returned.

    Args:
        value: Of any kind.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def fetch(self) -> Any:
        """The value, as arrays."""
        return tf.nest.map_structure(
            lambda value: value.numpy() if hasattr(value, "numpy") else value, self._value
        )

    def get(self) -> Any:
        """The value, as it was returned."""
        return self._value


class LocalCoordinator:
    """What `ClusterCoordinator(strategy)` returns in a job of one task.

    Args:
        strategy: The strategy of the task.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy

    def schedule(
        self, fn: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> Result:
        """Call `fn` at once. What it raises is raised here; TensorFlow's coordinator would raise it
        later.
        """
        return Result(fn(*(args or ()), **(kwargs or {})))

    def create_per_worker_dataset(self, dataset_fn: Any) -> Any:
        """The data set of the only worker."""
        return dataset_fn() if callable(dataset_fn) else dataset_fn

    def join(self) -> None:
        """Return at once: all that was scheduled is done."""

    def done(self) -> bool:
        """Whether all that was scheduled is done: always."""
        return True

    def fetch(self, val: Any) -> Any:
        """Turn the results in a structure into arrays, and leave all else as it is."""
        return tf.nest.map_structure(
            lambda value: value.fetch() if isinstance(value, Result) else value, val
        )


def coordinate_alone(strategy: Any) -> None:
    """Make `ClusterCoordinator(strategy)` return a `LocalCoordinator`: TensorFlow returns the one
    that the strategy has.
    """
    if getattr(strategy, "_cluster_coordinator", None) is None:
        strategy._cluster_coordinator = LocalCoordinator(strategy)
