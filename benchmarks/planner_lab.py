"""How good the plans are that Headgate chooses, on a lab of six nodes of three kinds: against all
the others, measured.

    python benchmarks/planner_lab.py [--models cnn,mlp,recommender,transformer] [--plans 40]
    [--seconds 1.5]
                                     [--repetitions 5] [--engine ray] [--json RESULT.json] [--replay
                                     RESULT.json]

For each of four models: its profile and the nodes' rates are taken as a user would, by `headgate
profile` and `headgate calibrate`. Then plans are measured that `planning.candidates` names: a
quarter are those predicted best, the others of all strategies and numbers of workers and servers.
The best five, what would be chosen from these measurements, and the baselines' plans that are not
far behind are measured again, in turn; a plan counts with the median of the latter. One that fails
is tried once more.

`after N` is the plan chosen when N measurements, those that `Planner` asked for, are told. The
baselines are those of `_baselines.py`; Optimus has eight measurements of its own. Nothing is
encrypted.

Tasks run on the nodes' cores, through their NICs, in boxes, as in a run; they are forked from a
process that has imported PyTorch. Needs root, for the lab, and a machine of two cores that does
nothing else; about half an hour. `--json` is written after each model. `--replay` measures nothing:
it evaluates such a file once more.

With `--engine ray` there is a raylet on each node, the nodes are as `headgate calibrate --engine
ray` measured them, and every plan is a run, `headgate run --plan FILE --engine ray`: half a minute
each, most of it imports of PyTorch on a part of a core. That is for few plans of one model, such as
`--models mlp --plans 8 --repetitions 1`; Optimus, which needs eight measurements of its own, is
left out.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import _baselines as baselines
import _frame
import numpy as np
from _planner_lab import LAB, NAME, SCRIPTS, Boxes, Measure, measure, ray_cluster
from pydantic import TypeAdapter

from headgate import lab
from headgate.isolation.process import ProcessIsolation
from headgate.model.cluster import Cluster, Node
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.model.records import parse
from headgate.planning import Planner, candidates
from headgate.planning.placement import place
from headgate.profiling import calibration
from headgate.sampling import machine

# --- what is measured -----------------------------------------------------------------------------

BEST = 0.25
"""Part of the space that is those which are predicted best."""

FAR = 0.7
"""A plan of a baseline that brings less than so much of the best is not measured again."""
MANY = 4
"""So many servers and more are one group."""


def space(cluster: Cluster, profile: Profile, count: int) -> list[Plan]:
    """Plans to choose from: the first of `candidates`, then in turn of each strategy and number of
    workers and servers the first and then any.
    """
    named = [
        candidates(cluster, Job(name="space", run="true", encrypt=False), profile, most=4 * count)
    ]
    for workers in range(1, len(cluster.nodes) + 1):
        job = Job(
            name="space", run="true", encrypt=False, limits=Limits(workers=(workers, workers))
        )
        named.append(candidates(cluster, job, profile, most=1000))
    chosen = dict.fromkeys(named[0][: round(BEST * count)])
    groups: dict[tuple[object, ...], list[Plan]] = defaultdict(list)
    for plan in dict.fromkeys(plan for plans in named[1:] for plan in plans):
        groups[plan.strategy, plan.workers, min(plan.servers, MANY)].append(plan)
    random = np.random.default_rng(0)
    shuffled = [
        [plans[0], *(plans[1 + i] for i in random.permutation(len(plans) - 1))]
        for plans in groups.values()
    ]
    order = [shuffled[i] for i in random.permutation(len(shuffled))]
    for turn in range(max(map(len, order))):
        for plans in order:
            if turn < len(plans) and len(chosen) < count:
                chosen.setdefault(plans[turn])
    return list(chosen)


class Bench:
    """Nodes that are there, and how plans are measured on them.

    Args:
        made: Where commands are typed.
        nodes: As they were measured.
        measure: What measures a plan.
        optimus: Whether that has its measurements.
    """

    def __init__(
        self, made: _frame.Bench, nodes: tuple[Node, ...], measure: Measure, optimus: bool
    ) -> None:
        self._made, self._nodes, self._take, self._optimus = made, nodes, measure, optimus
        self._here = machine.detect(made.home / "node.json")

    def table(self, model: str, plans: int, repetitions: int) -> Table:
        """Measure a model."""
        script = self._made.folder / f"{model}.py"
        script.write_text(SCRIPTS[model])
        profile = parse(Profile, json.loads(self._made.headgate("profile", script.name, "--json")))
        listed = space(Cluster(self._nodes), profile, plans)
        table = Table(model, profile, self._here, self._nodes, [Row(plan) for plan in listed])
        self._measure(
            table, [*table.space, *map(table.row, table.tried() if self._optimus else ())], ""
        )
        if not (leading := table.leading()):
            return table
        chosen = [planner.best().plan for planner in table.planners().values()]
        others = [table.row(plan) for plan in dict.fromkeys(table.baselines().values())]
        self._measure(
            table, [row for row in others if not row.runs and not row.failed], ", baselines"
        )
        near = [row for row in others if row.value >= FAR * leading[0].value]
        again = list({row.plan: row for row in (*leading, *map(table.row, chosen), *near)}.values())
        for turn in range(repetitions):
            self._measure(table, again, f", again {turn + 1} of {repetitions}")
        return table

    def _measure(self, table: Table, rows: Sequence[Row], words: str) -> None:
        for number, row in enumerate(rows, 1):
            begun = time.monotonic()
            said = (
                self._run(table.model, row)
                or self._run(table.model, row)
                or "it failed twice: " + row.failed
            )
            what = f"{row.plan.strategy} {row.plan.workers}+{row.plan.servers}"
            took = time.monotonic() - begun
            print(
                f"{table.model}{words} {number}/{len(rows)}: {what}: {said} ({took:.1f} s)",
                file=sys.stderr,
            )

    def _run(self, model: str, row: Row) -> str:
        """Measure a plan; what it brought in words, empty where it failed."""
        try:
            row.runs.append(self._take(row.plan, SCRIPTS[model]))
        except RuntimeError as error:
            row.failed = str(error)
            return ""
        row.failed = ""
        return f"{row.runs[-1]:.0f} samples/s"


@contextmanager
def on_lab(seconds: float) -> Iterator[Bench]:
    """Tasks are forked into the nodes of a lab."""
    with _frame.bench(LAB) as made:
        # where what is asked in this process looks for the lab
        os.environ["HEADGATE_HOME"] = str(made.home)
        made.headgate("calibrate", "--cluster", "bench.yaml", "--json")
        here = machine.detect(made.home / "node.json")
        known = calibration.calibrated(NAME, lab.nodes(NAME), here, made.home)
        nodes = tuple(replace(node, place=None) for node in known.nodes)
        with Boxes(lab.nodes(NAME), ProcessIsolation(f"bench-{os.getpid()}")) as boxes:
            yield Bench(
                made,
                nodes,
                lambda plan, script: measure(plan, script, seconds, boxes),
                optimus=True,
            )


@contextmanager
def on_ray(seconds: float) -> Iterator[Bench]:
    """Plans are runs on a Ray cluster of the lab's nodes."""
    with ray_cluster(seconds) as (made, nodes, take):
        yield Bench(made, nodes, take, optimus=False)


ENGINES = {"local": on_lab, "ray": on_ray}


# --- how good the plans are that would be chosen --------------------------------------------------

PROBES = (0, 3, 8)
"""Measurements before the plan is chosen."""
OPTIMUS_TRIES = ((1, 1), (2, 1), (3, 1), (4, 2), (5, 3), (6, 1), (6, 2), (6, 3))
"""Workers and servers of the plans that Optimus's form is fitted to."""
OPTIMUS_SERVERS = 3
TOP = 5


@dataclass
class Row:
    """A plan, and samples a second of each time that it was measured: the first in the order of the
    space, the others in turn with the other good ones. `failed` says why it did not run.
    """

    plan: Plan
    runs: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def value(self) -> float:
        """Samples a second; 0 where it did not run. What made a plan be measured again does not
        count.
        """
        return statistics.median(self.runs[1:] or self.runs) if self.runs else 0.0


@dataclass
class Table:
    """A model on a cluster: the space that is chosen from, and other plans that baselines
    choose.
    """

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
        """One for each number of `PROBES`, told as many first measurements of plans that it asked
        for.
        """
        found = {}
        for count in PROBES:
            plans = [row.plan for row in self.space]
            made = Planner(
                plans,
                job=self.job,
                cluster=self.cluster,
                profile=self.profile,
                measured_on=self.here,
            )
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
        measured = {
            plan: rows[plan].runs[0] for plan in self.tried() if plan in rows and rows[plan].runs
        }
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
                Plan(
                    strategy="ps",
                    workers=workers,
                    servers=servers,
                    batch_per_worker=max(self.batch // workers, 1),
                ),
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


@dataclass(frozen=True)
class Judged:
    """A model's results.

    Args:
        best: Samples a second of the best plan.
        parts: Throughput over that of the best, by who chose; of plans that were measured.
        failed: Plans of the space that did not run.
        errors: Mean and median of |predicted / measured - 1|, and of the sign of it, and the part
            that the band held, by number of measurements; of the plans that were not among these.
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
    return (
        statistics.mean(sizes),
        statistics.median(sizes),
        statistics.median(off),
        statistics.mean(held),
    )


def show(judged: Sequence[Judged]) -> None:
    """Print the tables."""
    names = [*map(_chosen, PROBES), "manual", "random", "Optimus", "all-reduce"]
    print(
        f"\nthroughput over that of the best plan\n{'':14}{'best/s':>9}"
        + "".join(f"{name:>12}" for name in names)
    )
    for each in judged:
        _line(each.model, f"{each.best:.0f}", [each.parts.get(name) for name in names])
    rules: tuple[tuple[str, Callable[[list[float]], float]], ...] = (
        ("mean", statistics.mean),
        ("worst", min),
    )
    for words, rule in rules:
        columns = [[each.parts[name] for each in judged if name in each.parts] for name in names]
        _line(words, "", [rule(values) if values else None for values in columns])
    for each in judged:
        if each.failed:
            print(f"{each.model}: {each.failed} plans did not run")
    print(
        "\npredictions of all "
        f"plans{'':8}{'mean error':>12}{'median':>9}{'bias':>9}{'held by the band of 90 %':>26}"
    )
    for each in judged:
        for count, (mean, median, bias, held) in each.errors.items():
            words = f"{each.model}, {_chosen(count)}"
            print(f"{words:32}{mean:>12.1%}{median:>9.1%}{bias:>+9.1%}{held:>26.1%}")


def _line(first: str, second: str, values: Sequence[float | None]) -> None:
    print(
        f"{first:14}{second:>9}"
        + "".join(f"{'-' if v is None else f'{v:.3f}':>12}" for v in values)
    )


def judged(found: Sequence[Table]) -> list[Judged]:
    """Of those in which anything was measured."""
    return [judge(table) for table in found if any(row.runs for row in table.space)]


def main() -> None:
    parser = _frame.parser("Chosen plans against all others, on a lab.", repetitions=5)
    parser.add_argument(
        "--models", default=",".join(SCRIPTS), help=f"by comma (default: {','.join(SCRIPTS)})"
    )
    parser.add_argument(
        "--plans", type=int, default=40, help="plans of a model's space (default: 40)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="of each measurement (default: 1.5)"
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="ray: on a Ray cluster of the same nodes, each plan a run of its own instead of "
        "forked tasks; that takes half a minute, so give few --plans; without Optimus",
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="evaluate what an earlier --json holds"
    )
    given = parser.parse_args()
    if given.replay is not None:
        try:
            found = load(given.replay)
        except (OSError, ValueError) as error:
            parser.error(f"--replay {given.replay}: {error}; expected what --json wrote")
        finish(found, given.json)
        return
    models = given.models.split(",")
    if unknown := [model for model in models if model not in SCRIPTS]:
        parser.error(f"--models: found {', '.join(unknown)}; expected some of {', '.join(SCRIPTS)}")
    _frame.heading(given.repetitions, "torch", "pyzmq", *(["ray"] if given.engine == "ray" else []))
    found, begun = [], time.monotonic()
    with _frame.leaving(), ENGINES[given.engine](given.seconds) as bench:
        for model in models:
            found.append(bench.table(model, given.plans, given.repetitions))
            write(given.json, found)
            print(f"{model}: done, {time.monotonic() - begun:.0f} s so far", file=sys.stderr)
    finish(found, given.json)


def finish(found: Sequence[Table], path: Path | None) -> None:
    """Print the results, and write them where asked."""
    show(judged(found))
    write(path, found)


def write(path: Path | None, found: Sequence[Table]) -> None:
    content: dict[str, object] = {
        "judged": [asdict(each) for each in judged(found)],
        "tables": dump(found),
    }
    _frame.write(path, "planner_lab", content, "torch", "pyzmq")


if __name__ == "__main__":
    main()
