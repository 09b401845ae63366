"""Assigns the rows of a table to servers, and makes its initial values without any process that
holds all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

_LARGEST_BLOCK = 4096
_BLOCKS_PER_SERVER = 64
"""Least number of blocks per server, if the table has as many rows. Servers then differ by less
than 2 %.
"""
_FILL_ELEMENTS = 1 << 20
_GROUP = 16
"""PyTorch draws normal numbers on the CPU in groups of this size, and draws an incomplete last
group anew.
"""


@dataclass(frozen=True)
class Rows:
    """The distribution of `total` rows over `servers` servers, in blocks assigned in turn.

    Often-used rows tend to have neighbouring numbers. In blocks they are on several servers.
    """

    total: int
    servers: int

    @property
    def block(self) -> int:
        """Number of rows in a block."""
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
        """Number of rows on a server."""
        if self.servers == 1:
            return self.total
        rounds, left_over = divmod(self.total, self.block * self.servers)
        return rounds * self.block + max(0, min(self.block, left_over - server * self.block))

    def runs(self, server: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Places `start` to `stop` on a server, as runs of neighbouring rows of the table: (row,
        place, number of rows).
        """
        place = start
        while place < stop:
            number, inside = divmod(place, self.block)
            length = min(self.block - inside, stop - place)
            yield (number * self.servers + server) * self.block + inside, place, length
            place += length

    def within(self, server: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows from `start` to `stop` of the table that a server has: their offsets from
        `start`, and their places.
        """
        rows = torch.arange(start, stop)
        owned = rows if self.servers == 1 else rows[self.owner(rows) == server]
        return owned - start, self.local(owned)


def blocks(start: int, stop: int, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of `width` numbers such that random numbers drawn range by range equal those
    of one draw.

    Normal numbers are drawn in groups. A whole group depends on its begin, an incomplete last group
    also on the numbers before it. So each range but the last consists of whole groups, and the last
    has at least one.
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
    """Add to rows of a matrix, in place. Additions to a row that occurs twice add up.

    For rows of one number PyTorch has a faster way, as a vector.
    """
    if values.shape[1] == 1 and values.is_contiguous():
        values, added = values.view(-1), added.reshape(-1)
    values.index_add_(0, rows, added.to(values.dtype), alpha=factor)
