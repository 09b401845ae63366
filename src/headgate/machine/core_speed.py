"""The measured speed of one core, cached between runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_PATIENCE_SECONDS = 30.0
"""Longest measurement, including the start of an interpreter with numpy. It usually takes half a
second.
"""

# CPU time, not wall time, so that other programs on the core do not count.
CORE = """
import json, time
import numpy

def rate(amount, work, seconds=0.35):
    samples = []
    end = time.process_time() + seconds
    while len(samples) < 3 or time.process_time() < end:
        begin = time.process_time()
        work()
        samples.append(time.process_time() - begin)
    return amount / sorted(samples)[len(samples) // 2]

random = numpy.random.default_rng(0)
left = random.random((512, 512), numpy.float32)
right, out = left.T.copy(), left @ left
found = {"core_gflops": rate(2 * 512**3 / 1e9, lambda: numpy.matmul(left, right, out=out))}
"""
"""Measures the speed of a core into `found`, and defines `rate` for further measurements of a
longer program.
"""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1"
)


def run(program: str, variables: Mapping[str, str], patience: float) -> dict[str, Any]:
    """Run a program by an interpreter like this one, with additional variables. Returns the value
    of its `found`.

    Raises:
        OSError: It could not be started.
        subprocess.SubprocessError: It failed, or took longer than `patience` seconds.
        ValueError: It printed something else.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{program}\nprint(json.dumps(found))"],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience,
        check=True,
    )
    return dict(json.loads(done.stdout))


def measure() -> float | None:
    """GFLOP/s of one core: the median of several float32 products of 512 x 512 matrices, in a
    process with one thread. None if it cannot be measured.
    """
    try:
        return float(run(CORE, ONE_THREAD, _PATIENCE_SECONDS)["core_gflops"])
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def core_gflops(
    cache: Path | None, cpu_model: str, cores: float, measure: Callable[[], float | None] = measure
) -> float | None:
    """The speed of a core in GFLOP/s, from the cache, or measured now and cached.

    Args:
        cache: A JSON file; None: no cache. An unreadable file is replaced, an unwritable one
            ignored.
        cpu_model: The cached speed of another model is not used.
        cores: The cached speed with another number of cores is not used, because the machine was
            changed.
        measure: Measures the speed.
    """
    speed = known(cache, cpu_model, cores).get("core_gflops")
    if isinstance(speed, float) and speed > 0:
        return speed
    speed = measure()
    if speed is not None and cache is not None:
        keep(cache, cpu_model, cores, {"core_gflops": speed})
    return speed


def known(cache: Path | None, cpu_model: str, cores: float) -> dict[str, object]:
    """The cached measurements of this machine; empty if the cache is of another or a changed
    machine.
    """
    speeds = _read(cache) if cache is not None else {}
    return speeds if (speeds.get("cpu_model"), speeds.get("cores")) == (cpu_model, cores) else {}


def keep(cache: Path, cpu_model: str, cores: float, measured: Mapping[str, object]) -> None:
    """Add measurements to the cache of this machine. The cache of another machine is replaced."""
    machine = {"cpu_model": cpu_model, "cores": cores}
    _write(cache, {**known(cache, cpu_model, cores), **machine, **measured})


def _read(cache: Path) -> dict[str, object]:
    try:
        speeds = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    return speeds if isinstance(speeds, dict) else {}


def _write(cache: Path, content: dict[str, object]) -> None:
    beside = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(content, indent=2) + "\n")
        beside.replace(cache)
    except OSError:
        with suppress(OSError):
            beside.unlink()
