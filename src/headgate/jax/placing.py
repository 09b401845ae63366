"""Places arrays: the state on every device, batches divided between the devices of all workers."""

from __future__ import annotations

import importlib
import math
import zlib
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

_Axes: Any = jax.sharding.PartitionSpec  # which has no types
_AXIS = "batch"
_PATIENCE_MS = 300_000
"""Time that a worker waits for the others to draw the first batch of an epoch."""


class DataError(RuntimeError):
    """The workers of a job do not draw the same batches."""


class Placing:
    """All devices of all workers.

    Attributes:
        whole: Whether there is only one device, so that nothing has to be placed.
    """

    def __init__(self) -> None:
        self._devices = np.array(jax.devices())
        self._several = jax.process_count() > 1
        self._meshes: dict[int, Mesh] = {}
        self._compared = 0
        self.whole = self._devices.size == 1

    def gpus(self) -> list[int]:
        """Indices of this worker's GPUs, as this process numbers them."""
        return [
            device.local_hardware_id for device in jax.local_devices() if device.platform == "gpu"
        ]

    def parts(self, size: int) -> int:
        """The number of different parts that a batch of `size` samples is divided into."""
        return math.gcd(size, self._devices.size)

    def part(self, size: int) -> int:
        """The number of a batch's samples that this worker computes."""
        parts = self.parts(size)
        return size // parts * max(1, parts * jax.local_device_count() // self._devices.size)

    def shard(self, batch: Any) -> Any:
        """Divide a batch, which every worker has whole, between all devices.

        If the number of devices does not divide the batch, their greatest common divisor is used.
        On 4 devices, 6 samples go to 2 pairs, and 7 to each device whole. The result of the
        computation is the same in every case.
        """
        return batch if self.whole else jax.tree.map(self._sharded, batch)

    def replicate(self, tree: Any) -> Any:
        """Put a tree's arrays on every device. Other leaves stay as they are."""
        return tree if self.whole else jax.tree.map(self._replicated, tree)

    def from_first(self, arrays: Sequence[Any]) -> list[Any]:
        """Worker 0's values of NumPy arrays that have the same shapes in all workers."""
        if not self._several:
            return list(arrays)
        # Sent as bytes, because JAX would convert 64-bit values to 32 bits.
        sent = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
        received = np.asarray(multihost_utils.broadcast_one_to_all(sent)).tobytes()
        leaves_of_first, begin = [], 0
        for array in arrays:
            leaves_of_first.append(
                np.frombuffer(received, array.dtype, array.size, begin).reshape(array.shape)
            )
            begin += array.nbytes
        return leaves_of_first

    def compare(self, batch: Any) -> None:
        """Check that worker 0 has drawn the same batch.

        Raises:
            DataError: The batches differ.
        """
        if not self._several:
            return
        client: Any = distributed.global_state.client
        key = f"headgate/batch/{self._compared}"
        self._compared += 1
        fingerprint = str(_fingerprint(batch))
        if jax.process_index() == 0:
            client.key_value_set(key, fingerprint)
        elif client.blocking_key_value_get(key, _PATIENCE_MS) != fingerprint:
            raise DataError(
                "this worker drew another batch than worker 0; all workers have to draw the same, "
                "and each computes its part of it: seed the shuffling with a number that all "
                "workers have, such as the epoch"
            )

    def _sharded(self, leaf: Any) -> Any:
        if is_key(leaf) or type(leaf) in (bool, int, float, complex):
            return leaf
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf
        array = np.asarray(leaf)
        parts = self.parts(array.shape[0]) if array.ndim else 1
        return self._put(
            array, NamedSharding(self._mesh(parts), _Axes(_AXIS if parts > 1 else None))
        )

    def _replicated(self, leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or not leaf.is_fully_addressable:
            return leaf
        if is_key(leaf):
            return jax.random.wrap_key_data(
                self._replicated(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf)
            )
        placed = self._put(np.asarray(leaf), NamedSharding(self._mesh(self._devices.size), _Axes()))
        return weakened(placed) if leaf.weak_type else placed

    def _put(self, array: Any, sharding: NamedSharding) -> jax.Array:
        if array.ndim == 0:
            sharding = NamedSharding(sharding.mesh, _Axes())
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def _mesh(self, parts: int) -> Mesh:
        if parts not in self._meshes:
            self._meshes[parts] = Mesh(self._devices.reshape(parts, -1), (_AXIS, "copy"))
        return self._meshes[parts]


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed random key, which has no NumPy counterpart."""
    return isinstance(leaf, jax.Array) and bool(
        jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )


def weakened(array: jax.Array) -> jax.Array:
    """Give an array a weak type, which yields to the type of any array that it is combined with."""
    lax: Any = importlib.import_module("jax._src.lax.lax")
    return cast(jax.Array, lax._convert_element_type(array, weak_type=True))


def length(batch: Any) -> int | None:
    """Number of samples in a batch: the length of its first array. None if it has no array."""
    for leaf in jax.tree.leaves(batch):
        shape = getattr(leaf, "shape", ())
        if shape:
            return int(shape[0])
    return None


def nbytes(tree: Any) -> int:
    """Bytes of all arrays in a tree."""
    return sum(
        int(getattr(leaf, "nbytes", 0)) for leaf in jax.tree.leaves(tree) if not is_key(leaf)
    )


def _fingerprint(batch: Any) -> int:
    value = 0
    for leaf in jax.tree.leaves(batch):
        if not is_key(leaf) and not (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable):
            value = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data, value)
    return value
