"""Split a table that is too wide for the terminal into parts below each other, each with the first
column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Spaces between two columns."""
_LEAST_FOLDED, _LEAST_CUT = 20, 8
"""Least width of the last column, if it is folded or cut."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: its heading, possibly of several lines, and whether it has figures."""

    heading: str
    figures: bool = True


def tables(
    columns: Sequence[TableColumn], rows: Sequence[tuple[Sequence[str], str]], width: int
) -> Iterator[Table]:
    """The parts of a table, each within the terminal's width if possible.

    Args:
        columns: The first one names the row.
        rows: Cells as plain text, never rich's markup, and the style of the row.
        width: Width of the terminal.
    """
    widths = [
        max(map(cell_len, [*column.heading.split("\n"), *(cells[at] for cells, _ in rows)]))
        for at, column in enumerate(columns)
    ]
    # Row names are folded if they would leave no room for a figure.
    named = min(widths[0], max(width - _GAP - max(widths[1:], default=0), 1))
    for part in _parts(widths, width - named):
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column(columns[0].heading, overflow="fold", width=named)
        for at in part:
            table.add_column(
                columns[at].heading,
                justify="right" if columns[at].figures else "left",
                no_wrap=True,
            )
        for cells, style in rows:
            table.add_row(*(Text(cells[at]) for at in (0, *part)), style=style)
        yield table


def _parts(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Numbers of the columns after the first, as many in each part as there is room for."""
    part, left = list[int](), room
    for at, width in enumerate(widths[1:], start=1):
        if part and width + _GAP > left:
            yield part
            part, left = [], room
        part.append(at)
        left -= width + _GAP
    yield part


def fitting(table: Table, width: int) -> Iterator[Table | Text]:
    """A table whose last column may be folded or cut. Without room for a word of each other column,
    it becomes lines: the first cell of a row, then heading and cell of each non-empty column.
    """
    cells = [[_plain(cell) for cell in column.cells] for column in table.columns]
    headings = [_plain(column.header) for column in table.columns]
    *least, last = (
        _longest_word([heading, *column]) for heading, column in zip(headings, cells, strict=True)
    )
    least.append(_LEAST_CUT if table.columns[-1].no_wrap else min(last, _LEAST_FOLDED))
    _, right, _, left = table.padding
    gap = max(left, right) if table.collapse_padding else left + right
    if sum(least) + gap * (len(least) - 1) <= width:
        table.columns[0].no_wrap = True
        yield table
        return
    for row in zip(*cells, strict=True):
        labelled_cells = [
            f"{heading} {cell}"
            for heading, cell in list(zip(headings, row, strict=True))[1:]
            if cell
        ]
        yield Text(f"{row[0].strip()}: {', '.join(labelled_cells)}")


def _longest_word(cells: Sequence[str]) -> int:
    return max((cell_len(word) for cell in cells for word in cell.split()), default=0)


def _plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
