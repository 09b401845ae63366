"""Compute modes of GPUs, on a made-up machine: on which of them one process alone may compute, and
on which none.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from tests.sampling.made_up import pynvml

from headgate.sampling import gpu
from headgate.sampling.base import Target
from headgate.sampling.gpu import GpuSampler

DEFAULT, THREAD, PROHIBITED, PROCESS = range(4)


def nvml(*modes: int, pids: dict[int, int]) -> Any:
    """The made-up library with these modes, and a process on some of the GPUs."""
    names = {
        name: getattr(pynvml, name) for name in vars(pynvml) if name.lower().startswith("nvml")
    }
    here = [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in pids.values()]
    by_gpu = dict(zip(pids, here, strict=True))
    names["nvmlDeviceGetComputeMode"] = lambda handle: (
        modes[handle] if handle < len(modes) else DEFAULT
    )
    names["nvmlDeviceGetComputeRunningProcesses"] = lambda handle: (
        [by_gpu[handle]] if handle in by_gpu else []
    )
    return SimpleNamespace(**names)


def test_modes_limit_who_may_compute_beside_whom() -> None:
    sampler = GpuSampler(nvml(DEFAULT, PROCESS, PROHIBITED, pids={0: os.getpid()}))
    sampler.read(0.0, [Target("all", None)])
    assert (set(sampler.single), set(sampler.closed)) == ({1}, {2})
    sampler = GpuSampler(nvml(THREAD, PROCESS, pids={0: os.getpid()}))
    sampler.read(0.0, [Target("all", None)])
    assert (set(sampler.single), set(sampler.closed)) == ({0, 1}, {0})


def test_under_the_server_of_mps_a_gpu_has_several_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        gpu, "content", lambda path: "nvidia-cuda-mps" if str(path) == "/proc/77/comm" else ""
    )
    sampler = GpuSampler(nvml(PROCESS, PROCESS, pids={0: 77, 1: 78}))
    sampler.read(0.0, [Target("all", None)])
    assert (set(sampler.single), set(sampler.closed)) == ({1}, {1})


def test_a_driver_that_tells_no_mode_limits_nothing() -> None:
    sampler = GpuSampler(pynvml)
    sampler.read(0.0, [Target("all", None)])
    assert (set(sampler.single), set(sampler.closed)) == (set(), set())
