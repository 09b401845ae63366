"""Tensors and plain values as one JSON text and raw bytes, for messages and snapshots. Reading them
runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from headgate.torch.ps.transport.wire import Buffer, memory

_SMALL_BYTES = 16384
_DTYPES = {
    str(dtype): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}


class PayloadError(ValueError):
    """A value that cannot be sent, or that `pack` did not make."""


def pack(tree: Any) -> tuple[bytes, list[torch.Tensor]]:
    """JSON of `tree` (numbers, strings, None, tensors; lists, tuples and dicts of them), and its
    tensors.

    The tensors are on the CPU, contiguous, in the order of the JSON.

    Raises:
        PayloadError: `tree` holds something else.
    """
    tensors: list[torch.Tensor] = []
    return json.dumps(_packed(tree, tensors), separators=(",", ":")).encode(), tensors


def unpack(text: bytes, buffers: Sequence[Any]) -> Any:
    """The tree that `pack` was given. Its tensors may share the memory of `buffers`.

    Raises:
        PayloadError: The text or the buffers were not made by `pack`.
    """
    try:
        tree = json.loads(text)
        return _unpacked(tree, buffers)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise PayloadError(f"a message cannot be read: {error}") from error


def octets(tensor: torch.Tensor) -> Buffer:
    """The bytes of a contiguous CPU tensor, without a copy. They keep the tensor alive."""
    return memory(tensor) if tensor.numel() else b""


def from_octets(buffer: Any, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """The tensor whose bytes `buffer` holds, in the same memory. Small ones are copied, because
    they may be unaligned.

    Raises:
        ValueError: The buffer has another size.
    """
    view = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(b"")
    count = 1
    for size in shape:
        count *= size
    item = torch.empty((), dtype=dtype).element_size()
    if view.nbytes != count * item:
        raise ValueError(f"{view.nbytes} bytes for a tensor of {count * item}")
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    data = bytearray(view) if view.nbytes < _SMALL_BYTES or view.readonly else view
    return torch.frombuffer(data, dtype=dtype).reshape(tuple(shape))


def _packed(value: Any, tensors: list[torch.Tensor]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if (
        type(value).__module__ == "numpy"
        and getattr(value, "shape", None) == ()
        and hasattr(value, "item")
    ):
        return value.item()
    if isinstance(value, torch.Tensor):
        if str(value.dtype) not in _DTYPES:
            raise PayloadError(
                f"a tensor of {value.dtype} cannot be sent; expected one of {', '.join(_DTYPES)}"
            )
        tensors.append(value.detach().cpu().contiguous())
        return {"$tensor": [len(tensors) - 1, str(value.dtype), list(value.shape)]}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _packed(item, tensors) for key, item in value.items()}
        return {
            "$dict": [
                [_packed(key, tensors), _packed(item, tensors)] for key, item in value.items()
            ]
        }
    if isinstance(value, tuple):
        return {"$tuple": [_packed(item, tensors) for item in value]}
    if isinstance(value, list):
        return [_packed(item, tensors) for item in value]
    raise PayloadError(
        f"a {type(value).__module__}.{type(value).__qualname__} cannot be sent; expected tensors, "
        "numbers, strings and containers of them"
    )


def _unpacked(value: Any, buffers: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, buffers) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        index, dtype, shape = value["$tensor"]
        return from_octets(buffers[index], _DTYPES[dtype], shape)
    if "$tuple" in value:
        return tuple(_unpacked(item, buffers) for item in value["$tuple"])
    if "$dict" in value:
        return {
            _key(_unpacked(key, buffers)): _unpacked(item, buffers) for key, item in value["$dict"]
        }
    return {key: _unpacked(item, buffers) for key, item in value.items()}


def _key(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        raise ValueError("a key is a container")
    return value
