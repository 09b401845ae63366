"""The arbiter as root starts it, and users of this machine with hubs of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.arbiter.shared_machine import SECONDS, Machine
from tests.arbiter.users import UnixUser, unix_users

from headgate.arbiter.process import Places
from headgate.machine import processes
from headgate.machine.cgroup_layout import CGROUPS, find_layout
from headgate.machine.files import content
from headgate.recorded.reader import RunReader
from headgate.testing.wait import until

HUB = "headgate.hub.server"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the arbiter and users do")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with ExitStack() as undo:
        users = undo.enter_context(unix_users(2))
        folder = users[0].home.parent / "arbiter"
        folder.mkdir(mode=0o755)
        served = Machine(folder, users)
        undo.callback(served.end, signal.SIGKILL)
        served.start()
        yield served
        for user in users:
            user.end()
        if served.process is None:
            served.start()
        assert served.end() == 0
        home = Places(folder=folder / "state").home
        assert not [base for base in find_layout(CGROUPS).bases.values() if (base / home).exists()]


def test_users_share_gpus_whatever_happens_to_the_arbiter(machine: Machine) -> None:
    ada, ben = machine.users
    machine.submit(ada, "a", gpus=4)
    assert len(machine.gpus(ada, "a").split(",")) == 4
    assert f"/user-{ada.uid}/hub-" in (ada.home / "a.cgroups").read_text()
    machine.submit(ben, "b", gpus=2)
    machine.waits(ben, "b")
    assert machine.end(signal.SIGKILL) == -signal.SIGKILL
    machine.let_end(ada, "a")
    machine.submit(ben, "c", gpus=1)
    machine.waits(ben, "c")
    assert not (ben.home / "b.gpus").exists()
    machine.start()
    used = {*machine.gpus(ben, "b").split(","), machine.gpus(ben, "c")}
    assert len(used) == 3
    for job in "bc":
        machine.let_end(ben, job)


def test_a_wrong_file_leaves_the_former_rules_and_a_signal_ends_it_clean(machine: Machine) -> None:
    machine.read("half_life: long\n")
    machine.says("the former rules hold")
    machine.read("half_life: 2h\n")
    machine.says("is read again")
    assert machine.end() == 0
    assert not machine.socket.exists()
    machine.start()


WRITES = "while [ ! -e w.end ]; do dd if=/dev/zero of=w bs=1M count=4 oflag=direct; done 2>&1"


def test_what_a_job_moves_on_the_disk_is_recorded_beside_another_user_s_job(
    machine: Machine,
) -> None:
    """Only the arbiter may read it."""
    ada, ben = machine.users
    if os.major(ben.home.stat().st_dev) == 0:
        pytest.skip(f"{ben.home} is not on a disk")
    machine.submit(ada, "r", gpus=0)
    (ben.home / "w.yaml").write_text(f"jobs: [{{name: w, run: [sh, -c, '{WRITES}']}}]\n")
    assert machine.types(ben, "run", "--detach", "w.yaml").wait(SECONDS) == 0
    written = f"SELECT 1 FROM usage WHERE target LIKE 'user:{ben.name}:w@%' AND disk_write > 1e5"

    def is_recorded() -> bool:
        stores = ada.home.glob(".local/share/headgate/runs/*/run.sqlite")
        with ExitStack() as readers:
            opened = [readers.enter_context(RunReader(store)) for store in stores]
            return any(reader.query(written) for reader in opened)

    until(is_recorded, SECONDS, "the other's bytes are recorded")
    for user, job in ((ada, "r"), (ben, "w")):
        machine.let_end(user, job)


def test_a_guaranteed_part_is_taken_back_and_what_had_it_goes_on_later(machine: Machine) -> None:
    ada, ben = machine.users
    part = f"{{user: {ben.name}, guaranteed: {{gpus: 2}}}}"
    machine.read(f"{{take_back_after: 1s, take_back_spares: 1s, parts: [{part}]}}\n")
    machine.submit(ada, "k", gpus=4, resumes=True)
    assert len(machine.gpus(ada, "k").split(",")) == 4
    (ada.home / "k.gpus").unlink()
    machine.submit(ben, "l", gpus=2)
    assert len(machine.gpus(ben, "l").split(",")) == 2
    machine.waits(ada, "k", f"given back to {ben.name}, who waited")
    [act] = machine.seen("acts")
    assert (act["kind"], act["user"], act["by"]) == ("take-back", ada.name, ben.name)
    machine.let_end(ben, "l")
    assert len(machine.gpus(ada, "k").split(",")) == 4
    machine.let_end(ada, "k")
    machine.read("half_life: 1h\n")


CONNECTS = """
import signal, socket, sys
held, refused = [], 0
for _ in range(1000):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    s.settimeout(60)
    held.append(s)
for s in held[16:]:
    refused += b"too many" in s.recv(200)
print(refused, flush=True)
claims = b'{"hub": "h", "user": "root", "waiting": [{"id": "x", "gpus": 1}]}'
held[0].sendall(claims + b"\\n")
print(held[0].recv(4000).decode().split("\\n")[0], flush=True)
try:
    for _ in range(100):
        held[1].sendall(b"x" * (1 << 20))
except OSError:
    pass
print(b"error" in held[1].recv(4000), flush=True)
held[2].sendall(b'{"type": "Look"}\\n' * 20_000)
signal.pause()
"""


def test_a_user_who_floods_it_delays_no_other(machine: Machine) -> None:
    ada, ben = machine.users
    floods = ada.python("-c", CONNECTS, str(machine.socket), stdout=subprocess.PIPE)
    assert floods.stdout is not None
    assert int(floods.stdout.readline()) == 1000 - 16
    assert f'[["{ada.name}", "h"], "x"]' in floods.stdout.readline()
    assert floods.stdout.readline().strip() == "True"
    machine.submit(ben, "d", gpus=1)
    machine.gpus(ben, "d")
    machine.let_end(ben, "d")
    floods.kill()


def hub_of(user: UnixUser) -> int:
    """A child that it has just forked has its command line, until that runs another program."""
    pids = [pid for pid in user.pids() if HUB in content(Path(f"/proc/{pid}/cmdline"))]
    living = [process for process in map(processes.look, pids) if process is not None]
    [hub] = [process.pid for process in living if process.parent not in pids]
    return hub


def test_a_frozen_hub_of_a_deleted_user_keeps_what_its_jobs_hold_until_all_is_killed(
    machine: Machine,
) -> None:
    if "HEADGATE_TEST_USERS" in os.environ:
        pytest.skip("the users of this machine stay")
    ada, ben = machine.users
    machine.submit(ben, "g", gpus=2)
    held = machine.gpus(ben, "g").split(",")
    hub = hub_of(ben)
    os.kill(hub, signal.SIGSTOP)
    machine.submit(ada, "h", gpus=3)
    assert not {*machine.gpus(ada, "h").split(",")} & {*held}  # others go on
    machine.submit(ada, "i", gpus=1)
    ben.delete()
    machine.waits(ada, "i")
    assert machine.end(signal.SIGKILL) == -signal.SIGKILL
    machine.start()
    os.kill(hub, signal.SIGCONT)
    assert [len(job["gpus"]) for job in machine.seen() if job["user"] == ben.name] == [2]
    assert not (ada.home / "i.gpus").exists()
    ben.end()
    assert machine.gpus(ada, "i") in held
    for job in "hi":
        machine.let_end(ada, job)
