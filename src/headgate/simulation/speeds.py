"""The speed of a job by its resources: scaling functions, or measured tables."""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headgate.model.errors import InvalidFileError, Problem, UsageError
from headgate.model.paths import opened


@dataclass(frozen=True, slots=True)
class Speeds:
    """Throughput by cores.

    Args:
        exponent: For a job without a table: throughput grows as cores^exponent, up to the most it
            can use.
        tables: Cores and throughput of a model, in order. Interpolated linearly from zero at 0
            cores; constant beyond the last entry.
    """

    exponent: float = 1.0
    tables: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    def relative(self, model: str, cores: float, most: float) -> float:
        """Throughput with some cores, relative to the most cores that the job can use."""
        if cores >= most:
            return 1.0
        table = self.tables.get(model)
        if table is None:
            return cores / most if self.exponent == 1.0 else float((cores / most) ** self.exponent)
        return between(table, cores) / between(table, most)


def between(table: tuple[tuple[float, float], ...], x: float) -> float:
    """Linear interpolation in a table, from zero at 0; constant beyond its last entry."""
    i = bisect_left(table, (x,))
    if i == len(table):
        return table[-1][1]
    (x0, y0), (x1, y1) = table[i - 1] if i else (0.0, 0.0), table[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def read_speeds(path: Path) -> dict[str, tuple[tuple[float, float], ...]]:
    """Read tables from a CSV with the columns `model`, `cores` and `throughput` (in any unit, the
    same for a model).

    Raises:
        UsageError: The file cannot be read.
        InvalidFileError: A line is invalid.
    """
    try:
        with opened(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is no CSV file: {error}") from None
    tables: dict[str, dict[float, float]] = {}
    problems = []
    for number, row in enumerate(rows, start=2):
        try:
            model, cores, throughput = row["model"], float(row["cores"]), float(row["throughput"])
            if not (0 < cores < math.inf and 0 < throughput < math.inf):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            problems.append(
                Problem(
                    "line",
                    number,
                    f"found {','.join(map(str, row.values()))}",
                    "expected model,cores,throughput",
                )
            )
            continue
        tables.setdefault(model, {})[cores] = throughput
    if problems or not tables:
        raise InvalidFileError(
            str(path), problems or [Problem("file", None, "it has no lines", "add some")]
        )
    return {model: tuple(sorted(table.items())) for model, table in tables.items()}
