"""What a node has of the machine's CPU, memory and disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
from tests.lab.laboratory import Laboratory

from headgate import lab
from headgate.isolation.base import Box, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.lab import limits
from headgate.machine.cgroup_layout import CgroupLayout
from headgate.machine.limits import cpus_of
from headgate.model.cluster import Node
from headgate.model.errors import IsolationError, UsageError
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share
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


FOUR = {0: 0, 1: 0, 2: 2, 3: 2}
"""Two cores of two CPUs each."""


@pytest.mark.parametrize(
    ("cores", "core_of_cpu", "claimed", "expected"),
    [
        ({"a": 1.0}, {0: 0, 1: 1}, {}, {"a": (0,)}),
        ({"a": 0.6, "b": 0.9}, {0: 0, 1: 1}, {}, {"a": (1,), "b": (0,)}),
        (
            {"a": 0.2, "b": 0.5, "c": 0.5, "d": 0.3},
            {0: 0, 1: 1},
            {},
            {"a": (1,), "b": (0,), "c": (1,), "d": (0,)},
        ),
        ({"a": 1.5, "b": 0.2}, {0: 0, 1: 1}, {}, {"a": (), "b": (0,)}),
        ({"a": 0.6, "b": 0.6, "c": 0.6}, {0: 0, 1: 1}, {}, {"a": (), "b": (), "c": ()}),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, {0: 0, 1: 1}, {}, {"a": (), "b": (), "c": ()}),
        ({"a": 4.0}, FOUR, {}, {"a": ()}),
        ({"a": 1.0, "b": 1.0}, FOUR, {}, {"a": (0,), "b": (2,)}),
        ({"a": 1.2, "b": 0.9}, FOUR, {}, {"a": (0, 2), "b": (1,)}),
        ({"a": 0.7}, FOUR, {0: 0.7, 2: 0.2}, {"a": (3,)}),
        ({"a": 0.7}, {0: 0, 1: 1}, {0: 0.7, 1: 0.7}, {"a": ()}),
        ({"a": 0.5}, {0: 0}, {}, {"a": ()}),
    ],
)
def test_nodes_keep_to_the_cpus_that_are_claimed_least_if_each_can_have_its_cores(
    cores: dict[str, float],
    core_of_cpu: dict[int, int],
    claimed: dict[int, float],
    expected: dict[str, tuple[int, ...]],
) -> None:
    assert limits.spread(cores, core_of_cpu, claimed) == expected


def runs_on(pid: int) -> frozenset[int]:
    return cpus_of(Path(f"/proc/{pid}/status"))


def test_a_node_keeps_to_its_cpus_and_gets_others_while_it_runs(laboratory: Laboratory) -> None:
    machine = frozenset(os.sched_getaffinity(0))
    if len(machine) < 2:
        pytest.skip("it takes two CPUs")
    a, _ = laboratory.up("name: a, cores: 0.5", "name: b, cores: 0.4")
    pids = []
    for node in "ab":
        process = laboratory.starts(
            node, sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)"
        )
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        pids.append(process.pid)
    first = [runs_on(pid) for pid in pids]
    assert [len(cpus) for cpus in first] == [1, 1] and not first[0] & first[1]
    assert a.place is not None and first[0] == frozenset(a.place.cpus)
    lab.change("a", {"cores": 1.2})
    assert len(runs_on(pids[0])) == 2
    assert lab.up(laboratory.write("name: a, cores: 0.5", "name: b, cores: 0.4")).changes
    assert [runs_on(pid) for pid in pids] == first
    lab.up(
        laboratory.write(
            "name: a, cores: 0.5",
            "name: b, cores: 0.4",
            f"name: c, cores: {len(machine)}",
            options="oversubscribe: true",
        )
    )
    assert all(runs_on(pid) == machine for pid in pids)


def test_a_task_that_is_pinned_within_a_node_stays_so_where_it_can(laboratory: Laboratory) -> None:
    machine = sorted(os.sched_getaffinity(0))
    if len(machine) < 2:
        pytest.skip("it takes two CPUs")
    [a] = laboratory.up("name: a, cores: 1.2")
    if "cpuset" not in (a.place.cgroups if a.place is not None else {}):
        pytest.skip("without cpusets the affinity of each process is set")
    inner = folder(a, "cpuset") / "headgate-test"
    inner.mkdir()
    for name in ("cpuset.mems", "cpuset.cpus"):
        (inner / name).write_text((folder(a, "cpuset") / name).read_text().strip() or "0")
    (inner / "cpuset.cpus").write_text(str(machine[1]))
    lab.change("a", {"cores": 1.1})
    assert (inner / "cpuset.cpus").read_text().strip() == str(machine[1])
    lab.change("a", {"cores": 0.4})
    [a] = lab.nodes().nodes
    assert a.place is not None and set(a.place.cpus) == {machine[0]}
    effective = inner / (
        "cpuset.cpus.effective" if (inner / "cpuset.cpus.effective").exists() else "cpuset.cpus"
    )
    assert effective.read_text().strip() == str(machine[0])


def test_weights_divide_a_node_among_threads_that_would_each_have_a_cpu(
    laboratory: Laboratory,
) -> None:
    [a] = laboratory.up("name: a, cores: 1")
    if a.place is None or not a.place.cpus:
        pytest.skip("it takes two CPUs")
    isolation = ProcessIsolation(f"test-{os.getpid()}")
    boxes: list[Box] = []
    try:
        with open(os.devnull, "w") as nowhere:
            for weight in (300.0, 100.0):
                argv = (sys.executable, "-I", "-S", "-c", "while True: pass")
                task = TaskId(f"weights/of-{weight:g}/worker-0")
                launch = Launch(
                    task, argv, dict(os.environ), str(laboratory.folder), 1, place=a.place
                )
                boxes.append(isolation.start(launch, Share(cpu_weight=weight), nowhere.fileno()))

        def used() -> list[float]:
            return [sum(psutil.Process(box.pid).cpu_times()[:2]) for box in boxes]

        before = used()
        wait.until(lambda: sum(used()) - sum(before) > 2.0, 60, "they have used two CPU seconds")
        heavy, light = (after - first for after, first in zip(used(), before, strict=True))
        assert heavy / light == pytest.approx(3.0, rel=0.4)
    finally:
        for box in boxes:
            box.close()


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
    wait.until(lambda: 0.05 < lab.status()[0].cores < 0.25, 60, "it gets 0.2 cores")


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
        # it is no disk of this machine's that holds Headgate's folder
        assert "disk rate" in done.changes[1]
        return
    path = str(laboratory.home / "written")

    def rate() -> float:
        return float(laboratory.python("a", WRITES.format(mib=2, path=path)))

    def gets_it() -> bool:
        got = rate()
        assert got < 1.2 * 2e6
        return got > 0.4 * 2e6  # others may write at the same time

    wait.until(gets_it, 60, "it writes at its rate")
    lab.change("a", {"disk_bytes_per_second": None})
    wait.until(lambda: rate() > 2 * 2e6, 60, "it writes faster without one")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"cores": 0.0}, "cores: found 0; expected at least 0.01"),
        ({"cores": float("inf")}, "cores: found inf; expected at least 0.01"),
        ({"nic_bytes_per_second": 1.0}, "found a rate of 8 bit/s; expected at least 100 kbit/s"),
        ({"memory_bytes": 0}, "memory: found 0; expected more than 0"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    values: dict[str, object], said: str, laboratory: Laboratory
) -> None:
    before = laboratory.up("name: a")
    with pytest.raises(UsageError, match=said):
        lab.change("a", values)
    assert lab.nodes().nodes == before


def test_where_no_cgroups_can_be_made_there_is_no_lab(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = CgroupLayout("none", missing={"cpu": "no hierarchy is mounted"})
    monkeypatch.setattr(limits, "find_layout", lambda _root: nothing)
    with pytest.raises(
        IsolationError, match="a lab needs cgroups for CPU and memory: no hierarchy is mounted"
    ):
        lab.up(laboratory.write("name: a"))
    monkeypatch.undo()
