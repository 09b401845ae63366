"""What `headgate metrics` calls what is measured."""

from __future__ import annotations

from headgate.reports import terminal
from headgate.sampling.columns import COLUMNS


def test_every_column_has_a_name_and_a_unit() -> None:
    assert set(terminal._NAMES) == set(COLUMNS)
