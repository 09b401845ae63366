"""Talking to the hub, starting one where there is none; and finding the hubs of this user's other
allocations.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headgate
from headgate.hub.standard_input import StandardInput, offered
from headgate.machine import allocation
from headgate.model.errors import HeadgateError, HubError
from headgate.model.events import CONNECTED_GRACE_SECONDS, GRACE_SECONDS
from headgate.recorded import runs

START_SECONDS = 30.0
ENDING_SECONDS = CONNECTED_GRACE_SECONDS + GRACE_SECONDS
"""How long a hub that ends, or the guard of a dead one, may hold the place of the next."""
ANSWER_SECONDS = 60.0
TAKE_IN_SECONDS = 300.0
"""How long it may take to hand in a run: an engine that it is the first to name is started
meanwhile.
"""
REMADE_SECONDS = 3.0
"""How long a hub may take to make its sockets again that somebody removed."""
_LOOK_SECONDS = 0.02
_STALE_SECONDS = 86400.0
"""After so long without a hub the folder of an allocation's hubs is removed, with its log."""
_ALLOCATION = "allocation.json"


class HubGoneError(HubError):
    """The hub has closed the connection: it died, or it was ending."""


class Hub:
    """A connection to the hub of `HEADGATE_HOME`.

    Raises:
        HubError: It does not answer, or is of another version.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        hello = self.ask("hello")
        if hello["headgate"] != headgate.__version__:
            raise HubError(
                f"a hub of Headgate {hello['headgate']} is running (process {hello['pid']}), "
                f"this is {headgate.__version__}; it ends a minute after its last job, or when "
                "you stop that process"
            )

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go; what was submitted goes on."""
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, op: str, **request: object) -> None:
        """Send a request without waiting for its answer."""
        try:
            self._socket.sendall(json.dumps({"op": op, **request}).encode() + b"\n")
        except OSError as error:
            raise HubGoneError(f"the hub is gone: {error.strerror}") from error

    def submit(
        self,
        submission: object,
        policy: str | None,
        attach: bool,
        given: StandardInput | None = None,
    ) -> dict[str, Any]:
        """Hand in a run, as plain JSON values; what it is called and where its folder is.

        Args:
            given: Standard input of its one task; None: nothing.

        Raises:
            HeadgateError: As `ask`.
        """
        request = {"submission": submission, "policy": policy, "attach": attach}
        if given is None:
            return self.ask("submit", patience=TAKE_IN_SECONDS, **request)
        with offered(given) as path:
            return self.ask("submit", patience=TAKE_IN_SECONDS, **request, stdin=path)

    def ask(
        self, op: str, *, patience: float = ANSWER_SECONDS, **request: object
    ) -> dict[str, Any]:
        """Send a request and wait for its answer, for `patience` seconds; messages of a run that is
        attached must not be under way.

        Raises:
            HeadgateError: The hub's own error, with its exit code.
            HubError: The hub is gone or does not answer.
        """
        self.send(op, **request)
        answer = self.receive(patience)
        if answer is None:
            raise HubError(f"the hub did not answer within {patience:g} s")
        if "error" in answer:
            error = HeadgateError(answer["error"])
            error.exit_code = int(answer["exit_code"])
            raise error
        return answer

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message; None after `timeout` seconds without one.

        Raises:
            HubGoneError: The hub is gone.
        """
        deadline = time.monotonic() + timeout if timeout is not None else None
        while b"\n" not in self._buffer:
            left = max(deadline - time.monotonic(), 0.0) if deadline is not None else None
            if not select.select([self._socket], [], [], left)[0]:
                return None
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise HubGoneError(
                    "the hub died; its jobs are being stopped. `headgate status` says how to go on"
                )
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message = json.loads(line)
        return message if isinstance(message, dict) else {}

    def follow(self, timeout: float) -> Iterator[dict[str, Any] | None]:
        """Messages of the attached run, None whenever there was none for `timeout` seconds, until
        its report is written.
        """
        while True:
            message = self.receive(timeout)
            yield message
            # An answer that nobody waited for may be an error: a Ctrl-C that came after the end has
            # nothing to stop.
            if message is not None and message.get("type") == "reported":
                return


def connect(folder: Path | None = None) -> Hub | None:
    """The hub of a folder (None: of this process) that runs, None where none does.

    Raises:
        HubError: One runs and cannot be talked to.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(str(runs.sockets(folder) / "hub.sock"))
        return Hub(connection)
    except (FileNotFoundError, ConnectionRefusedError, HubGoneError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise


def clean() -> None:
    """Remove what hubs of this machine, and their guards, left that were both killed."""
    _clean(runs.hub())
    for folder in runs.hubs():
        if not allocation_of(folder):
            continue  # of another machine
        if any((folder / "boxes").glob("*")) or any(runs.sockets(folder).glob("*.sock")):
            _clean(folder)
        elif folder.parent.name == "hubs" and _is_stale(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _clean(folder: Path) -> None:
    lock = os.open(folder / "hub.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        from headgate.hub.watchdog import (
            leftovers,  # with all that boxes tasks in: while there is a hub nobody needs it
        )

        leftovers(folder)
        runs.remove_sockets(folder)
    except BlockingIOError:
        pass  # there is a hub or a guard, and it will
    finally:
        os.close(lock)


def connect_or_start() -> Hub:
    """The hub that runs, or a new one.

    Raises:
        HubError: None could be started.
    """
    folder = runs.hub()
    log = folder / "hub.log"
    begun = time.monotonic()
    deadline = begun + START_SECONDS
    process: subprocess.Popen[bytes] | None = None
    while True:
        if (hub := connect()) is not None:
            # it outlives this connection, and should leave no zombie when it ends
            if process is not None:
                threading.Thread(target=process.wait, name="hub", daemon=True).start()
            return hub
        now, locked = time.monotonic(), runs.is_locked(folder / "hub.lock")
        alive = process is not None and process.poll() is None
        # by one that ends: its jobs save what they have, which nobody should cut short
        if locked and not alive:
            deadline = now + START_SECONDS
            if now > begun + ENDING_SECONDS:
                pid = allocation_of(folder).get("pid", "of unknown number")
                raise HubError(
                    f"the hub on {runs.host()} (process {pid}) does not answer: it ends, as "
                    "soon as its jobs have, or "
                    "its socket is gone and cannot be made again. Try again in a moment, or "
                    "end that process"
                )
        if now > deadline or (process is not None and process.poll()):
            raise HubError(f"no hub could be started; its log is {log}{_last_line(log)}")
        # One that finds another, or the guard of a dead one, ends at once; the next waits until the
        # lock is free.
        if not alive and not locked:
            with open(log, "ab") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "headgate.hub.server"],
                    env={**os.environ, runs.HUB: str(folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    start_new_session=True,
                )
        time.sleep(_LOOK_SECONDS)


def await_guards() -> None:
    """Wait while the guard of a hub that died still lets its tasks save what they have."""
    deadline = time.monotonic() + ENDING_SECONDS
    while _silent() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def await_answer() -> list[Path]:
    """Wait a moment for hubs of this host that live and do not answer, as their sockets may be made
    again; the folders of those that still do not.
    """
    deadline = time.monotonic() + REMADE_SECONDS
    while (silent := _silent()) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return silent


def _silent() -> list[Path]:
    """The folders of hubs of this host that live, or whose guards do, and do not answer."""
    return [folder for folder in runs.hubs() if allocation_of(folder) and _is_winding_up(folder)]


def _is_winding_up(folder: Path) -> bool:
    if not runs.is_locked(folder / "hub.lock"):
        return False
    if (hub := connect(folder)) is not None:
        hub.close()
    return hub is None


def _is_stale(folder: Path) -> bool:
    return time.time() - folder.stat().st_mtime > _STALE_SECONDS and not runs.is_locked(
        folder / "hub.lock"
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f" and ends with: {lines[-1]}" if lines else ""


def publish_allocation(folder: Path) -> None:
    """Write the allocation of this process's hub into its folder, for the hubs of others to
    read.
    """
    ours = allocation.current()
    about = {
        "host": runs.host(),
        "pid": os.getpid(),
        "cpus": sorted(ours.cpus),
        "allocation": str(ours),
    }
    (folder / _ALLOCATION).write_text(json.dumps(about))


def allocation_of(folder: Path) -> dict[str, Any]:
    """What the last hub of a folder wrote of itself; empty where none did, or it is on another
    machine.
    """
    try:
        found = json.loads((folder / _ALLOCATION).read_text())
        return found if found["host"] == runs.host() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def overlapping(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """The folders of other hubs that have tasks on cores of this one's; what is to be told of that
    here, and there.
    """
    ours = allocation_of(folder)
    for other in runs.hubs():
        there = allocation_of(other) if other != folder else {}
        shared = frozenset(ours.get("cpus", ())) & frozenset(there.get("cpus", ()))
        if shared and next((other / "boxes").glob("*.json"), None) is not None:
            yield other, _warning(there, shared), _warning(ours, shared)


def _warning(other: dict[str, Any], shared: frozenset[int]) -> str:
    return (
        f"the hub of another allocation of yours ({other['allocation']}; process "
        f"{other['pid']}) has tasks on CPUs "
        f"{allocation.say_cpus(shared)} too: these CPUs are oversubscribed"
    )
