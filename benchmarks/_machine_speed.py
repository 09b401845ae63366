"""How fast this machine is from moment to moment: others on the same host slow it down, and no
counter in it tells.

A process on each core reads 16 MiB four times a second, more than its caches hold, which takes a
three-hundredth of the core, and says what CPU time that took. Small products of matrices, which
stay in the first cache, take as long as ever while a small network trains a fifth slower.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_PROBE = r"""
import os, sys, time
import numpy as np

parent, core = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
if os.geteuid() == 0:
    os.nice(-15)  # it is to be done before the jobs have the core again
numbers = np.ones(1 << 22, np.float32)
while os.getppid() == parent:
    began = time.thread_time_ns()
    numbers.sum()
    taken = time.thread_time_ns() - began
    os.write(1, b"%.6f %d %d\n" % (time.time(), core, taken))  # whole, beside the others'
    time.sleep(0.25)
"""

FELT = 1.5
"""The power of what reading costs that the speed of training falls by: 1.5 and 2.5 at best in 9 and
7 minutes of pairs of the examples on a core each, with which two thirds and a half of what 12 s of
the same work vary by were left.
"""

Seconds = Callable[[float, float], float]
"""From one moment to another (s since the epoch), how many it would have been at the machine's
usual speed.
"""


@contextmanager
def probing(said: Path) -> Iterator[None]:
    """Probe every core as long as the context lasts, into a file."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with said.open("ab") as file:
        probes = [
            subprocess.Popen(
                [sys.executable, "-c", _PROBE, str(os.getpid()), str(core)],
                stdout=file,
                env=variables,
            )
            for core in os.sched_getaffinity(0)
        ]
        try:
            yield
        finally:
            for probe in probes:
                probe.kill()
                probe.wait()
    if any(probe.returncode != -signal.SIGKILL for probe in probes):
        raise SystemExit(
            "a probe of the machine's speed ended before it was to; its message is above"
        )


def read(said: Path) -> Seconds:
    """What the probes said: each core against its own median."""
    lines = [line.split() for line in said.read_text().splitlines()]
    rows = sorted((float(at), core, float(cost)) for at, core, cost in lines)
    usual = {
        each: statistics.median(cost for _, core, cost in rows if core == each)
        for each in {row[1] for row in rows}
    }
    times = np.array([at for at, _, _ in rows])
    speeds = np.array([usual[core] / cost for _, core, cost in rows]) ** FELT
    done = np.concatenate(([0.0], np.cumsum(np.diff(times) * (speeds[:-1] + speeds[1:]) / 2)))
    return lambda start, end: float(np.interp(end, times, done) - np.interp(start, times, done))
