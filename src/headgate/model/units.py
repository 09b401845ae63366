"""Seconds, bytes and rates as people write and read them."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from typing import Literal

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "b": 1}
_BYTES |= {f"{prefix}b": 1000 ** (i + 1) for i, prefix in enumerate("kmgt")}
_BYTES |= {f"{prefix}ib": 1024 ** (i + 1) for i, prefix in enumerate("kmgt")}
_BYTES |= {f"{prefix}": 1024 ** (i + 1) for i, prefix in enumerate("kmgt")}
_LEAST_MEMORY = 1 << 20
_MOST_MEMORY = 1 << 50
_MOST_AT_ONCE = 100_000
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
_PREFIXES = (
    {"": 1}
    | {p: 1000 ** (i + 1) for i, p in enumerate("kmgt")}
    | {f"{p}i": 1024 ** (i + 1) for i, p in enumerate("kmgt")}
)


def _parse(text: object, units: dict[str, float] | dict[str, int], expected: str) -> float:
    value = math.nan
    if (
        isinstance(text, int | float)
        and not isinstance(text, bool)
        and abs(text) <= sys.float_info.max
    ):
        value = float(text)
    elif isinstance(text, str):
        match = re.fullmatch(rf"\s*{_NUMBER}\s*([a-z]*)\s*", text.lower())
        if match is not None and match[2] in units:
            value = float(match[1]) * units[match[2]]
    if not math.isfinite(value):
        raise ValueError(f"expected {expected}")
    return value


def seconds(text: object) -> float:
    """Parse seconds: `5`, `5s`, `200ms`, `2m`, `1.5h`, `1d`.

    Raises:
        ValueError: The text has another form. With colons it could be a time of day, or hours and
            minutes.
    """
    if isinstance(text, str) and ":" in text:
        raise ValueError("expected how long, such as 30s, 5m or 2h, and no time of day")
    return _parse(text, _SECONDS, "a time such as 30, 30s, 5m or 2h")


def size(text: object) -> int:
    """Parse bytes: `1048576`, `512MB` (10^6), `2GiB` (2^30), `2G` (2^30).

    Raises:
        ValueError: The text has another form.
    """
    return int(_parse(text, _BYTES, "a size such as 512MB or 2GiB"))


def memory(text: object) -> int:
    """Parse memory of a process in bytes, like `size`. Refuses numbers meant in another unit, such
    as `8`.

    Raises:
        ValueError: The text is not a size, too small for any process, or too large for any machine.
    """
    parsed = size(text)
    if parsed < _LEAST_MEMORY:
        raise ValueError("expected 1 MiB or more, with its unit, such as 512MB or 2GiB")
    if parsed > _MOST_MEMORY:
        raise ValueError("expected 1 PiB or less, such as 512MB or 2GiB")
    return parsed


def count(text: object) -> int:
    """Parse a count: `1000`, `124M`, `1.3B` (10^9).

    Raises:
        ValueError: The text has another form.
    """
    parsed = int(_parse(text, _COUNTS, "a number such as 124M or 1.3B"))
    if parsed < 1:
        raise ValueError("expected a number of 1 or more, such as 124M")
    return parsed


def at_once(text: object) -> int | Literal["auto"]:
    """Parse how many jobs run at once: `4`, `auto`.

    Raises:
        ValueError: It is neither `auto` nor a whole number from 1 to 100,000.
    """
    if text == "auto":
        return "auto"
    digits = str(text).strip()
    if isinstance(text, bool) or not (digits.isascii() and digits.isdecimal()):
        raise ValueError("expected a number of jobs such as 4, or `auto`")
    if not 1 <= int(digits) <= _MOST_AT_ONCE:
        raise ValueError(f"expected 1 to {_MOST_AT_ONCE:,} jobs, or `auto`")
    return int(digits)


def rate(text: object) -> float:
    """Parse bytes a second: `200Mbit`, `1Gbit/s`, `100Mbps` (bits), `10GB/s`, `100MiB/s` (bytes).
    `b` is a bit, `B` a byte.

    Raises:
        ValueError: The text has another form. A number without a unit is ambiguous and refused.
    """
    match = (
        re.fullmatch(rf"\s*{_NUMBER}\s*([kKmMgGtT]i?)?(bit|b|B)(/s|ps)?\s*", text)
        if isinstance(text, str)
        else None
    )
    if match is None or (match[3] == "b" and match[4] is None):
        raise ValueError("expected a rate such as 200Mbit, 1Gbit/s or 100MB/s")
    value: float = float(match[1]) * _PREFIXES[(match[2] or "").lower()]
    if not math.isfinite(value):
        raise ValueError("expected a rate such as 200Mbit, 1Gbit/s or 100MB/s")
    return value if match[3] == "B" else value / 8


def say_bits(bytes_per_second: float) -> str:
    """A network rate in bits: `200 Mbit/s`, `1.5 Gbit/s`; three digits."""
    value, unit = bytes_per_second * 8, "bit/s"
    for larger in ("kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"):
        if float(f"{value:.3g}") < 1000:
            break
        value, unit = value / 1000, larger
    return f"{float(f'{value:.3g}'):g} {unit}"


def counted(number: float, noun: str, form: str = ",") -> str:
    """A number with its noun: `1 job`, `3 jobs`, `0.5 cores`.

    Args:
        form: Format of the number, as `g`.
    """
    said = format(number, form)
    return f"{said} {noun}" if said == "1" else f"{said} {noun}s"


def say_first(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`: at most so many of these names, and how many the others are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def say_percent(part: float, digits: int = 0) -> str:
    """A fraction in percent: `54 %`."""
    return f"{part * 100:.{digits}f} %"


def say_bytes(count: float) -> str:
    """`count` bytes in the largest fitting binary unit, at most two decimals: `2 GiB`, `2.01
    GiB`.
    """
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(round(value, 2)) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {unit}"


def say_samples(rate: float, unit: bool = True) -> str:
    """Samples a second with at least three digits: `1,024 samples/s`, `2.5 samples/s`."""
    return (f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}") + (" samples/s" if unit else "")


def say_seconds(value: float) -> str:
    """`0.25 s`, `12.3 s`, `4 min 5 s`, `2 h 3 min`."""
    if value < 60:
        return f"{value:.3g} s"
    minutes, seconds_left = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def say_time(at: float, seconds: bool = False) -> str:
    """A wall-clock time (seconds since the epoch): `14:05` or `14:05:09`. On another day with its
    date: `2026-11-24 14:05`.
    """
    localtime = time.localtime(at)
    if localtime[:3] != time.localtime()[:3]:
        return time.strftime("%Y-%m-%d %H:%M", localtime)
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", localtime)


_CONTROLS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def say_text(text: str) -> str:
    """A text made safe for a terminal.

    Control characters, colours, changes of writing direction and invalid bytes are spelled out.
    """
    return _CONTROLS.sub(lambda amount: ascii(amount[0])[1:-1], text)
