"""Finds the tensors of a batch, its size, and a part of its samples, without knowing its
meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor in `batch`. It may be a tensor, or lists, tuples, mappings and plain objects of
    tensors.
    """
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from tensors(item)
    elif isinstance(batch, (list, tuple)):
        for item in batch:
            yield from tensors(item)


def size(batch: Any, dim: int = 0) -> int | None:
    """Number of samples in `batch`: dimension `dim` of its first tensor with that dimension. None
    without such a tensor.
    """
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if type(first) is torch.Tensor and first.dim() > dim:  # the usual case, fast
        return first.size(dim)
    for tensor in tensors(batch):
        if tensor.dim() > dim:
            return tensor.size(dim)
        if not dim:
            return None
    return None


def is_cut(tensor: torch.Tensor, whole: int, dim: int) -> bool:
    """Whether a tensor in a batch of `whole` samples has an entry per sample: along `dim`, or along
    its last dimension if it has no dimension `dim`.
    """
    return bool(tensor.dim()) and tensor.size(min(dim, tensor.dim() - 1)) == whole


def part(batch: Any, samples: int, whole: int, begin: int = 0, dim: int = 0) -> Any:
    """The part of `batch` with `samples` of its `whole` samples, from number `begin` on. Tensors
    without an entry per sample stay as they are.
    """
    if isinstance(batch, torch.Tensor):
        return (
            batch.narrow(min(dim, batch.dim() - 1), begin, samples)
            if is_cut(batch, whole, dim)
            else batch
        )
    if isinstance(batch, Mapping):
        items = {key: part(item, samples, whole, begin, dim) for key, item in batch.items()}
        return items if type(batch) is dict else _rebuilt(batch, items)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(part(item, samples, whole, begin, dim) for item in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(part(item, samples, whole, begin, dim) for item in batch)
    return batch


def _rebuilt(batch: Any, items: dict[Any, Any]) -> Any:
    """A mapping of the type of `batch`, as tokenizers return, with other values. A dict if that
    type cannot be made.
    """
    try:
        return type(batch)(items)
    except TypeError:
        return items
