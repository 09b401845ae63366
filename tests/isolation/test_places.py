"""A task in a place on this machine: what it sees there, what limits it, and what is left of it."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.places import ADDRESS, placed, set_cores, set_disk_rate, set_memory

from headgate.isolation.base import Launch
from headgate.isolation.process import ProcessIsolation
from headgate.machine import disks
from headgate.machine.cgroup_layout import CgroupLayout
from headgate.model.cluster import Place
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.shares import UNLIMITED, Share
from headgate.testing import programs
from headgate.testing.isolation import RUN, IsolationContract, Running
from headgate.testing.isolation_stage import descriptors
from headgate.testing.wait import until

pytestmark = pytest.mark.hardware
GROUP = f"placed-{os.getpid()}"
MIB = 1 << 20
NOTHING = Share()
HERE = Path.cwd()


def folders_left() -> list[str]:
    walk = os.walk("/sys/fs/cgroup")
    return [
        f"{at}/{name}"
        for at, names, _ in walk
        for name in names
        if name.startswith(f"headgate-{GROUP}")
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("place"), "iso") as place:
        yield place


@pytest.fixture
def isolation(place: Place) -> ProcessIsolation:
    isolation = ProcessIsolation(GROUP)
    if isolation.mode == "none":
        pytest.skip(f"cgroups cannot be written here: {isolation.uncontrolled()[0]}")
    return isolation


@pytest.mark.long  # tests below have what a place adds, tests of labs whole jobs in one
class TestTheContract(IsolationContract):
    elsewhere = ("headgate.isolation.process", f"ProcessIsolation({GROUP!r})")

    @pytest.fixture
    def isolation(self, place: Place, isolation: ProcessIsolation) -> ProcessIsolation:
        self.place = place
        return isolation

    def traces(self) -> list[str]:
        return folders_left()


Run = Callable[..., Running]


@pytest.fixture
def run(place: Place) -> Iterator[Run]:
    """Starts a task in the place."""
    running: list[Running] = []

    def start(
        isolation: ProcessIsolation,
        argv: tuple[str, ...],
        share: Share = NOTHING,
        place: Place = place,
        cwd: Path = HERE,
    ) -> Running:
        task = TaskId(f"{RUN}/job/worker-{len(running)}")
        running.append(
            Running.start(isolation, replace(_launch(argv, place), cwd=str(cwd), task=task), share)
        )
        return running[-1]

    yield start
    for each in running:
        each.close()
    assert folders_left() == []


def _launch(argv: tuple[str, ...], place: Place | None) -> Launch:
    return Launch(TaskId(f"{RUN}/job/worker-0"), argv, {"PATH": os.defpath}, os.getcwd(), 1, place)


SIGHTS = (
    'echo "name $(cat /proc/sys/kernel/hostname)"; echo "hosts $(tail -n 1 /etc/hosts)"; '
    'echo "sysfs $(echo $(ls /sys/class/net))"; '
    'for line in $(tail -n +3 /proc/net/dev | cut -d: -f1); do echo "device $line"; done; echo '
    "ready; exec sleep 1000"
)


def mounts(own: Path) -> list[str]:
    """What is mounted on this machine, but for what other tests mount, which comes and goes."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    of_others = (f"{tempfile.gettempdir()}/", "/run/")
    points = [Path(line.split(" ")[4]) for line in lines]
    return [
        line
        for line, point in zip(lines, points, strict=True)
        if point.is_relative_to(own) or not str(point).startswith(of_others)
    ]


def sees_the_interfaces_of_the_machine() -> bool:
    """Whether /sys shows those of this process; other tests make and remove some."""
    names = sorted(name for _, name in socket.if_nameindex())
    return sorted(os.listdir("/sys/class/net")) == names


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_it_sees_its_own_name_hosts_and_interfaces_and_the_machine_keeps_its_own(
    mode: str, place: Place, run: Run, tmp_path: Path
) -> None:
    before = socket.gethostname(), Path("/etc/hosts").read_text(), mounts(tmp_path)
    isolation = ProcessIsolation(GROUP, mode="none") if mode == "none" else ProcessIsolation(GROUP)
    task = run(isolation, ("/bin/sh", "-c", SIGHTS))
    task.said("ready")
    assert task.said("name") == place.hostname
    assert task.said("hosts") == f"{ADDRESS} {place.hostname}"
    assert task.said("sysfs") == "eth0 lo"
    devices = {
        line.removeprefix("device ")
        for line in task.text.splitlines()
        if line.startswith("device ")
    }
    assert devices == {"lo", "eth0"}
    assert (socket.gethostname(), Path("/etc/hosts").read_text(), mounts(tmp_path)) == before
    until(sees_the_interfaces_of_the_machine, what="the interfaces of the machine in /sys")


def test_it_still_sees_cgroups_where_they_were(isolation: ProcessIsolation, run: Run) -> None:
    task = run(isolation, ("/bin/sh", "-c", "echo entries $(ls /sys/fs/cgroup)"))
    assert task.said("entries").split() == sorted(os.listdir("/sys/fs/cgroup"))


def test_it_reaches_what_listens_on_the_address_of_its_place_and_not_on_the_machine_s(
    isolation: ProcessIsolation, run: Run
) -> None:
    code = (
        "import socket, sys\n"
        f"with socket.create_server(({ADDRESS!r}, 0)) as server:\n"
        "    socket.create_connection(server.getsockname()).close()\n"
        "    print('reached')\n"
        "try:\n"
        "    socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=5)\n"
        "except ConnectionRefusedError:\n"
        "    print('refused')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as ours:
        argv = (*programs.argv("rest")[:3], "-c", code, str(ours.getsockname()[1]))
        task = run(isolation, argv)
        task.said("reached")
        task.said("refused")


def test_its_cgroups_are_below_those_of_the_place(
    isolation: ProcessIsolation, place: Place, run: Run
) -> None:
    first = run(isolation, programs.argv("rest"), Share(cpu_weight=300))
    folders = first.box.cgroups
    assert folders.keys() == place.cgroups.keys() - {"blkio"}
    # whose rates hold for a folder alone: tasks share that of the place
    if "blkio" in place.cgroups:
        assert (
            str(first.box.pid) in Path(place.cgroups["blkio"], "cgroup.procs").read_text().split()
        )
    for controller, folder in folders.items():
        assert (
            folder == Path(place.cgroups[controller]) / f"headgate-{GROUP}" / f"{RUN}:job:worker-0"
        )
        assert str(first.box.pid) in (folder / "cgroup.procs").read_text().split()
    weight, plain = ("cpu.shares", "1024") if "cpuacct" in folders else ("cpu.weight", "100")
    assert (folders["cpu"].parent / weight).read_text().strip() == plain


def test_a_controller_that_the_place_does_not_name_is_used_as_on_the_machine(
    isolation: ProcessIsolation, place: Place, run: Run
) -> None:
    named = {name: folder for name, folder in place.cgroups.items() if name in ("cpu", "unified")}
    folders = run(isolation, programs.argv("rest"), place=replace(place, cgroups=named)).box.cgroups
    assert folders.keys() >= named.keys() > set()
    for controller, folder in folders.items():
        together = isolation.mode == "v2" or controller in named
        assert folder.is_relative_to(place.cgroups[controller]) == together


def test_controllers_of_one_hierarchy_stay_together(
    isolation: ProcessIsolation, place: Place
) -> None:
    joined, memory = Path("/groups/cpu,cpuacct"), Path("/groups/memory")
    isolation._found = CgroupLayout(
        "v1", bases={"cpu": joined, "cpuacct": joined, "memory": memory}
    )
    there = replace(place, cgroups={"cpu": "/groups/cpu,cpuacct/lab/a"})
    lines = isolation.describe(_launch(("true",), there), Share())
    assert f"mkdir /groups/cpu,cpuacct/lab/a/headgate-{GROUP}/{RUN}:job:worker-0" in lines
    assert f"mkdir /groups/memory/headgate-{GROUP}/{RUN}:job:worker-0" in lines
    assert not any(f"cpuacct/headgate-{GROUP}" in line for line in lines)


def test_the_quota_of_the_place_limits_it_whatever_its_own_cap(
    isolation: ProcessIsolation, place: Place, run: Run
) -> None:
    contract = TestTheContract()
    set_cores(place, 0.2)
    try:
        task = run(isolation, programs.argv("spin", 2), Share(cpu_cap_cores=0.5))
        task.said("ready")
        contract.capped(task.box, 0.2)
        task.box.apply(Share(cpu_cap_cores=0.1))
        contract.capped(task.box, 0.1)
        task.box.apply(Share(cpu_cap_cores=UNLIMITED))
        contract.capped(task.box, 0.2)
    finally:
        set_cores(place, os.cpu_count() or 1)


def test_it_is_said_when_the_place_ran_out_of_memory(
    isolation: ProcessIsolation, place: Place, run: Run
) -> None:
    set_memory(place, 64 * MIB)
    try:
        end = run(isolation, programs.argv("hold", 256 * MIB)).ended()
    finally:
        set_memory(place, 1 << 40)
    assert end.reason is not None
    assert end.reason.startswith(f"killed: node {place.hostname} ran out of memory")
    assert not end.over_memory


@pytest.mark.parametrize("share", [NOTHING, Share(disk_bytes_per_second=64 * MIB)])
def test_the_disk_rate_of_the_place_holds_for_it(
    share: Share, isolation: ProcessIsolation, place: Place, run: Run, tmp_path: Path
) -> None:
    disk = disks.number_of(tmp_path)
    if disk is None or not {"io", "blkio"} & place.cgroups.keys():
        pytest.skip(
            "the folder for temporary files is on no disk of its own, or its rate cannot be limited"
        )
    data = tmp_path / "data"
    data.write_bytes(os.urandom(2 * MIB))
    os.sync()
    set_disk_rate(place, disk, 2 * MIB)
    try:
        task = run(isolation, programs.argv("read", data), share, cwd=tmp_path)
        assert float(task.said("seconds")) >= 0.7
    finally:
        set_disk_rate(place, disk, 0)


def test_tasks_of_a_place_share_its_disk_rate(
    isolation: ProcessIsolation, place: Place, run: Run, tmp_path: Path
) -> None:
    disk = disks.number_of(tmp_path)
    if disk is None or not {"io", "blkio"} & place.cgroups.keys():
        pytest.skip(
            "the folder for temporary files is on no disk of its own, or its rate cannot be limited"
        )
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(os.urandom(2 * MIB))
    os.sync()
    set_disk_rate(place, disk, 2 * MIB)
    try:
        tasks = [
            run(isolation, programs.argv("read", tmp_path / name), cwd=tmp_path)
            for name in ("first", "second")
        ]
        began = [float(task.said("began")) for task in tasks]
        took = [float(task.said("seconds")) for task in tasks]
        ended = [begin + seconds for begin, seconds in zip(began, took, strict=True)]
        assert max(ended) - min(began) >= 1.4  # 4 MiB in all
    finally:
        set_disk_rate(place, disk, 0)


def test_a_dry_run_says_where_it_would_run(isolation: ProcessIsolation, place: Place) -> None:
    lines = isolation.describe(_launch(("true",), place), Share())
    assert f"enter the network namespace {place.namespace}" in lines
    assert any(line.startswith(f"be called {place.hostname}") for line in lines)
    assert any(line.startswith(f"mount {place.hosts} over /etc/hosts") for line in lines)
    assert lines[-1] == "exec true"
    assert f"mkdir {place.cgroups['cpu']}/headgate-{GROUP}/{RUN}:job:worker-0" in lines
    assert folders_left() == []


@pytest.mark.parametrize("mode", ["auto", "none"])
@pytest.mark.parametrize(
    ("namespace", "hosts", "said"),
    [
        ("/run/netns/no-such-node", None, "/run/netns/no-such-node: No such file"),
        ("/etc/hosts", None, "enter network namespace /etc/hosts: Invalid argument"),
        (None, "/no/such/hosts", "mount /no/such/hosts: No such file"),
    ],
)
def test_a_place_that_is_not_there_is_one_clear_error(
    mode: str, namespace: str | None, hosts: str | None, said: str, place: Place, run: Run
) -> None:
    isolation = ProcessIsolation(GROUP, mode="none") if mode == "none" else ProcessIsolation(GROUP)
    absent = replace(place, namespace=namespace or place.namespace, hosts=hosts or place.hosts)
    before = descriptors()
    with pytest.raises(
        IsolationError,
        match=f"^{RUN}/job/worker-0: node 'iso' cannot be entered: {said}.*lab up FILE$",
    ):
        run(isolation, programs.argv("rest"), place=absent)
    assert folders_left() == []
    assert descriptors() <= before


def test_cgroups_that_are_gone_with_the_place_are_one_too(
    isolation: ProcessIsolation, place: Place, run: Run
) -> None:
    gone = {name: f"{folder}-gone" for name, folder in place.cgroups.items()}
    with pytest.raises(
        IsolationError, match=rf"^{RUN}/job/worker-0: the box cannot be made: .*-gone"
    ):
        run(isolation, programs.argv("rest"), place=replace(place, cgroups=gone))
    assert folders_left() == []


def test_what_it_mounts_or_leaves_does_not_outlive_it(
    isolation: ProcessIsolation, run: Run, tmp_path: Path
) -> None:
    before = mounts(tmp_path)
    mounting = (
        f"mount -t tmpfs none {tmp_path} && touch {tmp_path}/file && echo ready; exec sleep 1000"
    )
    task = run(isolation, ("/bin/sh", "-c", mounting))
    task.said("ready")
    assert list(tmp_path.iterdir()) == []
    assert mounts(tmp_path) == before
    os.kill(task.box.pid, signal.SIGKILL)
    task.ended()
    until(lambda: mounts(tmp_path) == before, what="the mounts of the machine as they were")
