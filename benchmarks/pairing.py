"""What it brings that of several jobs that wait the one starts that goes best beside those that
run, simulated.

    python benchmarks/pairing.py [--data FOLDER] [--jobs 60] [--draws 30] [--passed 3,10] [--json
    PATH]

Reads `gavel/pairs.json` of FOLDER (default: HEADGATE_DATA, or ../shared/data beside the checkout).
Jobs drawn from the 26 of Gavel, of 10 minutes to 2.7 hours alone, have half of a GPU's memory each.
So two run side by side on each GPU, at the rates that were measured, and others wait. They arrive
at random, 1.2 times as many as the GPUs could do one at a time, or all at once. Repetitions are no
option: nothing here is timed.

Each draw is simulated with the choice and, with the same rates, by arrival alone. Figures are
ratios of the two, below 1 where the choice does better: geometric means over the draws, with
intervals of 95 %. `--passed` is how many times a job may be passed over.
"""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import _frame

from headgate.controller import pairing
from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.errors import UsageError
from headgate.planning.interference import Interference, read_pairs
from headgate.simulation import Assumptions, Trace, TraceJob, figures, simulate
from headgate.simulation.results import Figures
from headgate.simulation.traces import made
from headgate.studies.statistics import paired

GPU_BYTES = 2**34
SHORTEST, DOUBLINGS = 600.0, 4.0
LOADS = {"1.2": 1.2, "all at once": None}
FIGURES = ("mean", "p95", "makespan")


def draw(models: list[str], count: int, gpus: int, load: float | None, seed: int) -> Trace:
    luck = random.Random(seed)
    seconds = [SHORTEST * 2 ** luck.uniform(0.0, DOUBLINGS) for _ in range(count)]
    apart = sum(seconds) / count / gpus / load if load is not None else 0.0
    jobs, now = [], 0.0
    for i, long in enumerate(seconds):
        model = luck.choice(models)
        jobs.append(
            TraceJob(f"job-{i}", now, long, gpus=1, model=model, gpu_memory_bytes=GPU_BYTES // 2)
        )
        now += luck.expovariate(1.0 / apart) if apart else 0.0
    return made(f"draw-{seed}", jobs)


def run(trace: Trace, pairs: Interference, name: str, gpus: int, passed: int) -> Figures:
    node = Node(
        "a",
        cores=64.0,
        memory_bytes=2**40,
        gpus=tuple(Gpu(i, name, GPU_BYTES) for i in range(gpus)),
    )
    with patch.object(pairing, "MOST_PASSED", passed):
        return figures(
            simulate(
                trace, Cluster((node,)), "none", Assumptions(interference=pairs, share_gpus=True)
            )
        )


def main() -> None:
    parser = _frame.parser(__doc__ or "", repetitions=1)
    parser.add_argument("--data", default=str(_frame.measurements()))
    parser.add_argument("--jobs", type=int, default=60, help="in a draw (default: 60)")
    parser.add_argument("--draws", type=int, default=30, help="of jobs (default: 30)")
    parser.add_argument(
        "--passed", default="3,10", help="times that a job may be passed over (default: 3,10)"
    )
    options = parser.parse_args()
    try:
        pairs = read_pairs(Path(options.data) / "gavel" / "pairs.json")
    except UsageError as error:
        print(f"skipped: {error}")
        return
    rows: list[dict[str, Any]] = []
    print(f"{'GPUs':7} {'load':12} {'passed':>6} " + " ".join(f"{name:>22}" for name in FIGURES))
    for name, gpus in ((name, gpus) for name in ("p100", "v100") for gpus in (1, 4)):
        models = sorted(pairs.pairs[name])
        for said, load in LOADS.items():
            traces = [draw(models, options.jobs, gpus, load, seed) for seed in range(options.draws)]
            plain = [run(trace, pairs, name, gpus, 0) for trace in traces]
            for passed in map(int, options.passed.split(",")):
                chosen = [run(trace, pairs, name, gpus, passed) for trace in traces]
                ratios = {
                    each: paired(
                        *(
                            {i: getattr(one, each) for i, one in enumerate(of)}
                            for of in (plain, chosen)
                        )
                    )
                    for each in FIGURES
                }
                rows.append({"gpu": name, "gpus": gpus, "load": said, "passed": passed})
                rows[-1] |= {
                    each: asdict(ratio) for each, ratio in ratios.items() if ratio is not None
                }
                cells = [
                    f"{each.value:.3f} ({each.low:.3f}, {each.high:.3f})"
                    for each in ratios.values()
                    if each
                ]
                print(
                    f"{gpus} {name:5} {said:12} {passed:6} "
                    + " ".join(f"{cell:>22}" for cell in cells),
                    flush=True,
                )
    given = {name: value for name, value in vars(options).items() if name != "json"}
    _frame.write(options.json, "pairing", {"options": given, "rows": rows})


if __name__ == "__main__":
    main()
