"""How well `Planner` learns from what others measured, beside Pollux's form and a plain Gaussian process.

    python benchmarks/planner_others.py [--repetitions 3] [--json PATH]

Reads `pollux/` of the folder in HEADGATE_DATA (default ../shared/data beside the checkout): step times of six models
under all-reduce on two clusters, 1 to 4 nodes (`placements`) and 6 to 16 (`scalability`). For each model and cluster:

- error (mean of |predicted / measured - 1|) at all other points, from 8, 16 and 32 random ones, and how often the
  band of 90 % held them;
- the same from 32 random points with up to 4 GPUs, at all with more;
- after 5 and 10 measurements that `ask` chose: the throughput of `best` over the best measured.

Pollux's form (OSDI 2021, section 3.2) is fitted by least squares of the logarithms from 5 starts.
"""

from __future__ import annotations

import csv
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import _frame
import numpy as np
from scipy.optimize import least_squares, minimize

from headgate.planning import Planner
from headgate.plans import Plan

MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
CLUSTERS = ("placements", "scalability")
Table = Mapping[Plan, float]
"""Samples a second of each plan."""
Method = Callable[[Table, Sequence[Plan], Sequence[Plan]], list[tuple[float, float, float]]]
"""From all plans, those measured and those to predict: throughput, low and high of each of the latter."""


def table(folder: Path, model: str, cluster: str) -> Table:
    """What was measured; the mean where a plan was measured several times."""
    found = defaultdict(list)
    with (folder / "pollux" / f"{model}-{cluster}.csv").open() as file:
        for row in csv.DictReader(file):
            if cluster == "placements":
                there = [int(digit) for digit in row["placement"]]
            else:
                nodes, replicas = int(row["num_nodes"]), int(row["num_replicas"])
                there = [replicas // nodes + (i < replicas % nodes) for i in range(nodes)]
            count, batch = sum(there), int(row["local_bsz"])
            plan = Plan(
                strategy="single" if count == 1 else "allreduce",
                workers=count,
                batch_per_worker=batch,
                worker_nodes=tuple(f"node {i}" for i, workers in enumerate(there) for _ in range(workers)),
            )
            found[plan].append(count * batch / float(row["step_time"]))
    return {plan: statistics.mean(values) for plan, values in found.items()}


# --- the methods compared


def planner(measured: Table, told: Sequence[Plan], others: Sequence[Plan]) -> list[tuple[float, float, float]]:
    learned = Planner(list(measured))
    for plan in told:
        learned.tell(plan, throughput=measured[plan])
    return [(p.throughput, p.low, p.high) for p in map(learned.predict, others)]


def _columns(plans: Sequence[Plan]) -> Any:
    """Workers, nodes and batch of each plan."""
    return np.array([(p.workers, len(set(p.worker_nodes)), p.batch_per_worker) for p in plans], float).T


def pollux(measured: Table, told: Sequence[Plan], others: Sequence[Plan]) -> list[tuple[float, float, float]]:
    def log_throughput(values: Any, plans: Sequence[Plan]) -> Any:
        workers, nodes, batch = _columns(plans)
        a, b, within, within_more, across, across_more = np.exp(values[:6])
        power = 1 + 9 / (1 + np.exp(-values[6]))
        more = np.maximum(workers - 2, 0)
        sync = np.where(nodes > 1, across + across_more * more, within + within_more * more) * (workers > 1)
        gradient = a + b * batch
        return np.log(workers * batch) - np.log(gradient**power + sync**power) / power

    y = np.log([measured[plan] for plan in told])
    batch = _columns(told)[2].mean()
    step = float(np.median([plan.workers * plan.batch_per_worker / measured[plan] for plan in told]))  # type: ignore[operator]
    usual = np.log([step / 2, step / 2 / batch, step / 9, step / 99, step / 9, step / 99, 1.0])
    usual[6] = 0.0
    random = np.random.default_rng(0)
    fits = [
        least_squares(
            lambda v: log_throughput(v, told) - y,
            np.clip(usual + random.normal(0, 1, 7), -25, 10),
            bounds=(-30, 15),
        )
        for _ in range(5)
    ]
    found = min(fits, key=lambda fit: fit.cost).x
    return [(float(np.exp(x)),) * 3 for x in log_throughput(found, others)]


def plain(measured: Table, told: Sequence[Plan], others: Sequence[Plan]) -> list[tuple[float, float, float]]:
    """A Gaussian process over the logarithms of workers, nodes and batch: squared exponential, most likely lengths."""
    a, b = np.log(_columns(told)).T, np.log(_columns(others)).T
    y = np.log([measured[plan] for plan in told])
    mean = y.mean()

    def kernel(x: Any, z: Any, v: Any) -> Any:
        return np.exp(2 * v[0] - 0.5 * (((x[:, None] - z[None]) / np.exp(v[2:])) ** 2).sum(-1))

    def unlikely(v: Any) -> float:
        matrix = kernel(a, a, v) + (np.exp(2 * v[1]) + 1e-6) * np.eye(len(a))
        return float(0.5 * (y - mean) @ np.linalg.solve(matrix, y - mean) + 0.5 * np.linalg.slogdet(matrix)[1])

    v = minimize(unlikely, np.array([0.0, -3.0, 0.5, 0.5, 0.5]), method="L-BFGS-B", bounds=[(-5, 3)] * 5).x
    matrix = kernel(a, a, v) + (np.exp(2 * v[1]) + 1e-6) * np.eye(len(a))
    cross = kernel(b, a, v)
    middle = mean + cross @ np.linalg.solve(matrix, y - mean)
    variance = np.exp(2 * v[0]) + np.exp(2 * v[1]) - (cross * np.linalg.solve(matrix, cross.T).T).sum(1)
    off = 1.645 * np.sqrt(np.maximum(variance, 1e-12))
    return [(float(np.exp(m)), float(np.exp(m - o)), float(np.exp(m + o))) for m, o in zip(middle, off)]


METHODS: Mapping[str, Method] = {"Planner": planner, "Pollux's form": pollux, "plain process": plain}


# --- what is measured


def error(method: Method, measured: Table, told: Sequence[Plan], others: Sequence[Plan]) -> tuple[float, float]:
    """Mean error, and the part of the others that are within the band."""
    found = method(measured, told, others)
    off = [abs(value / measured[plan] - 1) for plan, (value, *_) in zip(others, found)]
    held = [low <= measured[plan] <= high for plan, (_, low, high) in zip(others, found)]
    return statistics.mean(off), statistics.mean(held)


def choices(measured: Table) -> dict[int, float]:
    """The best plan's throughput over the best there is, after so many measurements."""
    learned, best, found = Planner(list(measured)), max(measured.values()), {}
    for times in range(1, 11):
        plan = learned.ask()
        if plan is not None:
            learned.tell(plan, throughput=measured[plan])
        if times in (5, 10):
            found[times] = measured[learned.best().plan] / best
    return found


def main() -> None:
    options = _frame.parser("Planner on what others measured.", 3).parse_args()
    folder = Path(os.environ.get("HEADGATE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "pollux").is_dir():
        raise SystemExit(f"no {folder / 'pollux'}: name the folder of the measurements with HEADGATE_DATA")
    _frame.heading(options.repetitions)
    rows = []
    chosen: dict[int, list[float]] = {5: [], 10: []}
    tasks = ("8 random", "16 random", "32 random", "from 4 GPUs to more")
    errors: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for model in MODELS:
        for cluster in CLUSTERS:
            measured = table(folder, model, cluster)
            for times, part in choices(measured).items():
                chosen[times].append(part)
            random = np.random.default_rng(0)
            for _ in range(options.repetitions):
                plans = [list(measured)[i] for i in random.permutation(len(measured))]
                few, more = ([p for p in plans if (p.workers <= 4) == small] for small in (True, False))
                splits = [(plans[:n], plans[n:]) for n in (8, 16, 32)]
                splits += [(few[:32], more)] if len(few) >= 8 else []
                for task, (told, others) in zip(tasks, splits):
                    for name, method in METHODS.items():
                        found = error(method, measured, told, others)
                        errors[name, task].append(found)
                        rows.append([model, cluster, task, name, *found])
    print(f"{'error (held by the band of 90 %)':34}" + "".join(f"{task:>24}" for task in tasks))
    for name in METHODS:
        means = [np.mean(errors[name, task], axis=0) for task in tasks]
        held = ["" if name == "Pollux's form" else f" ({band:.1%})" for _, band in means]
        print(f"{name:34}" + "".join(f"{f'{off:.1%}{band}':>24}" for (off, _), band in zip(means, held)))
    for times, parts in chosen.items():
        mean, worst = statistics.mean(parts), min(parts)
        print(f"best after {times} measurements asked for: {mean:.3f} of the best on the mean, {worst:.3f} at worst")
    _frame.write(options.json, "planner_others", {"errors": rows, "chosen": chosen})


if __name__ == "__main__":
    main()
