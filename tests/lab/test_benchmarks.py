"""The lab of a benchmark goes with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tests.lab.laboratory import SOURCE, Laboratory

BENCHMARK = """
import signal, sys, tempfile, threading
from pathlib import Path
import _frame
# A process in the background may have been told to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
tempfile.tempdir = sys.argv[1]
up = {
    "lab": lambda: _frame.lab(
        Path(sys.argv[1]), "bench", {"a": "10.77.0.1"}, "50Mbit", _frame.environment()
    ),
    "bench": lambda: _frame.bench(
        "lab: true\\nnodes: [{name: a, cores: 0.2, memory: 1GiB, nic: 50Mbit}]\\n"
    ),
}[sys.argv[2]]
with up():
    print("up", flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("what", "number"),
    [
        *(
            pytest.param("lab", number, marks=pytest.mark.long)
            for number in (signal.SIGTERM, signal.SIGHUP)
        ),
        ("lab", signal.SIGINT),
        ("bench", signal.SIGTERM),
    ],
)
def test_one_that_is_told_to_end_leaves_no_lab(
    laboratory: Laboratory, what: str, number: signal.Signals
) -> None:
    path = os.pathsep.join(map(str, (SOURCE, SOURCE.parent / "benchmarks")))
    benchmark = subprocess.Popen(
        [sys.executable, "-c", BENCHMARK, str(laboratory.folder), what],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert benchmark.stdout is not None
    assert benchmark.stdout.readline() == "up\n"
    assert laboratory.left() or any(laboratory.folder.glob("headgate-bench-*"))
    benchmark.send_signal(number)
    benchmark.communicate(timeout=120)
    assert laboratory.left() == []
    assert not list(laboratory.folder.glob("headgate-bench-*"))
