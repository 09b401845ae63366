"""All tasks of one distributed job as real processes, and as much of a hub as they need: for tests
of what runs in tasks, before and beside a hub.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from tests.harness.warm import TORCH, WarmProcess, warm_python

from headgate.engines.channel import Connection, listen
from headgate.engines.launch import inject, server_command
from headgate.hub.state.peers import AttemptSyncPoints, Peers
from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan
from headgate.scripts.facts import source_facts
from headgate.testing import wait

RUN = "run/job/"
_SECONDS = 240.0
_KEY = "secret"


@dataclass(slots=True)
class _Process:
    popen: subprocess.Popen[bytes] | WarmProcess
    output: Path
    messages: list[dict[str, Any]] = field(default_factory=list)
    connection: Connection | None = None


class Gang:
    """Starts the servers and workers of `plan`, each a process of this machine on the loopback
    network.

    Args:
        folder: Where sockets, logs and checkpoints go.
        plan: What to start. Tasks on nodes of different names take each other to be on different
            machines; where it names none, all are on one.
        command: What each worker runs.
        environment: Variables added to those of each task.
        encrypt: Whether the tasks encrypt what they send each other.
        warm: Modules that take seconds of CPU to import: what runs under this Python is forked from
            one that has imported them, see `warm`. None: each task is an interpreter started for
            it, as under an engine.

    Example:
        >>> plan = Plan(strategy="ps", workers=2, servers=1, batch_per_worker=None)
        >>> with Gang(tmp_path, plan, ["python", "train.py"]) as gang:
        ...     gang.start()
        ...     gang.finish()
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        encrypt: bool = True,
        warm: Sequence[str] | None = TORCH,
    ) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.peers = Peers(plan, encrypt)
        self.sync_points = AttemptSyncPoints(self.peers.workers, self._pass_on)
        self._plan = plan
        self._command = command
        self._warm = warm
        self._environment = environment or {}
        self._processes: dict[str, _Process] = {}
        self._left: set[str] = set()  # whose end the others were told of
        self._to_settle: set[str] = set()  # which have ended, and whose last messages may be unread
        self._waiting: list[TaskName] = []  # who joins and has not been served
        self._asked = False  # whether the donor is to save for them
        self._lock = threading.Condition()
        self._server = listen(folder / "channel")
        self._connections: set[Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="gang", daemon=True)
        self._thread.start()

    def __enter__(self) -> Gang:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- what a test does -------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Every task of the plan, servers first."""
        return [f"server-{i}" for i in range(self._plan.servers)] + [
            f"worker-{i}" for i in range(self._plan.workers)
        ]

    def start(self, *names: str, joins: bool = False, **environment: str) -> None:
        """Start these tasks; all of the plan if none is named. A task that has ended is started
        anew.
        """
        for name in names or self.names:
            with self._lock:
                self.peers.start(TaskName(name), self._node(name), "127.0.0.1", joins)
        for name in names or self.names:
            output = self.folder / f"{name}.log"
            script = next((Path(part) for part in self._command if part.endswith(".py")), None)
            libraries = source_facts(script).libraries if script is not None else ()
            command = (
                server_command(sys.executable, libraries)
                if name.startswith("server-")
                else self._command
            )
            # under the lock: its first message belongs to this life of the task
            with open(output, "ab") as file, self._lock:
                process = self._run(command, self._variables(name, environment), file)
                self._processes[name] = _Process(process, output)
                self._left.discard(name)
        self._tell()

    def kill(self, name: str) -> None:
        """kill -9; the others are told."""
        self._processes[name].popen.kill()
        self.left(name)

    def left(self, name: str) -> int:
        """Wait until a task has ended, take all that it sent, and tell the others; its exit code.

        Raises:
            TimeoutError: What it sent was not read: the thread that reads has failed.
        """
        code = self._processes[name].popen.wait(_SECONDS)
        with self._lock:
            self._to_settle.add(name)
            if not self._lock.wait_for(lambda: name not in self._to_settle, _SECONDS):
                raise TimeoutError(f"the last messages of {name} were not read")
            self._left.add(name)
            self.peers.remove(TaskName(name))
            self.sync_points.remove(TaskName(name))
        self._tell()
        return code

    def send(self, name: str, message: Mapping[str, object]) -> None:
        """Send a message down to a task, which has to be connected."""
        connection = self._processes[name].connection
        if connection is None or not connection.send(message):
            raise ConnectionError(f"{name} is not connected, or does not read")

    def pid(self, name: str) -> int:
        """Process id of a task."""
        return self._processes[name].popen.pid

    def of(self, name: str, kind: str) -> list[dict[str, Any]]:
        """The messages of that type that a task sent so far, in its present life."""
        with self._lock:
            return [
                message for message in self._processes[name].messages if message.get("type") == kind
            ]

    def wait_for(self, name: str, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """The messages of that type, once there are at least `count`.

        Raises:
            TimeoutError: There are fewer after four minutes.
        """
        wait.until(
            lambda: len(self.of(name, kind)) >= count,
            _SECONDS,
            f"message {count} of type {kind} of {name}",
        )
        return self.of(name, kind)

    def output(self, name: str) -> str:
        """What a task printed."""
        return self._processes[name].output.read_text()

    def finish(self) -> None:
        """Wait until all workers have ended well, then stop the servers. Those that the test has
        waited for by `left`, or killed, do not count.

        Raises:
            AssertionError: A task ended with another exit code than 0; the message has its output.
        """
        remaining = [name for name in self._processes if name not in self._left]
        workers = [name for name in remaining if name.startswith("worker-")]
        servers = [name for name in remaining if name.startswith("server-")]
        codes = {name: self.left(name) for name in workers}
        for name in servers:
            with contextlib.suppress(ConnectionError):
                self.send(name, {"type": "stop"})
        codes |= {name: self.left(name) for name in servers}
        failed = {name: code for name, code in codes.items() if code != 0}
        if failed:
            outputs = "\n".join(f"--- {name}\n{self.output(name)}" for name in failed)
            raise AssertionError(f"tasks ended with {failed}:\n{outputs}")

    def close(self) -> None:
        """Kill what runs."""
        for process in self._processes.values():
            process.popen.kill()
            process.popen.wait()
        self._closed = True
        self._thread.join(_SECONDS)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    # --- as much of a hub as they need ------------------------------------------------------------

    def _run(
        self, command: Sequence[str], variables: Mapping[str, str], output: BinaryIO
    ) -> subprocess.Popen[bytes] | WarmProcess:
        if self._warm is not None and command[0] == sys.executable:
            return warm_python(*self._warm).start(
                command[1:], env=variables, cwd=self.folder, output=output.fileno()
            )
        return subprocess.Popen(
            command, env=variables, cwd=self.folder, stdout=output, stderr=output
        )

    def _node(self, name: str) -> str:
        role, _, index = name.partition("-")
        nodes = self._plan.worker_nodes if role == "worker" else self._plan.server_nodes
        return nodes[int(index) % len(nodes)] if nodes else "here"

    def _variables(self, name: str, added: Mapping[str, str]) -> dict[str, str]:
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")
        }
        return {
            **inherited,
            "PYTHONPATH": str(inject(self.folder / "inject")),
            "OMP_NUM_THREADS": "1",
            "HEADGATE_CHANNEL": f"unix:{self.folder / 'channel'}",
            "HEADGATE_TASK": RUN + name,
            "HEADGATE_KEY": _KEY,
            "HEADGATE_CHECKPOINTS": str(self.checkpoints),
            "HEADGATE_MODE": "run",
            **self._environment,
            **added,
        }

    def _tell(self) -> None:
        with self._lock:
            view = self.peers.view()
            for process in self._processes.values():
                if process.connection is not None:
                    process.connection.send(view)

    def _pass_on(self, name: str, message: Mapping[str, object]) -> None:
        connection = self._processes[name].connection
        if connection is not None:
            connection.send(message)

    def _watch(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._server:
                    self._accept()
                elif isinstance(key.fileobj, Connection):
                    self._receive(key.fileobj)
            with self._lock:
                ended = list(self._to_settle)
            for name in ended:
                self._settle(name)
                with self._lock:
                    self._to_settle.discard(name)
                    self._lock.notify_all()

    def _settle(self, name: str) -> None:
        """Read everything that a task sent before it ended, then close its connections."""
        while self._accept():
            pass
        for connection in list(self._connections):
            # one that has not been read yet may be this task's
            while connection.task is None or connection.task.name == name:
                if not self._receive(connection):
                    break
            its = connection.task is not None and connection.task.name == name
            if its and connection in self._connections:
                self._disconnect(connection)

    def _accept(self) -> bool:
        """Take in the next connection; whether there was one."""
        try:
            connection = Connection(self._server.accept()[0], lambda _: _KEY)
        except BlockingIOError:
            return False
        self._connections.add(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        return True

    def _receive(self, connection: Connection) -> bool:
        """Take the messages that have arrived. False: there were none, or it is over."""
        try:
            messages = connection.receive()
        except BlockingIOError:
            return False
        if messages is None:
            self._disconnect(connection)
            return False
        if connection.task is not None:
            for message in messages:
                self._take(connection.task.name, connection, message)
        return True

    def _disconnect(self, connection: Connection) -> None:
        self._connections.remove(connection)
        self._selector.unregister(connection)
        with self._lock:
            for process in self._processes.values():
                if process.connection is connection:
                    process.connection = None
        connection.close()

    def _take(self, name: TaskName, connection: Connection, message: dict[str, Any]) -> None:
        with self._lock:
            self._processes[name].messages.append(message)
            donor = self.peers.donor()
        match message["type"]:
            case "hello":
                with self._lock:
                    self._processes[name].connection = connection
                    connection.send(self.peers.welcome(name, threads=1))
                    connection.send(self.peers.view())
            case "listening":
                with self._lock:
                    self.peers.listen(name, message["endpoints"])
                self._tell()
            case "meet":
                with self._lock:
                    self.sync_points.wait(name, message)
            case "position":
                with self._lock:
                    self.sync_points.pass_position(name, message["standing"])
            case "joining" if donor is not None:
                self._waiting.append(name)
                if not self._asked:
                    self._asked = True
                    self.send(donor, {"type": "checkpoint", "hold": True})
            case "checkpoint" if message["why"] == "join":
                for joiner in self._waiting:
                    self.send(joiner, {"type": "state", "path": message["path"]})
                with self._lock:
                    self.peers.activate(*self._waiting)
                self._waiting, self._asked = [], False
                self._tell()
                self.send(name, {"type": "release"})
