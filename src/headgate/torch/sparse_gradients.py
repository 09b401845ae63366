"""Gradients that hold only the rows that were used."""

from __future__ import annotations

import torch
from torch import nn


def sparse_parameters(model: nn.Module) -> set[int]:
    """`id` of the parameters of a model whose gradients are sparse."""
    return {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }


def rows(parameter: torch.Tensor, gradient: torch.Tensor | None, factor: float) -> torch.Tensor:
    """A gradient as rows, each once, multiplied with `factor`; none at all where there is none or the factor is 0."""
    if gradient is None or not factor:
        indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
        values = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device)
        return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False, is_coalesced=True)
    return (gradient if gradient.is_sparse else gradient.to_sparse(1)).coalesce() * factor
