"""What stands for a table that no worker holds: its shape, and what was done to it before the servers have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from headgate.torch.ps.filling import PLAIN, RANDOM, Operation

if TYPE_CHECKING:
    from headgate.torch.ps.remote_table import RemoteTable


class TableError(RuntimeError):
    """Something was asked of a table that cannot be done where nobody holds all of it."""


class Deferral:
    """What all tensors that stand for one table share.

    Attributes:
        operations: What was done to it in place, in that order.
        values: All of its values, where the script put them in place; until there is a table, what is done to it is
            done to them. None: it did not.
        table: The table on the servers; None before the model was prepared.
        dtype: Its type; `first_dtype` before all operations.
        arriving: Is given what stands for it, when a gradient of it is about to come with a backward.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        self.rows = rows
        self.width = width
        self.dtype = self.first_dtype = dtype
        self.operations: list[Operation] = []
        self.values: torch.Tensor | None = None
        self.table: RemoteTable | None = None
        self.arriving: Callable[[torch.Tensor], None] = lambda weight: None

    def done(self, operation: Operation) -> None:
        """Record an operation.

        Raises:
            TableError: It comes too late.
        """
        if self.table is not None:
            raise TableError(
                f"{operation.name} on a table that is on the parameter servers already; give it its first values "
                "before headgate.torch.prepare, or load all of them with load_state_dict"
            )
        self.operations.append(operation)


def refused(name: str) -> TableError:
    return TableError(
        f"{name} on the weight of a sparse layer: the table is on the parameter servers and no worker holds it. Its "
        f"first values may be set by {', '.join((*RANDOM, *PLAIN))}, row by row, or all at once by load_state_dict and "
        "weight.data = tensor; after headgate.torch.prepare, torch.save(model.state_dict(), ...) writes it, and "
        "clone() brings it into a file. For anything else make the layer sparse=False"
    )
