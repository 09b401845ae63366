"""What the chosen plan would bring on a mixed cluster of 30 nodes, beside what a person and others
would choose.

    python benchmarks/planner_paper.py [--repetitions 5] [--json PATH]

The cluster exists on paper only: 15 nodes with a K80 each, 8 CPU nodes with 16 cores, 7 old ones
with 4 cores and a NIC of 1 Gbit/s. The other NICs have 1, 10 or 25 Gbit/s. The models are Inception
V3, ResNet-50 and ResNet-152: images a second on one K80 are read from `tensorflow/` of the folder
in HEADGATE_DATA (default ../shared/data beside the checkout), parameters and FLOPs are those
published. There are 64 images (32 of ResNet-152) for each GPU in a step.

All figures are what the cost model says, the same for every method. Compared are what a person
would do (a worker on each GPU, a server for every four on CPU nodes in the order of their names),
all-reduce on everything, Optimus's greedy (its form fitted to eight random candidates) and one of
the 256 best candidates at random. Each repetition gives the CPU nodes other names, so that none is
lucky with their order. Printed are medians of images a second, and the gain over what a person
would do.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import _baselines as baselines
import _frame
import numpy as np

from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import Profile, TimeFit
from headgate.planning.candidates import candidates
from headgate.planning.choosing import in_words
from headgate.planning.cost import CostModel
from headgate.planning.search import search

GIB = 1 << 30
MODELS = {
    "InceptionV3": (23.8e6, 34.3e9),
    "ResNet-50": (25.6e6, 24.6e9),
    "ResNet-152": (60.2e6, 69.3e9),
}
"""Parameters, and FLOPs of a sample forward and backward (three times the forward pass, a
multiply-add is two).
"""
RATES = {"1 Gbit/s": 0.125e9, "10 Gbit/s": 1.25e9, "25 Gbit/s": 3.125e9}
GPUS = 15
_SERVED = 0.05  # of a step of the usual batch: what does not depend on the batch, on a GPU


def speeds(folder: Path) -> dict[str, tuple[int, float]]:
    """Batch and images a second on one GPU, by model."""
    with (folder / "tensorflow" / "ec2-k80-distributed.csv").open() as file:
        return {
            row["model"]: (int(row["batch_per_gpu"]), float(row["images_per_second"]))
            for row in csv.DictReader(file)
            if row["gpus"] == "1"
        }


def profile(model: str, batch: int, rate: float) -> Profile:
    """Of a model that does so many images a second in steps of that batch on a K80."""
    parameters, flops = MODELS[model]
    step = batch / rate
    return Profile(
        "torch",
        "2.11",
        "profile",
        dense_bytes=int(4 * parameters),
        sparse_bytes=0,
        optimizer_state_bytes=int(4 * parameters),
        flops_per_sample_forward=flops / 3,
        flops_per_sample=flops,
        memory_peak_bytes=3 * GIB,
        batch=batch * GPUS,
        fits=(TimeFit("K80", 1, _SERVED * step, (1 - _SERVED) * step / batch, 0.02),),
    )


def cluster(rate: float, seed: int) -> Cluster:
    """The nodes; those without a GPU are named in random order."""
    order = np.random.default_rng(seed).permutation(15)
    gpu = Node(
        "",
        8,
        64 * GIB,
        50.0,
        nic_bytes_per_second=rate,
        gpus=(Gpu(0, "K80", 12 * GIB),),
        kind="gpu",
    )
    new = Node("", 16, 64 * GIB, 50.0, nic_bytes_per_second=rate, kind="cpu")
    old = Node("", 4, 16 * GIB, 25.0, nic_bytes_per_second=RATES["1 Gbit/s"], kind="old")
    named = [replace(new if i < 8 else old, name=f"cpu-{at:02}") for i, at in enumerate(order)]
    return Cluster((*(replace(gpu, name=f"gpu-{i:02}") for i in range(GPUS)), *named))


def chosen(costs: CostModel, seed: int) -> dict[str, Plan]:
    """The plan of each method."""
    batch = costs.batch
    space = candidates(costs.cluster, costs.job, costs.profile)
    tried = np.random.default_rng(seed).permutation(len(space))[:8]
    measured = {
        plan: costs.predict(plan).throughput for plan in (_even(space[i], batch) for i in tried)
    }
    return {
        "headgate": search(costs, runners_up=0).best.plan,
        "manual": baselines.manual(costs.cluster, batch),
        "all-reduce": baselines.all_reduce(costs.cluster, batch),
        "optimus": baselines.optimus(space, measured),
        "random": baselines.at_random(space, seed),
    }


def _even(plan: Plan, batch: int) -> Plan:
    """With equal batches, which Optimus's form is about."""
    return replace(plan, batch_per_worker=max(batch // plan.workers, 1))


def main() -> None:
    options = _frame.parser("The chosen plan on a mixed cluster, beside others.", 5).parse_args()
    folder = _frame.measurements()
    try:
        known = speeds(folder)
    except OSError as error:
        sys.exit(
            f"cannot read {error.filename}: set HEADGATE_DATA to the folder with `tensorflow/`"
        )
    _frame.heading(options.repetitions, "numpy")
    rows, gains = [], []
    methods = ("headgate", "manual", "all-reduce", "optimus", "random")
    print(
        f"{'model':13}{'NICs':11}"
        + "".join(f"{name:>11}" for name in methods)
        + f"{'gain':>8}{'CPU s':>8}  chosen"
    )
    for model in MODELS:
        for name, rate in RATES.items():
            found: dict[str, list[float]] = {method: [] for method in methods}
            seconds = []
            for seed in range(options.repetitions):
                costs = CostModel(
                    Job(name="job", run="true"), cluster(rate, seed), profile(model, *known[model])
                )
                begun = time.process_time()
                search(costs, runners_up=0)
                seconds.append(time.process_time() - begun)
                plans = chosen(costs, seed)
                for method, plan in plans.items():
                    found[method].append(costs.predict(plan).throughput)
            gain = statistics.median(a / b for a, b in zip(found["headgate"], found["manual"])) - 1
            gains.append(gain)
            middle = "".join(f"{statistics.median(found[method]):11,.0f}" for method in methods)
            took = statistics.median(seconds)
            words = in_words(plans["headgate"])
            print(f"{model:13}{name:11}{middle}{gain:8.0%}{took:8.3f}  {words}")
            rows.append(
                {
                    "model": model,
                    "nics": name,
                    "images_per_second": found,
                    "gain": gain,
                    "plan": words,
                }
            )
    print(
        f"\ngain over the manual plan: {statistics.mean(gains):.0%} on average, "
        f"{min(gains):.0%} to {max(gains):.0%}"
    )
    _frame.write(options.json, "planner_paper", {"rows": rows}, "numpy")


if __name__ == "__main__":
    main()
