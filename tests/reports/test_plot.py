"""What is drawn in plain characters."""

from __future__ import annotations

from headgate.reports.plot import plot


def test_the_band_is_drawn_around_what_is_expected_and_widens_with_it() -> None:
    lines = plot([(0.0, 13.0), (5.0, 7.0)], [(5.0, 7.0, 7.0, 7.0), (10.0, 4.0, 0.0, 8.0)], 60)
    rows = [line.ljust(60) for line in lines[:14]]  # a row for each whole number from 13 down to 0
    # 8 down to 0, 4 in the middle
    assert [row[-1] for row in rows] == [*" " * 5, *"....", "-", *"...."]
    halfway = "".join(row[-14] for row in rows)
    assert 0 < halfway.count(".") < 8


def test_the_largest_numbers_are_drawn() -> None:
    lines = plot([(0.0, 1.7e308), (5.0, -1.7e308)], [(9.0, 0.0, -1.7e308, 1.7e308)], 60)
    assert any("o" in line for line in lines)
