"""Which optimizers can step a sparse table: found out by trying, before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headgate.torch.ps import optimizers
from headgate.torch.ps.optimizers import OptimizerError


def sparse(rows: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A sparse gradient of different rows."""
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, shape, check_invariants=False, is_coalesced=True)


def check(optimizer: Any, group: Mapping[str, Any]) -> None:
    """Try an optimizer on a table of two rows.

    Raises:
        OptimizerError: It takes no sparse gradients, or moves rows that the batch does not use.
    """
    made = {**optimizers.recipe(optimizer), "groups": [optimizers.options(group)]}
    table = torch.ones(2, 1)
    tried, _ = optimizers.build(made, [(table, 0)])
    name = type(optimizer).__name__
    try:
        for row in (0, 1):
            before = table.clone()
            table.grad = sparse(torch.tensor([row]), torch.ones(1, 1), table.shape)
            tried.step()
    except RuntimeError as error:
        raise OptimizerError(
            f"{name} cannot step a table on parameter servers: {error}. Give sparse layers an optimizer of their own: "
            "SparseAdam, Adagrad, or SGD"
        ) from None
    if not torch.equal(table[0], before[0]):
        options = ", ".join(key for key in ("momentum", "weight_decay", "lambd") if group.get(key))
        raise OptimizerError(
            f"{name} with {options or 'these options'} changes every row of a table in every step, not only those that "
            "the batch uses; leave that out for sparse layers, in a parameter group of their own"
        )
