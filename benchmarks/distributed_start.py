"""How long a job of several tasks takes from the command to the first step of all its workers.

    python benchmarks/distributed_start.py [--tasks 2,4,8] [--repetitions 5] [--json PATH]

Beside it as many processes of PyTorch's own DistributedDataParallel, started as torchrun starts them, and a plain
`python`. All of them on this machine, whose cores they share: most of the time is the import of PyTorch in each.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import _frame
import _job


def plain(bench: _job.Bench) -> float:
    """Seconds to the first step of the script under plain Python."""
    return _by_hand(bench, "plain.py", [{}])


def ddp(bench: _job.Bench, processes: int) -> float:
    """Seconds to the first step of all of so many processes of PyTorch's own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(processes)}
        for rank in range(processes)
    ]
    return _by_hand(bench, "ddp.py", ranks)


def _by_hand(bench: _job.Bench, script: str, variables: list[dict[str, str]]) -> float:
    for path in bench.folder.glob("steps-*"):
        path.unlink()
    began = time.time()
    processes = [
        subprocess.Popen([sys.executable, script, "2"], cwd=bench.folder, env={**bench.environment, **each})
        for each in variables
    ]
    codes = [process.wait(_job.SECONDS) for process in processes]
    if any(codes):
        raise RuntimeError(f"{script} gave {codes}")
    return _first(bench) - began


def headgate(bench: _job.Bench, *plan: str) -> float:
    """Seconds from the command to the first step of all workers."""
    began = time.time()
    bench.starts(*plan, count=2)
    _job.until(lambda: bench.job()["state"] in ("done", "failed"), "the job ends")
    if bench.job()["state"] != "done":
        raise RuntimeError(bench.headgate("logs", bench.job()["name"], "--all"))
    return _first(bench) - began


def _first(bench: _job.Bench) -> float:
    """When the last process had done its first step."""
    firsts: dict[int, float] = {}
    for step in bench.steps():
        firsts.setdefault(step.pid, step.at)
    return max(firsts.values())


def main() -> None:
    arguments = _frame.parser("Time from the command to the first step.", 5)
    arguments.add_argument("--tasks", default="2,4,8", help="numbers of tasks (default: 2,4,8)")
    options = arguments.parse_args()
    counts = [int(count) for count in options.tasks.split(",")]
    _frame.heading(options.repetitions, "torch", "pyzmq")
    times: dict[str, list[float]] = {}
    with _job.bench() as bench:
        headgate(bench)  # the hub is up from here on, and has measured the machine
        for _ in range(options.repetitions):
            times.setdefault("1 process, plain python", []).append(plain(bench))
            times.setdefault("1 task, headgate", []).append(headgate(bench))
            for count in counts:
                times.setdefault(f"{count} processes, torch DDP by hand", []).append(ddp(bench, count))
                plans = {
                    "all-reduce": ("--strategy", "allreduce", "--workers", str(count)),
                    "1 of them a server": ("--strategy", "ps", "--workers", str(count - 1), "--servers", "1"),
                }
                for name, plan in plans.items():
                    times.setdefault(f"{count} tasks, headgate, {name}", []).append(headgate(bench, *plan))
    print("seconds from the command to the first step of all workers")
    for name, found in times.items():
        print(f"{name:44}{_frame.spread(found)}")
    rows = [{"what": name, "seconds": found} for name, found in times.items()]
    _frame.write(options.json, Path(__file__).stem, {"cpus": os.cpu_count(), "rows": rows}, "torch", "pyzmq")


if __name__ == "__main__":
    main()
