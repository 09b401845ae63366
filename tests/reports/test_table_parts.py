"""Tables on terminals that are too narrow for them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from headgate.reports.table_parts import TableColumn, fitting, tables

COLUMNS = [
    TableColumn("Job"),
    TableColumn("Ended\nas", figures=False),
    *map(TableColumn, ("Ran", "Loss", "Memory\npeak")),
]
ROWS = [
    (["a", "done", "12.3 s", "0.125", "300 MiB"], ""),
    (["a-much-longer-name", "failed", "4 s", "-", "-"], "red"),
]


def printed(parts: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    for part in parts:  # type: ignore[attr-defined]
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [200, 60, 40, 30, 24])
def test_no_cell_is_lost_or_cut_however_narrow_the_terminal_is(width: int) -> None:
    lines = printed(tables(COLUMNS, ROWS, width), width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for cell in ("done", "failed", "0.125", "Ended", "peak"):
        assert cell in words
    assert "12.3 s" in " ".join(words) and "300 MiB" in " ".join(words)
    if width >= 30:
        assert "a-much-longer-name" in words


def test_a_wide_terminal_has_one_table() -> None:
    assert len(list(tables(COLUMNS, ROWS, 200))) == 1
    assert len(list(tables(COLUMNS[:2], [(["a", "done"], "")], 3))) == 1


def test_a_table_with_a_last_column_of_text_becomes_lines_where_it_has_no_room() -> None:
    table = Table("run", "state", "command", box=None, pad_edge=False)
    table.add_row("20260314-0900", "done", "headgate run train.py -- --epochs 5")
    table.add_row("20260315-0900", "", "headgate run b.py")
    assert printed(fitting(table, 100), 100)[0].split() == ["run", "state", "command"]
    lines = printed(fitting(table, 24), 24)
    assert max(map(len, lines)) <= 24
    assert " ".join(" ".join(lines).split()) == (
        "20260314-0900: state done, command headgate run train.py -- --epochs 5 "
        "20260315-0900: command headgate run b.py"
    )
