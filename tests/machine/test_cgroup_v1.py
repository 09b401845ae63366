"""What is particular to cgroup v1."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.isolation import box as isolation_box
from headgate.isolation.base import Box, Holder, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.machine.cgroup_v1 import CgroupsV1
from headgate.machine.cgroups import within
from headgate.machine.fallbacks import Cores, Fallbacks
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.shares import UNLIMITED, Share
from headgate.testing import programs
from headgate.testing.wait import until

pytestmark = pytest.mark.hardware
MIB = 1 << 20
REAL_TIME = """
import os
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
print("real time", flush=True)
input()
"""


@pytest.fixture
def isolation() -> ProcessIsolation:
    try:
        return ProcessIsolation(f"v1-{os.getpid()}", mode="v1")
    except IsolationError as error:
        pytest.skip(str(error))


@pytest.fixture
def box(isolation: ProcessIsolation) -> Iterator[Box]:
    launch = Launch(TaskId("run/job/worker-0"), programs.argv("breed"), {}, os.getcwd(), 1)
    with open(os.devnull, "w") as nowhere:
        box = isolation.start(launch, Share(), nowhere.fileno())
    until(lambda: len(box.pids()) > 5, what="a few daemons")
    yield box
    box.close()


def file(box: Box, controller: str, name: str) -> str:
    return (box.cgroups[controller] / name).read_text().strip()


def test_what_is_written(box: Box) -> None:
    box.apply(Share(cpu_weight=300, cpu_cap_cores=0.5, memory_bytes=512 * MIB))
    box.pin(frozenset({0}))
    assert file(box, "cpu", "cpu.shares") == "3072"
    assert file(box, "cpu", "cpu.cfs_period_us") == "10000"
    assert file(box, "cpu", "cpu.cfs_quota_us") == "5000"
    assert file(box, "memory", "memory.limit_in_bytes") == str(512 * MIB)
    assert file(box, "cpuset", "cpuset.cpus") == "0"
    box.apply(Share(cpu_cap_cores=0.05, memory_bytes=256 * MIB))
    assert (file(box, "cpu", "cpu.cfs_quota_us"), file(box, "cpu", "cpu.cfs_period_us")) == (
        "1000",
        "20000",
    )
    assert file(box, "memory", "memory.limit_in_bytes") == str(256 * MIB)
    box.apply(Share(cpu_cap_cores=2, memory_bytes=1024 * MIB))
    assert (file(box, "cpu", "cpu.cfs_quota_us"), file(box, "cpu", "cpu.cfs_period_us")) == (
        "20000",
        "10000",
    )
    assert file(box, "memory", "memory.limit_in_bytes") == str(1024 * MIB)
    box.apply(Share(cpu_cap_cores=UNLIMITED, memory_bytes=UNLIMITED))
    assert file(box, "cpu", "cpu.cfs_quota_us") == "-1"
    assert int(file(box, "memory", "memory.limit_in_bytes")) > 1 << 60


def test_a_pause_waits_for_a_process_that_is_busy_in_the_kernel_and_a_proof_does_not(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CgroupsV1, "freeze", lambda _, seconds, given_up: seconds >= 1.0)
    with pytest.raises(IsolationError, match="try again"):
        box.hold(Holder.PROOF)
    assert box.hold(Holder.PAUSE)
    box.release(Holder.PAUSE)


def test_a_pause_that_waits_for_the_kernel_gives_way_to_a_stop(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()

    def freeze(_: CgroupsV1, seconds: float, given_up: Callable[[], bool]) -> bool:
        waits.set()
        return within(seconds, lambda: False, given_up)

    monkeypatch.setattr(CgroupsV1, "freeze", freeze)
    monkeypatch.setitem(isolation_box._HOLD_SECONDS, Holder.PAUSE, 60.0)
    with ThreadPoolExecutor(1) as pool:
        pause = pool.submit(box.hold, Holder.PAUSE)
        assert waits.wait(60)
        box.terminate()
        assert pause.result() is False, "the stop waited until the pause had failed"


def test_a_process_with_real_time_priority_is_refused_with_the_cause(box: Box) -> None:
    if not (box.cgroups["cpu"] / "cpu.rt_runtime_us").exists():
        pytest.skip("this kernel takes real-time processes anywhere (no CONFIG_RT_GROUP_SCHED)")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", REAL_TIME], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"real time\n"
        cgroups = CgroupsV1({"cpu": box.cgroups["cpu"]}, Fallbacks(Cores()))
        with pytest.raises(IsolationError, match=r"real-time priority.*without `chrt`"):
            cgroups.admit(process.pid)
        process.stdin.close()


def test_a_weight_counts_for_the_disk_as_well(isolation: ProcessIsolation, box: Box) -> None:
    if not (box.cgroups["blkio"] / "blkio.bfq.weight").exists():
        pytest.skip("the kernel has no weights for disks (CONFIG_BFQ_GROUP_IOSCHED)")
    for weight, written in ((300, "300"), (50, "50"), (10_000, "1000"), (1, "1")):
        box.apply(Share(cpu_weight=weight))
        assert file(box, "blkio", "blkio.bfq.weight") == written
    launch = Launch(TaskId("run/job/worker-1"), programs.argv("breed"), {}, os.getcwd(), 1)
    planned = isolation.describe(launch, Share(cpu_weight=300))
    assert any(
        line.startswith("write '300' to ") and line.endswith("worker-1/blkio.bfq.weight")
        for line in planned
    )


def test_a_group_weighs_as_much_as_so_many_plain_tasks_whatever_its_boxes_do(
    isolation: ProcessIsolation,
) -> None:
    boxes = []
    with open(os.devnull, "w") as nowhere:
        for n, weight in enumerate((100, 300)):
            launch = Launch(
                TaskId(f"run/job{n}/worker-0"), programs.argv("rest"), {}, os.getcwd(), 1
            )
            boxes.append(isolation.start(launch, Share(cpu_weight=weight), nowhere.fileno()))
    group = boxes[0].cgroups["cpu"].parent / "cpu.shares"
    assert group.read_text().strip() == "2048"
    boxes[0].apply(Share(cpu_weight=10_000))
    assert group.read_text().strip() == "2048"
    boxes[1].close()
    assert group.read_text().strip() == "1024"
    boxes[0].close()
    assert not group.exists()


def test_swap_does_not_hide_that_a_task_is_over(box: Box) -> None:
    if not (box.cgroups["memory"] / "memory.memsw.limit_in_bytes").exists():
        pytest.skip("this kernel does not count swap")
    box.apply(Share(memory_bytes=512 * MIB))
    assert file(box, "memory", "memory.memsw.limit_in_bytes") == str(512 * MIB)


def test_what_is_forked_without_end_is_frozen_and_killed_where_no_cgroup2_tree_is(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CgroupsV1, "kill_once", CgroupsV1.kill_frozen)
    box.kill()
    assert box.pids() == []


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_who_is_killed_while_somebody_removes_its_cgroup_is_gone(
    box: Box, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    kill = CgroupsV1.kill_once

    def removed(cgroups: CgroupsV1) -> None:
        kill(cgroups)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(CgroupsV1, "kill_once", removed)
    box.kill()
    assert box.pids() == []


def test_pressure_can_be_read_of_a_task(box: Box) -> None:
    if "unified" not in box.cgroups:
        pytest.skip("no cgroup2 tree is mounted beside v1")
    assert file(box, "unified", "cpu.pressure").startswith("some ")
    assert str(box.pid) in file(box, "unified", "cgroup.procs").split()


def test_the_disk_rate_holds(isolation: ProcessIsolation, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(2 * MIB))
    os.sync()
    launch = Launch(TaskId("run/job/worker-0"), programs.argv("read", data), {}, str(tmp_path), 1)
    share = Share(disk_bytes_per_second=MIB)
    if any("disk rate 1 MiB/s: not limited" in line for line in isolation.describe(launch, share)):
        pytest.skip("the folder for temporary files is on no disk of its own")
    reading, writing = os.pipe()
    box = isolation.start(launch, share, writing)
    os.close(writing)
    with open(reading) as output:
        seconds = float(output.readline().split()[1])
    box.close()
    assert seconds >= 1.5


def test_a_task_that_is_still_there_is_not_started_twice(
    isolation: ProcessIsolation, box: Box
) -> None:
    launch = Launch(TaskId("run/job/worker-0"), programs.argv("rest"), {}, "/", 1)
    with pytest.raises(IsolationError, match="run/job/worker-0: the box cannot be made"):
        isolation.start(launch, Share(), 1)
    assert box.pids() != []
    assert not select.select([box.exit_fd], [], [], 0)[0]


def test_a_dry_run_names_every_file(isolation: ProcessIsolation) -> None:
    launch = Launch(
        TaskId("run/job/worker-0"), ("python", "train.py", "--name", "a b"), {}, "/tmp", 1
    )
    share = Share(cpu_weight=300, cpu_cap_cores=0.5, memory_bytes=512 * MIB)
    text = "\n".join(isolation.describe(launch, share))
    assert f"headgate-v1-{os.getpid()}/run:job:worker-0" in text
    for written in ("'3072' to ", "'10000' to ", "'5000' to ", "'536870912' to ", "PID to "):
        assert f"write {written}" in text
    assert text.endswith("cd /tmp\nexec python train.py --name 'a b'")
