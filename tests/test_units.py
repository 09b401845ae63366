"""Seconds and bytes as people write and read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import units


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (5, 5.0),
        (0.25, 0.25),
        ("5", 5.0),
        ("5s", 5.0),
        (" 5 S ", 5.0),
        ("200ms", 0.2),
        ("2m", 120.0),
        ("2min", 120.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("1e2s", 100.0),
        ("0", 0.0),
    ],
)
def test_times_are_read(written: object, meant: float) -> None:
    assert units.seconds(written) == pytest.approx(meant)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (1048576, 1 << 20),
        ("1048576", 1 << 20),
        ("512B", 512),
        ("512MB", 512_000_000),
        ("2GiB", 2 << 30),
        ("2G", 2 << 30),
        ("1.5 kib", 1536),
        ("1TB", 10**12),
        ("1T", 1 << 40),
    ],
)
def test_sizes_are_read(written: object, meant: int) -> None:
    assert units.size(written) == meant


NO_NUMBERS: tuple[object, ...] = (
    "",
    "s",
    "-5",
    "-5s",
    "5 5",
    "5x",
    "five",
    "1e999",
    "nan",
    "inf",
    None,
    True,
    [1],
    {},
    float("inf"),
)


@pytest.mark.parametrize("written", [*NO_NUMBERS, float("nan"), "5GiB"])
def test_what_is_no_time_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match=re.escape("expected a time such as 30, 30s, 5m or 2h")):
        units.seconds(written)


@pytest.mark.parametrize("written", [*NO_NUMBERS, float("nan"), "5 m²", "5s"])
def test_what_is_no_size_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="expected a size such as 512MB or 2GiB"):
        units.size(written)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (10 * 1024 + 512, "10.5 KiB"),
        (2 << 30, "2 GiB"),
        (100.404 * (1 << 20), "100.4 MiB"),
        (2.01 * (1 << 30), "2.01 GiB"),
        ((1 << 20) - 1, "1 MiB"),
        (5000 * (1 << 40), "5000 TiB"),
        (-(3 << 20), "-3 MiB"),
    ],
)
def test_bytes_are_said_in_the_largest_unit_that_fits(value: float, said: str) -> None:
    assert units.say_bytes(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0 s"),
        (0.25, "0.25 s"),
        (12.345, "12.3 s"),
        (59.96, "60 s"),
        (60.0, "1 min 0 s"),
        (245.0, "4 min 5 s"),
        (3599.7, "1 h 0 min"),
        (7380.0, "2 h 3 min"),
        (90_000.0, "25 h 0 min"),
    ],
)
def test_times_are_said(value: float, said: str) -> None:
    assert units.say_seconds(value) == said


@settings(derandomize=True, database=None, max_examples=200)
@given(st.integers(0, 1 << 49))
def test_what_is_said_of_bytes_is_read_as_about_the_same(value: int) -> None:
    said = units.say_bytes(value)
    assert units.size(said) == pytest.approx(value, rel=0.006, abs=1)
