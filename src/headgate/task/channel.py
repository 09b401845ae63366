"""The task's end of the channel to its engine: JSON lines over a Unix socket.

The channel never blocks the training loop. A daemon thread reads messages, and sends what the
socket did not take at once. It raises nothing into the script. If the engine is gone, `stopping` is
`orphaned`.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from headgate import __version__
from headgate.task.environment import TaskEnvironment
from headgate.task.grants import Grant

PROTOCOL = 1
_CONNECT_SECONDS = 5.0
_AGAIN_SECONDS = 0.2
_POSITIONS = ("position", "elsewhere")
"""Names of the message with another worker's position. Hubs before 0.3 use the second."""
_BACKLOG_BYTES = 1 << 20
"""Unsent bytes past which droppable messages (progress, spans) are dropped."""
_LINE_BYTES = 1 << 20
"""Longest line that is read. An engine that sends more is not one."""


class Channel:
    """A connection to the engine, or the lack of one.

    Attributes:
        pending: Whether a request of the engine has not been taken yet. Each step reads this one
            attribute.
        pending_since: `time.monotonic()` when the oldest such request arrived.
        stopping: `stop` after a request to end, `orphaned` when the engine is gone, otherwise
            empty. Never reset.
        welcome: The engine's greeting; empty until it arrives.
        refused: Process id of another process of this task that is connected already. The engine
            refuses this one. None: not refused.
        peers: The latest view of the job's tasks; empty until the first arrives.
        spin: Whether waiting compute threads may spin. They may not if other jobs need the cores.
        gate: The latest message with a grant, which steps are held to; None: steps are not held.
        state: The checkpoint from which a joining task starts; empty until it is known.
        met: The values of all workers at the latest barrier; None until all have come.
        positions: Positions, by index, of workers that this one may wait for in vain.
        watcher: If set, called from the reading thread with each view and each `state`. It must not
            block.
    """

    def __init__(self, connection: socket.socket | None) -> None:
        self.pending = False
        self.pending_since = 0.0
        self.stopping = ""
        self.welcome: Mapping[str, Any] = {}
        self.refused: int | None = None
        self.peers: Mapping[str, Any] = {}
        self.spin = True
        self.gate: Grant | None = None
        self.state = ""
        self.met: list[Mapping[str, Any]] | None = None
        self.positions: dict[int, Mapping[str, Any]] = {}
        self.watcher: Callable[[Mapping[str, Any]], None] | None = None
        self._threads: int | None = None
        self._checkpoint = False
        self._hold = False
        self._holding = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._unsent = bytearray()
        self._cut = False  # the first line of that was sent in part
        # where to connect to the next hub, and what to say; None: it ends with its hub
        self._next: tuple[str, bytes] | None = None
        self._apart = False  # its hub is gone, and the next has not come
        self._closed = connection is None
        if connection is None:
            return
        connection.setblocking(False)
        self._connection = connection
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        files = (connection.fileno(), self._wake_read, self._wake_write)
        self._files = {file: _identity(file) for file in files}
        os.register_at_fork(after_in_child=self._leave_to_parent)
        threading.Thread(target=self._listen, name="headgate-channel", daemon=True).start()

    @classmethod
    def open(
        cls,
        environment: TaskEnvironment,
        framework: str,
        framework_version: str,
        seed: int | None,
        observes: bool = False,
    ) -> Channel:
        """Connect and say hello. If the engine cannot be reached, the channel discards everything.

        Args:
            environment: This task's identity.
            framework: Name of the framework in use.
            framework_version: Its version.
            seed: The last seed of its random generator, set by the script or at random; None if it
                has none.
            observes: Whether the task only reports observations and obeys nothing, because the
                script calls none of Headgate's libraries.
        """
        if environment.channel is None:
            return cls(None)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(environment.channel)
        except OSError:
            connection.close()
            return cls(None)
        channel = cls(connection)
        hello = {
            "type": "hello",
            "v": PROTOCOL,
            "task": environment.task,
            "key": environment.key,
            "pid": os.getpid(),
            "framework": framework,
            "framework_version": framework_version,
            "seed": seed,
            "observes": observes,
            "library": __version__,
            "python": sys.version.split()[0],
        }
        channel.send(hello)
        if environment.outlives:
            channel._next = environment.channel, _line(hello)
        return channel

    @property
    def connected(self) -> bool:
        return not self._closed

    def send(self, message: Mapping[str, object], can_be_missed: bool = False) -> None:
        """Send a message to the engine. Returns at once. Without an engine the message is dropped.

        Args:
            message: Plain JSON values. Floats that JSON lacks are sent as the strings `nan`, `inf`
                and `-inf`.
            can_be_missed: Drop it if the engine does not read and too much is unsent.
        """
        if not self.connected:
            return
        line = _line(message)
        with self._lock:
            if len(self._unsent) > _BACKLOG_BYTES and (can_be_missed or self._apart):
                return
            if self._apart and can_be_missed:
                return
            self._unsent += line
            self._send_pending()
            left = bool(self._unsent)
        if left:
            self._wake()

    def sync(self, message: Mapping[str, object]) -> None:
        """Send this task's value at a barrier. `met` is None until all workers have sent theirs."""
        self.met = None
        self.send(message)

    def flush(self, seconds: float) -> bool:
        """Wait up to `seconds` until the kernel has everything that was sent. Returns whether it
        has.
        """
        deadline = time.monotonic() + seconds
        while self.connected:
            with self._lock:
                if not self._closed:
                    self._send_pending()
                if not self._unsent:
                    return True
                writable = select.poll()
                writable.register(self._connection, select.POLLOUT)
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._apart:
                time.sleep(min(left, _AGAIN_SECONDS))
            else:
                writable.poll(left * 1000)
        return not self._unsent

    def stop(self) -> None:
        """Act as if the engine had asked this task to end."""
        self._obey(b'{"type": "stop"}')

    def take_threads(self) -> int | None:
        """The new number of compute threads; None if neither it nor `spin` has changed."""
        with self._lock:
            threads, self._threads = self._threads, None
            self._settle()
        return threads

    def take_checkpoint(self) -> bool:
        """Whether a checkpoint was requested since the last call."""
        with self._lock:
            asked, self._checkpoint = self._checkpoint, False
            self._settle()
        return asked

    def take_hold(self) -> bool:
        """Whether a checkpoint for a joining task was requested since the last call."""
        with self._lock:
            asked, self._hold = self._hold, False
            self._settle()
        return asked

    def hold(self, seconds: float) -> None:
        """Wait until the tasks that the checkpoint was saved for have joined, or are no longer
        awaited.
        """
        self.wait_for(lambda: self._hold or not self._holding, seconds)

    def wait_for(
        self, condition: Callable[[], bool], seconds: float, through_stop: bool = False
    ) -> bool:
        """Wait until `condition` holds, or nobody is connected. It is checked after each message.

        Args:
            condition: The condition.
            seconds: Longest wait.
            through_stop: Whether to keep waiting when this task is asked to stop.

        Returns:
            Whether the condition holds.
        """

        def over() -> bool:
            return condition() or self._closed or (bool(self.stopping) and not through_stop)

        with self._changed:
            self._changed.wait_for(over, seconds)
            return condition()

    def close(self) -> None:
        """Say goodbye. Messages still unsent are lost."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._unsent.clear()
        self._wake()

    def _settle(self) -> None:
        self.pending = bool(
            self._threads is not None or self._checkpoint or self._hold or self.stopping
        )

    def _wake(self) -> None:
        try:
            if self._is_open(self._wake_write):
                os.write(self._wake_write, b"w")
        except OSError:
            return  # the pipe is full, so the reader is waking up already

    def _is_open(self, file: int) -> bool:
        """Whether a file is still this channel's. A script may close all files, as a daemon does,
        and then open its own under the same numbers.
        """
        try:
            return _identity(file) == self._files.get(file)
        except OSError:
            return False

    def _send_pending(self) -> None:
        """Send what the kernel takes without blocking. Call with the lock held."""
        if not self._is_open(self._connection.fileno()):
            self._closed = True
            self._unsent.clear()
            return
        if self._apart:
            return
        try:
            while self._unsent:
                sent = self._connection.send(self._unsent)
                self._cut = self._unsent[sent - 1 : sent] != b"\n"
                del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # the reader sees the end of the connection and says so
            if self._next is None:
                self._unsent.clear()

    def _listen(self) -> None:
        self._read()
        while self._meets_next():
            self._read()
        self._ended()

    def _meets_next(self) -> bool:
        """Wait for the next hub and connect to it. Returns whether it has come."""
        if self._next is None:
            return False
        path, hello = self._next
        with self._lock:
            self._apart, self._holding = True, False
        while not (self._closed or self.stopping) and self._is_open(self._connection.fileno()):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(_CONNECT_SECONDS)
                connection.connect(path)
                connection.setblocking(False)
            except OSError:
                connection.close()
                time.sleep(_AGAIN_SECONDS)
                continue
            with self._lock:
                if self._cut:
                    del self._unsent[: self._unsent.find(b"\n") + 1]
                self._unsent[:0] = hello
                del self._files[self._connection.fileno()]
                self._connection.close()
                self._connection = connection
                self._files[connection.fileno()] = _identity(connection.fileno())
                self._cut = self._apart = False
                self._send_pending()
            return True
        return False

    def _read(self) -> None:
        received = b""
        ready = select.poll()
        ready.register(self._wake_read, select.POLLIN)
        try:
            while not self._closed:
                ready.register(
                    self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0)
                )
                events = dict(ready.poll())
                if not all(self._is_open(file) for file in events):
                    break
                if self._wake_read in events:
                    os.read(self._wake_read, 4096)
                event = events.get(self._connection.fileno(), 0)
                if event & select.POLLOUT:
                    with self._lock:
                        self._send_pending()
                if event & ~select.POLLOUT:
                    data = self._connection.recv(65536)
                    if not data or len(received) > _LINE_BYTES:
                        break
                    *lines, received = (received + data).split(b"\n")
                    for line in lines:
                        self._obey(line)
        except OSError:
            pass  # a reset is an end like any other

    def _obey(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind = message["type"]
        except (ValueError, KeyError, TypeError):
            return
        with self._lock:
            if kind in ("peers", "state", "met", *_POSITIONS):
                self._handle_peers(kind, message)
            else:
                self._handle_order(kind, message)
            if not self.pending:
                self.pending_since = time.monotonic()
            self._settle()
            self._changed.notify_all()
        if kind in ("peers", "state") and self.watcher is not None:
            self.watcher(message)

    def _handle_order(self, kind: object, message: Mapping[str, Any]) -> None:
        """Handle an order of the hub. Call with the lock held."""
        if kind in ("threads", "welcome"):
            threads = message.get("threads")
            if isinstance(threads, int) and threads > 0:
                self._threads = threads
                self.spin = message.get("spin") is not False
            if kind == "welcome":
                self.welcome = message
        elif kind == "refused":
            self.refused, self._closed = int(message.get("pid", 0)), True
        elif kind == "checkpoint":
            if message.get("hold"):
                self._hold = self._holding = True
            else:
                self._checkpoint = True
        elif kind == "release":
            self._holding = False
        elif kind == "stop":
            self.stopping = "stop"
        elif kind == "gate":
            self.gate = Grant.read(message)

    def _handle_peers(self, kind: object, message: Mapping[str, Any]) -> None:
        """Take the positions and values of the job's other tasks. Call with the lock held."""
        if kind == "peers":
            self.peers = message
        elif kind == "state":
            self.state = str(message.get("path", ""))
        elif kind == "met":
            self.met = message["given"]
            self.positions = {
                index: position
                for index, position in self.positions.items()
                if not position.get("waits")
            }
        elif kind in _POSITIONS:
            self.positions[message["index"]] = message["standing"]

    def _ended(self) -> None:
        with self._lock:
            if not self._closed and not self.stopping:
                self.stopping = "orphaned"
                self.pending_since = time.monotonic()
                self.pending = True
            self._closed = True
            self.gate = None
            self._unsent.clear()
            self._hang_up()
            if self._is_open(self._wake_read):
                os.close(self._wake_read)
            self._changed.notify_all()

    def _hang_up(self) -> None:
        if not self._is_open(self._connection.fileno()):
            self._connection.detach()
        self._connection.close()

    def _leave_to_parent(self) -> None:
        """In a forked child, abandon the connection and the lock: both are the parent's, and the
        lock may have been held at the fork.
        """
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        if not self._closed:
            self._closed = True
            self._hang_up()
        self.pending = False
        self.stopping = ""
        self.gate = None


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _line(message: Mapping[str, object]) -> bytes:
    return (json.dumps(_plain(message), allow_nan=False) + "\n").encode()


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
