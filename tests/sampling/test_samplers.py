"""The built-in samplers: each keeps the contract on real tasks, with cgroups and without; what they
read is right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.machine.trees import BONDED_NICS, STACKED_DISKS, net_dev, plant
from tests.sampling.tasks import Task

from headgate.isolation.base import Launch
from headgate.isolation.process import ProcessIsolation
from headgate.machine.cgroup_layout import V2_CONTROLLERS
from headgate.model.cluster import Gpu
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share
from headgate.sampling.base import Sampler, Target
from headgate.sampling.columns import Column
from headgate.sampling.connections import ConnectionsSampler
from headgate.sampling.cpu import CpuSampler
from headgate.sampling.disk import DiskSampler
from headgate.sampling.gpu import GpuSampler, device_numbers, gpus, open_nvml
from headgate.sampling.memory import MemorySampler
from headgate.sampling.network import NetworkSampler
from headgate.sampling.perf_events import CounterSampler, Event, refusal
from headgate.sampling.pressure import PressureSampler
from headgate.sampling.resctrl import ResctrlSampler
from headgate.sampling.waiting import WaitingSampler
from headgate.testing import programs
from headgate.testing.memory_sampler import InMemoryBox
from headgate.testing.sampler import SamplerContract
from headgate.testing.wait import until

MIB = 1 << 20
NODE = Target("node", None)


class FakeNvml:
    """Two GPUs: the first half busy, with the task of process 1 and with process 9; the second a
    MIG device that does not say. It answers as a real one does on an H200: of each process the
    latest window in which it ran. A question a window, of those that are left.

    Args:
        windows: Of each window, the part of it in which each process ran.
        holders: The processes that hold memory of the first GPU.
    """

    NVML_GPU_UTILIZATION_SAMPLES = 1
    nvmlMemory_v2 = 2  # noqa: N815

    class NVMLError(Exception):
        pass

    def __init__(
        self, windows: Sequence[Mapping[int, float]] = (), holders: Sequence[int] = (1, 9)
    ) -> None:
        self.left = list(windows)
        self.holders = list(holders)
        self.latest: dict[int, tuple[int, float]] = {}
        self.clock = 0
        self.told = threading.Event()

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return b"H200"

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:  # noqa: N802
        if handle == 1:
            raise self.NVMLError("not supported")
        return 3

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        if handle == 1:
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=50, memory=10)

    def nvmlDeviceGetSamples(self, handle: int, kind: int, since: int) -> Any:  # noqa: N802
        if handle == 1 or kind != self.NVML_GPU_UTILIZATION_SAMPLES:
            raise self.NVMLError("not supported")
        # first what was before, too
        told = [(since + 200, 50)] if since else [(800, 90), (1000, 50)]
        return 0, [
            SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=part))
            for at, part in told
        ]

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int = 1) -> Any:  # noqa: N802
        reserved = 0 if version == self.nvmlMemory_v2 else 50
        return SimpleNamespace(total=1000, used=(300 if handle == 0 else 7) + reserved)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        memory = {1: 200}
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=memory.get(pid))
            for pid in self.holders
            if handle == 0
        ]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> list[Any]:  # noqa: N802
        if handle == 1 or not self.left:
            self.told.set()
            raise self.NVMLError("not found")
        self.clock += 200_000
        self.latest |= {pid: (self.clock, part) for pid, part in self.left.pop(0).items()}
        return [
            SimpleNamespace(pid=pid, timeStamp=at, smUtil=round(100 * part))
            for pid, (at, part) in self.latest.items()
            if at > since
        ]


SOFTWARE: Mapping[Column, Event] = {"cpu_cycles": (1, 1), "cpu_instructions": (1, 2)}
"""Nanoseconds that a task ran, and its page faults: the kernel counts them without any hardware."""

SAMPLERS = (
    *(CpuSampler, MemorySampler, DiskSampler, WaitingSampler),
    *(
        NetworkSampler,
        PressureSampler,
        lambda: GpuSampler(FakeNvml()),
        lambda: CounterSampler(events=SOFTWARE),
    ),
    ConnectionsSampler,
)
NAMES = (
    "cpu",
    "memory",
    "disk",
    "waiting",
    "network",
    "pressure",
    "gpu",
    "counters",
    "connections",
)


class TestWithCgroups(SamplerContract):
    @pytest.fixture(params=SAMPLERS, ids=NAMES)
    def sampler(self, request: pytest.FixtureRequest) -> Sampler:
        made = request.param()
        assert isinstance(made, Sampler)
        return made


class TestWithoutCgroups(SamplerContract):
    boxed = "none"

    @pytest.fixture(params=SAMPLERS[:4], ids=NAMES[:4])
    def sampler(self, request: pytest.FixtureRequest) -> Sampler:
        made = request.param()
        assert isinstance(made, Sampler)
        return made


# --- real tasks, which do what a test tells them to


@pytest.fixture(params=["cgroups", "processes"])
def task(request: pytest.FixtureRequest) -> Iterator[Task]:
    """A task in the cgroups that this machine gives it, and one in none."""
    isolation = ProcessIsolation(
        f"telemetry-{os.getpid()}", mode="auto" if request.param == "cgroups" else "none"
    )
    launch = Launch(
        TaskId(f"telemetry-{os.getpid()}/keeper/worker-0"),
        programs.argv("rest"),
        dict(os.environ),
        os.getcwd(),
        1,
    )
    reading, writing = os.pipe()
    try:
        keeper = isolation.start(launch, Share(), writing)
    finally:
        os.close(writing)
    try:
        assert os.read(reading, 5) == b"ready"  # what its start took is none of the task's
        if request.param == "cgroups" and not keeper.cgroups:
            pytest.skip(f"cgroups cannot be written here: {isolation.uncontrolled()[0]}")
        running = Task(keeper.cgroups)
        try:
            yield running
        finally:
            running.close()
    finally:
        os.close(reading)
        keeper.close()


def test_the_cpu_time_of_a_task_is_what_it_used(task: Task) -> None:
    sampler, target = CpuSampler(), Target("a", task)
    sampler.read(0.0, [target])
    task.do("burn(0.3)")
    assert sampler.read(1.0, [target])["a"]["cpu_cores"] == pytest.approx(0.3, abs=0.03)
    sampler.read(2.0, [])


def test_a_child_that_was_born_and_ended_between_two_readings_counts(task: Task) -> None:
    sampler, target = CpuSampler(), Target("a", task)
    sampler.read(0.0, [target])
    task.do("burn_in_child(0.3)")
    assert sampler.read(1.0, [target])["a"]["cpu_cores"] == pytest.approx(0.3, abs=0.03)
    task.do("pass")
    assert sampler.read(2.0, [target])["a"]["cpu_cores"] == pytest.approx(0.0, abs=0.03)
    sampler.read(3.0, [])


def test_one_busy_thread_makes_one_full_core_where_the_kernel_counts_them_apart(task: Task) -> None:
    sampler, target = CpuSampler(), Target("a", task)
    os.sched_setaffinity(task.pid, {min(os.sched_getaffinity(0))})
    sampler.read(0.0, [target])
    task.do("burn(0.3)")
    values = sampler.read(0.6, [target])["a"]
    assert values["cpu_cores"] == pytest.approx(0.5, abs=0.06)
    if "cpuacct" in task.cgroups:
        assert values["cpu_fullest_core"] == pytest.approx(values["cpu_cores"], abs=0.06)
    else:
        assert "cpu_fullest_core" not in values
    sampler.read(1.0, [])


def test_the_memory_of_a_task_is_what_it_holds(task: Task) -> None:
    sampler, target = MemorySampler(), Target("a", task)
    before = sampler.read(0.0, [target])["a"]["memory_bytes"]
    task.do(f"hold({64 * MIB})")
    after = sampler.read(1.0, [target])["a"]["memory_bytes"]
    assert 64 * MIB <= after - before <= 66 * MIB
    sampler.read(2.0, [])


def test_what_a_task_wrote_is_page_cache_and_not_its_memory(task: Task, tmp_path: Path) -> None:
    sampler, target = MemorySampler(), Target("a", task)
    before = sampler.read(0.0, [target])["a"]
    task.do(f"write({str(tmp_path / 'file')!r}, {32 * MIB})")
    after = sampler.read(1.0, [target])["a"]
    assert after["memory_bytes"] - before["memory_bytes"] < 2 * MIB
    if "cache_bytes" in after:
        assert after["cache_bytes"] - before["cache_bytes"] == pytest.approx(32 * MIB, rel=0.1)
    sampler.read(2.0, [])


def test_the_disk_rate_of_a_task_is_what_it_wrote(task: Task, tmp_path: Path) -> None:
    sampler, target = DiskSampler(), Target("a", task)
    sampler.read(0.0, [target])
    task.do(f"write({str(tmp_path / 'file')!r}, {8 * MIB})")
    assert sampler.read(2.0, [target])["a"]["disk_write"] == pytest.approx(4 * MIB, rel=0.1)
    sampler.read(3.0, [])


def test_a_task_without_a_network_of_its_own_has_no_network_rates(task: Task) -> None:
    sampler, target = NetworkSampler(), Target("a", task)
    sampler.read(0.0, [target])
    assert sampler.read(1.0, [target]) == {}


@pytest.fixture
def apart() -> Iterator[Task]:
    """A task in a network namespace with a pair of interfaces, of which a default route leaves by
    one.
    """
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    running = Task({}, prefix=("unshare", "--net"))
    inside = ("nsenter", f"--net=/proc/{running.pid}/ns/net", "ip")
    try:
        for command in (
            "link add d0 type veth peer name d1",
            "addr add 10.99.9.1/24 dev d0",
            "link set d0 up",
            "link set d1 up",
            "neigh add 10.99.9.2 lladdr 02:00:00:00:00:01 dev d0",
            "route add default via 10.99.9.2",
        ):
            subprocess.run([*inside, *command.split()], check=True)

        def is_up() -> bool:
            """Whether the kernel has seen the far end come up: before that it drops what is sent,
            and says nothing.
            """
            shown = subprocess.run(
                [*inside, "-j", "link", "show", "d0"], check=True, capture_output=True
            ).stdout
            return bool(json.loads(shown)[0]["operstate"] == "UP")

        until(is_up, what="the link is up")
        yield running
    finally:
        running.close()


def test_the_network_rate_of_a_task_with_a_network_of_its_own(apart: Task) -> None:
    sampler, target = NetworkSampler(), Target("a", apart)
    sampler.read(0.0, [target])
    apart.do("send(100)")
    values = sampler.read(2.0, [target])["a"]
    assert values["net_out"] == pytest.approx(100 * (1000 + 42) / 2, rel=0.05)
    assert values["net_in"] < 0.1 * values["net_out"]


def test_what_two_tasks_in_one_namespace_send_is_neither_s(apart: Task) -> None:
    other = Task({}, prefix=("nsenter", f"--net=/proc/{apart.pid}/ns/net"))
    try:
        sampler, targets = NetworkSampler(), [Target("a", apart), Target("b", other)]
        sampler.read(0.0, targets)
        assert sampler.read(1.0, targets) == {}
    finally:
        other.close()


def test_what_each_of_two_tasks_in_one_namespace_exchanges_with_another_address_is_its_own(
    apart: Task,
) -> None:
    """Both are on one machine, so that the bytes never reach a NIC: it is another address that
    counts.
    """
    subprocess.run(
        [
            "nsenter",
            f"--net=/proc/{apart.pid}/ns/net",
            "ip",
            "addr",
            "add",
            "10.99.9.3/24",
            "dev",
            "d0",
        ],
        check=True,
    )
    subprocess.run(
        ["nsenter", f"--net=/proc/{apart.pid}/ns/net", "ip", "link", "set", "lo", "up"], check=True
    )
    other, third = (
        Task({}, prefix=("nsenter", f"--net=/proc/{apart.pid}/ns/net")) for _ in range(2)
    )
    try:
        apart.do("import socket; listening = socket.create_server(('10.99.9.1', 9000))")
        sampler, targets = (
            ConnectionsSampler(),
            [Target("a", apart), Target("b", other), Target("c", third)],
        )
        assert sampler.read(0.0, targets) == {}
        connect = (
            "import socket; there = socket.create_connection(('10.99.9.1', 9000), "
            "source_address=({!r}, 0))"
        )
        other.do(connect.format("10.99.9.3"))
        apart.do("there, _ = listening.accept()")
        other.do("there.sendall(bytes(200_000)); there.shutdown(socket.SHUT_WR)")
        apart.do("while there.recv(1 << 16): pass")
        third.do(connect.format("10.99.9.1"))  # to itself: no NIC sees that
        third.do("there.sendall(bytes(1000))")
        found = sampler.read(2.0, targets)
        # The last bytes may not be acknowledged yet.
        assert found["b"] == {"tcp_out": pytest.approx(100_000, rel=0.1), "tcp_in": 0.0}
        assert found["a"] == {"tcp_out": 0.0, "tcp_in": pytest.approx(100_000, rel=0.01)}
        assert found["c"] == {"tcp_out": 0.0, "tcp_in": 0.0}
        assert sampler.read(4.0, targets)["a"] == {"tcp_out": 0.0, "tcp_in": 0.0}
    finally:
        other.close()
        third.close()


def test_a_kernel_that_does_not_tell_of_connections_leaves_them_out(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise OSError("no such protocol")

    monkeypatch.setattr("headgate.sampling.connections.connections", refused)
    sampler, target = ConnectionsSampler(), Target("a", task)
    assert [sampler.read(now, [target]) for now in (0.0, 1.0)] == [{}, {}]


# --- exact numbers, from files


class FileBox(InMemoryBox):
    """A box whose cgroup2 folder is plain files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @property
    def cgroups(self) -> Mapping[str, object]:
        return dict.fromkeys(("unified", *V2_CONTROLLERS), self.folder)


def rates(
    sampler: Sampler, target: Target, root: Path, first: Mapping[str, str], then: Mapping[str, str]
) -> Any:
    """Readings two seconds after the first, between which files changed."""
    plant(root, first)
    sampler.read(0.0, [target])
    plant(root, then)
    return sampler.read(2.0, [target]).get(target.id, {})


def test_the_node_s_cores_are_all_but_idle_and_stolen_time(tmp_path: Path) -> None:
    first = "cpu  0\ncpu0 100 0 0 900 50 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 1\n"
    then = "cpu  0\ncpu0 150 10 20 999 99 10 10 77 50 0\ncpu1 50 0 0 9 0 0 0 0 0 0\nintr 2\n"
    values = rates(CpuSampler(tmp_path), NODE, tmp_path, {"proc/stat": first}, {"proc/stat": then})
    assert values == {
        "cpu_cores": pytest.approx(0.75),
        "cpu_fullest_core": pytest.approx(0.5),
        "cpu_stolen": pytest.approx(0.385),
    }


def test_a_core_that_goes_offline_costs_one_reading(tmp_path: Path) -> None:
    two, one = (
        "cpu 0\ncpu0 9 0 0 0 0 0 0 0\ncpu1 9 0 0 0 0 0 0 9\n",
        "cpu 0\ncpu1 9 0 0 0 0 0 0 9\n",
    )
    values = rates(CpuSampler(tmp_path), NODE, tmp_path, {"proc/stat": two}, {"proc/stat": one})
    assert values == {"cpu_stolen": 0.0}


def test_the_node_s_memory_is_what_the_kernel_cannot_drop(tmp_path: Path) -> None:
    meminfo = (
        "MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 50 kB\nCached: 250 "
        "kB\nSReclaimable: 100 kB\nShmem: 40 kB\n"
    )
    plant(tmp_path, {"proc/meminfo": meminfo})
    values = MemorySampler(tmp_path).read(0.0, [NODE])["node"]
    assert values == {
        "memory_bytes": 340 * 1024,
        "memory_available": 660 * 1024,
        "cache_bytes": 360 * 1024,
    }


def test_the_node_s_disk_rate_counts_each_byte_once(tmp_path: Path) -> None:
    plant(tmp_path, STACKED_DISKS)

    def stat(sectors: int) -> Mapping[str, str]:
        names = ("sda", "sda1", "nvme0n1", "nvme0n1p1", "md0", "dm-0", "loop0", "zram0")
        rows = [
            f"8 {n} {name} 1 0 {sectors} 0 1 0 {2 * sectors} 0 0 0 0\n"
            for n, name in enumerate(names)
        ]
        return {"proc/diskstats": "".join(rows)}

    values = rates(DiskSampler(tmp_path), NODE, tmp_path, stat(100), stat(300))
    assert values == {"disk_read": 2 * 200 * 512 / 2, "disk_write": 2 * 400 * 512 / 2}


def test_the_node_s_network_rate_counts_each_byte_once(tmp_path: Path) -> None:
    plant(tmp_path, BONDED_NICS)

    def dev(count: int) -> Mapping[str, str]:
        names = ("lo", "bond0", "eno1", "eno2", "br0", "br0.7", "veth12")
        return {"proc/self/net/dev": net_dev(dict.fromkeys(names, (count, 2 * count)))}

    values = rates(NetworkSampler(tmp_path), NODE, tmp_path, dev(1000), dev(3000))
    assert values == {"net_in": 2000.0, "net_out": 4000.0}
    plant(tmp_path, {"proc/self/net/snmp": snmp(10)})
    values = rates(NetworkSampler(tmp_path), NODE, tmp_path, {}, {"proc/self/net/snmp": snmp(16)})
    assert values["net_retransmits"] == 3.0


def snmp(again: int) -> str:
    """/proc/net/snmp with so many segments sent again."""
    return (
        f"Ip: Forwarding\nIp: 1\nTcp: InSegs OutSegs RetransSegs\nTcp: 90 80 {again}\nUdp: "
        "InDatagrams\nUdp: 7\n"
    )


def test_a_task_under_cgroup_v2_is_read_from_its_folder(tmp_path: Path) -> None:
    plant(tmp_path, STACKED_DISKS)
    target = Target("a", FileBox(tmp_path))
    io = "8:0 rbytes={0} wbytes=0 rios=1\n253:0 rbytes={0} wbytes=9\n7:0 rbytes=5 wbytes=5\n"
    usage = "usage_usec {0}\nuser_usec 1\n"
    assert rates(
        DiskSampler(tmp_path),
        target,
        tmp_path,
        {"io.stat": io.format(1000)},
        {"io.stat": io.format(5000)},
    ) == {"disk_read": 2000.0, "disk_write": 0.0}
    assert rates(
        CpuSampler(tmp_path),
        target,
        tmp_path,
        {"cpu.stat": usage.format(0)},
        {"cpu.stat": usage.format(3_000_000)},
    ) == {"cpu_cores": 1.5}
    memory = "anon 1000\nfile 700\nshmem 200\nworkingset_refault_file {0}\npgmajfault {0}\n"
    assert rates(
        MemorySampler(),
        target,
        tmp_path,
        {"memory.stat": memory.format(5)},
        {"memory.stat": memory.format(25)},
    ) == {"memory_bytes": 1200.0, "cache_bytes": 500.0, "major_faults": 10.0, "refaults": 10.0}
    throttled = usage + "system_usec {0}\nthrottled_usec {0}\n"
    assert rates(
        CpuSampler(),
        target,
        tmp_path,
        {"cpu.stat": throttled.format(0)},
        {"cpu.stat": throttled.format(2_000_000)},
    ) == {"cpu_cores": 1.0, "cpu_system": 1.0, "cpu_throttled": 1.0}


def schedstat(root: Path, threads: Mapping[int, tuple[float, float]], blocked: float = 0.0) -> None:
    """Seconds that each thread of process 1 ran and waited for a core, and was blocked on a
    disk.
    """
    stat = " ".join(
        ["1 (a) b) R", *["0"] * 38, str(round(blocked * os.sysconf("SC_CLK_TCK"))), "0"]
    )
    plant(root, {"proc/self/schedstat": "0 0 0\n", "proc/1/stat": stat})
    for thread, (ran, waited) in threads.items():
        folder = f"proc/1/task/{thread}"
        plant(
            root,
            {
                f"{folder}/schedstat": f"{ran * 1e9:.0f} {waited * 1e9:.0f} 1\n",
                f"{folder}/stat": stat,
            },
        )


def test_waiting_is_summed_over_threads_and_a_new_one_counts_from_its_birth(tmp_path: Path) -> None:
    sampler, target = WaitingSampler(tmp_path), Target("a", InMemoryBox())
    schedstat(tmp_path, {1: (100.0, 50.0), 2: (7.0, 7.0)})
    sampler.read(0.0, [target])
    schedstat(tmp_path, {1: (101.0, 50.5), 2: (7.0, 7.0), 3: (1.0, 0.5)})
    ready = {
        "cpu_ready": pytest.approx(0.75),
        "any_ready": 1.0,
        "main_ready": pytest.approx(0.75),
        "helper_cores": 0.0,
    }
    assert sampler.read(2.0, [target])["a"] == {"cpu_waiting": pytest.approx(0.5), **ready}
    # another thread was given the number 2
    schedstat(tmp_path, {1: (101.0, 50.5), 2: (1.0, 3.0), 3: (1.0, 0.5)})
    busy = {"cpu_ready": 1.0, "any_ready": 1.0, "main_ready": 1.0, "helper_cores": 0.0}
    assert sampler.read(4.0, [target])["a"] == {"cpu_waiting": pytest.approx(1.5), **busy}


def test_time_blocked_on_disks_is_told_where_the_kernel_accounts_for_delays(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/sys/kernel/task_delayacct": "1\n"})
    sampler, target = WaitingSampler(tmp_path), Target("a", InMemoryBox())
    schedstat(tmp_path, {1: (1.0, 0.0)}, blocked=3.0)
    sampler.read(0.0, [target])
    schedstat(tmp_path, {1: (1.0, 0.0)}, blocked=3.5)
    assert sampler.read(2.0, [target])["a"]["disk_waiting"] == pytest.approx(0.25)


@pytest.mark.skipif(
    refusal(SOFTWARE["cpu_cycles"]) is not None, reason="this user may not count what a CPU runs"
)
def test_events_are_counted_of_the_whole_cgroup_of_a_task_and_of_nothing_else(task: Task) -> None:
    sampler, target = CounterSampler(events=SOFTWARE), Target("a", task)
    sampler.read(0.0, [target])
    task.do("burn_in_child(0.3)")
    values = sampler.read(1.0, [target]).get("a", {})
    if not {"perf_event", "unified"} & task.cgroups.keys():
        assert values == {}
        return
    assert values["cpu_cycles"] == pytest.approx(0.3e9, rel=0.2)
    assert values["cpu_instructions"] > 10
    sampler.read(2.0, [])


def test_a_machine_without_the_events_is_not_asked_again_and_again(task: Task) -> None:
    nothing_like_it: Mapping[Column, Event] = {"cpu_cycles": (1, 999)}
    assert refusal((1, 999)) is not None
    sampler, target = CounterSampler(events=nothing_like_it), Target("a", task)
    assert sampler.read(0.0, [target]) == sampler.read(1.0, [target]) == {}


def resctrl(root: Path, group: str, moved: Mapping[str, str], held: int) -> None:
    """A group of resctrl, which has two caches."""
    for domain, total in moved.items():
        folder = f"sys/fs/resctrl/{group}/mon_data/mon_L3_{domain}".replace("//", "/")
        plant(
            root,
            {f"{folder}/mbm_total_bytes": f"{total}\n", f"{folder}/llc_occupancy": f"{held}\n"},
        )


def test_memory_bandwidth_and_cache_are_read_of_a_monitoring_group_that_has_all_threads(
    tmp_path: Path,
) -> None:
    features = "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"
    tree = {"sys/fs/resctrl/info/L3_MON/mon_features": features}
    left_behind = "sys/fs/resctrl/mon_groups/headgate-99-1/"
    plant(tmp_path, tree, {left_behind: "", "proc/1/task/1/": "", "proc/1/task/7/": ""})
    group = f"mon_groups/headgate-{os.getpid()}-1"
    plant(tmp_path, {f"sys/fs/resctrl/{group}/tasks": ""})
    sampler, task = ResctrlSampler(tmp_path), Target("a", InMemoryBox())
    assert not (tmp_path / left_behind).exists(), (
        "a group of a process that has gone takes a monitoring id"
    )
    for now, part in ((0.0, 1), (2.0, 3)):
        resctrl(tmp_path, group, {"00": str(part * 1000), "01": str(part * 10)}, 500)
        resctrl(tmp_path, "", {"00": str(part * 5000), "01": str(part * 50)}, 900)
        values = sampler.read(now, [task, NODE])
    assert values == {
        "a": {"memory_bandwidth": 1010.0, "cache_occupancy": 1000.0},
        "node": {"memory_bandwidth": 5050.0, "cache_occupancy": 1800.0},
    }
    # Each is written by itself; a file that is not resctrl's keeps the last one.
    assert (tmp_path / f"sys/fs/resctrl/{group}/tasks").read_text().strip() in ("1", "7")


def test_a_cache_that_tells_nothing_leaves_no_sum_of_the_others(tmp_path: Path) -> None:
    plant(tmp_path, {"sys/fs/resctrl/info/L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\n"})
    for total in ("100", "Unavailable"):
        resctrl(tmp_path, "", {"00": "1", "01": total}, 5)
        found = ResctrlSampler(tmp_path)
        found.read(0.0, [NODE])
        assert ("memory_bandwidth" in found.read(1.0, [NODE])["node"]) is (total == "100")


def test_a_machine_without_resctrl_has_no_groups_made(tmp_path: Path) -> None:
    sampler = ResctrlSampler(tmp_path)
    assert sampler.read(0.0, [Target("a", InMemoryBox()), NODE]) == {}
    assert not list(tmp_path.iterdir())


def test_a_kernel_without_schedstat_tells_nothing_of_waiting(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    target = Target("a", InMemoryBox())
    assert rates(WaitingSampler(tmp_path), target, tmp_path, {}, {}) == {}


def test_two_tasks_on_one_core_each_wait_half_of_the_time(task: Task, tmp_path: Path) -> None:
    other = Task({})
    core = {min(os.sched_getaffinity(0))}
    for each in (task, other):
        os.sched_setaffinity(each.pid, core)
    sampler, targets = WaitingSampler(), [Target("a", task), Target("b", other)]
    try:
        both, began = tmp_path / "both", time.monotonic()
        for each in (task, other):
            each.do("pass")  # a wait counts when it is over
        sampler.read(0.0, targets)
        for each in (task, other):
            each.send(f"burn_until({str(both)!r}); burn(0.3)")
        both.touch()
        for each in (task, other):
            each.done()
        # as if one second had gone by, so that rates are totals
        waited = [one["cpu_waiting"] for one in sampler.read(1.0, targets).values()]
        took = time.monotonic() - began
        assert max(waited) <= took - 0.3 + 0.05  # each ran for 0.3 s
        assert sum(waited) >= 0.25  # one or the other always did
    finally:
        other.close()


def test_whether_any_thread_is_ready_is_told_of_the_moment_of_the_reading(
    task: Task, tmp_path: Path
) -> None:
    sampler, target, seen = WaitingSampler(), Target("a", task), tmp_path / "seen"
    sampler.read(0.0, [target])
    task.send(f"burn_until({str(seen)!r})")
    moments = iter(range(1, 1000))

    def ready() -> bool:
        return sampler.read(float(next(moments)), [target])["a"]["any_ready"] == 1.0

    assert until(ready, 60)
    seen.touch()
    task.done()
    assert until(lambda: not ready(), 60)  # it waits for its next order


def test_what_the_processes_want_that_a_working_one_started_is_told_apart_from_its_own_threads(
    task: Task,
) -> None:
    sampler, target = WaitingSampler(), Target("a", task)
    task.do("burn(1.1)")
    sampler.read(0.0, [target])
    task.do("burn_in_helper(0.3)")
    # as if ten seconds had gone by, so that nothing is capped
    values = {column: 10 * part for column, part in sampler.read(10.0, [target])["a"].items()}
    assert 0.25 <= values["helper_cores"] <= 0.35 + values["cpu_waiting"]
    assert values["cpu_ready"] >= 0.25
    assert values["main_ready"] < 0.1 + values["cpu_waiting"]


def test_what_a_process_ran_since_the_last_reading_counts_though_it_ended(task: Task) -> None:
    sampler, target = WaitingSampler(), Target("a", task)

    def helped(at: float) -> float:
        values = sampler.read(at, [target])["a"]
        waited = values["cpu_waiting"]
        assert values["main_ready"] < 0.1 + waited
        helped = min(values["helper_cores"], 1.0)
        assert values["cpu_ready"] == pytest.approx(helped, abs=0.03 + waited)
        return values["helper_cores"]

    task.do("burn(1.1)")
    sampler.read(0.0, [target])
    task.do("burn_in_child(0.3)")
    assert helped(1.0) == pytest.approx(0.3, abs=0.05)
    task.do("start_child()")
    task.do("burn_in_started(0.3)")
    assert helped(2.0) >= 0.25  # and waited for a core
    task.do("burn_in_started(0.2)")
    task.do("end_child()")
    assert helped(3.0) == pytest.approx(0.2, abs=0.05)
    assert helped(4.0) == pytest.approx(0.0, abs=0.01)


def test_a_process_that_ended_is_not_counted_again_when_its_parent_waits_for_it_later(
    tmp_path: Path,
) -> None:
    box = InMemoryBox()
    sampler, target = WaitingSampler(tmp_path), Target("a", box)
    ticks = os.sysconf("SC_CLK_TCK")

    def wants(at: float, ended: float, **ran: float) -> float:
        """Two loader workers, `one` and `two`, and what process 1 waited for."""
        plant(tmp_path, {"proc/self/schedstat": "0 0 0\n"})
        numbers = {"main": 1, "one": 2, "two": 3}
        for name, seconds in {"main": 10.0, **ran}.items():
            pid = numbers[name]
            after = [
                pid != 1,
                *[0] * 9,
                round(seconds * ticks),
                0,
                round(ended * ticks) * (pid == 1),
                0,
            ]
            stat = f"{pid} (a) b) R {' '.join(str(int(each)) for each in after)}"
            files = {
                f"proc/{pid}/stat": stat,
                f"proc/{pid}/task/{pid}/schedstat": f"{seconds * 1e9:.0f} 0 1\n",
            }
            plant(tmp_path, files)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(box, "pids", lambda: [1, *(numbers[name] for name in ran)])
            return sampler.read(at, [target]).get("a", {}).get("helper_cores", 0.0)

    wants(0.0, 5.0, one=3.0, two=4.0)  # those before them had run for five seconds
    assert wants(1.0, 5.0, one=3.5, two=4.5) == pytest.approx(1.0)
    assert wants(2.0, 5.0) == 0.0  # ended, and not waited for yet
    assert wants(3.0, 13.5) == pytest.approx(0.5)
    assert wants(4.0, 13.5, one=0.25) == pytest.approx(0.25)  # another one, of the same number


@pytest.mark.parametrize("task", ["cgroups"], indirect=True)
def test_what_a_cap_holds_back_is_throttled_and_waiting(task: Task) -> None:
    folder = next(task.cgroups[name] for name in ("cpu", "unified") if name in task.cgroups)
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_quota_us").write_text("2000")
    else:
        (folder / "cpu.max").write_text("2000 100000")
    target = Target("a", task)
    cpu, waiting = CpuSampler(), WaitingSampler()
    cpu.read(0.0, [target]), waiting.read(0.0, [target])
    began = time.monotonic()
    task.do("burn(0.02)")
    took = time.monotonic() - began
    throttled = cpu.read(took, [target])["a"]["cpu_throttled"] * took
    # 2 ms of each 100 ms: so little that its cap stops it first however many others run
    assert throttled > 0.15
    # a thread that moves on while its cap stops it leaves a second queue that counts as throttled
    waited = waiting.read(took, [target])["a"]["cpu_waiting"] * took
    assert waited >= min(throttled, took) - 0.1


def test_pressure_is_the_part_of_the_time_that_some_task_waited(tmp_path: Path) -> None:
    text = (
        "some avg10=9.00 avg60=0.00 avg300=0.00 total={0}\nfull avg10=0.00 avg60=0.00 "
        "avg300=0.00 total=77\n"
    )

    def files(total: int) -> Mapping[str, str]:
        return {"proc/pressure/cpu": text.format(total), "proc/pressure/io": text.format(2 * total)}

    values = rates(PressureSampler(tmp_path), NODE, tmp_path, files(0), files(500_000))
    assert values == {"psi_cpu": 0.25, "psi_io": 0.5}


def test_a_kernel_without_pressure_gives_none(tmp_path: Path) -> None:
    assert PressureSampler(tmp_path).read(0.0, [NODE]) == {}


@pytest.mark.parametrize("make", [CpuSampler, MemorySampler, DiskSampler, NetworkSampler])
def test_a_node_that_cannot_be_read_is_an_error(make: type[CpuSampler], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        make(tmp_path).read(0.0, [NODE])


# --- GPUs


def test_a_gpu_that_does_not_say_how_busy_it_is_is_left_out_of_the_mean() -> None:
    sampler = GpuSampler(FakeNvml())
    assert sampler.read(0.0, [NODE]) == {"node": {"gpu_busy": 0.5, "gpu_memory_bytes": 307.0}}


def test_a_task_that_has_a_gpu_for_itself_has_all_that_it_is_busy() -> None:
    sampler, target = GpuSampler(FakeNvml(holders=[1])), Target("a", InMemoryBox())
    expected: Mapping[Column, float] = {"gpu_busy": 0.5, "gpu_memory_bytes": 200.0}
    assert sampler.read(0.0, [target]) == {"a": expected}
    assert sampler.read(1.0, [target]) == {"a": expected}


def test_the_memory_of_each_gpu_is_told_with_what_tasks_hold_of_it() -> None:
    sampler = GpuSampler(FakeNvml())
    sampler.read(0.0, [NODE, Target("a", InMemoryBox())])
    assert (sampler.used, sampler.held) == ({0: 300.0, 1: 7.0}, {"a": {0: 200.0}})
    sampler.read(1.0, [])
    assert (sampler.used, sampler.held) == ({}, {})


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([{1: 1.0}, {9: 1.0}], 0.5),
        ([{1: 1.0}, {9: 1.0}, {9: 1.0}, {9: 0.9}], 0.25),
        ([{1: 0.5, 9: 0.5}] * 3, 0.5),
        ([{9: 1.0}] * 3, 0.0),
        ([{1: 0.4, 9: 0.1}, {1: 0.2}], 0.3),
    ],
)
def test_processes_that_take_turns_on_a_gpu_divide_its_time(
    windows: list[Mapping[int, float]], expected: float
) -> None:
    nvml, target = FakeNvml(windows), Target("a", InMemoryBox())
    sampler = GpuSampler(nvml)
    assert sampler.read(0.0, [target])["a"] == {"gpu_memory_bytes": 200.0}  # nothing tells yet
    assert nvml.told.wait(60)
    assert sampler.read(1.0, [target])["a"]["gpu_busy"] == pytest.approx(expected)
    others = {9: sum(window.get(9, 0.0) for window in windows) / len(windows)}
    assert sampler.others[0] == pytest.approx({pid: part for pid, part in others.items() if part})
    watchers = [thread for thread in threading.enumerate() if thread.name == "headgate-gpu"]
    assert sampler.read(2.0, []) == {}  # and nobody looks on
    for thread in watchers:
        thread.join(60)
        assert not thread.is_alive()


def test_a_task_that_is_on_no_gpu_has_no_gpu_readings() -> None:
    box = InMemoryBox()
    box.living = False
    assert GpuSampler(FakeNvml()).read(0.0, [Target("a", box)]) == {}


def test_without_the_library_there_are_no_gpu_readings_and_that_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuSampler().read(0.0, [NODE]) == {}
    assert gpus(None) == ()
    assert device_numbers(None) == {}


def test_gpus_are_described() -> None:
    assert gpus(FakeNvml()) == (Gpu(0, "H200", 1000), Gpu(1, "H200", 1000))
    assert device_numbers(FakeNvml()) == {0: 3}


@pytest.mark.hardware
def test_the_gpus_of_this_machine_are_read() -> None:
    nvml = open_nvml()
    if nvml is None:
        pytest.skip("needs a GPU and nvidia-ml-py")
    values = GpuSampler(nvml).read(0.0, [NODE])["node"]
    assert 0 <= values["gpu_memory_bytes"] <= sum(gpu.memory_bytes for gpu in gpus(nvml))
