"""What is particular to cgroup v2; needs a kernel with all its controllers, and root."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import IsolationError
from headgate.isolation.base import Box, Launch
from headgate.isolation.cgroup_v2 import CgroupsV2
from headgate.isolation.process import ProcessIsolation
from headgate.shares import UNLIMITED, Share
from headgate.testing import programs
from headgate.testing.wait import until

pytestmark = pytest.mark.hardware
MIB = 1 << 20


@pytest.fixture
def isolation() -> ProcessIsolation:
    try:
        isolation = ProcessIsolation(f"v2-{os.getpid()}", mode="v2")
    except IsolationError as error:
        pytest.skip(str(error))
    if isolation.lost():
        pytest.skip(isolation.lost()[0])
    return isolation


@pytest.fixture
def box(isolation: ProcessIsolation) -> Iterator[Box]:
    box = started(isolation, Share(), "breed")
    until(lambda: len(box.pids()) > 5, seconds=30, what="a few daemons")
    yield box
    box.close()


def started(isolation: ProcessIsolation, share: Share, name: str, *arguments: object) -> Box:
    launch = Launch("run/job/worker-0", programs.argv(name, *arguments), {}, "/tmp", 1)
    with open(os.devnull, "w") as nowhere:
        return isolation.start(launch, share, nowhere.fileno())


def file(box: Box, name: str) -> str:
    return (box.cgroups["unified"] / name).read_text().strip()


def test_every_controller_is_in_one_folder(box: Box) -> None:
    assert set(box.cgroups) == {"unified", "cpu", "memory", "cpuset", "io"}
    assert len(set(box.cgroups.values())) == 1


def test_what_is_written(box: Box) -> None:
    box.apply(Share(cpu_weight=300, cpu_cap_cores=0.5, memory_bytes=512 * MIB, disk_bytes_per_second=1e6))
    box.pin(frozenset({0}))
    assert file(box, "cpu.weight") == "300"
    assert file(box, "cpu.max") == "5000 10000"
    assert file(box, "memory.max") == str(512 * MIB)
    assert file(box, "memory.oom.group") == "1"
    assert "rbps=1000000 wbps=1000000" in file(box, "io.max")
    assert file(box, "cpuset.cpus") == "0"
    box.apply(Share(cpu_cap_cores=0.05, memory_bytes=UNLIMITED, disk_bytes_per_second=UNLIMITED))
    box.pin(None)
    assert file(box, "cpu.max") == "1000 20000", "the kernel takes no quota under 1 ms"
    assert file(box, "memory.max") == "max"
    assert file(box, "io.max") == ""
    assert file(box, "cpuset.cpus.effective") == (Path("/sys/fs/cgroup/cpuset.cpus.effective")).read_text().strip()


def test_a_kernel_without_cgroup_kill(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CgroupsV2, "kill_once", CgroupsV2.kill_frozen)
    box.kill()
    assert box.pids() == []


def test_a_task_over_its_memory_ends_as_a_whole(isolation: ProcessIsolation) -> None:
    box = started(isolation, Share(memory_bytes=64 * MIB), "nurse", 256 * MIB)
    assert select.select([box.exit_fd], [], [], 60)[0]
    end = box.reap()
    assert (end.signal, end.over_memory) == (9, True)
    box.close()


def test_the_disk_rate_holds(isolation: ProcessIsolation, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(2 * MIB))
    os.sync()
    reading, writing = os.pipe()
    launch = Launch("run/job/worker-0", programs.argv("read", data), {}, str(tmp_path), 1)
    box = isolation.start(launch, Share(disk_bytes_per_second=MIB), writing)
    os.close(writing)
    with open(reading) as output:
        seconds = float(output.readline().split()[1])
    box.close()
    assert 1.5 <= seconds <= 6
