"""How long it takes to find a plan, what memory that needs, and how far it may be from the best.

    python benchmarks/planner_scale.py [--repetitions 5] [--json PATH]

For 6, 30, 300 and 3,000 nodes of 3 to 10 kinds, drawn at random (cores, NIC, GPUs), and two jobs
that have a profile already: one bound by compute, one by the network. Printed are CPU seconds from
cluster and profile
    to the best plan
and nine others, the most memory that Python and numpy held meanwhile, what was chosen first, and
the largest bound gap of the clusters drawn: how much more than the chosen plan any could bring by
the model, at most (0: it is the best).
"""

from __future__ import annotations

import statistics
import time
import tracemalloc

import _frame
import numpy as np

from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.jobs import Job
from headgate.model.profiles import Profile, TimeFit
from headgate.model.units import say_bytes
from headgate.planning.cost import CostModel
from headgate.planning.search import SearchResult, search

GIB = 1 << 30
SIZES = ((6, 3), (30, 3), (30, 6), (300, 6), (300, 10), (3000, 6), (3000, 10))
"""Nodes and kinds of them."""
JOBS = {"compute": (10_000_000, 16_384), "network": (400_000_000, 4_096)}
"""Bytes of parameters, and samples of a step."""


def cluster(nodes: int, kinds: int, seed: int) -> Cluster:
    """Nodes of unlike kinds, as many of each."""
    random = np.random.default_rng(seed)
    made = []
    for kind in range(kinds):
        name = str(random.choice(["T4", "V100"]))
        gpus = tuple(Gpu(i, name, 16 * GIB) for i in range(int(random.choice([1, 2, 4]))))
        of_kind = Node(
            name="",
            cores=float(random.choice([2, 4, 8, 16, 32])),
            memory_bytes=64 * GIB,
            nic_bytes_per_second=float(random.choice([1e9, 10e9, 25e9, 100e9])) / 8,
            gpus=gpus if random.random() < 0.5 else (),
            kind=f"k{kind}",
        )
        count = nodes // kinds + (kind < nodes % kinds)
        fields = {
            field: getattr(of_kind, field)
            for field in ("cores", "memory_bytes", "nic_bytes_per_second", "gpus")
        }
        made += [Node(name=f"k{kind}-{i}", kind=of_kind.kind, **fields) for i in range(count)]
    return Cluster(tuple(made))


def profile(size: int, batch: int) -> Profile:
    return Profile(
        "torch",
        "2.11",
        "profile",
        dense_bytes=size,
        sparse_bytes=0,
        memory_peak_bytes=2 * GIB,
        batch=batch,
        fits=(
            TimeFit("cpu", 1, 0.01, 0.02, 0.02),
            TimeFit("cpu", 4, 0.01, 0.02 / 4**0.8, 0.02),
            TimeFit("V100", 1, 0.01, 0.0005, 0.02),
        ),
    )


def found(where: Cluster, name: str) -> SearchResult:
    return search(CostModel(Job(name=name, run="true"), where, profile(*JOBS[name])))


def main() -> None:
    options = _frame.parser("Planning time by the size of a cluster.", 5).parse_args()
    _frame.heading(options.repetitions, "numpy")
    found(cluster(6, 3, 0), "compute")  # what is imported is not measured
    print(
        f"{'nodes':>6}{'kinds':>6}  "
        f"{'job':9}{'CPU s':>24}{'memory':>12}{'costed':>9}{'gap':>8}  chosen"
    )
    rows = []
    for nodes, kinds in SIZES:
        for name in JOBS:
            times, answers, memory = [], [], 0
            for seed in range(options.repetitions):
                where = cluster(nodes, kinds, seed)
                begin = time.process_time()
                answers.append(found(where, name))
                times.append(time.process_time() - begin)
            tracemalloc.start()
            found(cluster(nodes, kinds, 0), name)
            memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            gap = max(answer.gap for answer in answers)
            costed = int(statistics.median(answer.costed for answer in answers))
            plan = answers[0].best.plan
            print(
                f"{nodes:6}{kinds:6}  "
                f"{name:9}{_frame.spread(times):>24}{say_bytes(memory):>12}{costed:9,}{gap:8.2%}  "
                f"{plan.strategy} {plan.workers}+{plan.servers}"
            )
            rows.append(
                [nodes, kinds, name, times, memory, costed, [answer.gap for answer in answers]]
            )
    _frame.write(options.json, "planner_scale", {"rows": rows}, "numpy")


if __name__ == "__main__":
    main()
