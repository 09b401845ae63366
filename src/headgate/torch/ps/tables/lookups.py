"""Lookups in tables that no worker holds. They fetch the rows that the batch uses. The gradient of
these rows is a sparse gradient of the weight, as in torch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from headgate.torch.ps.tables.remote_table import DeferredTable, TableError
from headgate.torch.ps.tables.rows import add_rows


class _Lookup(torch.autograd.Function):
    """The fetched rows. Their gradient is a sparse one of the table."""

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, rows: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.weight = weight
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (rows,) = ctx.saved_tensors
        ctx.weight._deferred.arriving(ctx.weight)
        sparse = torch.sparse_coo_tensor(
            rows.unsqueeze(0),
            gradients[0],
            ctx.weight.shape,
            check_invariants=False,
            is_coalesced=True,
        )
        return sparse, None, None


class _SumOfRows(torch.autograd.Function):
    """The sum of each sample's rows, each times its factor.

    PyTorch's own operation sorts the indices again for the gradients, which takes longer than the
    rest of a step.
    """

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, numbers: torch.Tensor, factors: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(values, numbers, factors)
        return F.embedding_bag(numbers, values, mode="sum", per_sample_weights=factors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        values, numbers, factors = ctx.saved_tensors
        of_sample, of_values, of_factors = gradients[0].unsqueeze(1), None, None
        if ctx.needs_input_grad[0]:
            of_values = torch.zeros_like(values)
            add_rows(
                of_values,
                numbers.reshape(-1),
                (of_sample * factors.unsqueeze(2)).reshape(-1, values.shape[1]),
            )
        if ctx.needs_input_grad[2]:
            of_factors = (F.embedding(numbers, values) * of_sample).sum(2)
        return of_values, None, of_factors


def _distinct(indices: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct numbers, ascending, and the position of each index among them.

    NumPy sorts integers several times as fast as PyTorch, but returns no positions. So each number
    carries its own.
    """
    bits = indices.numel().bit_length()
    rows: torch.Tensor
    numbers: torch.Tensor
    if indices.device.type != "cpu" or not indices.numel() or most.bit_length() + bits > 62:
        rows, numbers = torch.unique(indices, return_inverse=True)
        return rows, numbers
    keys = indices.reshape(-1) << bits
    keys |= torch.arange(indices.numel())
    try:
        sorted_ = keys.numpy()  # in the same memory
    except RuntimeError:  # without NumPy
        rows, numbers = torch.unique(indices, return_inverse=True)
        return rows, numbers
    sorted_.sort()
    places = keys & ((1 << bits) - 1)
    keys >>= bits
    begins = torch.cat(
        [torch.zeros(1, dtype=torch.int64), (keys[1:] != keys[:-1]).nonzero().squeeze(1) + 1]
    )
    rows = keys[begins]
    counts = torch.diff(begins, append=torch.tensor([len(keys)]))
    numbers = torch.empty_like(keys)
    numbers[places] = torch.repeat_interleave(counts, output_size=len(keys))
    return rows, numbers.view(indices.shape)


def _looked_up(
    indices: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The distinct rows in use, the position of each index among them, and their values."""
    deferred = getattr(weight, "_deferred", None)
    if not isinstance(deferred, DeferredTable):
        raise TypeError(f"a table was given as indices of a lookup in a {type(weight).__name__}")
    table = deferred.table
    if table is None:
        raise TableError(
            "a sparse layer is used that is not on the parameter servers yet; call "
            "headgate.torch.prepare(model, ...) first"
        )
    least, most = (int(bound) for bound in indices.aminmax()) if indices.numel() else (0, 0)
    if least < 0 or most >= max(weight.shape[0], 1):
        raise IndexError(f"index out of range in a table of {weight.shape[0]} rows")
    rows, numbers = _distinct(indices.long(), most)
    values = table.pull(rows.cpu()).to(device=indices.device, dtype=weight.dtype)
    return rows, numbers, _Lookup.apply(weight, rows, values)  # type: ignore[no-untyped-call]


def _padding(rows: torch.Tensor, padding_idx: int | None, total: int) -> int | None:
    """The position of the padding row among `rows`; None if it is not used."""
    if padding_idx is None:
        return None
    nonzero = (rows == (padding_idx + total if padding_idx < 0 else padding_idx)).nonzero()
    return int(nonzero[0]) if nonzero.numel() else None


def embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    _check(max_norm, scale_grad_by_freq)
    rows, numbers, values = _looked_up(input, weight)
    return F.embedding(numbers, values, _padding(rows, padding_idx, weight.shape[0]))


def embedding_bag(
    input: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    _check(max_norm, scale_grad_by_freq)
    if mode == "max":
        raise ValueError("max mode does not support sparse weights")  # as torch says it
    rows, numbers, values = _looked_up(input, weight)
    if mode == "sum" and input.dim() == 2 and padding_idx is None:
        factors = (
            torch.ones_like(numbers, dtype=values.dtype)
            if per_sample_weights is None
            else per_sample_weights
        )
        summed: torch.Tensor = _SumOfRows.apply(values, numbers, factors)  # type: ignore[no-untyped-call]
        return summed
    return F.embedding_bag(
        numbers,
        values,
        offsets,
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=_padding(rows, padding_idx, weight.shape[0]),
    )


def _check(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    if max_norm is not None or scale_grad_by_freq:
        raise TableError(
            "max_norm and scale_grad_by_freq cannot be had for a table on parameter servers"
        )
