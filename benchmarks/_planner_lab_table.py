"""What was measured of a model's plans, and how good what would be chosen from them is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _baselines as baselines
from pydantic import TypeAdapter

from headgate.cluster import Cluster, Node
from headgate.jobs import Job
from headgate.planning import Planner
from headgate.planning.placement import place
from headgate.plans import Plan
from headgate.profiles import Profile

PROBES = (0, 3, 8)
"""Measurements before the plan is chosen."""
OPTIMUS_TRIES = ((1, 1), (2, 1), (3, 1), (4, 2), (5, 3), (6, 1), (6, 2), (6, 3))
"""Workers and servers of the plans that Optimus's form is fitted to."""
OPTIMUS_SERVERS = 3
TOP = 5


@dataclass
class Row:
    """A plan, and samples a second of each time that it was measured: the first in the order of the space, the others
    in turn with the other good ones. `failed` says why it did not run."""

    plan: Plan
    runs: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def value(self) -> float:
        """Samples a second; 0 where it did not run. What made a plan be measured again does not count."""
        return statistics.median(self.runs[1:] or self.runs) if self.runs else 0.0


@dataclass
class Table:
    """A model on a cluster: the space that is chosen from, and other plans that baselines choose."""

    model: str
    profile: Profile
    here: Node
    nodes: tuple[Node, ...]
    space: list[Row]
    others: list[Row] = field(default_factory=list)

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.profile.batch or 1

    @property
    def job(self) -> Job:
        return Job(name=self.model, run="true", encrypt=False)

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.nodes)

    def row(self, plan: Plan) -> Row:
        """That of a plan, which is added where it is new."""
        for row in (*self.space, *self.others):
            if row.plan == plan:
                return row
        self.others.append(Row(plan))
        return self.others[-1]

    def best(self) -> Row:
        """The best of the space, of those that were measured again where any was."""
        again = [row for row in self.space if len(row.runs) > 1]
        return max(again or self.space, key=lambda row: row.value)

    def leading(self) -> list[Row]:
        """The best few, by the first measurement."""
        return sorted((row for row in self.space if row.runs), key=lambda row: -row.runs[0])[:TOP]

    def planners(self) -> dict[int, Planner]:
        """One for each number of `PROBES`, told as many first measurements of plans that it asked for."""
        found = {}
        for count in PROBES:
            plans = [row.plan for row in self.space]
            made = Planner(plans, job=self.job, cluster=self.cluster, profile=self.profile, measured_on=self.here)
            for _ in range(count):
                if (plan := made.ask()) is not None:
                    row = self.row(plan)
                    if row.runs:
                        made.tell(plan, throughput=row.runs[0])
                    else:
                        made.fail(plan, row.failed)
            found[count] = made
        return found

    def tried(self) -> list[Plan]:
        """The plans that Optimus's form is fitted to."""
        return [self._grid[each] for each in OPTIMUS_TRIES]

    def baselines(self) -> dict[str, Plan]:
        """What others would choose. Optimus's needs most of its measurements."""
        rows = {row.plan: row for row in (*self.space, *self.others)}
        measured = {plan: rows[plan].runs[0] for plan in self.tried() if plan in rows and rows[plan].runs}
        found = {
            "manual": baselines.manual(self.cluster, self.batch),
            "all-reduce": baselines.all_reduce(self.cluster, self.batch),
        }
        if len(measured) <= len(OPTIMUS_TRIES) // 2:
            return found
        return found | {"Optimus": baselines.optimus(list(self._grid.values()), measured)}

    @property
    def _grid(self) -> dict[tuple[int, int], Plan]:
        """Equal batches, placed by a simple rule, by workers and servers."""
        return {
            (workers, servers): place(
                Plan(strategy="ps", workers=workers, servers=servers, batch_per_worker=max(self.batch // workers, 1)),
                self.nodes,
            )
            for workers in range(1, len(self.nodes) + 1)
            for servers in range(1, OPTIMUS_SERVERS + 1)
        }


_TABLES = TypeAdapter(list[Table])


def dump(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """As plain JSON values."""
    found: list[dict[str, Any]] = _TABLES.dump_python(list(tables), mode="json")
    return found


def load(path: Path) -> list[Table]:
    """The tables of a result.

    Raises:
        ValueError: It is none, and the message says what is wrong.
        OSError: It cannot be read.
    """
    return TypeAdapter(_Result).validate_json(path.read_bytes()).tables


@dataclass
class _Result:
    tables: list[Table]


# --- how good they are


@dataclass(frozen=True)
class Judged:
    """A model's results.

    Args:
        best: Samples a second of the best plan.
        parts: Throughput over that of the best, by who chose; of plans that were measured.
        failed: Plans of the space that did not run.
        errors: Mean and median of |predicted / measured - 1|, and of the sign of it, and the part that the band held,
            by number of measurements; of the plans that were not among these.
    """

    model: str
    best: float
    parts: dict[str, float]
    failed: int
    errors: dict[int, tuple[float, float, float, float]]


def judge(table: Table) -> Judged:
    """How good the plans are that would be chosen."""
    best = table.best().value
    parts, errors = {}, {}
    for count, planner in table.planners().items():
        parts[_chosen(count)] = table.row(planner.best().plan).value / best
        errors[count] = _errors(planner, table)
    for name, plan in table.baselines().items():
        row = table.row(plan)
        if row.runs or row.failed:
            parts[name] = row.value / best
    parts["random"] = statistics.mean(row.value for row in table.space) / best
    return Judged(table.model, best, parts, sum(bool(row.failed) for row in table.space), errors)


def _chosen(count: int) -> str:
    return f"after {count}"


def _errors(planner: Planner, table: Table) -> tuple[float, float, float, float]:
    pairs = [(planner.predict(row.plan), row.value) for row in table.space if row.value]
    off = [found.throughput / value - 1 for found, value in pairs]
    held = [found.low <= value <= found.high for found, value in pairs]
    sizes = [abs(each) for each in off]
    return statistics.mean(sizes), statistics.median(sizes), statistics.median(off), statistics.mean(held)


def show(judged: Sequence[Judged]) -> None:
    """Print the tables."""
    names = [*map(_chosen, PROBES), "manual", "random", "Optimus", "all-reduce"]
    print(f"\nthroughput over that of the best plan\n{'':14}{'best/s':>9}" + "".join(f"{name:>12}" for name in names))
    for each in judged:
        _line(each.model, f"{each.best:.0f}", [each.parts.get(name) for name in names])
    rules: tuple[tuple[str, Callable[[list[float]], float]], ...] = (("mean", statistics.mean), ("worst", min))
    for words, rule in rules:
        columns = [[each.parts[name] for each in judged if name in each.parts] for name in names]
        _line(words, "", [rule(values) if values else None for values in columns])
    for each in judged:
        if each.failed:
            print(f"{each.model}: {each.failed} plans did not run")
    print(f"\npredictions of all plans{'':8}{'mean error':>12}{'median':>9}{'bias':>9}{'held by the band of 90 %':>26}")
    for each in judged:
        for count, (mean, median, bias, held) in each.errors.items():
            words = f"{each.model}, {_chosen(count)}"
            print(f"{words:32}{mean:>12.1%}{median:>9.1%}{bias:>+9.1%}{held:>26.1%}")


def _line(first: str, second: str, values: Sequence[float | None]) -> None:
    print(f"{first:14}{second:>9}" + "".join(f"{'-' if v is None else f'{v:.3f}':>12}" for v in values))


__all__ = ["PROBES", "Judged", "Row", "Table", "dump", "judge", "load", "show"]
