"""What a container costs beside cgroups alone: until a task's first line, to change its share, to end it, and what the
same work takes of CPU time in it.

    python benchmarks/containers.py [--repetitions 5] [--json PATH]

Needs a Docker daemon (`headgate doctor` says which).
"""

from __future__ import annotations

import os
import select
import statistics
import sys
import time

import _frame

from headgate import isolation
from headgate.errors import HeadgateError
from headgate.identifiers import TaskId
from headgate.isolation.base import Launch
from headgate.shares import Share

KINDS = ("process", "container")
WORK = """
import json, time
print("ready", flush=True)
began = time.process_time()
for _ in range(60_000):
    json.dumps(list(range(100)))
print(time.process_time() - began)
"""
"""Says when it begins, and in the end its CPU seconds."""
ROWS = {
    "start": "seconds from the order to its first line",
    "update": "seconds to change weight, cap and memory limit",
    "work": "CPU seconds of the same work",
    "end": "seconds from its end to a machine without it",
}


def measure(kind: str) -> dict[str, float]:
    """One task, from its start to its end."""
    boxes = isolation.make(kind, f"bench-{os.getpid()}")
    boxes.check()
    launch = Launch(TaskId("bench/job/worker-0"), (sys.executable, "-c", WORK), dict(os.environ), os.getcwd(), 1)
    reading, writing = os.pipe()
    with os.fdopen(reading) as output:
        began = time.monotonic()
        box = boxes.start(launch, Share(cpu_weight=100), writing)
        os.close(writing)
        output.readline()
        ready = time.monotonic()
        box.apply(Share(cpu_weight=200, cpu_cap_cores=os.cpu_count() or 1, memory_bytes=1 << 30))
        updated = time.monotonic()
        work = float(output.readline())
        select.select([box.exit_fd], [], [])
        ended = time.monotonic()
        box.reap()
        box.close()
    return {"start": ready - began, "update": updated - ready, "work": work, "end": time.monotonic() - ended}


def main() -> None:
    options = _frame.parser("What a container costs beside cgroups alone.", 5).parse_args()
    _frame.heading(options.repetitions, "docker")
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    try:
        for _ in range(options.repetitions + 1):
            for kind in KINDS:
                found[kind].append(measure(kind))
    except HeadgateError as error:
        print(f"not measured: {error}")
        return
    print(f"{'':48}" + "".join(f"{kind:>26}" for kind in KINDS))
    for row, text in ROWS.items():
        # The first of each brings the image and the interpreter into memory.
        cells = [_frame.spread([each[row] for each in found[kind][1:]]) for kind in KINDS]
        print(f"{text:48}" + "".join(f"{cell:>26}" for cell in cells))
    costs = {kind: statistics.median(each["work"] for each in found[kind][1:]) for kind in KINDS}
    print(
        f"\nCPU time of the work in a container: {costs['container'] / costs['process']:.3f} of that in cgroups alone"
    )
    _frame.write(options.json, "containers", {"rows": found}, "docker")


if __name__ == "__main__":
    main()
