"""How well `Planner` learns from what others measured, beside Pollux's form and a plain Gaussian
process.

    python benchmarks/planner_others.py [--repetitions 3] [--json PATH]

Reads `pollux/` of the folder in HEADGATE_DATA (default ../shared/data beside the checkout): step
times of six models under all-reduce on two clusters, 1 to 4 nodes (`placements`) and 6 to 16
(`scalability`). For each model and cluster:

- error (mean of |predicted / measured - 1|) at all other points, from 8, 16 and 32 random ones, and
  how often the band of 90 % held them;
- the same from 32 random points with up to 4 GPUs, at all with more;
- after 5 and 10 measurements that `ask` chose: the throughput of `best` over the best measured.

From `gavel/` there four models on three kinds of GPU, 1 to 8 of them on one node and on as many,
several batches: error on a kind from 4 random points of it and all of both other kinds, beside that
of taking the kind for a constant factor faster than the one of these that it is most alike. How
many GPUs a node had is not said; 8 are taken.

From `tensorflow/` three models under parameter servers: error with 16, 32 and 64 GPUs from what 1
and 8 brought, beside that of linear scaling from 8.

Pollux's form (OSDI 2021, section 3.2) is fitted by least squares of the logarithms from 5 starts.
"""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import _frame
import numpy as np
from scipy.optimize import least_squares, minimize

from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.plans import Plan
from headgate.planning import Planner

MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
CLUSTERS = ("placements", "scalability")
Table = Mapping[Plan, float]
"""Samples a second of each plan."""
Method = Callable[[Table, Sequence[Plan], Sequence[Plan]], list[tuple[float, float, float]]]
"""From all plans, those measured and those to predict: throughput, low and high of each of the
latter.
"""


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
                worker_nodes=tuple(
                    f"node {i}" for i, workers in enumerate(there) for _ in range(workers)
                ),
            )
            found[plan].append(count * batch / float(row["step_time"]))
    return {plan: statistics.mean(values) for plan, values in found.items()}


# --- the methods compared


def planner(
    measured: Table, told: Sequence[Plan], others: Sequence[Plan]
) -> list[tuple[float, float, float]]:
    learned = Planner(list(measured))
    for plan in told:
        learned.tell(plan, throughput=measured[plan])
    return [(p.throughput, p.low, p.high) for p in map(learned.predict, others)]


def _columns(plans: Sequence[Plan]) -> Any:
    """Workers, nodes and batch of each plan."""
    return np.array(
        [(p.workers, len(set(p.worker_nodes)), p.batch_per_worker) for p in plans], float
    ).T


def pollux(
    measured: Table, told: Sequence[Plan], others: Sequence[Plan]
) -> list[tuple[float, float, float]]:
    def log_throughput(values: Any, plans: Sequence[Plan]) -> Any:
        workers, nodes, batch = _columns(plans)
        a, b, within, within_more, across, across_more = np.exp(values[:6])
        power = 1 + 9 / (1 + np.exp(-values[6]))
        more = np.maximum(workers - 2, 0)
        sync = np.where(nodes > 1, across + across_more * more, within + within_more * more) * (
            workers > 1
        )
        gradient = a + b * batch
        return np.log(workers * batch) - np.log(gradient**power + sync**power) / power

    y = np.log([measured[plan] for plan in told])
    batch = _columns(told)[2].mean()
    step = float(
        np.median([plan.workers * plan.batch_per_worker / measured[plan] for plan in told])  # type: ignore[operator]
    )
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


def plain(
    measured: Table, told: Sequence[Plan], others: Sequence[Plan]
) -> list[tuple[float, float, float]]:
    """A Gaussian process over the logarithms of workers, nodes and batch: squared exponential, most
    likely lengths.
    """
    a, b = np.log(_columns(told)).T, np.log(_columns(others)).T
    y = np.log([measured[plan] for plan in told])
    mean = y.mean()

    def kernel(x: Any, z: Any, v: Any) -> Any:
        return np.exp(2 * v[0] - 0.5 * (((x[:, None] - z[None]) / np.exp(v[2:])) ** 2).sum(-1))

    def unlikely(v: Any) -> float:
        matrix = kernel(a, a, v) + (np.exp(2 * v[1]) + 1e-6) * np.eye(len(a))
        return float(
            0.5 * (y - mean) @ np.linalg.solve(matrix, y - mean)
            + 0.5 * np.linalg.slogdet(matrix)[1]
        )

    v = minimize(
        unlikely, np.array([0.0, -3.0, 0.5, 0.5, 0.5]), method="L-BFGS-B", bounds=[(-5, 3)] * 5
    ).x
    matrix = kernel(a, a, v) + (np.exp(2 * v[1]) + 1e-6) * np.eye(len(a))
    cross = kernel(b, a, v)
    middle = mean + cross @ np.linalg.solve(matrix, y - mean)
    variance = (
        np.exp(2 * v[0]) + np.exp(2 * v[1]) - (cross * np.linalg.solve(matrix, cross.T).T).sum(1)
    )
    off = 1.645 * np.sqrt(np.maximum(variance, 1e-12))
    return [
        (float(np.exp(m)), float(np.exp(m - o)), float(np.exp(m + o))) for m, o in zip(middle, off)
    ]


METHODS: Mapping[str, Method] = {
    "Planner": planner,
    "Pollux's form": pollux,
    "plain process": plain,
}


# --- what is measured


def error(
    method: Method, measured: Table, told: Sequence[Plan], others: Sequence[Plan]
) -> tuple[float, float]:
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


# --- kinds of GPU, and more of them

KINDS = ("k80", "p100", "v100")
GPUS_OF_NODE = 8
SCALED_FROM = 8


def nodes(kind: str) -> list[Node]:
    """Nodes of a kind, with 8 GPUs each."""
    gpus = tuple(Gpu(i, kind, 12 << 30) for i in range(GPUS_OF_NODE))
    return [
        Node(f"{kind}-{i}", cores=32.0, memory_bytes=1 << 38, kind=kind, gpus=gpus)
        for i in range(8)
    ]


def by_kind(folder: Path) -> dict[str, dict[str, dict[Plan, float]]]:
    """Samples a second by model, kind of GPU and plan. A plan names no node, but as many places as
    nodes.
    """
    content = json.loads((folder / "gavel" / "throughputs.json").read_text())
    found: dict[str, dict[str, dict[Plan, float]]] = defaultdict(lambda: defaultdict(dict))
    for named, jobs in content.items():
        kind, _, apart = named.partition("_")
        for job, others in jobs.items():
            said = re.fullmatch(r"\('(.+) \(batch size (\d+)\)', (\d+)\)", job)
            if said is None or not others.get("null") or (apart and said[3] == "1"):
                continue
            batch, count = int(said[2]), int(said[3])
            plan = Plan(
                strategy="single" if count == 1 else "allreduce",
                workers=count,
                batch_per_worker=batch,
                worker_nodes=tuple(str(i if apart else 0) for i in range(count)),
            )
            found[said[1]][kind][plan] = others["null"] * batch
    return {
        model: kinds
        for model, kinds in found.items()
        if any(plan.workers > 1 for plan in kinds[KINDS[0]])
    }


def across(kinds: Mapping[str, Mapping[Plan, float]], kind: str, random: Any) -> dict[str, float]:
    """Mean error on a kind of GPU, by method."""
    plans = [plan for plan in kinds[kind] if all(plan in kinds[other] for other in KINDS)]
    plans = [plans[i] for i in random.permutation(len(plans))]
    told, others = plans[:4], plans[4:]

    def on(plan: Plan, there: str) -> Plan:
        return replace(plan, worker_nodes=tuple(f"{there}-{place}" for place in plan.worker_nodes))

    cluster = Cluster(tuple(node for each in KINDS for node in nodes(each)))
    learned = Planner([on(plan, each) for each in KINDS for plan in kinds[each]], cluster=cluster)
    for each in KINDS:
        for plan in told if each == kind else kinds[each]:
            learned.tell(on(plan, each), throughput=kinds[each][plan])
    ratios = {
        each: [math.log(kinds[kind][plan] / kinds[each][plan]) for plan in told]
        for each in KINDS
        if each != kind
    }
    alike = min(ratios, key=lambda each: statistics.pvariance(ratios[each]))
    factor = math.exp(statistics.mean(ratios[alike]))
    predicted = {
        "Planner": [learned.predict(on(plan, kind)).throughput for plan in others],
        "constant factor": [factor * kinds[alike][plan] for plan in others],
    }
    return {
        name: statistics.mean(
            abs(value / kinds[kind][plan] - 1) for plan, value in zip(others, values)
        )
        for name, values in predicted.items()
    }


def scaled(folder: Path) -> list[tuple[str, int, float, float]]:
    """Model, GPUs, and by how much the planner and linear scaling are off."""
    measured: dict[str, dict[Plan, float]] = defaultdict(dict)
    with (folder / "tensorflow" / "ec2-k80-distributed.csv").open() as file:
        for row in csv.DictReader(file):
            workers, servers = int(row["gpus"]), int(row["parameter_servers"])
            plan = Plan(
                strategy="ps" if servers else "single",
                workers=workers,
                servers=servers,
                batch_per_worker=int(row["batch_per_gpu"]),
            )
            measured[row["model"]][plan] = float(row["images_per_second"])
    found = []
    for model, rates in measured.items():
        learned = Planner(list(rates))
        few = {plan.workers: plan for plan in rates if plan.workers <= SCALED_FROM}
        for plan in few.values():
            learned.tell(plan, throughput=rates[plan])
        for plan, rate in rates.items():
            if plan.workers > SCALED_FROM:
                linear = rates[few[SCALED_FROM]] * plan.workers / SCALED_FROM
                found.append(
                    (
                        model,
                        plan.workers,
                        learned.predict(plan).throughput / rate - 1,
                        linear / rate - 1,
                    )
                )
    return found


def main() -> None:
    options = _frame.parser("Planner on what others measured.", 3).parse_args()
    folder = _frame.measurements()
    if not (folder / "pollux").is_dir():
        raise SystemExit(
            f"no {folder / 'pollux'}: name the folder of the measurements with HEADGATE_DATA"
        )
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
                few, more = (
                    [p for p in plans if (p.workers <= 4) == small] for small in (True, False)
                )
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
        print(
            f"{name:34}"
            + "".join(f"{f'{off:.1%}{band}':>24}" for (off, _), band in zip(means, held))
        )
    for times, parts in chosen.items():
        mean, worst = statistics.mean(parts), min(parts)
        print(
            f"best after {times} measurements asked for: {mean:.3f} of the best on average, "
            f"{worst:.3f} at worst"
        )
    kinds: dict[str, list[float]] = defaultdict(list)
    random = np.random.default_rng(0)
    for of_model in by_kind(folder).values():
        for kind in KINDS:
            for _ in range(options.repetitions):
                for name, off in across(of_model, kind, random).items():
                    kinds[name].append(off)
    print(
        "error on a kind of GPU from 4 points of it: "
        + ", ".join(f"{n} {np.mean(e):.1%}" for n, e in kinds.items())
    )
    more = scaled(folder)
    for model, count, off, linear in more:
        print(
            f"TensorFlow, {model} from 1 and 8 GPUs to {count}: {off:+.1%}, linear scaling "
            f"{linear:+.1%}"
        )
    _frame.write(
        options.json,
        "planner_others",
        {"errors": rows, "chosen": chosen, "kinds": kinds, "scaled": more},
    )


if __name__ == "__main__":
    main()
