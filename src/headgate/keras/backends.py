"""What differs between the back ends of Keras: how batches reach a step, and which devices
compute.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def keras_of(model: Any) -> Any:
    """The Keras package of a model: Keras 3 or `tf_keras`. None for a model of neither (a
    `tf.Module`).
    """
    for kind in type(model).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in ("keras", "tf_keras"):
            return importlib.import_module(root)
    return None


def backend_of(keras: Any) -> str:
    """`tensorflow`, `jax` or `torch`; Keras before version 3 knows only the first."""
    return "tensorflow" if keras is None or is_legacy(keras) else str(keras.backend.backend())


def is_legacy(keras: Any) -> bool:
    """Whether this is Keras as it was before version 3."""
    return bool(keras.__name__ == "tf_keras" or keras.__version__.startswith("2."))


def leaves(data: Any) -> Iterator[Any]:
    """The tensors of a batch, however nested."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, (list, tuple)):
        for item in data:
            yield from leaves(item)
    elif hasattr(data, "shape"):
        yield data


def size_of(data: Any) -> int | None:
    """Samples of a batch; None if its shape does not tell."""
    for leaf in leaves(data):
        if len(leaf.shape) and leaf.shape[0] is not None:
            return int(leaf.shape[0])
    return None


def batches_of(data: Any) -> int | None:
    """Batches of a tf.data pipeline; None if it does not know, if it has no end, or if `data` is no
    pipeline.
    """
    cardinality = getattr(data, "cardinality", None)
    count = int(cardinality()) if callable(cardinality) and hasattr(data, "element_spec") else -1
    return count if count > 0 else None


def bytes_of(data: Any) -> int:
    """Bytes of a batch as the model gets it."""
    total = 0
    for leaf in leaves(data):
        kind = getattr(leaf.dtype, "itemsize", None) or getattr(leaf.dtype, "size", None) or 4
        total += int(np.prod([int(n) for n in leaf.shape], dtype=np.int64)) * int(kind)
    return total


def part(data: Any, samples: int) -> Any:
    """The first `samples` of a batch."""
    if isinstance(data, dict):
        return {name: part(item, samples) for name, item in data.items()}
    if isinstance(data, (list, tuple)):
        items = [part(item, samples) for item in data]
        return type(data)(*items) if hasattr(data, "_fields") else type(data)(items)
    return data[:samples] if hasattr(data, "shape") and len(data.shape) else data


def like(value: Any, number: float) -> Any:
    """Convert a number to the type of `value`: a tensor or array of its type, or a float."""
    whose = type(value).__module__.partition(".")[0]
    if whose in ("jax", "jaxlib"):
        return importlib.import_module("jax.numpy").asarray(number, value.dtype)
    if whose == "tensorflow":
        return importlib.import_module("tensorflow").cast(number, value.dtype)
    return value.dtype.type(number) if whose == "numpy" else number


def wait(outputs: Any) -> None:
    """Wait until what a step returned is computed."""
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    if jax is not None:
        jax.block_until_ready(outputs)
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def device_name(backend: str) -> str:
    """`cpu`, or the name of the first GPU that computes."""
    if backend == "torch":
        import torch

        return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "cpu"
    if backend == "jax":
        import jax

        device = jax.devices()[0]
        return "cpu" if device.platform == "cpu" else str(device.device_kind)
    import tensorflow as tf

    visible_devices = tf.config.get_visible_devices("GPU")
    return (
        str(tf.config.experimental.get_device_details(visible_devices[0]).get("device_name", "gpu"))
        if visible_devices
        else "cpu"
    )


def local_part(distributed: Any) -> Any:
    """This task's part of a batch that TensorFlow has divided among the tasks of a job."""
    import tensorflow as tf

    parts = tf.distribute.get_strategy().experimental_local_results
    return tf.nest.map_structure(lambda value: parts(value)[0], distributed)


class Feeder:
    """Hands single batches to a step that was compiled for the iterator they came from, without
    compiling it again.

    A compiled step of TensorFlow takes its batch from an iterator itself. To see the batch and the
    time that it takes to come, Headgate takes it outside of the step. It then gives the step an
    iterator of the same type with this batch alone.

    Args:
        iterator: Where the batches come from.
        leaves_out: Takes the seconds that `holding` took: they are no part of a step.
    """

    def __init__(
        self, iterator: Any, leaves_out: Callable[[float], object] = lambda seconds: None
    ) -> None:
        self._iterator = iterator
        self._leaves_out = leaves_out

    @staticmethod
    def fits(iterator: Any) -> bool:
        """Whether this is an iterator over a tf.data pipeline in this process."""
        tensorflow = sys.modules.get("tensorflow")
        return tensorflow is not None and isinstance(iterator, tensorflow.data.Iterator)

    @staticmethod
    def reads(iterator: Any) -> bool:
        """Whether this iterator divides its batches among tasks. They can be read here, but not
        handed on.
        """
        tensorflow = sys.modules.get("tensorflow")
        return tensorflow is not None and isinstance(
            iterator, tensorflow.distribute.DistributedIterator
        )

    def take(self) -> Any:
        """The next batch; None at the end."""
        batch = self._iterator.get_next_as_optional()
        return batch.get_value() if bool(batch.has_value()) else None

    def holding(self, *batches: Any) -> Any:
        """An iterator that has these batches alone."""
        import tensorflow as tf

        began = time.perf_counter()
        single, *others = map(tf.data.Dataset.from_tensors, batches)
        for other in others:
            single = single.concatenate(other)
        options = tf.data.Options()
        options.autotune.enabled = False  # whose thread takes 20 ms to end with the iterator
        options.experimental_optimization.apply_default_optimizations = False
        variant = tf.data.experimental.to_variant(single.with_options(options))
        held = iter(tf.data.experimental.from_variant(variant, self._iterator.element_spec))
        self._leaves_out(time.perf_counter() - began)
        return held


class ApartReads:
    """Selects the steps whose batches a `Feeder` takes.

    None follows another. Such a step takes 1 to 4 ms longer, in which the pipeline reads on, so
    that the next wait is too short.
    """

    def __init__(self) -> None:
        self._follows = False

    def takes(self, is_measured: bool, always: bool = False) -> bool:
        """Whether the next step's batches are taken, if it is to be measured.

        Args:
            is_measured: Whether it is.
            always: They are taken in any case.
        """
        self._follows = always or (is_measured and not self._follows)
        return self._follows
