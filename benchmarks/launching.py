"""Headgate in the place of torchrun and of mpirun: the same script, started by either in turn.
Under torchrun it uses PyTorch's DistributedDataParallel, under mpirun mpi4py.

    python benchmarks/launching.py [--tasks 2,4] [--repetitions 5] [--steps 300] [--json PATH]

Seconds from the command to the first step of all workers, Headgate's hub being up; and the median
step of the first worker, as the ratio of Headgate's to the launcher's in the same repetition.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import _frame

SCRIPTS = {"torchrun": "ddp.py", "mpirun": "mpi.py"}


def by_hand(bench: _frame.Bench, launcher: str, count: int, steps: int) -> tuple[float, float]:
    """Seconds to the first step of all, and of a step."""
    for path in bench.folder.glob("steps-*"):
        path.unlink()
    if launcher == "torchrun":
        where = ("--master-port", str(_frame.free_port()), "--nproc-per-node", str(count))
        command = [sys.executable, "-m", "torch.distributed.run", *where]
    else:
        command = [
            "mpirun",
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            str(count),
            sys.executable,
        ]
    began = time.time()
    command += [SCRIPTS[launcher], str(steps)]
    subprocess.run(
        command, cwd=bench.folder, env=bench.environment, check=True, capture_output=True
    )
    return measured(bench, began)


def by_headgate(bench: _frame.Bench, launcher: str, count: int, steps: int) -> tuple[float, float]:
    """The same of a job of Headgate's, however long it takes."""
    began = time.time()
    bench.runs("--workers", str(count), count=steps, script=SCRIPTS[launcher])
    return measured(bench, began)


def measured(bench: _frame.Bench, began: float) -> tuple[float, float]:
    """Seconds to the first step of all processes that wrote down their steps, and the median step
    of one of them; the first tenth is left out.
    """
    times: dict[int, list[float]] = {}
    for each in bench.steps():
        times.setdefault(each.pid, []).append(each.at)
    one = next(iter(times.values()))
    late = one[len(one) // 10 :]
    return max(at[0] for at in times.values()) - began, statistics.median(
        b - a for a, b in itertools.pairwise(late)
    )


def _is_there(launcher: str) -> bool:
    """Whether it is on the PATH, and mpi4py installed; says what is missing."""
    missing = [] if shutil.which(launcher) is not None else [launcher]
    missing += [] if importlib.util.find_spec("mpi4py") is not None else ["mpi4py"]
    if missing:
        print(f"no rows of {launcher}: found no {' and no '.join(missing)}\n")
    return not missing


def main() -> None:
    arguments = _frame.parser("Headgate in the place of torchrun and of mpirun.", 5)
    arguments.add_argument(
        "--tasks", default="2,4", help="numbers of workers, by comma (default: 2,4)"
    )
    arguments.add_argument(
        "--steps", type=int, default=300, help="steps of each run (default: 300)"
    )
    options = arguments.parse_args()
    rows: list[dict[str, object]] = []
    _frame.heading(options.repetitions, "torch", "mpi4py")
    launchers = [name for name in SCRIPTS if name == "torchrun" or _is_there(name)]
    with _frame.bench() as bench:
        # the hub is up from here on, and has measured the machine
        by_headgate(bench, "torchrun", 1, 10)
        for name, count in itertools.product(launchers, map(int, options.tasks.split(","))):
            pairs = [
                (
                    by_hand(bench, name, count, options.steps),
                    by_headgate(bench, name, count, options.steps),
                )
                for _ in range(options.repetitions)
            ]
            starts = {name: [a[0] for a, _ in pairs], "headgate": [b[0] for _, b in pairs]}
            ratios = [b[1] / a[1] for a, b in pairs]
            for who, found in starts.items():
                title = f"{count} workers, {who}: seconds to the first step"
                print(f"{title:52}{_frame.spread(found)}")
            print(f"{f'{count} workers: step time over {name}':52}{_frame.spread(ratios)}")
            rows.append(
                {"launcher": name, "workers": count, "first_step": starts, "step_ratios": ratios}
            )
    _frame.write(
        options.json,
        Path(__file__).stem,
        {"cpus": os.cpu_count(), "launchers": rows},
        "torch",
        "mpi4py",
    )


if __name__ == "__main__":
    main()
