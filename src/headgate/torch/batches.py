"""What can be seen of a batch without knowing what it means: its tensors, its size, a smaller part of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor in `batch`: a tensor, or lists, tuples, mappings and plain objects of them."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from tensors(item)
    elif isinstance(batch, (list, tuple)):
        for item in batch:
            yield from tensors(item)


def size(batch: Any) -> int | None:
    """Samples in `batch`: the first dimension of its first tensor; None where it has no such tensor."""
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if type(first) is torch.Tensor:  # the usual case, fast
        return first.size(0) if first.dim() else None
    for tensor in tensors(batch):
        return tensor.size(0) if tensor.dim() else None
    return None


def part(batch: Any, samples: int, whole: int, begin: int = 0) -> Any:
    """`samples` of the `whole` samples in `batch`, from the one numbered `begin` on; tensors of another first dimension
    stay as they are."""
    if isinstance(batch, torch.Tensor):
        return batch[begin : begin + samples] if batch.dim() and batch.size(0) == whole else batch
    if isinstance(batch, Mapping):
        items = {key: part(item, samples, whole, begin) for key, item in batch.items()}
        return items if type(batch) is dict else _rebuilt(batch, items)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(part(item, samples, whole, begin) for item in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(part(item, samples, whole, begin) for item in batch)
    return batch


def _rebuilt(batch: Any, items: dict[Any, Any]) -> Any:
    """A mapping of the type of `batch` with other values, as tokenizers return; a dict where it cannot be made."""
    try:
        return type(batch)(items)
    except TypeError:
        return items
