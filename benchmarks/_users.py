"""A machine with three Unix users, each with a hub of their own, and an arbiter or none."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import _frame
import psutil
from tests.arbiter.users import UnixUser, unix_users

from headgate.arbiter.process import Places
from headgate.arbiter.records import MachineJob
from headgate.client.machine import SharedMachine
from headgate.machine.cgroup_layout import CGROUPS, find_layout
from headgate.model.errors import HeadgateError
from headgate.recorded.reader import RunReader
from headgate.sampling.machine import topology
from headgate.testing.wait import until

SECONDS = 120.0
"""Longest that anything is waited for."""
_LOOK_SECONDS = 2.0
_HUB = "headgate.hub.server"


@dataclass(frozen=True)
class Look:
    """What the arbiter expected of a waiting job: the time of the look, the likely start and the
    latest one (s since the epoch; None: not known).
    """

    at: float
    likely: float | None
    latest: float | None


@dataclass
class Seen:
    """What was seen of the arbiter meanwhile.

    Attributes:
        looks: At jobs that waited.
        orders: The order of those that waited, at each look.
        starts: When jobs were granted their start (s since the epoch).
        cpu_seconds: CPU time of the arbiter.
        memory_bytes: The most memory that it had.
    """

    looks: dict[MachineJob, list[Look]] = field(default_factory=dict)
    orders: list[list[MachineJob]] = field(default_factory=list)
    starts: dict[MachineJob, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    memory_bytes: int = 0

    def errors(self) -> dict[str, Any]:
        """How the expected starts came true."""
        pairs = [
            (look, self.starts[job])
            for job, looks in self.looks.items()
            if job in self.starts
            for look in looks
        ]
        known = [(look, start) for look, start in pairs if look.likely is not None]
        bounded = [(look, start) for look, start in pairs if look.latest is not None]
        before = [
            (self.starts[first], self.starts[second])
            for order in self.orders
            for first, second in pairwise(job for job in order if job in self.starts)
        ]
        off = [abs(start - (look.likely or 0.0)) for look, start in known]
        return {
            "looks": len(pairs),
            "known": len(known),
            "bounded": len(bounded),
            "in_order": statistics.mean(a <= b for a, b in before) if before else None,
            "seconds_off": statistics.median(off) if off else None,
            "seconds_waited": (
                statistics.median(start - look.at for look, start in known) if known else None
            ),
            "by_the_latest": (
                statistics.mean(start <= (look.latest or 0.0) + 1.0 for look, start in bounded)
                if bounded
                else None
            ),
        }


@dataclass(frozen=True)
class UserRun:
    """How the jobs of a user went: (arrival, start, end) of each, in seconds since the epoch; and
    the CPU time (s) of the jobs and of the user's hub.
    """

    jobs: Mapping[str, tuple[float, float, float]]
    cpu_seconds: float
    hub_seconds: float


class UsersMachine:
    """Users of this machine.

    Args:
        folder: Everybody may read it.
        users: The users.
    """

    def __init__(self, folder: Path, users: Sequence[UnixUser]) -> None:
        self.folder, self.users = folder, users
        self._socket = folder / "run" / "arbiter.sock"
        self._homes = 0
        self._home = "home0"
        self._is_shared = False
        self.cores = float(topology().allowed)
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        version = f"python3.{sys.version_info.minor}"
        (bin_folder / "python").symlink_to(Path("/usr/bin") / version)
        self._path = f"{bin_folder}:/usr/local/bin:/usr/bin:/bin"

    @contextmanager
    def shared(self, rules: Mapping[str, object] | None) -> Iterator[Seen]:
        """With an arbiter of these rules, or without one; each user has a new HEADGATE_HOME, and no
        process afterwards.
        """
        self._homes += 1
        self._home, self._is_shared = f"home{self._homes}", rules is not None
        seen = Seen()
        with ExitStack() as undo:
            if rules is not None:
                arbiter = undo.enter_context(self._arbiter(rules))
                undo.enter_context(_watched(arbiter, self._socket, seen))
            undo.callback(self._end)  # first: an arbiter that ends removes only what is empty
            yield seen

    def _end(self) -> None:
        for user in self.users:
            user.end()

    @contextmanager
    def _arbiter(self, rules: Mapping[str, object]) -> Iterator[psutil.Process]:
        folder, file = self.folder / "state", self.folder / "arbiter.yaml"
        file.write_text(json.dumps(rules))
        command = [sys.executable, "-m", "headgate", "arbiter", "--json", "--rules", str(file)]
        command += ["--socket", str(self._socket), "--folder", str(folder)]
        # in a session of its own, so that Ctrl-C does not end it before the users' processes
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as arbiter:
            try:
                assert arbiter.stdout is not None
                if not arbiter.stdout.readline():
                    raise SystemExit("the arbiter did not start; its message is above")
                yield psutil.Process(arbiter.pid)
            finally:
                arbiter.terminate()
        shutil.rmtree(folder, ignore_errors=True)
        home = Places(folder=folder).home
        left = [base for base in find_layout(CGROUPS).bases.values() if (base / home).exists()]
        if left:
            folders = ", ".join(str(base / home) for base in left)
            print(f"the arbiter left cgroups: {folders}", file=sys.stderr)

    def home(self, user: UnixUser) -> Path:
        """The user's HEADGATE_HOME."""
        return user.home / self._home

    def types(self, user: UnixUser, *words: str, **options: Any) -> subprocess.Popen[str]:
        """A command of a user."""
        env = {
            "HEADGATE_ARBITER": str(self._socket) if self._is_shared else "",
            "HEADGATE_HOME": str(self.home(user)),
            "HEADGATE_REPORT": "off",
            "PATH": self._path,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self.home(user).mkdir(mode=0o700, exist_ok=True)
        os.chown(self.home(user), user.uid, user.gid)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        return user.start("python", "-m", "headgate", *words, env=env, **options)

    def prints(self, user: UnixUser, *words: str) -> str:
        """What a command of a user prints.

        Raises:
            SystemExit: It failed.
        """
        process = self.types(user, *words, stderr=subprocess.PIPE)
        output, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{user.name}: headgate {' '.join(words)}:\n{output}{errors[-2000:]}")
        return output

    def run(self, entries: Mapping[UnixUser, Sequence[Mapping[str, object]]]) -> list[UserRun]:
        """Have users run jobs at the same time, each those of a job file; how they went.

        Raises:
            SystemExit: A job failed.
        """
        commands = []
        for user, jobs in entries.items():
            file = user.home / "jobs.yaml"
            file.write_text(json.dumps({"jobs": list(jobs)}))
            commands.append(self.types(user, "run", str(file), "--policy", "headgate", "--json"))
        outputs = [command.communicate()[0] for command in commands]
        for user, command, output in zip(entries, commands, outputs, strict=True):
            if command.returncode:
                raise SystemExit(f"{output[-3000:]}\n{user.name}: a job failed")
        return [self._went(user) for user in entries]

    def submit(self, user: UnixUser, entry: Mapping[str, object]) -> None:
        """Have a user's hub take in a job."""
        file = user.home / "job.yaml"
        file.write_text(json.dumps({"jobs": [entry]}))
        self.prints(user, "run", "--detach", str(file))
        until(lambda: "running" in self.states(user), SECONDS, f"the start of {entry['name']}")

    def stop(self, user: UnixUser) -> None:
        """Have a user's hub kill all that it runs."""
        self.prints(user, "stop", "--all", "--kill")
        until(lambda: "running" not in self.states(user), SECONDS, "the end of what was stopped")

    def states(self, user: UnixUser) -> list[str]:
        """The states of the jobs of the user's latest run."""
        jobs = json.loads(self.prints(user, "status", "--json"))["jobs"]
        return [job["state"] for job in jobs]

    def _went(self, user: UnixUser) -> UserRun:
        """How the user's latest run went."""
        folder = max((self.home(user) / "runs").iterdir())
        with RunReader(folder / "run.sqlite") as reader:
            began = float(reader.meta()["began"])
            exits = [json.loads(row["exit"] or "{}") for row in reader.rows("tasks")]
            jobs = {
                row["name"]: (
                    began + float(row["submitted"]),
                    began + float(row["started"]),
                    began + float(row["ended"]),
                )
                for row in reader.rows("jobs")
            }
        cpu = sum(exit.get("cpu_seconds") or 0.0 for exit in exits)
        return UserRun(jobs, cpu, sum(map(_of_hub, user.pids())))


@contextmanager
def users_machine(count: int) -> Iterator[UsersMachine]:
    """A machine with so many users; they and all of theirs are gone afterwards.

    Raises:
        SystemExit: This process is not root's.
    """
    if os.geteuid() != 0:
        raise SystemExit("making users takes root: sudo python benchmarks/users.py")
    with _frame.leaving(), ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        folder.chmod(0o755)
        yield UsersMachine(folder, undo.enter_context(unix_users(count)))


@contextmanager
def _watched(process: psutil.Process, socket: Path, seen: Seen) -> Iterator[None]:
    """Look at the arbiter every few seconds, as root does."""
    ends, machine = threading.Event(), SharedMachine(socket)
    before = cpu_seconds(process)

    def watch() -> None:
        while not ends.wait(_LOOK_SECONDS):
            with suppress(HeadgateError, psutil.NoSuchProcess):
                now = machine.look()
                seen.orders.append([job.job for job in now.jobs if job.job and job.since is None])
                seen.memory_bytes = max(seen.memory_bytes, process.memory_info().rss)
                for job in now.jobs:
                    if job.job is None:
                        continue
                    if job.since is not None:
                        seen.starts[job.job] = job.since
                    else:
                        look = Look(now.at, job.at, job.latest)
                        seen.looks.setdefault(job.job, []).append(look)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        with suppress(psutil.NoSuchProcess):
            seen.cpu_seconds = cpu_seconds(process) - before


def _of_hub(pid: int) -> float:
    """CPU time of a hub; 0: it is no hub."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if _HUB in process.cmdline():
            return cpu_seconds(process)
    return 0.0


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process so far."""
    return float(sum(process.cpu_times()[:2]))
