"""Policies that divide cores, simulated on the same jobs: the mean completion time, and how far
anybody falls behind.

    python benchmarks/policies_simulated.py [--jobs 10] [--span 60] [--error 0.3] [--draws 8]
    [--startup 0]
                                            [--policies A,B] [--json PATH]

Jobs of 5 to 80 core-seconds arrive at random within `--span` seconds on two cores; each can use one
or both of them. What is predicted to be left of a job is wrong by a factor whose logarithm has the
standard deviation `--error`. Before anything is predicted of it, a job does `--startup`
core-seconds on one core, as one that imports its framework does; they belong to what it takes.
Sharing costs nothing.
"""

from __future__ import annotations

import random
import statistics

import _frame

from headgate.model.cluster import Cluster, Node
from headgate.simulation import Assumptions, Trace, TraceJob, figures, simulate
from headgate.simulation.traces import made

POLICIES = "equal,las,srpt,headgate:rho=1.2,headgate:rho=1.5,headgate"
CORES = 2.0


def draw(count: int, span: float, seed: int) -> Trace:
    luck = random.Random(seed)
    jobs = []
    for index in range(count):
        cores = luck.choice((1.0, CORES))
        jobs.append(
            TraceJob(
                f"job-{index}",
                luck.uniform(0, span),
                5 * 2 ** luck.uniform(0, 4) / cores,
                cores=cores,
            )
        )
    return made(f"draw-{seed}", jobs)


def main() -> None:
    made_parser = _frame.parser("Policies that divide cores, simulated on the same jobs.", 1)
    made_parser.add_argument("--jobs", type=int, default=10, help="in a draw (default: 10)")
    made_parser.add_argument(
        "--span", type=float, default=60.0, help="seconds in which they arrive (default: 60)"
    )
    made_parser.add_argument(
        "--error", type=float, default=0.3, help="of what is predicted (default: 0.3)"
    )
    made_parser.add_argument("--draws", type=int, default=8, help="of jobs (default: 8)")
    made_parser.add_argument(
        "--startup", type=float, default=0.0, help="core-seconds before the first prediction (0)"
    )
    made_parser.add_argument(
        "--policies", default=POLICIES, help=f"the first is what others are over ({POLICIES})"
    )
    options = made_parser.parse_args()
    _frame.heading(options.repetitions)
    machine = Cluster((Node("a", cores=CORES, memory_bytes=2**34),))
    traces = [draw(options.jobs, options.span, seed) for seed in range(options.draws)]
    names = options.policies.split(",")
    found = {}
    for name in names:
        assumed = Assumptions(
            prediction_error=options.error, report_seconds=1.0, startup_core_seconds=options.startup
        )
        found[name] = [figures(simulate(trace, machine, name, assumed)) for trace in traces]
    rows = []
    print(f"{'':18}{'mean over ' + names[0]:>20}{'makespan over it':>20}{'highest rho':>14}")
    for name in names:
        pairs = list(zip(found[name], found[names[0]], strict=True))
        mean = statistics.mean(own.mean / other.mean for own, other in pairs)
        makespan = statistics.mean(own.makespan / other.makespan for own, other in pairs)
        rho = max(own.max_rho for own, _ in pairs)
        rows.append({"policy": name, "mean": mean, "makespan": makespan, "max_rho": rho})
        print(f"{name:18}{mean:20.3f}{makespan:20.3f}{rho:14.2f}")
    given = {name: value for name, value in vars(options).items() if name != "json"}
    _frame.write(options.json, "policies_simulated", {"options": given, "rows": rows})


if __name__ == "__main__":
    main()
