"""How often `stop_early` loses the best job of a sweep, and how much time it saves.

    pip download --no-deps --no-binary :all: lcdb==0.1.0 && tar xzf lcdb-0.1.0.tar.gz
    python benchmarks/stop_early.py --lcdb lcdb-0.1.0 [--repetitions 2] [--at-once 4] [--json PATH]

Curves, replayed as if the jobs ran now, with `--at-once` of them side by side, in random order:

- trained: 24 learning rates of each of the small models of `loss_prediction.py`, by SGD and Adam,
  under four schedules; the training loss, as the mean of ten steps. A repetition is one sweep of
  each.
- recorded: the tables of the package `lcdb` 0.1.0 (Mohr et al., «LCDB 1.0», ECML PKDD 2022), whose
  sources FOLDER has unpacked: validation error of up to 20 learners on 246 data sets, with five
  divisions of each. Their steps are sizes of the training set, from 16 by half octaves, not steps
  of one training.

The best is lost if all jobs that come to their end are worse. The regret is by how much, as a part
of the distance from the best to the median job. Time is saved in steps; a job is ended at once.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, get_args

import _frame
import loss_prediction
import numpy as np

from headgate.forecast.stop_early import SweepStopper, Verdict, best_end
from headgate.model.sweeps import StopEarly, StopRule

TRIALS = 24
MEAN_OF = 10
FACTORS = tuple(np.geomspace(0.02, 4.0, TRIALS))
Curve = Sequence[tuple[float, float]]
"""Steps and values."""


class Sweep(NamedTuple):
    """The curves of a sweep's jobs."""

    kind: str
    curves: Mapping[str, Curve]


class Outcome(NamedTuple):
    """What a rule came to: the best lost, by which part of its distance to the median job, the part
    of the steps saved, and the seconds that it took.
    """

    lost: bool
    regret: float
    saved: float
    seconds: float


def trained(repetitions: int) -> Iterator[Sweep]:
    """Sweeps over learning rates of models that are trained here."""
    for seed in range(60, 60 + repetitions):
        for model, optimizer in loss_prediction.RATES:
            for schedule in loss_prediction.SCHEDULES:
                curves = {}
                for number, factor in enumerate(FACTORS):
                    with np.errstate(all="ignore"):
                        losses = loss_prediction.train(model, optimizer, schedule, seed, factor)
                    means = np.reshape(losses, (-1, MEAN_OF)).mean(axis=1)
                    steps = MEAN_OF * np.arange(1, len(means) + 1)
                    curves[str(number)] = list(zip(steps.tolist(), means.tolist(), strict=True))
                yield Sweep(f"trained: {schedule}", curves)


def recorded(folder: Path) -> Iterator[Sweep]:
    """Sweeps over learners of LCDB, one for each data set and outer seed."""
    sweeps: dict[tuple[str, str], dict[str, dict[float, float]]] = {}
    with (folder / "lcdb" / "database-accuracy.csv").open() as file:
        for row in csv.DictReader(file):
            if row["inner_seed"] == "0":
                learners = sweeps.setdefault((row["openmlid"], row["outer_seed"]), {})
                curve = learners.setdefault(row["learner"], {})
                curve[float(row["size_train"])] = 1.0 - float(row["score_valid"])
    for learners in sweeps.values():
        longest = max(max(curve) for curve in learners.values())
        whole = {
            name: sorted(curve.items()) for name, curve in learners.items() if longest in curve
        }
        if len(whole) >= 10:
            yield Sweep("recorded", whole)


def replay(sweep: Sweep, rule: StopEarly, at_once: int, seed: int) -> Outcome:
    """Run a sweep under a rule, a job's steps taking equal time."""
    names = list(sweep.curves)
    random.Random(seed).shuffle(names)
    waiting, stopper = iter(names), SweepStopper(rule)
    running = [(sweep.curves[name][0][0], name, 0) for name in islice(waiting, at_once)]
    heapq.heapify(running)
    made = dict.fromkeys(names, 0.0)
    kept, before = set(), time.process_time()
    while running:
        now, name, index = heapq.heappop(running)
        curve = sweep.curves[name]
        step, value = curve[index]
        made[name] = step
        due = stopper.report(name, step, value, length=curve[-1][0])
        going = index + 1 < len(curve)
        if going and due and judged(stopper, name) is not None:
            stopper.forget(name)
        elif going:
            heapq.heappush(running, (now + curve[index + 1][0] - step, name, index + 1))
            continue
        else:
            kept.add(name)
            stopper.end(name)
        if (following := next(waiting, None)) is not None:
            heapq.heappush(running, (now + sweep.curves[following][0][0], following, 0))
    took = time.process_time() - before
    whole = sum(curve[-1][0] for curve in sweep.curves.values())
    ends = {name: end_of(curve) for name, curve in sweep.curves.items()}
    best, middle = min(ends.values()), statistics.median(ends.values())
    best_kept = min((ends[name] for name in kept), default=float("inf"))
    regret = (best_kept - best) / (middle - best) if middle > best else 0.0
    return Outcome(best_kept > best, regret, 1.0 - sum(made.values()) / whole, took)


def judged(stopper: SweepStopper, name: str) -> Verdict | None:
    """The verdict on a job, after its end is predicted where the rule asks for that."""
    question = stopper.question(name)
    return stopper.judge(name, best_end(question) if question is not None else None)


def end_of(curve: Curve) -> float:
    """The value that a job ends with: the mean of its last five, of a training's steps."""
    last = [value for _, value in curve[-5:]] if len(curve) > 50 else [curve[-1][1]]
    mean = statistics.fmean(last)
    return mean if np.isfinite(mean) else float("inf")


def main() -> None:
    command = _frame.parser("Best jobs lost and time saved by early stopping.", 2)
    command.add_argument("--lcdb", type=Path, help="unpacked sources of the package lcdb")
    command.add_argument("--at-once", type=int, default=4, help="jobs side by side (default: 4)")
    command.add_argument("--keep", type=int, default=1, help="`keep` of the rules (default: 1)")
    command.add_argument("--orders", type=int, default=1, help="orders of each sweep (default: 1)")
    options = command.parse_args()
    print(f"{_frame.machine()}; {_frame.versions('numpy')}")
    sweeps = [*trained(options.repetitions), *(recorded(options.lcdb) if options.lcdb else ())]
    write_table(sweeps, options)


def write_table(sweeps: Sequence[Sweep], options: argparse.Namespace) -> None:
    outcomes: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for sweep in sweeps:
        for rule in get_args(StopRule):
            for order in range(options.orders):
                stated = StopEarly(rule, keep=options.keep)
                outcome = replay(sweep, stated, options.at_once, order)
                for group in {sweep.kind, sweep.kind.partition(":")[0]}:
                    outcomes[group, rule].append(outcome)
    print(f"{'':30}{'rule':12}{'sweeps':>8}{'best lost':>11}{'regret':>9}{'saved':>8}{'CPU':>9}")
    rows = []
    for (group, rule), of_group in sorted(outcomes.items()):
        lost = statistics.fmean(outcome.lost for outcome in of_group)
        regret = statistics.fmean(min(outcome.regret, 1.0) for outcome in of_group)
        saved = statistics.fmean(outcome.saved for outcome in of_group)
        seconds = statistics.fmean(outcome.seconds for outcome in of_group)
        rows.append(
            {"curves": group, "rule": rule, "sweeps": len(of_group), "lost": lost}
            | {"regret": regret, "saved": saved, "seconds": seconds}
        )
        print(
            f"{group:30}{rule:12}{len(of_group):8}{lost:11.1%}{regret:9.2%}{saved:8.1%}"
            f"{seconds:8.2f}s"
        )
    _frame.write(options.json, "stop_early", {"rules": rows, "keep": options.keep}, "numpy")


if __name__ == "__main__":
    main()
