"""Which server has which rows of a table, and how its first values come about without anybody
holding all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

_LARGEST_BLOCK = 4096
_BLOCKS_PER_SERVER = 64
"""At least so many where the table has as many rows: servers then differ by less than 2 %."""
_FILL_ELEMENTS = 1 << 20
_GROUP = 16
"""PyTorch draws normal numbers on the CPU in groups of so many, and the last group anew where it is
not whole.
"""


@dataclass(frozen=True)
class Rows:
    """How `total` rows lie on `servers` servers: in blocks, dealt out in turn. Rows that are used
    often tend to have neighbouring numbers; so they do not all lie on one server.
    """

    total: int
    servers: int

    @property
    def block(self) -> int:
        """Rows of a block."""
        if self.servers == 1:
            return max(1, self.total)
        return max(1, min(_LARGEST_BLOCK, self.total // (self.servers * _BLOCKS_PER_SERVER)))

    def owner(self, rows: torch.Tensor) -> torch.Tensor:
        """The server of each row."""
        return torch.div(rows, self.block, rounding_mode="floor") % self.servers

    def local(self, rows: torch.Tensor) -> torch.Tensor:
        """The place of each row on its server."""
        if self.servers == 1:
            return rows
        round_ = torch.div(rows, self.block * self.servers, rounding_mode="floor")
        return round_ * self.block + rows % self.block

    def count(self, server: int) -> int:
        """Rows that a server has."""
        if self.servers == 1:
            return self.total
        whole, rest = divmod(self.total, self.block * self.servers)
        return whole * self.block + max(0, min(self.block, rest - server * self.block))

    def runs(self, server: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Places `start` to `stop` on a server as runs of neighbouring rows of the table: (row,
        place, rows).
        """
        place = start
        while place < stop:
            number, inside = divmod(place, self.block)
            length = min(self.block - inside, stop - place)
            yield (number * self.servers + server) * self.block + inside, place, length
            place += length

    def within(self, server: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows from `start` to `stop` of the table that a server has: counted from `start`, and
        their places.
        """
        rows = torch.arange(start, stop)
        owned = rows if self.servers == 1 else rows[self.owner(rows) == server]
        return owned - start, self.local(owned)


def blocks(start: int, stop: int, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of `width` numbers such that random numbers drawn range by range are those of
    one draw.

    Normal numbers are drawn in groups. Those of a whole group depend on where it begins, and those
    of an incomplete last group on the numbers before it. So each range but the last consists of
    whole groups, and the last has at least one.
    """
    rows = _GROUP * max(1, _FILL_ELEMENTS // (_GROUP * max(1, width)))
    while start < stop:
        end = min(start + rows, stop)
        if (stop - end) * width < _GROUP:
            end = stop
        yield start, end
        start = end


def add_rows(
    values: torch.Tensor, rows: torch.Tensor, added: torch.Tensor, factor: float = 1.0
) -> None:
    """Add to rows of a matrix, in place; one that is named twice gets both. For rows of one number
    PyTorch has a faster way than for those of several: as a vector.
    """
    if values.shape[1] == 1 and values.is_contiguous():
        values, added = values.view(-1), added.reshape(-1)
    values.index_add_(0, rows, added.to(values.dtype), alpha=factor)
