"""How good the plans are that Headgate chooses, on a lab of six nodes of three kinds: against all the others, measured.

    python benchmarks/planner_lab.py [--models cnn,mlp,recommender,transformer] [--plans 40] [--seconds 1.5]
                                     [--repetitions 5] [--engine ray] [--json RESULT.json] [--replay RESULT.json]

For each of four models: its profile and the nodes' rates are taken as a user would, by `headgate profile` and
`headgate calibrate`. Then plans are measured that `planning.candidates` names: a quarter are those predicted best, the
others of all strategies and numbers of workers and servers. The best five, what would be chosen from these
measurements, and the baselines' plans that are not far behind are measured again, in turn; a plan counts with the
median of the latter. One that fails is tried once more.

`after N` is the plan chosen when N measurements, those that `Planner` asked for, are told. The baselines are those of
`_baselines.py`; Optimus has eight measurements of its own. Nothing is encrypted.

Tasks run on the nodes' cores, through their NICs, in boxes, as in a run; they are forked from a process that has
imported PyTorch. Needs root, for the lab, and a machine of two cores that does nothing else; about half an hour.
`--json` is written after each model. `--replay` measures nothing: it evaluates such a file once more.

With `--engine ray` there is a raylet on each node, the nodes are as `headgate calibrate --engine ray` measured them,
and every plan is a run, `headgate run --plan FILE --engine ray`: half a minute each, most of it imports of PyTorch on
a part of a core. That is for few plans of one model, such as `--models mlp --plans 8 --repetitions 1`; Optimus, which
needs eight measurements of its own, is left out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import _frame
import _job
import _planner_lab_table as tables
import numpy as np
from _planner_lab_measuring import Boxes, Measure, measure
from _planner_lab_models import LAB, NAME, SCRIPTS
from _planner_lab_table import Judged, Row, Table

from headgate import lab
from headgate.cluster import Cluster, Node
from headgate.isolation.process import ProcessIsolation
from headgate.jobs import Job, Limits
from headgate.planning import candidates
from headgate.plans import Plan
from headgate.profiles import Profile
from headgate.profiling import calibration, store
from headgate.telemetry import machine

BEST = 0.25
"""Part of the space that is those which are predicted best."""

FAR = 0.7
"""A plan of a baseline that brings less than so much of the best is not measured again."""
MANY = 4
"""So many servers and more are one group."""


def space(cluster: Cluster, profile: Profile, count: int) -> list[Plan]:
    """Plans to choose from: the first of `candidates`, then in turn of each strategy and number of workers and servers
    the first and then any."""
    named = [candidates(cluster, Job(name="space", run="true", encrypt=False), profile, most=4 * count)]
    for workers in range(1, len(cluster.nodes) + 1):
        job = Job(name="space", run="true", encrypt=False, limits=Limits(workers=(workers, workers)))
        named.append(candidates(cluster, job, profile, most=1000))
    chosen = dict.fromkeys(named[0][: round(BEST * count)])
    groups: dict[tuple[object, ...], list[Plan]] = defaultdict(list)
    for plan in dict.fromkeys(plan for plans in named[1:] for plan in plans):
        groups[plan.strategy, plan.workers, min(plan.servers, MANY)].append(plan)
    random = np.random.default_rng(0)
    shuffled = [[plans[0], *(plans[1 + i] for i in random.permutation(len(plans) - 1))] for plans in groups.values()]
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

    def __init__(self, made: _job.Bench, nodes: tuple[Node, ...], measure: Measure, optimus: bool) -> None:
        self._made, self._nodes, self._take, self._optimus = made, nodes, measure, optimus
        self._here = machine.detect(made.home / "node.json")

    def table(self, model: str, plans: int, repetitions: int) -> Table:
        """Measure a model."""
        script = self._made.folder / f"{model}.py"
        script.write_text(SCRIPTS[model])
        profile = store.parse(json.loads(self._made.headgate("profile", script.name, "--json")))
        listed = space(Cluster(self._nodes), profile, plans)
        table = Table(model, profile, self._here, self._nodes, [Row(plan) for plan in listed])
        self._measure(table, [*table.space, *map(table.row, table.tried() if self._optimus else ())], "")
        if not (leading := table.leading()):
            return table
        chosen = [planner.best().plan for planner in table.planners().values()]
        others = [table.row(plan) for plan in dict.fromkeys(table.baselines().values())]
        self._measure(table, [row for row in others if not row.runs and not row.failed], ", baselines")
        near = [row for row in others if row.value >= FAR * leading[0].value]
        again = list({row.plan: row for row in (*leading, *map(table.row, chosen), *near)}.values())
        for turn in range(repetitions):
            self._measure(table, again, f", again {turn + 1} of {repetitions}")
        return table

    def _measure(self, table: Table, rows: Sequence[Row], words: str) -> None:
        for number, row in enumerate(rows, 1):
            begun = time.monotonic()
            said = self._run(table.model, row) or self._run(table.model, row) or "it failed twice: " + row.failed
            what = f"{row.plan.strategy} {row.plan.workers}+{row.plan.servers}"
            took = time.monotonic() - begun
            print(f"{table.model}{words} {number}/{len(rows)}: {what}: {said} ({took:.1f} s)", file=sys.stderr)

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
    with _job.bench(LAB) as made:
        os.environ["HEADGATE_HOME"] = str(made.home)  # where what is asked in this process looks for the lab
        made.headgate("calibrate", "--cluster", "bench.yaml", "--json")
        here = machine.detect(made.home / "node.json")
        known = calibration.calibrated(NAME, lab.nodes(NAME), here, made.home)
        nodes = tuple(replace(node, place=None) for node in known.nodes)
        with Boxes(lab.nodes(NAME), ProcessIsolation(f"bench-{os.getpid()}")) as boxes:
            yield Bench(made, nodes, lambda plan, script: measure(plan, script, seconds, boxes), optimus=True)


@contextmanager
def on_ray(seconds: float) -> Iterator[Bench]:
    """Plans are runs on a Ray cluster of the lab's nodes."""
    import _planner_lab_ray

    with _planner_lab_ray.cluster(seconds) as (made, nodes, take):
        yield Bench(made, nodes, take, optimus=False)


ENGINES = {"local": on_lab, "ray": on_ray}


def judged(found: Sequence[Table]) -> list[Judged]:
    """Of those in which anything was measured."""
    return [tables.judge(table) for table in found if any(row.runs for row in table.space)]


def main() -> None:
    parser = _frame.parser("Chosen plans against all others, on a lab.", repetitions=5)
    parser.add_argument("--models", default=",".join(SCRIPTS), help=f"by comma (default: {','.join(SCRIPTS)})")
    parser.add_argument("--plans", type=int, default=40, help="plans of a model's space (default: 40)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement (default: 1.5)")
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="ray: on a Ray cluster of the same nodes, each plan a run of its own instead of forked tasks; that takes "
        "half a minute, so give few --plans; without Optimus",
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="evaluate what an earlier --json holds")
    given = parser.parse_args()
    if given.replay is not None:
        try:
            found = tables.load(given.replay)
        except (OSError, ValueError) as error:
            parser.error(f"--replay {given.replay}: {error}; expected what --json wrote")
        finish(found, given.json)
        return
    models = given.models.split(",")
    if unknown := [model for model in models if model not in SCRIPTS]:
        parser.error(f"--models: found {', '.join(unknown)}; expected some of {', '.join(SCRIPTS)}")
    _frame.heading(given.repetitions, "torch", "pyzmq", *(["ray"] if given.engine == "ray" else []))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    found, begun = [], time.monotonic()
    with ENGINES[given.engine](given.seconds) as bench:
        for model in models:
            found.append(bench.table(model, given.plans, given.repetitions))
            write(given.json, found)
            print(f"{model}: done, {time.monotonic() - begun:.0f} s so far", file=sys.stderr)
    finish(found, given.json)


def finish(found: Sequence[Table], path: Path | None) -> None:
    """Print the results, and write them where asked."""
    tables.show(judged(found))
    write(path, found)


def write(path: Path | None, found: Sequence[Table]) -> None:
    content: dict[str, object] = {"judged": [asdict(each) for each in judged(found)], "tables": tables.dump(found)}
    _frame.write(path, "planner_lab", content, "torch", "pyzmq")


def _leave(number: int, _: object) -> None:
    """End by way of what takes the lab down."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
