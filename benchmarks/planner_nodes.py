"""What the cost model says of several GPUs in a node from a profile of one of them, beside what
others measured.

    python benchmarks/planner_nodes.py [--json PATH]

Reads `pollux/` (up to 4 T4 in a node), `traces/elasticflow-traces.tar.gz` (up to 8 A100), `gavel/`
(up to 8 K80, P100 or V100; no one machine can have what it has of V100s, see below) and
`tensorflow/` (8 K80 with a server beside them) of the folder in HEADGATE_DATA (default
../shared/data beside the checkout). A profile has what one GPU was measured to take, and the bytes
of the model as published; how GPUs are joined is not said. Printed are the mean error, |predicted /
measured - 1|, and how often the band of 90 % held what was measured.

The seconds by which workers on a node slow each other's compute (`_CONTENTION` in `planning.cost`)
were fitted to the first two, and how far models are apart in them (`_UNLIKE`) is what these two
show. `held out` is what a fit to all the other clusters says, in which also the part of a PCIe link
that an all-reduce reaches through the host is fitted.

`odd` counts measurements that break a law of one machine: a step that is shorter by a twentieth or
more than that of fewer GPUs with the same batch each.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import _frame
from scipy.optimize import least_squares

from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.jobs import Job
from headgate.model.plans import Plan, Prediction, Strategy
from headgate.model.profiles import Profile, StepTime, TimeFit
from headgate.planning import cost, gpu_links, physics
from headgate.planning.cost import CostModel
from headgate.task.fit import fit_line

BYTES: Mapping[str, float] = {
    "bert": 440e6,
    "gpt2": 500e6,
    "vgg16": 553e6,
    "resnet50": 102e6,
    "inception3": 95e6,
    "deepspeech2": 350e6,
    "cifar10": 45e6,
    "imagenet": 102e6,
    "ncf": 6e6,
    "yolov3": 248e6,
    "ResNet-18": 45e6,
    "ResNet-50": 102e6,
    "ResNet-152": 241e6,
    "Transformer": 240e6,
    "LM": 176e6,
    "InceptionV3": 95e6,
}
"""Of the gradients of a model."""
GIB = 1 << 30


class Point(NamedTuple):
    """Seconds of a step of so many samples in all on so many GPUs of a node."""

    model: str
    workers: int
    batch: int
    seconds: float
    strategy: Strategy = "allreduce"


class Case(NamedTuple):
    """A model on a kind of GPU."""

    gpu: str
    model: str
    alone: Mapping[int, float]
    points: list[Point]


def elasticflow(folder: Path) -> Iterator[Case]:
    """Seconds of a step of jobs of traces, by the batch of all their GPUs."""
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    with tarfile.open(folder / "traces" / "elasticflow-traces.tar.gz") as archive:
        for name in archive.getnames():
            file = archive.extractfile(name) if name.endswith(".csv") else None
            for row in csv.DictReader(io.TextIOWrapper(file)) if file is not None else ():
                key = row["model_name"], int(row["batch_size"]), int(row["num_gpu"])
                found[key].append(float(row["duration"]) / float(row["num_iteration"]))
    yield from _cases("A100", {key: statistics.median(times) for key, times in found.items()}, 8)


def pollux(folder: Path) -> Iterator[Case]:
    """The same, of placements on one node."""
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for path in sorted((folder / "pollux").glob("*-placements.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                if len(row["placement"]) == 1:
                    count, batch = int(row["placement"]), int(row["local_bsz"])
                    found[path.stem.removesuffix("-placements"), batch * count, count].append(
                        float(row["step_time"])
                    )
    yield from _cases(
        "Tesla T4", {key: statistics.median(times) for key, times in found.items()}, 4
    )


def gavel(folder: Path, kind: str) -> Iterator[Case]:
    """The same, of a kind of GPU; throughputs count the steps of all workers."""
    content = json.loads((folder / "gavel" / "throughputs.json").read_text())
    found: dict[tuple[str, int, int], float] = {}
    for job, others in content[kind].items():
        said = re.fullmatch(r"\('(.+) \(batch size (\d+)\)', (\d+)\)", job)
        if said is not None and others.get("null") and said[1] in BYTES:
            count = int(said[3])
            found[said[1], int(said[2]) * count, count] = count / others["null"]
    yield from _cases(kind.upper(), found, 8)


def tensorflow(folder: Path) -> Iterator[Case]:
    """The same of 8 GPUs with a parameter server on their node, from one batch size on one GPU."""
    alone: dict[str, dict[int, float]] = defaultdict(dict)
    points: dict[str, list[Point]] = defaultdict(list)
    with (folder / "tensorflow" / "ec2-k80-distributed.csv").open() as file:
        for row in csv.DictReader(file):
            model, count, batch = (
                row["model"],
                int(row["gpus"]),
                int(row["batch_per_gpu"]) * int(row["gpus"]),
            )
            seconds = batch / float(row["images_per_second"])
            if count == 1:
                alone[model][batch] = seconds
            elif count == 8:
                points[model].append(Point(model, count, batch, seconds, "ps"))
    for model, times in alone.items():
        yield Case("K80", model, times, points[model])


def _cases(gpu: str, found: Mapping[tuple[str, int, int], float], most: int) -> Iterator[Case]:
    for model in sorted({model for model, _, _ in found}):
        alone = {
            batch: seconds
            for (name, batch, count), seconds in found.items()
            if name == model and count == 1
        }
        points = [
            Point(model, count, batch, seconds)
            for (name, batch, count), seconds in found.items()
            if name == model
            and 1 < count <= most
            and min(alone) / 10 <= batch / count <= max(alone)
        ]
        yield Case(gpu, model, dict(sorted(alone.items())), points)


def profile(case: Case, batch: int) -> Profile:
    """Of a script with this batch, by what one GPU took."""
    times = tuple(StepTime(case.gpu, 1, size, seconds, 20) for size, seconds in case.alone.items())
    fits: tuple[TimeFit, ...] = ()
    if len(times) > 1:
        line = fit_line(list(case.alone), list(case.alone.values()))
        fits = (TimeFit(case.gpu, 1, line.alpha, line.beta, line.relative_error),)
    return Profile(
        *("torch", "2.11", "profile"),
        dense_bytes=int(BYTES[case.model]),
        sparse_bytes=0,
        batch=batch,
        step_times=times,
        fits=fits,
    )


def priced(case: Case) -> Iterator[tuple[Point, CostModel, Plan]]:
    """The cost model and the plan of each point."""
    for point in case.points:
        gpus = tuple(Gpu(i, case.gpu, 16 * GIB) for i in range(point.workers))
        node = Node("node", 8.0 * point.workers, 256 * GIB, gpus=gpus, nic_bytes_per_second=1.25e9)
        costs = CostModel(
            Job(name="job", run="true", encrypt=False), Cluster((node,)), profile(case, point.batch)
        )
        served = point.strategy == "ps"
        plan = Plan(
            strategy=point.strategy,
            workers=point.workers,
            batch_per_worker=max(point.batch // point.workers, 1),
            servers=int(served),
            worker_nodes=("node",) * point.workers,
            server_nodes=("node",) * served,
        )
        yield point, costs, plan


def predicted(case: Case) -> list[tuple[Point, Prediction]]:
    """What the model says of each point."""
    return [(point, costs.predict(plan)) for point, costs, plan in priced(case)]


def fitted(cases: list[Case]) -> tuple[float, float, float]:
    """Seconds and parts of α, for each factor e of workers on a node, and the part of a link
    through the host, that fit best.
    """

    def off(values: tuple[float, float, float]) -> list[float]:
        use((abs(values[0]) * 1e-3, abs(values[1]), abs(values[2])))
        found = []
        for case in cases:
            for at, costs, plan in priced(case):
                rate = float(
                    physics.seconds(costs.prior.mean, costs.features([plan])).throughput[0]
                )
                found.append(math.log(rate * at.seconds / at.batch))
        return found

    before = used()
    try:
        start = (before[0] * 1e3, *before[1:])
        found = least_squares(
            off, start, loss="soft_l1", f_scale=0.05, diff_step=1e-2, max_nfev=12
        ).x
    finally:
        use(before)
    return abs(float(found[0])) * 1e-3, abs(float(found[1])), abs(float(found[2]))


def used() -> tuple[float, float, float]:
    """What `fitted` gives, as the model has it."""
    return *cost._CONTENTION, gpu_links._REACHED["host"]


def use(values: tuple[float, float, float]) -> None:
    """Have the model go by what was fitted."""
    cost._CONTENTION = values[0], values[1]
    gpu_links._REACHED = {**gpu_links._REACHED, "host": values[2]}


def odd(cases: list[Case]) -> int:
    """Steps that are shorter than those of fewer GPUs of the same machine can be."""
    found = 0
    for case in cases:
        steps = {(1, batch): seconds for batch, seconds in case.alone.items()}
        steps |= {(at.workers, at.batch // at.workers): at.seconds for at in case.points}
        for (workers, batch), seconds in steps.items():
            fewer = [
                least for (few, size), least in steps.items() if few < workers and size == batch
            ]
            found += any(seconds < 0.95 * least for least in fewer)
    return found


def shown(name: str, cases: list[Case]) -> dict[str, object]:
    """Print, and give, how far off predictions are."""
    off, held = [], []
    for case in cases:
        for at, of in predicted(case):
            rate = at.batch / at.seconds
            off.append(abs(of.throughput / rate - 1))
            held.append(of.low <= rate <= of.high)
    error, worst, band = statistics.mean(off), max(off), statistics.mean(held)
    strange = odd(cases)
    print(f"{name:38}{len(off):6}{error:9.1%}{worst:9.1%}{band:9.1%}{strange:6}")
    return {
        "name": name,
        "points": len(off),
        "error": error,
        "worst": worst,
        "held": band,
        "odd": strange,
    }


def main() -> None:
    options = _frame.parser("Several GPUs in a node, from a profile of one.", 1).parse_args()
    folder = _frame.measurements()
    try:
        flow, first = list(elasticflow(folder)), list(pollux(folder))
        others = {
            f"gavel, up to 8 {kind.upper()}": list(gavel(folder, kind))
            for kind in ("k80", "p100", "v100")
        }
        others["tensorflow, 8 K80 and a server"] = list(tensorflow(folder))
    except OSError as error:
        sys.exit(
            f"cannot read {error.filename}: set HEADGATE_DATA to the folder of the measurements"
        )
    _frame.heading(options.repetitions, "scipy")
    print(f"{'':38}{'points':>6}{'error':>9}{'worst':>9}{'held':>9}{'odd':>6}")
    rows = [shown("elasticflow, up to 8 A100", flow), shown("pollux, up to 4 T4", first)]
    rows += [shown(name, cases) for name, cases in others.items()]
    clusters = {
        "A100": flow,
        "T4": first,
        **{name.rsplit(maxsplit=1)[1]: others[name] for name in list(others)[:3]},
    }
    before = used()
    for name, cases in clusters.items():
        use(fitted([case for other in clusters if other != name for case in clusters[other]]))
        seconds, part, host = used()
        rows.append(
            shown(f"{name} held out ({seconds * 1e3:.1f} ms, {part:.2f} α, {host:.2f})", cases)
        )
        use(before)
    both = fitted([*flow, *first])
    for name, (seconds, part, host) in (("fitted to A100 and T4", both), ("used", before)):
        print(
            f"{name}: {seconds * 1e3:.2f} ms and {part:.3f} α for each factor e of workers; "
            f"{host:.2f} of PCIe"
        )
    _frame.write(options.json, "planner_nodes", {"rows": rows, "fitted": both}, "scipy")


if __name__ == "__main__":
    main()
