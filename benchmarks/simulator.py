"""What the simulator costs, and what the orders of jobs that wait for GPUs come to on the traces of
ten clusters.

    python benchmarks/simulator.py [--share-gpus] [--data FOLDER] [--only NAME ...] [--policies A,B]
                                   [--jobs N] [--json PATH]

Reads `traces/elasticflow-traces.tar.gz` of FOLDER (default: HEADGATE_DATA, or ../shared/data beside
the checkout).

- Each cluster's jobs on nodes of 8 GPUs, twice as many GPUs as its largest job has or more, with
  the times between jobs scaled so that they ask for 0.9 of them;
- `all`: the 69,351 jobs of all clusters on 160 nodes of 8 GPUs, as they came;
- `growth`: the first 5,000 to 40,000 of them at load 0.9 on 160 nodes, and 5,000 on 40 to 320
  nodes.

A job that is stopped for another loses 30 s. Nothing else is on the GPUs, so that policies that
move shares of cores come to `fifo`. Every simulation has a process of its own, whose CPU time and
largest memory are given. Below each trace stands whether the mean completion time is least under
srpt, then las, then fifo, as is published, and how much GPU-seconds of jobs vary: on one server,
where service times are new better than used in expectation, for which it is at most 1, no order
that knows nothing of what is left is before that of arrival (Righter, Shanthikumar, Yamazaki 1990);
above 1 that does not hold.

With `--share-gpus` nobody waits: jobs on a GPU take turns, by the policy's shares. A job tells what
it used, and its loss, ten times in what a job takes on average. Losses are made up, as the traces
have none: a job's falls by the reciprocal of the work done, to a part of the first that is random,
from a half to a hundredth.

Below `growth` stands by which power of the jobs, and of the nodes, CPU time grows. What is going on
is said on the error output.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import _frame

from headgate.model.cluster import Cluster, Gpu, Node
from headgate.simulation import Assumptions, Trace, figures, read, simulate
from headgate.simulation.traces import made

POLICIES = ("fifo", "las", "srpt", "headgate")
SHARING = ("equal", "las", "srpt", "themis", "slaq", "flowcon", "headgate")
"""Policies that differ where jobs share GPUs."""
CLUSTERS = tuple(f"cluster{number:02}" for number in range(1, 11))
GPUS_OF_NODE = 8
LOAD = 0.9
LOSSES = 20
"""That a job tells."""
_BEGAN = time.monotonic()


def nodes(count: int) -> Cluster:
    """So many nodes that are alike."""
    gpus = tuple(Gpu(index, "V100", 16 * 10**9) for index in range(GPUS_OF_NODE))
    return Cluster(
        tuple(Node(f"n{i}", cores=64.0, memory_bytes=2**39, gpus=gpus) for i in range(count))
    )


def learning(trace: Trace, seed: int = 0) -> Trace:
    """The same jobs with losses."""
    luck = random.Random(seed)

    def losses() -> tuple[tuple[float, float], ...]:
        factor = 10 ** luck.uniform(math.log10(2), 2)
        return tuple(
            (done / LOSSES, 1 / (1 + (factor - 1) * done / LOSSES)) for done in range(LOSSES)
        )

    return made(trace.name, [replace(job, losses=losses()) for job in trace.jobs])


def one(trace: Trace, count: int, policy: str, assumptions: Assumptions) -> dict[str, Any]:
    """A simulation's figures, and what it took."""
    began = time.process_time()
    found = figures(simulate(trace, nodes(count), policy, assumptions))
    return {
        "trace": trace.name,
        "gpus": count * GPUS_OF_NODE,
        **asdict(found),
        "cpu_seconds": (spent := time.process_time() - began),
        # not of wall time: others may run beside it
        "microseconds_an_event": spent / found.events * 1e6,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def apart(trace: Trace, count: int, policy: str, assumptions: Assumptions) -> dict[str, Any]:
    """The same in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(one, trace, count, policy, assumptions).result()


def compare(
    trace: Trace, count: int, policies: Sequence[str], share_gpus: bool
) -> list[dict[str, Any]]:
    """Print a line for each policy, and whether their order is the published one."""
    assumptions = Assumptions(share_gpus=share_gpus, report_seconds=trace.report_seconds)
    if share_gpus:
        trace = learning(trace)
    rows = []
    for policy in policies:
        what = f"{len(trace.jobs):,} jobs of {trace.name} on {count} nodes under {policy}"
        print(f"{time.monotonic() - _BEGAN:.0f} s: {what}", file=sys.stderr, flush=True)
        row = apart(trace, count, policy, assumptions)
        rows.append(row)
        print(
            f"{trace.name:12}{row['jobs']:>7,}{row['gpus']:>6}  {policy:10}{row['events']:>9,}"
            f"{row['wall_seconds']:>7.1f}{row['cpu_seconds']:>7.1f}{row['microseconds_an_event']:>6.0f}"
            f"{row['memory_bytes'] / 2**20:>7.0f}"
            f"{row['mean'] / 3600:>8.1f}{row['p99'] / 3600:>8.1f}"
            f"{row['makespan'] / 86400:>8.2f}{row['max_rho']:>8.1f}"
            f"{row['utilisation'] * 100:>6.0f}{row['restarts']:>8,}",
            flush=True,
        )
    means = {row["policy"]: row["mean"] for row in rows}
    if not share_gpus and {"srpt", "las", "fifo"} <= means.keys():
        holds = means["srpt"] <= means["las"] <= means["fifo"]
        work = [job.seconds * max(job.gpus, 1) for job in trace.jobs]
        varies = statistics.pvariance(work) / statistics.mean(work) ** 2
        print(
            f"{'':12}srpt <= las <= fifo on average: {'holds' if holds else 'DOES NOT HOLD'}",
            end="",
        )
        print(f"; squared coefficient of variation of GPU-seconds: {varies:.2f}\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What the simulator costs, and what orders come to."
    )
    parser.add_argument("--data", type=Path, help="folder of the measurements")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=(*CLUSTERS, "all", "growth"),
        default=(*CLUSTERS, "all", "growth"),
    )
    parser.add_argument(
        "--share-gpus", action="store_true", help="nobody waits; jobs on a GPU take turns"
    )
    parser.add_argument(
        "--policies", help=f"default: {','.join(POLICIES)}; of shared GPUs {','.join(SHARING)}"
    )
    parser.add_argument("--jobs", type=int, help="only the first so many jobs of each trace")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    folder = options.data or _frame.measurements()
    archive = folder / "traces" / "elasticflow-traces.tar.gz"
    if not archive.exists():
        raise SystemExit(
            f"no {archive}: name the folder of the measurements with --data or HEADGATE_DATA"
        )
    usual = SHARING if options.share_gpus else POLICIES
    policies = options.policies.split(",") if options.policies else usual
    with tempfile.TemporaryDirectory() as place, tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
        traces = {name: read(next(Path(place).rglob(f"{name}.csv"))) for name in CLUSTERS}
        whole = together([next(Path(place).rglob(f"{name}.csv")) for name in CLUSTERS], Path(place))
    if options.jobs is not None:
        traces = {name: first(trace, options.jobs) for name, trace in traces.items()}
        whole = first(whole, options.jobs)
    print(
        f"{_frame.machine()}; "
        f"{', '.join(f'{name} {text}' for name, text in _frame.versions().items())}; once each\n"
    )
    print(
        f"{'trace':12}{'jobs':>7}{'GPUs':>6}  "
        f"{'policy':10}{'events':>9}{'wall s':>7}{'CPU s':>7}{'us/ev':>6}{'MiB':>7}"
        f"{'mean h':>8}{'p99 h':>8}{'span d':>8}{'max ρ':>8}{'used%':>6}{'stopped':>8}"
    )
    rows: list[dict[str, Any]] = []
    for name in options.only:
        if name in CLUSTERS:
            largest = max(job.gpus for job in traces[name].jobs)
            count = -(-max(2 * largest, round(traces[name].capacity_at(LOAD))) // GPUS_OF_NODE)
            rows += compare(
                traces[name].at_load(LOAD, count * GPUS_OF_NODE),
                count,
                policies,
                options.share_gpus,
            )
        elif name == "all":
            rows += compare(whole, 160, policies, options.share_gpus)
        else:
            sizes = [(jobs, 160) for jobs in (5_000, 10_000, 20_000, 40_000)]
            sizes += [(5_000, count) for count in (40, 80, 320)]
            for jobs, count in sizes:
                if jobs <= len(whole.jobs):
                    part = first(whole, jobs).at_load(LOAD, count * GPUS_OF_NODE)
                    rows += compare(
                        replace(part, name="growth"), count, policies, options.share_gpus
                    )
            print_growth([row for row in rows if row["trace"] == "growth"], policies)
    _frame.write(options.json, "simulator", {"rows": rows})


def print_growth(rows: list[dict[str, Any]], policies: Sequence[str]) -> None:
    """The power of the jobs at most nodes alike, and of the nodes at jobs alike, that CPU time
    grows with.
    """
    for policy in policies:
        own = [row for row in rows if row["policy"] == policy]
        said = []
        for what, other in (("jobs", "gpus"), ("gpus", "jobs")):
            # The first has the fewest jobs, on as many nodes as most have.
            alike = [row for row in own if row[other] == own[0][other]]
            if len(alike) > 1:
                low, high = (end(alike, key=lambda row: row[what]) for end in (min, max))
                power = math.log(high["cpu_seconds"] / low["cpu_seconds"]) / math.log(
                    high[what] / low[what]
                )
                said.append(f"{what}^{power:.2f} from {low[what]:,} to {high[what]:,}")
        if said:
            print(f"{'':12}CPU time under {policy}: {'; '.join(said)}")


def together(paths: list[Path], place: Path) -> Trace:
    """The jobs of several traces, on one clock."""
    lines = [path.read_text().splitlines() for path in paths]
    file = place / "all.csv"
    file.write_text("\n".join([lines[0][0], *(line for each in lines for line in each[1:])]) + "\n")
    return read(file)


def first(trace: Trace, jobs: int) -> Trace:
    """Its first so many jobs."""
    return made(trace.name, trace.jobs[:jobs])


if __name__ == "__main__":
    main()
