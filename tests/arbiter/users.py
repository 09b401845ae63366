"""Users of the machine, made for a test and removed with their processes."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.wait import until

_LOCKED = {"useradd": 1, "userdel": 1}
"""Exit status while another process changes the users of this machine."""
_NO_USER = 6
_MOST_TRIES = 50
_NAMES = "abcdefgh"
_FIRST_UID = 100_000
"""Numbers of users are of one process of tests each: useradd gives that of a deleted one, whose
processes a test has still to end, to the next who asks.
"""
_PUBLIC = "/usr/local/bin:/usr/bin:/bin"


def _python() -> str:
    """This version of Python, where every user may run it; not in a home of root."""
    for path in (sys.executable, shutil.which(f"python3.{sys.version_info.minor}", path=_PUBLIC)):
        folders = Path(path).resolve().parents if path is not None else ()
        if path is not None and all(folder.stat().st_mode & 0o001 for folder in folders):
            return path
    pytest.skip(f"no python3.{sys.version_info.minor} that every user may run, in {_PUBLIC}")


class UnixUser:
    """A user of this machine.

    Args:
        name: The user's name.
    """

    def __init__(self, name: str) -> None:
        entry = pwd.getpwnam(name)
        self.name, self.uid, self.gid = name, entry.pw_uid, entry.pw_gid
        self.home = Path(entry.pw_dir)
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *argv: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a program as this user, in a session of its own."""
        surroundings = {"PATH": _PUBLIC, "HOME": str(self.home), "USER": self.name}
        process = subprocess.Popen(
            argv,
            env={**surroundings, **(env or {})},
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            text=True,
            start_new_session=True,
            **{"cwd": self.home, **options},
        )
        self._started.append(process)
        return process

    def python(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start Python as this user, with the packages of this one."""
        env = {"PYTHONPATH": os.pathsep.join(sys.path), **options.pop("env", {})}
        return self.start(_python(), *arguments, env=env, **options)

    def pids(self) -> list[int]:
        """The processes that this user owns."""
        pids = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal():  # whose folder is root's while it exits
                    lines = (
                        line.partition(":") for line in (entry / "status").read_text().splitlines()
                    )
                    facts = {name: text.split() for name, _, text in lines}
                    if facts["Uid"][0] == str(self.uid) and facts["State"][0] != "Z":
                        pids.append(int(entry.name))
        return pids

    def delete(self) -> None:
        """Delete the user, whose processes go on."""
        _change("userdel", "--force", self.name)

    def end(self) -> None:
        """End all processes of this user."""

        def is_gone() -> bool:
            pids = self.pids()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        until(is_gone, seconds=120, what=f"the end of the processes of {self.name}")
        for process in self._started:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                with suppress(OSError):  # what is left in it
                    pipe.close()
        self._started.clear()


@contextmanager
def unix_users(count: int) -> Iterator[list[UnixUser]]:
    """So many users; they, their homes and processes are gone afterwards. A machine that exists for
    tests alone names those that it has.
    """
    if os.geteuid() != 0:
        pytest.skip("making users takes root")
    if present := os.environ.get("HEADGATE_TEST_USERS"):
        with ExitStack() as undo:
            users = [UnixUser(name) for name in present.split(",")[:count]]
            for user in users:
                undo.callback(user.end)
            yield users
        return
    with tempfile.TemporaryDirectory(prefix="headgate-users-") as folder, ExitStack() as undo:
        os.chmod(folder, 0o755)
        users = []
        for i in range(count):
            name = f"hgtest{os.getpid()}{_NAMES[i]}"
            home, uid = os.path.join(folder, name), str(_FIRST_UID + len(_NAMES) * os.getpid() + i)
            words = ("--no-log-init", "--create-home", "--home-dir", home, "--uid", uid, name)
            _change("useradd", *words)
            undo.callback(_change, "userdel", name)
            users.append(UnixUser(name))
            undo.callback(users[-1].end)
        yield users


def _change(program: str, *arguments: str) -> None:
    for _ in range(_MOST_TRIES):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != _LOCKED[program] or "lock" not in done.stderr:
            break
        time.sleep(0.1)
    is_gone = program == "userdel" and done.returncode == _NO_USER  # a test has deleted it
    if done.returncode and not is_gone:
        raise RuntimeError(f"{program}: {done.stderr.strip()}")
