"""Seconds and bytes as people write and read them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model import units


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
    ("written", "bytes_per_second"),
    [
        ("200Mbit", 25e6),
        ("1Gbit", 125e6),
        ("1 Gbit/s", 125e6),
        ("2.5gbit", 312.5e6),
        ("100Mbps", 12.5e6),
        ("100Mb/s", 12.5e6),
        ("10GB/s", 10e9),
        ("100 MB/s", 100e6),
        ("100MBps", 100e6),
        ("1MiB/s", 1 << 20),
        ("512B/s", 512),
        ("8kbit", 1000),
    ],
)
def test_rates_are_read_in_bits_or_bytes(written: str, bytes_per_second: float) -> None:
    assert units.rate(written) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize(
    "written", [*NO_NUMBERS, 200, "200", "200M", "200Mb", "5s", "1e400bit", "Mbit", "200 bits"]
)
def test_what_could_be_bits_or_bytes_or_is_no_rate_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="expected a rate such as 200Mbit, 1Gbit/s or 100MB/s"):
        units.rate(written)


@pytest.mark.parametrize(
    ("bytes_per_second", "said"),
    [
        (0, "0 bit/s"),
        (100, "800 bit/s"),
        (25e6, "200 Mbit/s"),
        (125e6, "1 Gbit/s"),
        (187.5e6, "1.5 Gbit/s"),
        (124.99e6, "1 Gbit/s"),
        (23.9e6, "191 Mbit/s"),
        (125e12, "1000 Tbit/s"),
    ],
)
def test_rates_are_said_in_bits(bytes_per_second: float, said: str) -> None:
    assert units.say_bits(bytes_per_second) == said


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


def test_a_time_of_another_day_is_said_with_its_day() -> None:
    now = datetime.now().astimezone()
    assert units.say_time(now.timestamp(), seconds=True) == f"{now:%H:%M:%S}"
    for days in (1, 366):
        then = now + timedelta(days=days)
        assert units.say_time(then.timestamp()) == f"{then:%Y-%m-%d %H:%M}"


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(st.integers(0, 1 << 49))
def test_what_is_said_of_bytes_is_read_as_about_the_same(value: int) -> None:
    said = units.say_bytes(value)
    assert units.size(said) == pytest.approx(value, rel=0.006, abs=1)
