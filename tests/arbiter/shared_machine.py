"""A machine with an arbiter that root started, and hubs of its users."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.arbiter.users import UnixUser
from tests.sampling import made_up

from headgate.model.errors import HeadgateError
from headgate.recorded.reader import RunReader
from headgate.testing.wait import until

SECONDS = 120.0
"""Longest that anything is waited for; a busy machine takes its time."""
MADE_UP = next(iter(made_up.__path__))
"""This machine with GPUs that it does not have."""
WAITS = """\
cd {folder}; cat /proc/self/cgroup > {name}.cgroups
echo $CUDA_VISIBLE_DEVICES > {name}.gpus; while [ ! -e {name}.end ]; do sleep 0.05; done
"""


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

    def read(self, rules: str) -> None:
        """Have the arbiter read other rules."""
        assert self.process is not None
        self.rules.write_text(rules)
        self.process.send_signal(signal.SIGHUP)

    def submit(
        self,
        user: UnixUser,
        name: str,
        gpus: int,
        *options: str,
        resumes: bool = False,
        **env: str,
    ) -> None:
        """Have a user's hub take in a job that runs until it is let end."""
        (user.home / f"{name}.sh").write_text(WAITS.format(name=name, folder=user.home))
        limits = f"{{gpus: {gpus}, memory: 64MiB}}"
        fields = f"run: sh {name}.sh, limits: {limits}, resumes: {str(resumes).lower()}"
        job = f"jobs:\n  - {{name: {name}, {fields}}}\n"
        (user.home / f"{name}.yaml").write_text(job)
        done = self.types(user, "run", "--detach", *options, f"{name}.yaml", env=env)
        assert done.wait(SECONDS) == 0

    def types(
        self, user: UnixUser, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A command of a user."""
        path = os.pathsep.join([MADE_UP, *sys.path])
        usual = {"HEADGATE_ARBITER": str(self.socket), "PYTHONPATH": path}
        usual |= {"MADE_UP_GPU_MEMORY": str(user.home), "HEADGATE_REPORT": "off"}
        usual |= {"HEADGATE_ON_HUB_DEATH": "stop", **(env or {})}
        return user.python("-m", "headgate", *words, env=usual, stdout=subprocess.DEVNULL)

    def gpus(self, user: UnixUser, job: str) -> str:
        """Wait for the start of a job. Returns its GPUs."""
        path = user.home / f"{job}.gpus"
        until(lambda: path.exists() and path.read_text().strip(), SECONDS, f"the start of {job}")
        return path.read_text().strip()

    def waits(self, user: UnixUser, job: str, why: str = "its turn") -> None:
        """Wait until a job's run says that it waits for the arbiter, and why."""

        def says_so() -> bool:
            stores = user.home.glob(".local/share/headgate/runs/*/run.sqlite")
            return any(_waits(store, job, why) for store in stores)

        until(says_so, SECONDS, f"{job} waits")
        assert not (user.home / f"{job}.gpus").exists()

    def seen(self, what: str = "jobs") -> list[dict[str, Any]]:
        """What root sees on the machine."""
        with socket.socket(socket.AF_UNIX) as asks:
            asks.connect(str(self.socket))
            asks.sendall(b'{"type": "Look"}\n')
            rows: list[dict[str, Any]] = json.loads(asks.makefile().readline())[what]
            return rows

    def let_end(self, user: UnixUser, job: str) -> None:
        (user.home / f"{job}.end").touch()


def _waits(store: Path, job: str, why: str) -> bool:
    with suppress(HeadgateError), RunReader(store) as reader:
        rows = reader.query("SELECT state, reason FROM jobs WHERE name = ?", (job,))
        return any(row["state"] == "waiting" and why in row["reason"] for row in rows)
    return False
