"""The arbiter as root starts it, and users of this machine with hubs of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.arbiter.users import UnixUser, unix_users
from tests.sampling import made_up

from headgate.arbiter.process import Places
from headgate.machine.cgroup_layout import CGROUPS, find_layout
from headgate.model.errors import HeadgateError
from headgate.recorded.reader import RunReader
from headgate.testing.wait import until

SECONDS = 60.0
MADE_UP = next(iter(made_up.__path__))
"""This machine with GPUs that it does not have."""
WAITS = """\
cat /proc/self/cgroup > {name}.cgroups
echo $CUDA_VISIBLE_DEVICES > {name}.gpus; while [ ! -e {name}.end ]; do sleep 0.05; done
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the arbiter and users do")


class Machine:
    """An arbiter, and users of its machine."""

    def __init__(self, folder: Path, users: list[UnixUser]) -> None:
        self.folder, self.users = folder, users
        self.socket, self.rules = folder / "run" / "arbiter.sock", folder / "arbiter.yaml"
        self.process: subprocess.Popen[str] | None = None
        self.rules.write_text("half_life: 1h\n")
        self.messages = folder / "messages"

    def start(self) -> None:
        """Start the arbiter."""
        path = os.pathsep.join([MADE_UP, *sys.path])
        places = "--rules", self.rules, "--socket", self.socket, "--folder", self.folder / "state"
        with self.messages.open("a") as messages:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headgate", "arbiter", *places, "--json"],
                env={**os.environ, "PYTHONPATH": path, "MADE_UP_GPU_MEMORY": str(self.folder)},
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
            )
        assert self.process.stdout is not None
        facts = json.loads(self.process.stdout.readline())
        assert facts["socket"] == str(self.socket)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the arbiter. Returns its exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        with process:
            return process.wait(SECONDS)

    def says(self, text: str) -> None:
        """Wait for a message of the arbiter."""
        until(lambda: text in self.messages.read_text(), SECONDS, f"the arbiter says {text!r}")

    def submit(self, user: UnixUser, name: str, gpus: int) -> None:
        """Have a user's hub take in a job that runs until it is let end."""
        (user.home / f"{name}.sh").write_text(WAITS.format(name=name))
        limits = f"{{gpus: {gpus}, memory: 64MiB}}"
        job = f"jobs:\n  - {{name: {name}, run: sh {name}.sh, limits: {limits}}}\n"
        (user.home / f"{name}.yaml").write_text(job)
        done = self.types(user, "run", "--detach", f"{name}.yaml")
        assert done.wait(SECONDS) == 0

    def types(self, user: UnixUser, *words: str) -> subprocess.Popen[str]:
        """A command of a user."""
        path = os.pathsep.join([MADE_UP, *sys.path])
        env = {"HEADGATE_ARBITER": str(self.socket), "PYTHONPATH": path}
        env |= {"MADE_UP_GPU_MEMORY": str(user.home), "HEADGATE_REPORT": "off"}
        env |= {"HEADGATE_ON_HUB_DEATH": "stop"}
        return user.python("-m", "headgate", *words, env=env, stdout=subprocess.DEVNULL)

    def gpus(self, user: UnixUser, job: str) -> str:
        """Wait for the start of a job. Returns its GPUs."""
        path = user.home / f"{job}.gpus"
        until(lambda: path.exists() and path.read_text().strip(), SECONDS, f"the start of {job}")
        return path.read_text().strip()

    def waits(self, user: UnixUser, job: str) -> None:
        """Wait until a job's run says that it waits for the arbiter."""

        def says_so() -> bool:
            stores = user.home.glob(".local/share/headgate/runs/*/run.sqlite")
            return any(_waits(store, job) for store in stores)

        until(says_so, SECONDS, f"{job} waits")
        assert not (user.home / f"{job}.gpus").exists()

    def let_end(self, user: UnixUser, job: str) -> None:
        (user.home / f"{job}.end").touch()


def _waits(store: Path, job: str) -> bool:
    with suppress(HeadgateError), RunReader(store) as reader:
        rows = reader.query("SELECT state, reason FROM jobs WHERE name = ?", (job,))
        return any(row["state"] == "waiting" and "its turn" in row["reason"] for row in rows)
    return False


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
    assert machine.process is not None
    machine.rules.write_text("half_life: long\n")
    machine.process.send_signal(signal.SIGHUP)
    machine.says("the former rules hold")
    machine.rules.write_text("half_life: 2h\n")
    machine.process.send_signal(signal.SIGHUP)
    machine.says("is read again")
    assert machine.end() == 0
    assert not machine.socket.exists()
    machine.start()


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


def test_what_a_killed_hub_held_is_free_once_nothing_of_it_is_left(machine: Machine) -> None:
    ada, ben = machine.users
    machine.submit(ben, "e", gpus=4)
    machine.gpus(ben, "e")
    machine.submit(ada, "f", gpus=4)
    machine.waits(ada, "f")
    ben.end()
    machine.gpus(ada, "f")
    machine.let_end(ada, "f")
