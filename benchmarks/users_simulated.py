"""Users of one machine, simulated: the arbiter against no arbiter and equal slices.

    python benchmarks/users_simulated.py [--jobs 60] [--loads 0.7,1.2] [--error 0.3] [--users 3]
                                         [--json PATH]

Three kinds of jobs for a machine of 8 GPUs or 2 cores:

- `cores`: jobs of 5 to 80 core-seconds, `--users` users, of whom the last has three times as many.
- `heavy`: jobs on 1 to 4 GPUs, of which few are long, as clusters report.
- `clusters`: ElasticFlow's traces, where each of the clusters counts as a user. They are read from
  the folder in HEADGATE_DATA (default: ../shared/data beside the checkout).

Philly, Helios and Alibaba are not in that folder. `--trace FILE.csv` takes one with a column
`user` instead.
"""

from __future__ import annotations

import csv
import io
import random
import tarfile
from dataclasses import asdict
from pathlib import Path

import _frame

from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.sharing import SharingRules
from headgate.policies import DEFAULT
from headgate.simulation import Assumptions, Trace, TraceJob, fitting, read
from headgate.simulation.traces import made
from headgate.simulation.user_figures import compare

GPUS = 8
ON_CORES = Cluster((Node("lab1", cores=2.0, memory_bytes=2**34),))
ON_GPUS = Cluster(
    (Node("lab1", 32.0, 2**38, gpus=tuple(Gpu(i, "V100", 2**34) for i in range(GPUS))),)
)


def on_cores(users: int, count: int) -> Trace:
    luck, jobs = random.Random(7), []
    for user in range(users):
        for i in range(count * (3 if user == users - 1 else 1)):
            cores = luck.choice((1.0, 2.0))
            seconds = 5 * 2 ** luck.uniform(0, 4) / cores
            jobs.append(
                TraceJob(f"{user}-{i}", luck.random(), seconds, cores=cores, user=f"u{user}")
            )
    return made("cores", jobs)


def heavy(users: int, count: int) -> Trace:
    luck, jobs = random.Random(7), []
    for user in range(users):
        for i in range(count):
            seconds, gpus = luck.lognormvariate(6.0, 1.8), luck.choice((1, 1, 1, 2, 4))
            jobs.append(
                TraceJob(f"{user}-{i}", luck.random(), seconds + 10, gpus=gpus, user=f"u{user}")
            )
    return made("heavy", jobs)


def clusters(users: int, count: int) -> Trace | None:
    path = _frame.measurements() / "traces" / "elasticflow-traces.tar.gz"
    if not path.exists():
        return None
    jobs = []
    with tarfile.open(path) as archive:
        for user in range(2, 2 + users):
            file = archive.extractfile(f"cluster{user:02d}.csv")
            rows = list(csv.DictReader(io.TextIOWrapper(file, "utf-8"))) if file else []
            own = [row for row in rows if int(row["num_gpu"]) <= GPUS]
            own = sorted(own, key=lambda row: float(row["submission_time"]))[:count]
            first, last = (float(own[i]["submission_time"]) for i in (0, -1))
            for row in own:
                at = (float(row["submission_time"]) - first) / (last - first)
                name, seconds = f"{user}-{row['job_id']}", float(row["duration"])
                jobs.append(
                    TraceJob(name, at, seconds, gpus=int(row["num_gpu"]), user=f"cluster{user:02d}")
                )
    return made("clusters", jobs)


def main() -> None:
    parser = _frame.parser(__doc__.partition("\n")[0], 1)
    parser.add_argument("--jobs", type=int, default=60, help="of a user (default: 60)")
    parser.add_argument("--users", type=int, default=3, help="(default: 3)")
    parser.add_argument("--loads", default="0.7,1.2", help="of the machine (default: 0.7,1.2)")
    parser.add_argument("--error", type=float, default=0.3, help="of what is predicted (0.3)")
    parser.add_argument("--policy", default=DEFAULT, help=f"of each user's hub ({DEFAULT})")
    parser.add_argument("--trace", type=Path, help="a CSV with users, instead of all these")
    options = parser.parse_args()
    _frame.heading(options.repetitions)
    if options.trace is not None:
        traces = [(fitting(read(options.trace), ON_GPUS), ON_GPUS)]
    else:
        traces = [
            (on_cores(options.users, options.jobs), ON_CORES),
            (heavy(options.users, options.jobs), ON_GPUS),
        ]
        if (published := clusters(options.users, options.jobs)) is not None:
            traces.append((published, ON_GPUS))
        else:
            print(f"no traces of clusters in {_frame.measurements()}: left out")
    assumptions, rows = Assumptions(prediction_error=options.error), []
    print(
        f"{'jobs':10}{'load':>6}  {'users share by':16}{'mean, s':>10}{'over slices':>13}", end=""
    )
    print(f"{'worst user':>12}{'makespan, s':>13}{'used':>6}")
    for trace, machine in traces:
        node = machine.nodes[0]
        capacity = float(len(node.gpus)) if trace.on_gpus else node.cores
        for load in map(float, options.loads.split(",")):
            results = compare(
                trace.at_load(load, capacity), machine, options.policy, assumptions, SharingRules()
            )
            for result in results:
                own = result.figures
                over = own.mean / results[0].figures.mean
                print(f"{trace.name:10}{load:6}  {result.division:16}{own.mean:10.0f}", end="")
                print(f"{over:13.2f}{result.worst.over_slices:12.2f}{own.makespan:13.0f}", end="")
                print(f"{own.utilisation:6.2f}", flush=True)
                rows.append({"trace": trace.name, "load": load, "over": over, **asdict(result)})
    given = {name: value for name, value in vars(options).items() if name not in ("json", "trace")}
    _frame.write(options.json, "users_simulated", {"options": given, "rows": rows})


if __name__ == "__main__":
    main()
