"""A sampler in memory: a test sets the usage of its targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.sampling.base import Sampler, Target
from headgate.sampling.columns import COLUMNS, Column

LEVELS: frozenset[Column] = frozenset(
    {
        "memory_bytes",
        "memory_available",
        "cache_bytes",
        "gpu_busy",
        "gpu_memory_bytes",
        "cache_occupancy",
        "any_ready",
    }
)
"""Columns with levels. All others are rates."""

RATES: frozenset[Column] = frozenset(COLUMNS) - LEVELS


class InMemoryBox:
    """A task that exists only in this process."""

    def __init__(self) -> None:
        self.living = True

    @property
    def cgroups(self) -> Mapping[str, object]:
        return {}

    def pids(self) -> list[int]:
        return [1] if self.living else []


class InMemorySampler(Sampler):
    """A minimal sampler. `use` adds to a target's running totals, `hold` sets its levels."""

    name = "in-memory"

    def __init__(self) -> None:
        self.totals: dict[str, dict[Column, float]] = {}
        self.levels: dict[str, dict[Column, float]] = {}
        self.last: dict[str, tuple[float, dict[Column, float]]] = {}

    def use(self, target: str, amounts: Mapping[Column, float]) -> None:
        """Add to the running totals of a target, in each column's unit times seconds."""
        totals = self.totals.setdefault(target, {})
        for column, amount in amounts.items():
            totals[column] = totals.get(column, 0.0) + amount

    def hold(self, target: str, levels: Mapping[Column, float]) -> None:
        """Set levels of a target."""
        self.levels.setdefault(target, {}).update(levels)

    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        self.forget({target.id for target in targets})
        readings: dict[str, Mapping[Column, float]] = {}
        for target in targets:
            if target.box is None or target.box.pids():
                values = self.one(now, target.id)
                if values:
                    readings[target.id] = values
        return readings

    def forget(self, handed: set[str]) -> None:
        for gone in self.last.keys() - handed:
            del self.last[gone]

    def one(self, now: float, target: str) -> dict[Column, float]:
        """A target's levels, and its rates since the last reading."""
        values = dict(self.levels.get(target, {}))
        totals = dict(self.totals.get(target, {}))
        before, last = self.last.get(target, (now, totals))
        if now > before:
            values |= {
                column: (total - last.get(column, 0.0)) / (now - before)
                for column, total in totals.items()
            }
        if now != before or target not in self.last:
            self.last[target] = now, totals
        return values
