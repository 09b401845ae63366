"""What is particular to cgroup v2; needs a kernel with all its controllers, and root."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.isolation.base import Box, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.machine.cgroup_v2 import CgroupsV2
from headgate.model.cluster import Place
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.reason_text import in_words
from headgate.model.shares import UNLIMITED, Share
from headgate.sampling.base import Target
from headgate.sampling.round import SamplingRound, samplers
from headgate.testing import programs
from headgate.testing.wait import until

pytestmark = pytest.mark.hardware
MIB = 1 << 20
PATIENCE = 200.0
"""Seconds for what takes a few on an emulated machine that has a core for itself."""


@pytest.fixture
def isolation() -> ProcessIsolation:
    try:
        isolation = ProcessIsolation(f"v2-{os.getpid()}", mode="v2")
    except IsolationError as error:
        pytest.skip(str(error))
    if isolation.uncontrolled():
        pytest.skip(in_words(isolation.uncontrolled()[0].warning()))
    return isolation


@pytest.fixture
def box(isolation: ProcessIsolation) -> Iterator[Box]:
    box = started(isolation, Share(), "breed")
    until(lambda: len(box.pids()) > 5, seconds=30, what="a few daemons")
    yield box
    box.close()


def started(isolation: ProcessIsolation, share: Share, name: str, *arguments: object) -> Box:
    launch = Launch(TaskId("run/job/worker-0"), programs.argv(name, *arguments), {}, "/tmp", 1)
    with open(os.devnull, "w") as nowhere:
        return isolation.start(launch, share, nowhere.fileno())


def file(box: Box, name: str) -> str:
    return (box.cgroups["unified"] / name).read_text().strip()


def test_every_controller_is_in_one_folder(box: Box) -> None:
    assert set(box.cgroups) == {"unified", "cpu", "memory", "cpuset", "io"}
    assert len(set(box.cgroups.values())) == 1


def test_everything_about_a_task_is_read(box: Box) -> None:
    said: list[str] = []
    readings = SamplingRound(samplers(said.append), said.append)
    readings.read(time.monotonic(), [Target("task", box)])
    found = readings.read(time.monotonic(), [Target("task", box)])["task"]
    assert said == []
    assert found.keys() >= {
        "cpu_cores",
        "cpu_system",
        "cpu_throttled",
        "cpu_waiting",
        "disk_read",
        "disk_write",
        "major_faults",
    }
    assert found.keys() >= {
        "memory_bytes",
        "cache_bytes",
        "refaults",
        "psi_cpu",
        "psi_memory",
        "psi_io",
    }


def test_what_is_written(box: Box) -> None:
    box.apply(
        Share(cpu_weight=300, cpu_cap_cores=0.5, memory_bytes=512 * MIB, disk_bytes_per_second=1e6)
    )
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
    assert (
        file(box, "cpuset.cpus.effective")
        == (Path("/sys/fs/cgroup/cpuset.cpus.effective")).read_text().strip()
    )


def test_a_kernel_without_cgroup_kill(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CgroupsV2, "kill_once", CgroupsV2.kill_frozen)
    box.kill()
    assert box.pids() == []


def test_a_task_over_its_memory_ends_as_a_whole(isolation: ProcessIsolation) -> None:
    box = started(isolation, Share(memory_bytes=64 * MIB), "nurse", 256 * MIB)
    assert select.select([box.exit_fd], [], [], PATIENCE)[0]
    end = box.reap()
    assert (end.signal, end.over_memory) == (9, True)
    box.close()


def test_the_disk_rate_holds(isolation: ProcessIsolation, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(2 * MIB))
    os.sync()
    reading, writing = os.pipe()
    launch = Launch(TaskId("run/job/worker-0"), programs.argv("read", data), {}, str(tmp_path), 1)
    box = isolation.start(launch, Share(disk_bytes_per_second=MIB), writing)
    os.close(writing)
    with open(reading) as output:
        seconds = float(output.readline().split()[1])
    box.close()
    # how much more is the host's disk, for which the clock of an emulated machine does not wait
    assert seconds >= 1.5


@pytest.fixture
def place(isolation: ProcessIsolation, tmp_path: Path) -> Iterator[Place]:
    """A place with a fifth of a core and 64 MiB, in the network namespace of a process."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    (tmp_path / "hosts").write_text("10.99.9.1 node\n")
    code = f"import ctypes; ctypes.CDLL(None).unshare({0x40000000}); print(flush=True); input()"
    base = isolation._layout.bases["unified"]
    node = base / f"place-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        (base / "cgroup.subtree_control").write_text("+cpu +memory +cpuset +io")
        node.mkdir()
        (node / "cpu.max").write_text("2000 10000")
        (node / "memory.max").write_text(str(64 * MIB))
        yield Place(
            f"/proc/{holder.pid}/ns/net", "node", str(tmp_path / "hosts"), {"unified": str(node)}
        )
        until(
            lambda: not any(entry.is_dir() for entry in node.iterdir()), what="the end of the boxes"
        )
        node.rmdir()
        holder.communicate(b"\n")


def test_a_task_in_a_place_is_below_its_folder_and_within_its_limits(
    isolation: ProcessIsolation, place: Place, tmp_path: Path
) -> None:
    show = (
        "import os; print(os.uname().nodename, os.listdir('/sys/class/net'), "
        "open('/etc/hosts').read().strip())"
    )
    spinning = Launch(TaskId("run/spin/worker-0"), programs.argv("spin", 2), {}, "/tmp", 1, place)
    showing = Launch(
        TaskId("run/show/worker-0"), (sys.executable, "-c", show), {}, "/tmp", 1, place
    )
    holding = Launch(
        TaskId("run/hold/worker-0"), programs.argv("hold", 128 * MIB), {}, "/tmp", 1, place
    )
    with open(tmp_path / "output", "w") as output:
        first = isolation.start(showing, Share(), output.fileno())
        assert select.select([first.exit_fd], [], [], PATIENCE)[0]
        first.close()
        assert (tmp_path / "output").read_text() == "node ['lo'] 10.99.9.1 node\n"
        greedy = isolation.start(holding, Share(), output.fileno())
        assert select.select([greedy.exit_fd], [], [], PATIENCE)[0]
        reason = greedy.reap().reason
        greedy.close()
        assert reason is not None and reason.startswith("killed: node node ran out of memory")
        box = isolation.start(spinning, Share(cpu_cap_cores=2), output.fileno())
    folder = box.cgroups["unified"]
    assert folder.parent.parent == Path(place.cgroups["unified"])
    assert set(box.cgroups) == {"unified", "cpu", "memory", "cpuset", "io"}
    began, used = time.monotonic(), usage(folder)
    select.select([], [], [], 3)
    cores = (usage(folder) - used) / (time.monotonic() - began)
    box.close()
    assert 0.1 <= cores <= 0.22


def usage(folder: Path) -> float:
    """CPU seconds that were used in a cgroup."""
    return int((folder / "cpu.stat").read_text().split()[1]) / 1e6
