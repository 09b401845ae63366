"""Cgroups of users, as root makes them and as their users find them. Runs under cgroup v1 here, and
under v2 in the machine of `make test-v2`.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.arbiter.users import UnixUser, unix_users

from headgate.arbiter.records import Hub, UserPart
from headgate.arbiter.user_box import HOME, UserBox, hub_folder
from headgate.machine import processes
from headgate.machine.cgroup_layout import CGROUPS, LEAF, CgroupLayout, find_layout
from headgate.machine.processes import Process
from headgate.model.shares import Lever
from headgate.testing.wait import until

MIB = 1 << 20
HUB = hub_folder(Hub("a", "one"))
PART = UserPart("a", 1.0, 250.0, 0.5, 64 * MIB, 256 * MIB, 300)
WAITS = "import time; time.sleep(600)"
ATTACKS = """
import json, os, signal, sys
input()
writes, folders, signals = json.loads(sys.argv[1])
done = []
for path, text in writes:
    try:
        with open(path, "w") as file:
            file.write(text or str(os.getpid()))
        done.append(path)
    except OSError:
        pass
for path in folders:
    for change in (os.mkdir, os.rmdir):
        try:
            change(path)
            done.append(path)
        except OSError:
            pass
for pid in signals:
    try:
        os.kill(pid, signal.SIGTERM)
        done.append(pid)
    except OSError:
        pass
print(json.dumps(done), flush=True)
"""
FORKS = """
import os, time
input()
pids = []
try:
    for _ in range(100):
        pid = os.fork()
        if not pid:
            os.close(1)
            time.sleep(600)
            os._exit(0)
        pids.append(pid)
except OSError:
    pass
print(len(pids), flush=True)
"""
HOG = """
import os
input()
if not os.fork():
    kept = bytearray(512 << 20)
    os._exit(0)
print(os.wait()[1], flush=True)
"""
SPINS = """
import os, sys
input()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for _ in range(int(sys.argv[1]) - 1):
    if not os.fork():
        break
else:
    print("spins", flush=True)
while True:
    pass
"""
OPENS = """
import sys
input()
try:
    open(sys.argv[1], "rb").close()
    print("opens", flush=True)
except OSError as error:
    print(error.strerror, flush=True)
"""
BOXED = """
import json, sys
from headgate.isolation.base import Launch
from headgate.isolation.process import ProcessIsolation
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share
isolation = ProcessIsolation("x")
input()
argv = (sys.executable, "-c", "import time; time.sleep(600)")
launch = Launch(TaskId("run/job/worker-0"), argv, {}, "/tmp", 1)
share = Share(cpu_weight=300, cpu_cap_cores=0.5, memory_bytes=64 << 20)
box = isolation.start(launch, share, sys.stderr.fileno())
levers = {str(lack.lever) for lack in isolation.uncontrolled()}
stands = box.hold()
box.release()
folders = {name: str(folder) for name, folder in box.cgroups.items()}
box.close()
print(json.dumps([folders, sorted(levers), stands]))
"""


@pytest.fixture(scope="module")
def layout() -> CgroupLayout:
    layout = find_layout(CGROUPS, also=("pids",))
    if layout.mode == "none" or os.geteuid() != 0:
        pytest.skip("cgroups of users take root, and a cgroup to make them in")
    return layout


@pytest.fixture(scope="module")
def users(layout: CgroupLayout) -> Iterator[list[UnixUser]]:
    with unix_users(2) as users:
        yield users


@pytest.fixture
def boxes(users: list[UnixUser], layout: CgroupLayout) -> Iterator[list[UserBox]]:
    boxes = [UserBox(user.uid, layout) for user in users]
    for box in boxes:
        box.make()
    yield boxes
    for user, box in zip(users, boxes, strict=True):
        user.end()
        until(box.remove, what="the end of a box")
    assert not [base for base in layout.bases.values() if (base / HOME).exists()]


def living(pid: int) -> Process:
    process = processes.look(pid)
    assert process is not None
    return process


def inside(user: UnixUser, box: UserBox, code: str, *arguments: object) -> subprocess.Popen[str]:
    """A program of a user in a hub's part of the user's box; it goes on with a line of input."""
    words = [
        argument if isinstance(argument, str) else json.dumps(argument) for argument in arguments
    ]
    process = user.python("-c", code, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    box.admit(HUB, living(process.pid))
    return process


def output(process: subprocess.Popen[str]) -> str:
    return process.communicate("\n", timeout=120)[0].strip()


def folders(box: UserBox) -> dict[str, Path]:
    return dict(box._folders)


def text(box: UserBox, controller: str, name: str) -> str:
    return (folders(box)[controller] / name).read_text().strip()


def test_a_user_gets_neither_out_of_the_own_box_nor_into_anothers(
    users: list[UnixUser], boxes: list[UserBox]
) -> None:
    victim = inside(users[1], boxes[1], "input()")
    writes, made = list[tuple[str, str]](), list[str]()
    own, others = set(folders(boxes[0]).values()), set(folders(boxes[1]).values())
    for mine, other in zip(own, sorted(others), strict=True):
        closed = [mine.parent.parent, mine.parent, mine, other, other / HUB, other / HUB / LEAF]
        writes += [(f"{folder}/cgroup.procs", "") for folder in closed]
        made += [f"{folder}/x" for folder in closed]
        for folder in (*closed, mine / HUB):
            writes += [
                (str(file), "1")
                for file in folder.glob("*")
                if file.name
                in {
                    *("cpu.weight", "cpu.max", "memory.max", "memory.low", "pids.max"),
                    *("cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes"),
                    *("cgroup.kill", "cgroup.freeze", "freezer.state", "cgroup.max.descendants"),
                }
                and not (folder == mine / HUB and file.name == "freezer.state")
            ]
        made += [str(other), str(other / HUB), str(mine / HUB)]
    attacks = inside(users[0], boxes[0], ATTACKS, [writes, made, [victim.pid, 1]])
    assert len(writes) > 20
    assert output(attacks) == "[]"
    assert victim.poll() is None
    assert boxes[1].is_populated(HUB)


def test_a_hub_divides_its_part_itself(
    users: list[UnixUser], boxes: list[UserBox], layout: CgroupLayout
) -> None:
    hub = inside(users[0], boxes[0], BOXED)
    made, uncontrolled, stands = json.loads(output(hub))
    assert layout.bases.keys() - {"pids"} == made.keys()
    mine = {folder / HUB / "headgate-x" for folder in folders(boxes[0]).values()}
    assert {Path(folder).parent for folder in made.values()} <= mine
    assert uncontrolled == ([Lever.BUFFERED_WRITES] if layout.mode == "v1" else [])
    assert stands


def test_a_users_part_is_written(boxes: list[UserBox], layout: CgroupLayout) -> None:
    assert boxes[0].limit(PART)
    boxes[0].weigh_all(PART.weight, PART.memory_bytes)
    together = folders(boxes[0])["cpu"].parent
    if layout.mode == "v2":
        assert text(boxes[0], "cpu", "cpu.weight") == "250"
        assert (together / "cpu.weight").read_text() == "250\n"
        assert text(boxes[0], "cpu", "cpu.max") == "5000 10000"
        assert text(boxes[0], "memory", "memory.max") == str(256 * MIB)
        assert text(boxes[0], "memory", "memory.low") == str(64 * MIB)
        assert text(boxes[0], "memory", "memory.oom.group") == "0"
    else:
        assert text(boxes[0], "cpu", "cpu.shares") == "2560"
        boxes[0].weigh_all(1.0, PART.memory_bytes)  # as a thread on each core, outside
        assert int((together / "cpu.shares").read_text()) == 1024 * (os.cpu_count() or 1)
        assert text(boxes[0], "cpu", "cpu.cfs_quota_us") == "5000"
        assert text(boxes[0], "memory", "memory.limit_in_bytes") == str(256 * MIB)
    assert text(boxes[0], "pids", "pids.max") == "300"
    assert int(text(boxes[1], "pids", "pids.max")) > 1000


def test_a_fork_bomb_ends_at_its_users_bound(users: list[UnixUser], boxes: list[UserBox]) -> None:
    (folders(boxes[0])["pids"] / "pids.max").write_text("30")
    bomb, other = inside(users[0], boxes[0], FORKS), inside(users[1], boxes[1], FORKS)
    assert int(output(bomb)) < 30
    assert int(output(other)) == 100


def test_a_user_over_the_memory_loses_a_process_and_nobody_else_does(
    users: list[UnixUser], boxes: list[UserBox]
) -> None:
    other = inside(users[1], boxes[1], "input()")
    hog = inside(users[0], boxes[0], HOG)
    boxes[0].limit(PART)
    assert output(hog) == "9"
    used = boxes[0].used()
    assert used.cpu_seconds > 0
    assert used.peak_bytes is not None
    assert 128 * MIB < used.peak_bytes <= 256 * MIB
    assert other.poll() is None


def test_many_processes_take_nothing_of_anothers_cores(
    users: list[UnixUser], boxes: list[UserBox]
) -> None:
    for user, box, count in zip(users, boxes, (1, 50), strict=True):
        box.limit(replace(PART, most_cores=None))
        hog = inside(user, box, SPINS, str(count))
        assert hog.stdin is not None
        assert hog.stdout is not None
        hog.stdin.write("\n")
        hog.stdin.flush()
        assert hog.stdout.readline() == "spins\n"

    def used() -> list[float]:
        return [box.used().cpu_seconds for box in boxes]

    before = used()
    until(lambda: sum(used()) > sum(before) + 2.0, what="two seconds of CPU time")
    # both go on meanwhile: what one of them used is counted for longer than what the many did
    many = boxes[1].used().cpu_seconds - before[1]
    alone = boxes[0].used().cpu_seconds - before[0]
    assert alone > 0.5 * many


def test_a_limit_below_what_is_held_kills_nothing(
    users: list[UnixUser], boxes: list[UserBox]
) -> None:
    holder = inside(
        users[0], boxes[0], "input(); kept = b'1' * (64 << 20); print(1, flush=True); input()"
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    holder.stdout.readline()
    small = UserPart("a", 1.0, 100.0, None, 0, 16 * MIB)
    assert not boxes[0].limit(small)
    assert holder.poll() is None
    holder.communicate("\n", timeout=120)
    until(lambda: boxes[0].limit(small), what="the limit")


def test_jobs_open_no_gpu_that_is_closed_to_their_user(
    users: list[UnixUser], boxes: list[UserBox]
) -> None:
    number = 1, 7
    device = users[0].home / "gpu"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(*number))
    device.chmod(0o666)

    def job(i: int) -> str:
        process = inside(users[i], boxes[i], OPENS, str(device))
        folder = folders(boxes[i])["unified"] / HUB / "job"
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text(str(process.pid))
        return output(process)

    try:
        hub = inside(users[0], boxes[0], OPENS, str(device))
        boxes[0].close_devices([number])
        assert job(0) == "Operation not permitted"
        assert (output(hub), job(1)) == ("opens", "opens")
        boxes[0].close_devices([(1, 8)])
        assert job(0) == "opens"
    finally:
        device.unlink()


def test_what_is_left_of_a_hub_is_told_and_then_removed(
    users: list[UnixUser], boxes: list[UserBox], layout: CgroupLayout
) -> None:
    assert boxes[0].is_populated(HUB) is None
    hub = inside(users[0], boxes[0], "input()")
    taken_up = UserBox(users[0].uid, layout)
    assert (taken_up.is_made, taken_up.hubs(), taken_up.is_populated(HUB)) == (True, [HUB], True)
    assert not taken_up.remove(HUB)
    output(hub)
    until(lambda: boxes[0].is_populated(HUB) is False, what="an empty part")
    assert boxes[0].remove(HUB)
    assert boxes[0].hubs() == []


def test_a_process_of_anybody_else_is_not_let_in(
    users: list[UnixUser], boxes: list[UserBox]
) -> None:
    ended, others = users[0].python("-c", ""), living(users[1].python("-c", WAITS).pid)
    ended.wait()
    for process in (living(os.getpid()), living(1), others, replace(others, pid=ended.pid)):
        with pytest.raises(OSError):
            boxes[0].admit(HUB, process)
    assert not boxes[0].is_populated(HUB)


def test_a_process_that_has_the_number_of_a_former_one_is_not_let_in(
    users: list[UnixUser], boxes: list[UserBox]
) -> None:
    own = living(users[0].python("-c", WAITS).pid)
    with pytest.raises(ProcessLookupError, match="another has its number"):
        boxes[0].admit(HUB, replace(own, started=own.started - 1))
    assert not boxes[0].is_populated(HUB)


def test_limits_that_an_administrator_gave_a_process_stay(
    users: list[UnixUser], boxes: list[UserBox]
) -> None:
    base = folders(boxes[0])["memory"].parent.parent
    limited = base / f"limited-{os.getpid()}"
    limited.mkdir()
    try:
        name = "memory.max" if (limited / "memory.max").exists() else "memory.limit_in_bytes"
        (limited / name).write_text(str(512 * MIB))
        process = users[0].python("-c", WAITS)
        (limited / "cgroup.procs").write_text(str(process.pid))
        with pytest.raises(PermissionError, match="limits"):
            boxes[0].admit(HUB, living(process.pid))
    finally:
        users[0].end()
        until(lambda: _is_removed(limited), what="the end of a cgroup")


def _is_removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()
