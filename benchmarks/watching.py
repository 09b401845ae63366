"""What watching costs: the share of one core that sampling ten tasks once a second takes.

    python benchmarks/watching.py [--seconds 20] [--repetitions 3] [--json PATH]

Ten real tasks, half busy and half idle, are watched by the samplers of a run, first through cgroups, then (in boxes
without any) through psutil; beside them `dstat` watches the node alone, where it is installed. CPU time is that of
the watching process by the kernel's own account, so that other load on the machine counts little.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import _frame

from headgate.isolation.base import Box, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.shares import Share
from headgate.telemetry.base import Target
from headgate.telemetry.round import Round, samplers

TASKS = 10
BUSY = "while True: pass"
IDLE = "import signal; signal.pause()"
AIMS = {"cgroups": 0.01, "psutil": 0.04}
DSTAT = ("dstat", "--cpu", "--mem", "--disk", "--net", "--noupdate", "--nocolor", "1")


@contextmanager
def tasks(mode: Literal["auto", "none"]) -> Iterator[list[Box]]:
    """Ten tasks in boxes of a kind; those that are busy get little CPU, so that the machine stays usable."""
    isolation = ProcessIsolation(f"watching-{os.getpid()}", mode=mode)
    boxes: list[Box] = []
    try:
        with open(os.devnull, "w") as nowhere:
            for n in range(TASKS):
                argv = (sys.executable, "-I", "-S", "-c", BUSY if n % 2 else IDLE)
                launch = Launch(f"watching/task{n}/worker-0", argv, dict(os.environ), os.getcwd(), 1)
                boxes.append(isolation.start(launch, Share(cpu_weight=1), nowhere.fileno()))
        yield boxes
    finally:
        for box in boxes:
            box.close()


def watch(mode: Literal["auto", "none"], seconds: int) -> tuple[float, float]:
    """Share of one core, and milliseconds of CPU time of the median round."""
    with tasks(mode) as boxes:
        targets = [*(Target(box.task, box) for box in boxes), Target("node", None)]
        watching = Round(samplers(print), print)
        watching.read(time.monotonic(), targets)
        rounds = []
        start, used = time.monotonic(), time.process_time()
        for n in range(1, seconds + 1):
            time.sleep(max(0.0, start + n - time.monotonic()))
            before = time.process_time()
            readings = watching.read(time.monotonic(), targets)
            rounds.append(time.process_time() - before)
        share = (time.process_time() - used) / (time.monotonic() - start)
        if readings.keys() != {target.id for target in targets}:
            raise RuntimeError(f"not every task was read: {sorted(readings)}")
        watching.read(time.monotonic(), ())
        return share, statistics.median(rounds) * 1e3


def dstat(seconds: int) -> float | None:
    """Share of one core that dstat takes to watch the node once a second, its start not counted; None where it is
    missing."""
    if shutil.which(DSTAT[0]) is None:
        return None

    def cpu_seconds(count: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*DSTAT, str(count)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return max(0.0, cpu_seconds(seconds) - cpu_seconds(1)) / (seconds - 1)


def main() -> None:
    parser = _frame.parser("Share of one core that watching ten tasks at 1 Hz takes.", 3)
    parser.add_argument("--seconds", type=int, default=20, help="rounds of a repetition (default: 20)")
    options = parser.parse_args()
    if options.seconds < 2 or options.repetitions < 1:
        parser.error("expected at least 2 seconds and 1 repetition")

    through = ProcessIsolation("watching").mode
    rows: list[dict[str, object]] = []
    for name, mode in (("cgroups", "auto"), ("psutil", "none")):
        if name == "cgroups" and through == "none":
            print("no cgroup can be written here; that row is left out", file=sys.stderr)
            continue
        results = [watch("auto" if mode == "auto" else "none", options.seconds) for _ in range(options.repetitions)]
        shares = [share for share, _ in results]
        rows.append(
            {
                "what": f"headgate, ten tasks and the node, through {name if mode == 'none' else f'cgroup {through}'}",
                "share_of_one_core": statistics.median(shares),
                "all": shares,
                "milliseconds_a_round": statistics.median(ms for _, ms in results),
                "aim": AIMS[name],
            }
        )
    others = [share for _ in range(options.repetitions) if (share := dstat(options.seconds)) is not None]
    if others:
        rows.append({"what": "dstat, the node alone", "share_of_one_core": statistics.median(others), "all": others})

    _frame.heading(options.repetitions, "psutil")
    print(f"{'':58}{'of a core':>10}{'aim':>7}{'a round':>12}")
    for row in rows:
        aim = f"{row['aim']:.0%}" if "aim" in row else ""
        each = f"{row['milliseconds_a_round']:.2f} ms" if "milliseconds_a_round" in row else ""
        print(f"{row['what']:58}{row['share_of_one_core']:>10.2%}{aim:>7}{each:>12}")
    content = {"tasks": TASKS, "seconds": options.seconds, "repetitions": options.repetitions, "rows": rows}
    _frame.write(options.json, "watching", content, "psutil")


if __name__ == "__main__":
    main()
