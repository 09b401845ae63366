"""Measures the speed of this machine on small standard kernels: a core, its disk, and its GPUs if
torch is installed.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.machine import core_speed
from headgate.model.errors import HeadgateError, writing_cure

_PATIENCE_SECONDS = 120.0
_DISK_BYTES = 64 << 20
_BLOCK = 4 << 20

# The convolution is 3 x 3, as nine matrix products of shifted images: between a large product and a
# copy, as in frameworks.
_CORE = """
channels, side = 64, 32
image = random.random((channels, side + 2, side + 2), numpy.float32)
filters = random.random((9, channels, channels), numpy.float32)

def convolve():
    total = numpy.zeros((channels, side * side), numpy.float32)
    for i in range(9):
        x, y = divmod(i, 3)
        total += filters[i] @ image[:, x : x + side, y : y + side].reshape(channels, -1)
    return total

data = numpy.ones(1 << 22, numpy.float64)
other = numpy.empty_like(data)
found["core_convolution_gflops"] = rate(2 * 9 * channels**2 * side**2 / 1e9, convolve)
found["core_copy_bytes_per_second"] = rate(data.nbytes, lambda: numpy.copyto(other, data))
"""
"""Measurements of a core, run after `core_speed.CORE`."""
_GPU = """
import json, sys
import torch

def rate(amount, work, times=20):
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return times * amount / (begin.elapsed_time(end) / 1e3)

found = {}
for index in range(torch.cuda.device_count()):
    torch.cuda.set_device(index)
    name = torch.cuda.get_device_name(index)
    if name in found:
        continue
    left = torch.rand(4096, 4096, device="cuda")
    image = torch.rand(32, 128, 56, 56, device="cuda")
    filters = torch.rand(128, 128, 3, 3, device="cuda")
    found[name] = {
        "gflops": rate(2 * 4096**3 / 1e9, lambda: left @ left),
        "convolution_gflops": rate(
            2 * 9 * 128**2 * 32 * 56**2 / 1e9,
            lambda: torch.nn.functional.conv2d(image, filters, padding=1),
        ),
        "copy_bytes_per_second": rate(left.nbytes, left.clone),
    }
"""

_ALL_REDUCE = """
import json, time
import torch
from torch.cuda import nccl

found, count = {}, torch.cuda.device_count()
if count > 1:
    gradients = [torch.ones(1 << 25, device=f"cuda:{index}") for index in range(count)]

    def reduced(times):
        for index in range(count):
            torch.cuda.synchronize(index)
        begun = time.perf_counter()
        for _ in range(times):
            nccl.all_reduce(gradients)
        for index in range(count):
            torch.cuda.synchronize(index)
        return time.perf_counter() - begun

    reduced(3)
    size = gradients[0].numel() * gradients[0].element_size()
    seconds = sorted(reduced(10) / 10 for _ in range(3))[1]
    found["bytes_per_second"] = 2 * (count - 1) / count * size / seconds
"""
"""Measures the bytes that each GPU sends in an all-reduce of 128 MiB."""


def core() -> dict[str, float]:
    """Speed of one core, in about 2 s: `core_gflops` (float32 product of 512 x 512 matrices),
    `core_convolution_gflops` (3 x 3, 64 channels) and `core_copy_bytes_per_second`, each the median
    of several.

    Raises:
        HeadgateError: It cannot be measured.
    """
    return {
        str(name): float(value)
        for name, value in _measured(core_speed.CORE + _CORE, core_speed.ONE_THREAD).items()
    }


def gpus() -> dict[str, dict[str, float]]:
    """Speed of each kind of GPU, by its driver's name: `gflops` (float32 product of 4096 x 4096
    matrices), `convolution_gflops` and `copy_bytes_per_second`.

    Raises:
        HeadgateError: It cannot be measured: torch is missing, or sees no GPU.
    """
    rates_by_gpu = {str(name): dict(rates) for name, rates in _measured(_GPU, {}).items()}
    if not rates_by_gpu:
        raise HeadgateError("torch sees no GPU; install a build of it for CUDA")
    return rates_by_gpu


def all_reduce() -> float | None:
    """Bytes per second that each of this machine's GPUs sends in an all-reduce. None with fewer
    than two GPUs.

    Raises:
        HeadgateError: It cannot be measured.
    """
    rate = _measured(_ALL_REDUCE, {}).get("bytes_per_second")
    return float(rate) if rate is not None else None


def _measured(program: str, variables: Mapping[str, str]) -> dict[str, Any]:
    try:
        return core_speed.run(program, variables, _PATIENCE_SECONDS)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise HeadgateError(f"the kernels could not be run: {last}") from None
    except subprocess.TimeoutExpired:
        raise HeadgateError(
            f"the kernels took longer than {_PATIENCE_SECONDS:g} s; measure while less else runs"
        ) from None
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise HeadgateError(f"the kernels could not be run: {error}") from error


def disk(folder: Path) -> float:
    """Bytes per second of a folder's disk: the slower of writing 64 MiB and reading it back.

    Raises:
        HeadgateError: The folder cannot be written to.
    """
    block = os.urandom(_BLOCK)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begun = time.monotonic()
            for _ in range(_DISK_BYTES // _BLOCK):
                file.write(block)
            os.fsync(file.fileno())
            wrote = time.monotonic() - begun
            # Cached data would be read from memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            begun = time.monotonic()
            while file.read(_BLOCK):
                pass
            return _DISK_BYTES / max(wrote, time.monotonic() - begun)
    except OSError as error:
        raise HeadgateError(
            f"cannot write in {folder}: {error.strerror}; {writing_cure(error)}"
        ) from error
