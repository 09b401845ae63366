"""How GPUs of a machine are joined, by what a made-up NVML says of it."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.machine import core_speed
from headgate.model.cluster import Gpu, GpuLink
from headgate.profiling import kernels
from headgate.sampling import gpu, machine

Pair = tuple[int, int]


class Nvml:
    """Some GPUs; `joined` are those pairs which NVLinks or switches of them join."""

    class NVMLError(Exception):
        pass

    NVML_NVLINK_MAX_LINKS, NVML_FEATURE_ENABLED, NVML_SUCCESS = 18, 1, 0
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, NVML_P2P_CAPS_INDEX_NVLINK, NVML_TOPOLOGY_MULTIPLE = (
        90,
        2,
        20,
    )

    def __init__(
        self,
        count: int,
        *,
        links: int = 0,
        joined: Collection[Pair] = (),
        generation: int = 4,
        level: int = 20,
    ) -> None:
        self.count, self.links, self.generation, self.level = count, links, generation, level
        self.joined = {frozenset(pair) for pair in joined}

    def __getattr__(self, name: str) -> Any:
        known = {
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: "A100",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=1000),
            "nvmlDeviceGetNvLinkState": self._state,
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetP2PStatus": lambda one, other, index: (
                0 if {one, other} in self.joined else 5
            ),
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: self.generation,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: 16,
            "nvmlDeviceGetTopologyCommonAncestor": lambda one, other: self.level,
        }
        if name not in known:
            raise AttributeError(name)
        return known[name]

    def _state(self, handle: int, link: int) -> int:
        if link >= self.links:
            raise self.NVMLError("not supported")
        return 1

    def _fields(self, handle: int, fields: list[int]) -> list[Any]:
        assert fields == [90]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=25_000))]


def pairs(count: int) -> list[Pair]:
    return list(itertools.combinations(range(count), 2))


MESH = [
    (0, 1),
    (0, 2),
    (0, 3),
    (0, 4),
    (1, 2),
    (1, 3),
    (1, 5),
    (2, 3),
    (2, 6),
    (3, 7),
    (4, 5),
    (4, 6),
    (4, 7),
    (5, 6),
]


@pytest.mark.parametrize(
    ("nvml", "link"),
    [
        (Nvml(8, links=12, joined=pairs(8)), GpuLink(300e9, "nvlink")),
        (Nvml(8, links=6, joined=[*MESH, (5, 7), (6, 7)]), GpuLink(150e9, "nvlink")),
        (Nvml(2, links=4, joined=[(0, 1)]), GpuLink(100e9, "nvlink")),
        (Nvml(4, links=4, joined=[(0, 1), (2, 3)], level=40), GpuLink(31.52e9, "host")),
        (Nvml(3, links=4, joined=[(0, 1), (1, 2)], level=20), GpuLink(31.52e9, "pcie")),
        (Nvml(4, generation=3), GpuLink(15.76e9, "pcie")),
        (Nvml(4, generation=2, level=30), GpuLink(8e9, "host")),
        (Nvml(1, links=12), None),
    ],
)
def test_nvlink_is_taken_where_it_leads_around_all_gpus_else_their_pcie_links(
    nvml: Nvml, link: GpuLink | None
) -> None:
    found = gpu.gpu_link(nvml)
    assert (found and found.how) == (link and link.how)
    assert (found and found.bytes_per_second) == pytest.approx(link and link.bytes_per_second)


def test_what_a_driver_does_not_say_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(one: int, other: int) -> int:
        raise Nvml.NVMLError("not supported")

    nvml = Nvml(2)
    monkeypatch.setattr(nvml, "nvmlDeviceGetTopologyCommonAncestor", refuse, raising=False)
    assert gpu.gpu_link(nvml) is None
    assert gpu.gpu_link(None) is None


def test_detection_has_the_link_and_calibration_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "open_nvml", lambda: Nvml(2, links=12, joined=[(0, 1)]))
    cache = tmp_path / "node.json"
    found = machine.detect(cache)
    assert found.gpus == (Gpu(0, "A100", 1000), Gpu(1, "A100", 1000))
    assert found.gpu_link == GpuLink(300e9, "nvlink")
    core_speed.keep(cache, found.cpu_model, found.cores, {machine.ALL_REDUCE: 2.1e11})
    assert machine.detect(cache).gpu_link == GpuLink(2.1e11, "measured")


TORCH = """
class Tensor:
    def numel(self): return 1 << 25
    def element_size(self): return 4

def ones(count, device):
    assert count == 1 << 25 and device.startswith("cuda:")
    return Tensor()
"""


NCCL = """
import time

clock = [0.0]
time.perf_counter = lambda: clock[0]

def all_reduce(all):
    assert len(all) == {count}
    clock[0] += 2e-3
"""


@pytest.mark.parametrize("count", [1, 4])
def test_an_all_reduce_says_what_each_gpu_sends(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A made-up torch whose all-reduce takes 2 ms, by a clock of its own: each of four GPUs sends
    1.5 times 128 MiB in it.
    """
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text(
        f"device_count = lambda: {count}\nsynchronize = lambda index: None\n"
    )
    (tmp_path / "torch" / "cuda" / "nccl.py").write_text(NCCL.format(count=count))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rate = kernels.all_reduce()
    assert rate == (None if count == 1 else pytest.approx(1.5 * (4 << 25) / 2e-3))
