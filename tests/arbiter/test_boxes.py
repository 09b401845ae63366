"""What the arbiter makes so for users of the machine, and what it refuses them over its socket."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.arbiter.users import UnixUser, unix_users

from headgate.arbiter.boxes import UserBoxes
from headgate.arbiter.core import Arbiter
from headgate.arbiter.daemon import ArbiterDaemon
from headgate.arbiter.events import JobReleased
from headgate.arbiter.records import Hub, JobDemand, MachineJob, ResourceGrant, UserPart
from headgate.arbiter.store import ArbiterStore
from headgate.arbiter.turn_files import TurnFiles
from headgate.arbiter.user_box import hub_folder
from headgate.controller.gpu_memory import WorkerSlot
from headgate.machine import processes
from headgate.machine.arbiter_socket import Peer
from headgate.machine.cgroup_layout import CGROUPS, find_layout
from headgate.model.cluster import Gpu, Node
from headgate.model.sharing import SharingRules
from headgate.testing.wait import until

HOME = f"headgate-test-{os.getpid()}"
GIB = 1 << 30
NODE = Node("m", 8, 32 * GIB, gpus=tuple(Gpu(i, "A100", 16 * GIB) for i in range(2)))
ASKS = """
import json, socket, sys
path, *messages = json.loads(sys.argv[1])
connection = socket.socket(socket.AF_UNIX)
connection.connect(path)
lines = connection.makefile("r")
for message in messages:
    connection.sendall(json.dumps(message).encode() + b"\\n")
for wanted in json.loads(sys.argv[2]):
    for line in lines:
        if wanted in line:
            print(line, end="", flush=True)
            break
input()
"""
OPENS = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "r+b").close()
        print("opens", end=" ")
    except OSError as error:
        print(type(error).__name__, end=" ")
"""


class MadeNvml:
    """Two GPUs, and a process that computes on the first."""

    class NVMLError(Exception):
        """As NVML's."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMinorNumber": lambda handle: 240 + handle,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=5 * GIB),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=50),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=pid, usedGpuMemory=4 * GIB)
                for pid in ([] if handle else self.pids)
            ],
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]


@pytest.fixture(scope="module")
def users() -> Iterator[list[UnixUser]]:
    if os.geteuid() != 0 or find_layout(CGROUPS).mode == "none":
        pytest.skip("cgroups of users take root, and a cgroup to make them in")
    with unix_users(2) as users:
        yield users


@pytest.fixture
def folder(users: list[UnixUser]) -> Path:
    """A folder that all users may enter. Those of pytest are for one user."""
    folder = Path(tempfile.mkdtemp(dir=users[0].home.parent))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def nvml() -> MadeNvml:
    return MadeNvml()


@pytest.fixture
def boxes(folder: Path, users: list[UnixUser], nvml: MadeNvml) -> Iterator[UserBoxes]:
    boxes = UserBoxes(TurnFiles(folder / "turns"), nvml=nvml, home=HOME)
    yield boxes
    for user in users:
        user.end()

    def is_gone() -> bool:
        boxes.close()
        return not any((base / HOME).exists() for base in find_layout(CGROUPS).bases.values())

    until(is_gone, what="the end of all boxes")


def joined(boxes: UserBoxes, user: UnixUser, hub: str = "h") -> subprocess.Popen[str]:
    """A process of a user as a hub that has connected."""
    process = user.python("-c", "input()", stdin=subprocess.PIPE)
    peer = Peer(process.pid, user.uid, user.gid)
    boxes.joins(Hub(user.name, hub), peer, processes.look(process.pid))
    return process


def part(user: UnixUser, memory: int = GIB) -> UserPart:
    return UserPart(user.name, 1.0, 100.0, None, memory, 4 * GIB)


def granted(user: UnixUser, *gpus: int, share: int | None = None) -> ResourceGrant:
    job = JobDemand("j", gpus=len(gpus), gpu_memory_bytes=share)
    slots = (WorkerSlot("m", gpus),)
    return ResourceGrant(MachineJob(Hub(user.name, "h"), "j"), job, slots, 0.0)


def test_the_next_arbiter_takes_boxes_up_as_they_are(
    users: list[UnixUser], boxes: UserBoxes, folder: Path
) -> None:
    hub = Hub(users[0].name, "h")
    process = joined(boxes, users[0])
    boxes.apply(part(users[0]))
    boxes.close()
    after = UserBoxes(TurnFiles(folder / "turns"), home=HOME)
    assert list(after.used()) == [users[0].name]
    assert not after.is_empty(hub, users[0].uid)
    reading = after.read()
    assert reading is not None
    assert reading.held_bytes + reading.free_bytes > 0
    process.communicate("\n", timeout=120)
    until(lambda: after.is_empty(hub, users[0].uid), what="an empty box")
    for _ in range(2):
        after.read()
    assert not after.used()


def test_each_hub_of_a_user_is_empty_by_itself(users: list[UnixUser], boxes: UserBoxes) -> None:
    first, _ = joined(boxes, users[0]), joined(boxes, users[0], "other")
    first.communicate("\n", timeout=120)
    until(lambda: boxes.is_empty(Hub(users[0].name, "h"), users[0].uid), what="an empty part")
    assert not boxes.is_empty(Hub(users[0].name, "other"), users[0].uid)
    assert not boxes.is_empty(Hub(users[0].name, "without a part"), users[0].uid)


def test_what_a_hub_calls_itself_names_no_folder() -> None:
    for name in ("../../x", "/etc", ".", "", "\0", "é" * 200):
        assert hub_folder(Hub("a", name)).removeprefix("hub-").isalnum()


def test_only_users_with_a_grant_open_the_file_of_turns(
    users: list[UnixUser], boxes: UserBoxes, folder: Path
) -> None:
    for user in users:
        joined(boxes, user)
    files = [str(folder / f"turns/gpu-{i}") for i in range(2)]

    def open_by(user: UnixUser) -> str:
        return user.python("-c", OPENS, *files, stdout=subprocess.PIPE).communicate()[0].strip()

    boxes.apply(granted(users[0], 0, share=GIB))
    assert open_by(users[0]) == "opens PermissionError"
    assert open_by(users[1]) == "PermissionError PermissionError"
    boxes.apply(granted(users[1], 0, 1, share=GIB))
    assert open_by(users[0]) == "opens PermissionError"
    assert open_by(users[1]) == "opens opens"
    boxes.apply(JobReleased(granted(users[0]).job))
    assert open_by(users[0]) == "PermissionError PermissionError"


def test_gpus_are_read_by_user_and_outside_use_is_seen(
    users: list[UnixUser], boxes: UserBoxes, nvml: MadeNvml
) -> None:
    hub = joined(boxes, users[0])
    boxes.apply(granted(users[0], 0))
    nvml.pids = [hub.pid]
    reading = boxes.read()
    assert reading is not None
    assert (reading.gpus[0].used, reading.gpus[0].held) == (5 * GIB, 4 * GIB)
    assert reading.users[users[0].name].busy_gpus == {0}
    assert not reading.outside
    nvml.pids = [hub.pid, os.getpid()]
    reading = boxes.read()
    assert reading is not None
    assert reading.outside == {0}


def served(boxes: UserBoxes, folder: Path, talk: Callable[[Path, ArbiterDaemon], None]) -> Arbiter:
    """An arbiter that serves while users talk to it."""
    arbiter = Arbiter(NODE, SharingRules(), 0.0)

    async def run() -> None:
        store = ArbiterStore(folder / "arbiter.db", "boot")
        daemon = ArbiterDaemon(arbiter, store, boxes)
        await daemon.serve(folder / "socket")
        try:
            await asyncio.wait_for(asyncio.to_thread(talk, folder / "socket", daemon), 60.0)
        finally:
            await daemon.close()
            store.close()

    asyncio.run(run())
    return arbiter


def asks(
    user: UnixUser, path: Path, messages: list[dict[str, Any]], wanted: list[str]
) -> subprocess.Popen[str]:
    """A user who sends messages, and prints the first answer with each wanted word."""
    words = json.dumps([str(path), *messages]), json.dumps(wanted)
    return user.python("-c", ASKS, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_user_stops_nothing_of_another_and_reads_no_arguments(
    users: list[UnixUser], boxes: UserBoxes, folder: Path
) -> None:
    secret = {"id": "r1/secret-run", "name": "secret", "private": True, "gpus": 2}
    waits = {"id": "r2/next", "name": "shown", "gpus": 2}
    answers: list[str] = []

    def talk(path: Path, daemon: ArbiterDaemon) -> None:
        owner = asks(users[0], path, [{"hub": "h", "waiting": [secret, waits]}], ["ResourceGrant"])
        assert owner.stdout is not None
        assert "secret-run" in owner.stdout.readline()
        job = [[users[0].name, "h"], "r1/secret-run"]
        orders = [{"type": "OrderJob", "job": job, kind: True} for kind in ("stop", "held")]
        for order in (*orders, {"type": "Drain", "drained": True}):
            asked = asks(users[1], path, [order], ["error"])
            answers.append(asked.communicate("\n", timeout=120)[0])
        asked = asks(users[1], path, [{"type": "Look"}], ["shown"])
        answers.append(asked.communicate("\n", timeout=120)[0])
        owner.communicate("\n", timeout=120)

    served(boxes, folder, talk)
    assert all("only root" in answer for answer in answers[:3])
    assert users[0].name in answers[3]
    assert "shown" in answers[3]
    assert "secret" not in answers[3]
    assert "r2" not in answers[3]


def test_messages_for_another_users_job_are_the_senders(
    users: list[UnixUser], boxes: UserBoxes, folder: Path
) -> None:
    job = {"id": "j", "gpus": 2}
    grants: list[ResourceGrant] = []

    def talk(path: Path, daemon: ArbiterDaemon) -> None:
        owner = asks(users[0], path, [{"hub": "h", "waiting": [job]}], ["ResourceGrant"])
        assert owner.stdout is not None
        owner.stdout.readline()
        for hub in ("h", [users[0].name, "h"]):  # nothing of it runs any more, says another
            false = {"hub": hub, "user": users[0].name, "waiting": [job], "running": []}
            said = asks(users[1], path, [false], ["no-room" if hub == "h" else "error"])
            assert said.stdout is not None
            assert said.stdout.readline()
            said.communicate("\n", timeout=120)
        grants.extend(daemon._arbiter.room.grants.values())
        owner.communicate("\n", timeout=120)

    served(boxes, folder, talk)
    assert [grant.job.hub.user for grant in grants] == [users[0].name]
