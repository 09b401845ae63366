"""A server's rows of one sparse table, and the optimizer that steps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headgate.torch.ps import optimizers
from headgate.torch.ps.tables.rows import Rows, add_rows
from headgate.torch.ps.transport.calls import CallError
from headgate.torch.sparse_layers import each_row_once


class Shard:
    """A server's rows of one table.

    Args:
        rows: The distribution of the table over the servers.
        server: Index of this server.
        values: Its rows.
    """

    def __init__(self, rows: Rows, server: int, values: torch.Tensor) -> None:
        self.rows = rows
        self.server = server
        self.values = values
        self.recipe: dict[str, Any] | None = None
        self._optimizer: Any = None
        self._options: dict[int, Any] = {}

    def optimize(self, recipe: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Step the rows with this optimizer from now on.

        Args:
            recipe: The result of `optimizers.recipe`, with one group.
            state: The optimizer's state. State per row is written later.
        """
        self.recipe = dict(recipe)
        self._optimizer, self._options = optimizers.build(recipe, [(self.values, 0)])
        for name, value in state.items():
            self._optimizer.state[self.values][name] = (
                value.clone() if isinstance(value, torch.Tensor) else value
            )

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        """The values of these rows of the table."""
        return self.values.index_select(0, self.rows.local(rows.long()))

    def apply(
        self, rows: torch.Tensor, gradients: torch.Tensor, options: Mapping[str, Any]
    ) -> None:
        """Take a step with these gradients. A row may occur more than once."""
        if self._optimizer is None:
            raise CallError("a table that no optimizer steps was given gradients")
        self._options[0].update(options)
        local = self.rows.local(rows.long())
        if self._only_adds():
            group = self._options[0]
            add_rows(
                self.values, local, gradients, group["lr"] if group["maximize"] else -group["lr"]
            )
            return
        shape = self.values.shape
        given = torch.sparse_coo_tensor(local[None], gradients, shape, check_invariants=False)
        self.values.grad = each_row_once(given)
        self._optimizer.step()
        self.values.grad = None

    def _only_adds(self) -> bool:
        """Whether a step only adds a multiple of each gradient to its row. Then gradients of the
        same row need not be summed first.
        """
        group = self._options[0]
        return (
            type(self._optimizer) is torch.optim.SGD
            and not group["momentum"]
            and not group["weight_decay"]
        )

    def fields(self) -> dict[str, Any]:
        """The optimizer's state. None for state per row, which `read` returns."""
        state = {} if self._optimizer is None else self._optimizer.state.get(self.values, {})
        return {name: None if self._by_row(value) else value for name, value in state.items()}

    def read(self, field: str | None, start: int, stop: int) -> torch.Tensor:
        """Read rows on this server.

        Args:
            field: Name in the optimizer's state; None: the values.
            start: First place.
            stop: One past the last.
        """
        return self._field(field)[start:stop].clone()

    def write(self, field: str | None, start: int, values: torch.Tensor) -> None:
        """Overwrite rows from place `start` on."""
        if field is not None and field not in self._optimizer.state[self.values]:
            self._optimizer.state[self.values][field] = torch.zeros_like(self.values)
        self._field(field)[start : start + len(values)] = values.to(self.values.dtype)

    def saved(self) -> dict[str, Any]:
        """The contents, for `restored`."""
        recipe = self.recipe
        if recipe is not None:
            recipe = {**recipe, "groups": [optimizers.options(self._options[0])]}
        state = {} if self._optimizer is None else dict(self._optimizer.state.get(self.values, {}))
        place = {"total": self.rows.total, "servers": self.rows.servers, "server": self.server}
        return {**place, "values": self.values, "recipe": recipe, "state": state}

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Shard:
        shard = cls(
            Rows(saved["total"], saved["servers"]), saved["server"], saved["values"].clone()
        )
        if saved["recipe"] is not None:
            shard.optimize(saved["recipe"], saved["state"])
        return shard

    def _by_row(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.shape == self.values.shape

    def _field(self, field: str | None) -> torch.Tensor:
        field_rows = self.values if field is None else self._optimizer.state[self.values][field]
        if not self._by_row(field_rows):
            raise CallError(f"{field!r} is not kept for each row")
        values: torch.Tensor = field_rows
        return values
