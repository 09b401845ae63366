"""What stands for a table that no worker holds: its shape, and what was done to it before the servers have it."""

from __future__ import annotations

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
        source: A tensor with all of its values, that was copied into it after those; None: there was none.
        table: The table on the servers; None before the model was prepared.
        dtype: Its type; `first_dtype` before all operations.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        self.rows = rows
        self.width = width
        self.dtype = self.first_dtype = dtype
        self.operations: list[Operation] = []
        self.source: torch.Tensor | None = None
        self.table: RemoteTable | None = None

    def done(self, operation: Operation) -> None:
        """Record an operation.

        Raises:
            TableError: It comes too late.
        """
        if self.table is not None or self.source is not None:
            raise TableError(
                f"{operation.name} on a table that is on the parameter servers already; give it its first values "
                "before headgate.torch.prepare, or load all of them with load_state_dict"
            )
        self.operations.append(operation)


def refused(name: str) -> TableError:
    return TableError(
        f"{name} on the weight of a sparse layer: the table is on the parameter servers and no worker holds it. Its "
        f"first values may be set by {', '.join((*RANDOM, *PLAIN))} and load_state_dict; after "
        "headgate.torch.prepare, torch.save(model.state_dict(), ...) writes it, and clone() brings it into a file. For "
        "anything else make the layer sparse=False"
    )
