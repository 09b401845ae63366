"""How fast a job is by what it gets, and by what runs beside it: scaling functions, or tables that were measured."""

from __future__ import annotations

import csv
import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headgate.errors import InvalidFileError, Problem, UsageError
from headgate.paths import opened


@dataclass(frozen=True, slots=True)
class Speeds:
    """Throughput by cores.

    Args:
        exponent: Of a job without a table: its throughput grows as cores^exponent, up to the most it can use.
        tables: Cores and throughput of a model, in order; between them straight lines, from nothing at 0 cores, and
            beyond the last no more.
    """

    exponent: float = 1.0
    tables: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    def relative(self, model: str, cores: float, most: float) -> float:
        """Throughput with so many cores, over that with the most that the job can use."""
        if cores >= most:
            return 1.0
        table = self.tables.get(model)
        if table is None:
            return cores / most if self.exponent == 1.0 else float((cores / most) ** self.exponent)
        return between(table, cores) / between(table, most)


def between(table: tuple[tuple[float, float], ...], x: float) -> float:
    """What a table says, in straight lines: from nothing at 0, and beyond its last point no more."""
    i = bisect_left(table, (x,))
    if i == len(table):
        return table[-1][1]
    (x0, y0), (x1, y1) = table[i - 1] if i else (0.0, 0.0), table[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Interference:
    """What jobs cost each other that share a device, as pairs of them were measured.

    Args:
        pairs: By device, model and other model: the part of its throughput alone that the first one keeps. The device
            is a GPU's name, or the kind of a node for jobs on its cores; in lower case.
    """

    pairs: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    def kept(self, device: str, model: str, other: str) -> float | None:
        """The part of its throughput that a job keeps beside another; None where that was not measured."""
        return self.pairs.get(device, {}).get(model, {}).get(other)

    def on_gpu(self, device: str, model: str, others: Iterable[str]) -> float:
        """The part that a job keeps of a GPU. Several others: the product; where one was not measured: equal time for
        each."""
        kept, slices = 1.0, 1
        for other in others:
            pair = self.kept(device, model, other)
            if pair is None:
                slices += 1
            else:
                kept *= pair
        return kept / slices

    def on_cores(
        self, device: str, model: str, cores: float, rest: float, others: Iterable[tuple[str, float]]
    ) -> float:
        """The part that a job keeps of what its cores would bring; what was not measured costs nothing.

        A pair was measured with the cores of a node divided between the two. Of several others each counts for as much
        of the other cores as it has of them: however many there are, only so many run at a time. Where they have less
        than half of the node, they cost so much less.

        Args:
            device: Kind of the node.
            model: What the job trains.
            cores: Of the node.
            rest: Those that the job does not have.
            others: Model and cores of each of the others.
        """
        slowed = sum(had * (1.0 - (self.kept(device, model, other) or 1.0)) for other, had in others)
        return 1.0 - min(slowed / max(rest, cores / 2), 1.0)


def read_speeds(path: Path) -> dict[str, tuple[tuple[float, float], ...]]:
    """Tables from a CSV with the columns `model`, `cores` and `throughput` (in any unit, the same for a model).

    Raises:
        UsageError: It cannot be read.
        InvalidFileError: A line makes no sense.
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
                Problem("line", number, f"found {','.join(map(str, row.values()))}", "expected model,cores,throughput")
            )
            continue
        tables.setdefault(model, {})[cores] = throughput
    if problems or not tables:
        raise InvalidFileError(str(path), problems or [Problem("file", None, "it has no lines", "add some")])
    return {model: tuple(sorted(table.items())) for model, table in tables.items()}


def read_pairs(path: Path) -> Interference:
    """Measured pairs from a JSON of the shape of Gavel's: `{device: {model: {"null": alone, other: [its own, the
    other's]}}}`, throughputs; a 0 was not measured.

    Raises:
        UsageError: It cannot be read, or is of another shape.
    """
    try:
        with opened(path) as file:
            data = json.load(file)
        pairs = {
            str(device).lower(): {
                str(model): {
                    str(other): min(float(pair[0]) / float(row["null"]), 1.0)
                    for other, pair in row.items()
                    if other != "null" and float(pair[0]) > 0 and 0 < float(row["null"]) < math.inf
                }
                for model, row in models.items()
            }
            for device, models in data.items()
        }
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        shape = '{"device": {"model": {"null": 8.1, "other model": [5.6, 5.2]}}}'
        raise UsageError(f"{path} has no measured pairs; expected JSON such as {shape}") from None
    return Interference(pairs)
