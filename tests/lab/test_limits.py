"""What a node has of the machine's CPU, memory and disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.lab.laboratory import Laboratory

from headgate import lab
from headgate.cluster import Node, Place
from headgate.errors import IsolationError, UsageError
from headgate.isolation.layout import CgroupLayout
from headgate.lab import limits
from headgate.testing import wait

BUSY = """
import os, time
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + {seconds}: pass
print((time.process_time() - used) / (time.monotonic() - began))
"""
HOLDS = "import time; held = bytearray({mib} << 20); print('held', flush=True); time.sleep(1000)"
WRITES = """
import mmap, os, time
block, mib = mmap.mmap(-1, 1 << 20), {mib}
fd = os.open({path!r}, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
began = time.monotonic()
for _ in range(mib): os.write(fd, block)
print(mib * (1 << 20) / (time.monotonic() - began))
"""


def folder(node: Node, controller: str) -> Path:
    assert node.place is not None
    return Path(node.place.cgroups[controller])


@pytest.mark.parametrize(
    ("cores", "priorities", "cpus", "told"),
    [
        ({"a": 0.6}, {3.0, 1.0}, 2.0, "node a has fewer cores"),
        ({"a": 1.0, "b": 0.5}, {3.0, 1.0}, 2.0, "nodes a, b have fewer cores"),
        ({"a": 1.0, "b": 3.5}, {3.0, 1.0}, 4.0, "node a has fewer cores"),
        ({"a": 1.5}, {3.0, 1.0}, 2.0, ""),
        ({"a": 0.6}, {3.0, 1.0}, 1.0, ""),
        ({"a": 0.6}, {2.0}, 2.0, ""),
        ({}, {3.0, 1.0}, 2.0, ""),
    ],
)
def test_priorities_that_divide_nothing_on_a_node_are_told_of(
    cores: dict[str, float], priorities: set[float], cpus: float, told: str
) -> None:
    place = Place("", "", "", {})
    nodes = [Node(name, each, 1 << 30, place=place) for name, each in cores.items()]
    said = limits.weightless(nodes, priorities, cpus)
    assert said.startswith(told) and bool(said) == bool(told)
    assert limits.weightless([Node("machine", 1.0, 1 << 30)], {3.0, 1.0}, 2.0) == ""


@pytest.mark.parametrize("cores", [0.2, 0.5])
def test_a_node_gets_its_fraction_of_a_core(cores: float, laboratory: Laboratory) -> None:
    laboratory.up(f"name: a, cores: {cores}")

    def gets_it() -> bool:
        got = float(laboratory.python("a", BUSY.format(seconds=0.5)))
        assert got < 1.1 * cores
        return got > 0.8 * cores  # where the machine has that much left

    wait.until(gets_it, 60, f"it gets {cores} cores")


def test_cores_change_while_it_runs(laboratory: Laboratory) -> None:
    laboratory.up("name: a, cores: 0.6")
    laboratory.starts("a", sys.executable, "-c", BUSY.format(seconds=1000))
    wait.until(lambda: lab.status()[0].cores > 0.25, 60, "it gets more than 0.25 cores")
    lab.change("a", {"cores": 0.2})
    wait.until(lambda: 0.05 < lab.status()[0].cores < 0.25, 20, "it gets 0.2 cores")


def test_a_cap_within_a_node_follows_when_the_node_gets_less(laboratory: Laboratory) -> None:
    [a] = laboratory.up("name: a, cores: 0.6")
    inner = folder(a, "cpu") / "headgate-test"
    inner.mkdir()
    quota = inner / "cpu.cfs_quota_us"
    if not quota.exists():
        return  # v2 takes any
    (inner / "cpu.cfs_period_us").write_text("10000")
    quota.write_text("5000")
    lab.change("a", {"cores": 0.3})
    assert quota.read_text() == "3000\n"
    lab.change("a", {"cores": 0.6})
    assert quota.read_text() == "3000\n"


def test_more_memory_than_a_node_has_ends_who_wants_it_and_no_other(laboratory: Laboratory) -> None:
    laboratory.up("name: a, memory: 96MiB")
    small = laboratory.starts("a", sys.executable, "-c", HOLDS.format(mib=10))
    assert small.stdout is not None
    assert small.stdout.readline() == "held\n"
    laboratory.python("a", HOLDS.format(mib=200), code=-9)
    assert small.poll() is None
    assert lab.status()[0].memory_bytes > 10 << 20
    with pytest.raises(IsolationError, match="a memory limit of 1 MiB is below"):
        lab.change("a", {"memory_bytes": 1 << 20, "cores": 0.1})
    [a] = lab.nodes().nodes
    assert (a.memory_bytes, a.cores) == (96 << 20, 0.3)
    assert lab.up(laboratory.write("name: a, memory: 96MiB")).changes == ()
    lab.change("a", {"memory_bytes": 400 << 20})
    large = laboratory.starts("a", sys.executable, "-c", HOLDS.format(mib=200))
    assert large.stdout is not None
    assert large.stdout.readline() == "held\n"


def test_a_disk_rate_holds_or_is_said_not_to(laboratory: Laboratory) -> None:
    done = lab.up(laboratory.write("name: a, disk: 2MB/s"))
    if len(done.changes) > 1:
        assert "disk rate" in done.changes[1]  # it is no disk of this machine's that holds Headgate's folder
        return
    path = str(laboratory.home / "written")
    slow = float(laboratory.python("a", WRITES.format(mib=2, path=path)))
    assert 0.4 * 2e6 < slow < 1.2 * 2e6  # others may write at the same time
    lab.change("a", {"disk_bytes_per_second": None})
    assert float(laboratory.python("a", WRITES.format(mib=2, path=path))) > 2 * slow


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"cores": 0.0}, "cores: found 0; expected at least 0.01"),
        ({"cores": float("inf")}, "cores: found inf; expected at least 0.01"),
        ({"nic_bytes_per_second": 1.0}, "found a rate of 8 bit/s; expected at least 100 kbit/s"),
        ({"memory_bytes": 0}, "memory: found 0; expected more than 0"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, object], said: str, laboratory: Laboratory) -> None:
    before = laboratory.up("name: a")
    with pytest.raises(UsageError, match=said):
        lab.change("a", values)
    assert lab.nodes().nodes == before


def test_where_no_cgroups_can_be_made_there_is_no_lab(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = CgroupLayout("none", missing={"cpu": "no hierarchy is mounted"})
    monkeypatch.setattr(limits, "find_layout", lambda _root: nothing)
    with pytest.raises(IsolationError, match="a lab needs cgroups for CPU and memory: no hierarchy is mounted"):
        lab.up(laboratory.write("name: a"))
    monkeypatch.undo()
