"""A Ray cluster on the nodes of a lab, and who works on it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.engines.ray.accounts import Accounts, reader
from tests.engines.ray.cluster import folders_left
from tests.hub.traces import HUB, command, variables
from tests.hub.user import SECONDS, SOURCE, Done, User

from headgate import lab
from headgate.recorded.reader import RunReader
from headgate.testing import wait

LAB = """
lab: true
name: hill
oversubscribe: true
nodes:
  - {name: a, cores: 2, memory: 4GiB, nic: 1Gbit}
  - {name: b, cores: 2, memory: 2GiB, nic: 1Gbit}
  - {name: c, cores: 2, memory: 2GiB, nic: 1Gbit}
"""
ADDRESS = "10.77.0.1:6379"
RAY = ("--engine", "ray", "--address", ADDRESS)
ENDLESS = ("--", "--epochs", "1000000")
START_SECONDS = 120.0
LEAVE_SECONDS = 120.0
"""Ray ends the workers of a raylet, agents among them, 60 s after that has lost its head."""

AGENT = "ray::HeadgateAgent"
WARDEN = "headgate.engines.remote.watchdog"

# A machine that is busy with other tests takes its time to answer.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "2",
}


class Hill:
    """Raylets on the nodes of lab `hill`, the head on a.

    Args:
        folder: With the lab's `HEADGATE_HOME`.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        # sockets' paths must be short
        self._folder = Path(tempfile.mkdtemp(prefix="hill-", dir="/tmp"))
        self._raylets: dict[str, subprocess.Popen[bytes]] = {}
        self._accounts: Accounts | None = None
        self._readers = ExitStack()
        self.hubs: set[int] = set()
        """Process ids of those that have been seen."""

        token = self._folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        """What a driver needs as well."""
        self.docker = self._folder / "docker.sock"
        """Where agents look for a Docker Engine; there is none."""

    def starts(self, *nodes: str) -> None:
        """Start raylets, and wait until the head has them."""
        for node in nodes:
            where = (
                ("--head", "--port", ADDRESS.split(":")[1], "--include-dashboard", "false")
                if node == "a"
                else ("--address", ADDRESS)
            )
            words = (
                *(
                    "env",
                    "-u",
                    "HEADGATE_HOME",
                    sys.executable,
                    "-m",
                    "ray.scripts.scripts",
                    "start",
                    "--block",
                ),
                *(*where, "--node-ip-address", address(node), "--num-cpus", "2"),
                *("--temp-dir", str(self._folder / node), "--disable-usage-stats"),
                *("--object-store-memory", "80000000"),
            )
            with self._said(node).open("wb") as output:
                self._raylets[node] = subprocess.Popen(
                    within(node, *words),
                    env={
                        **os.environ,
                        **HEALTH,
                        **self.variables,
                        "DOCKER_HOST": f"unix://{self.docker}",
                        "HEADGATE_HOME": str(self.home),
                        "PYTHONPATH": str(SOURCE),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            if node == "a":
                self._wait_for(node)
        for node in nodes:
            self._wait_for(node)

    def _wait_for(self, node: str) -> None:
        wait.until(
            lambda: "Ray runtime started" in self._said(node).read_text(),
            START_SECONDS,
            f"a raylet on {node}",
        )

    def _said(self, node: str) -> Path:
        return self._folder / f"{node}.log"

    def processes(self, node: str) -> dict[int, str]:
        """Command lines of the processes on a node, by number."""
        place = lab.nodes("hill").node(node).place
        assert place is not None
        room = os.stat(place.namespace).st_ino
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/net").st_ino == room:
                    found[int(entry)] = " ".join(command(int(entry)))
        return found

    def accounts(self) -> Accounts:
        """Ray's own, as a driver on node a reads them."""
        if self._accounts is None:
            self._accounts = self._readers.enter_context(
                reader(
                    ADDRESS,
                    lambda *words: within("a", "env", "-u", "HEADGATE_HOME", *words),
                    {
                        **os.environ,
                        **self.variables,
                        "HEADGATE_HOME": str(self.home),
                        "PYTHONPATH": str(SOURCE),
                    },
                )
            )
        return self._accounts

    def left(self) -> list[str]:
        """What there is of Headgate on the nodes, a line each: agents and their watchdogs, tasks,
        folders, cgroups; on a, where hubs are at home, not these.
        """
        found = [f"{path} of an agent" for hub in self.hubs for path in folders_left(hub)]
        for node in "abc":
            for pid, line in self.processes(node).items():
                ours = (
                    line.startswith(AGENT)
                    or WARDEN in line
                    or (node != "a" and "-m headgate" in line)
                )
                if ours or "HEADGATE_TASK" in variables(pid):
                    found.append(f"{line} on {node}")
        return found

    def finds_nothing_left(self) -> None:
        """Nothing is on the nodes nor, while there is a head, in Ray's accounts, at the latest
        after a while.
        """
        try:
            wait.until(lambda: not self.left(), LEAVE_SECONDS, "nothing is left on the nodes")
        except TimeoutError as error:
            raise TimeoutError("\n".join([str(error), *self.left()])) from None
        if "a" in self._raylets:
            self.accounts().show(lambda table: table.whole, "Ray's accounts are whole")

    def kills(self, node: str, *words: str) -> None:
        """kill -9 of the processes of a node with one of these in their command lines."""
        for pid, line in self.processes(node).items():
            if any(word in line for word in words):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def loses(self, node: str) -> None:
        """kill -9 of all of Ray on a node, and what hangs on it; of a: of the head."""
        if node == "a":
            self._readers.close()
            self._accounts = None
        self.kills(node, "/raylet/raylet", "gcs_server", "ray.scripts.scripts")
        self._raylets.pop(node).wait(60)

    def ends(self) -> None:
        """End all raylets."""
        self._readers.close()
        for raylet in self._raylets.values():
            raylet.terminate()
        for raylet in self._raylets.values():
            raylet.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)


def within(node: str, *words: str) -> list[str]:
    """A command that runs on a node of the lab."""
    return [sys.executable, "-m", "headgate", "lab", "exec", node, "--", *words]


def address(node: str) -> str:
    return f"10.77.0.{'abc'.index(node) + 1}"


class Somebody(User):
    """Types commands on node a: the hub that they start is a process of the head's machine.

    Args:
        home: Their `HEADGATE_HOME`; None: the lab's.
    """

    warm = False  # a warm interpreter is on no node

    def __init__(self, folder: Path, hill: Hill, speed: Path, home: Path | None = None) -> None:
        super().__init__(folder, home or hill.home, speed)
        self._lab = hill.home
        self._hill = hill
        # A hub outlives a head that is killed until Ray has cleared up after it.
        self.variables |= {**hill.variables, "HEADGATE_IDLE_SECONDS": "300"}
        # By their home `Traces` finds the tasks on the nodes.
        self.variables["HEADGATE_RAY_ENV"] = "HEADGATE_HOME"

    def command(self, *words: str) -> list[str]:
        typed = super().command(*words)
        if words[0] not in ("run", "resume", "plan", "calibrate"):
            return typed
        return self.on_the_head(*typed)

    def on_the_head(self, *command: str) -> list[str]:
        """A command that runs on node a."""
        # It is the lab's home that knows node a.
        return [
            "env",
            f"HEADGATE_HOME={self._lab}",
            *within("a", "env", f"HEADGATE_HOME={self.home}", *command),
        ]

    def types(self, *words: str, code: int = 0, **variables: str) -> Done:
        done = super().types(*words, code=code, **variables)
        self._hill.hubs |= {*self.traces.processes(HUB)}
        return done

    def leaves(self) -> None:
        super().leaves()
        self._hill.finds_nothing_left()

    def runs(self, *words: str, code: int = 0) -> str:
        """Run jobs on the cluster until they end; the id of the run."""
        told = self.types("run", *words, *RAY, code=code).stdout
        return told.split()[1]

    def begins(self, *words: str) -> str:
        """Start a run without an end on the cluster, and leave it once it takes steps; the id of
        the run.
        """
        run = str(self.types("run", "--detach", "--json", *words, *RAY, *ENDLESS).json["run"])
        self.sees_progress("learns", run)
        return run

    def all_runs(self) -> set[str]:
        """Ids of the runs there are."""
        return {folder.parent.name for folder in (self.home / "runs").glob("*/run.sqlite")}

    def rows(self, run: str, table: str) -> list[dict[str, Any]]:
        """A table of a run's store."""
        with RunReader(self.home / "runs" / run / "run.sqlite") as reader:
            return list(reader.rows(table))

    def losses(self, run: str, job: str) -> list[tuple[int, float]]:
        """Step and loss of what a job reported."""
        return [
            (row["step"], row["loss"])
            for row in self.rows(run, "progress")
            if row["task"] == f"{job}/worker-0"
        ]

    def sees_progress(self, job: str, run: str | None = None) -> None:
        """Wait until a job has taken steps."""
        self.sees_job(job, lambda entry: (entry.get("step") or 0) > 2, run, "takes steps")

    def said(self, run: str, *kinds: str) -> list[str]:
        """The texts of a run's events of these kinds."""
        return [row["text"] for row in self.rows(run, "events") if row["kind"] in kinds]

    def sees_event(self, run: str, kind: str, part: str) -> None:
        """Wait until an event of a run says so."""
        try:
            wait.until(
                lambda: any(part in text for text in self.said(run, kind)),
                SECONDS,
                f"{kind}: {part}",
            )
        except TimeoutError as error:
            raise TimeoutError(
                f"{error}\n{self.said(run, 'fault', 'warning', 'note', 'failed')}"
            ) from None

    def goes_on(self, run: str) -> None:
        """Wait until a run's job has taken more steps than now, whichever worker tells of them."""

        def step() -> int:
            return max((row["step"] or 0 for row in self.rows(run, "progress")), default=0)

        before = step()
        wait.until(lambda: step() > before + 5, SECONDS, f"steps after {before}")
