"""The watchdog: a small process that outlives the hub just long enough to clean up after it.

The hub tells it of each box over a socket pair. If the hub's end closes without a goodbye, the
watchdog releases paused tasks, and leaves alone those that outlive their hub (their keepers have
them). It asks the others to end. Tasks on the channel saw it close and are saving a checkpoint; the
others get a signal. Meanwhile the watchdog keeps writing their output to their logs. After 10
seconds it kills what is left and removes the boxes. If runs wait for a hub, it becomes the next
one. If the watchdog dies too, the next headgate command does that (`leftovers`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate import isolation
from headgate.isolation.process import remove_empty_groups
from headgate.isolation.signals import targets
from headgate.machine import processes, systemd
from headgate.model.errors import HeadgateError
from headgate.model.events import GRACE_SECONDS
from headgate.model.identifiers import TaskId
from headgate.model.paths import remove_unfinished, write_whole
from headgate.recorded import folders

_TAKE_SECONDS = 5.0
"""How long the hub waits for a watchdog that does not read its messages."""
_GROUP = "swept"  # starts the name of no box
DEATHS = "HEADGATE_HUB_DEATHS"
"""Variable of a hub: how many before it died soon after their start."""
_LIVES_SECONDS = 60.0
_MOST_DEATHS = 3


def _box_file(folder: Path, task: TaskId) -> Path:
    return folder / (task.replace("/", ":") + ".json")


class HubWatchdog:
    """The hub's end: tells the watchdog of boxes (a `BoxRegistry`), and replaces it when it dies.

    Args:
        folder: The hub's folder. `boxes/` in it has a record of each box, in case the watchdog dies
            too.
        lock: Descriptor of the hub's lock. The watchdog holds it too, so that no other hub starts
            before the cleanup.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        self._folder = folder
        self._lock = lock
        self._boxes = folder / "boxes"
        self._boxes.mkdir(mode=0o700, exist_ok=True)
        self._tasks: dict[TaskId, tuple[dict[str, Any], int]] = {}
        # the engine's thread registers boxes while the hub's thread may replace the watchdog
        self._lock_tasks = threading.Lock()
        self.start()

    def start(self) -> None:
        """Start a watchdog and tell it of all boxes."""
        own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_end.settimeout(_TAKE_SECONDS)
        self._socket = own_end
        with child_end:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "headgate.hub.watchdog",
                    str(child_end.fileno()),
                    str(self._folder),
                    str(self._lock),
                ],
                pass_fds=[child_end.fileno(), self._lock],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pidfd = os.pidfd_open(self._process.pid)
        for message, output in list(self._tasks.values()):
            self._send(message, [output])

    def restart(self) -> None:
        """Replace a watchdog that died."""
        with self._lock_tasks:
            self._process.wait()
            os.close(self.pidfd)
            self._socket.close()
            self.start()

    def add(self, task: TaskId, record: Mapping[str, object], output_fd: int, log: str) -> None:
        message: dict[str, Any] = {
            "op": "add",
            "task": task,
            "record": record,
            "log": log,
            "connected": False,
        }
        with contextlib.suppress(OSError):  # on a full disk the watchdog still knows
            write_whole(_box_file(self._boxes, task), json.dumps(record))
        with self._lock_tasks:
            self._tasks[task] = message, output_fd
            self._send(message, [output_fd])

    def connected(self, task: TaskId) -> None:
        with self._lock_tasks:
            self._tasks[task][0]["connected"] = True
            self._send({"op": "connected", "task": task})

    def remove(self, task: TaskId) -> None:
        with self._lock_tasks:
            message, _ = self._tasks.pop(task, ({}, 0))
            self._send({"op": "remove", "task": task})
        # Of a run that outlives its hub they stay until its store has how they ended.
        if "keeper" not in message.get("record", {}):
            _box_file(self._boxes, task).unlink(missing_ok=True)

    def close(self) -> None:
        """Dismiss the watchdog; the hub has cleaned up itself."""
        self._send({"op": "goodbye"})
        self._socket.close()
        self._process.wait()
        os.close(self.pidfd)

    def _send(self, message: Mapping[str, object], fds: list[int] | None = None) -> None:
        # The hub replaces a dead watchdog when it sees its pidfd; the new one learns of every box.
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], fds or [])
        except TimeoutError:
            self._process.kill()  # it is stopped or hangs: replace it
        except OSError:
            return


def leftovers(folder: Path) -> None:
    """Remove the boxes of a dead hub and a dead watchdog, except those of tasks that wait for the
    next hub. The caller holds the hub's lock.
    """
    for file in sorted((folder / "boxes").glob("*.json")):
        # a partial record: the disk was full
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = json.loads(file.read_text())
            if is_kept(record) or not sweep(record):
                continue
        file.unlink(missing_ok=True)
    _remove_unfinished(folder)


def _remove_unfinished(folder: Path) -> None:
    """Remove what hubs left that died while they wrote a file or made a box."""
    for place in (folder / "boxes", folder, folders.home(), *folders.awaited(folder)):
        remove_unfinished(place)
    remove_empty_groups()


def is_kept(record: Mapping[str, object]) -> bool:
    """Whether a task outlives its hub, by its box's record: the next hub takes up its run."""
    task = TaskId(str(record["task"]))
    return "keeper" in record and folders.is_awaited(folders.home() / "runs" / task.run)


def forget_boxes(folder: Path, run: str) -> None:
    """Remove the records of a run's boxes, because the run has ended."""
    for file in (folder / "boxes").glob(f"{run}:*.json"):
        file.unlink(missing_ok=True)
    for end in (folders.home() / "runs" / run).glob("jobs/*/*.end"):
        end.unlink(missing_ok=True)


def kept_boxes(folder: Path) -> dict[TaskId, dict[str, object]]:
    """The records of boxes whose tasks wait for the next hub of a folder."""
    boxes = dict[TaskId, dict[str, object]]()
    for file in sorted((folder / "boxes").glob("*.json")):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = json.loads(file.read_text())
            if is_kept(record):
                boxes[TaskId(str(record["task"]))] = record
    return boxes


def sweep(record: Mapping[str, object]) -> bool:
    """Remove a box. Returns False if that is impossible now, for example without the package of its
    isolation. The record then stays and blocks no other box or command.
    """
    try:
        isolation.make(str(record["isolation"]), _GROUP).sweep(record)
    except (HeadgateError, OSError) as error:
        print(f"a box of {record.get('task')} is left: {error}", file=sys.stderr)
        return False
    return True


def _release(record: Mapping[str, object]) -> None:
    """Resume a task that the hub had paused when it died."""
    try:
        isolation.make(str(record["isolation"]), _GROUP).release(record)
    except (HeadgateError, OSError) as error:
        print(f"{record.get('task')} may be held: {error}", file=sys.stderr)


def _ask(record: Mapping[str, object]) -> None:
    """Send a task its stop signal."""
    first = processes.look(int(str(record["pid"])))
    number = int(str(record.get("stop_signal", int(signal.SIGTERM))))
    if first is not None:
        processes.send(targets(first, number), number)


@dataclass(slots=True)
class _GuardedTask:
    record: dict[str, object]
    pidfd: int | None
    output: int | None
    log: str
    connected: bool


class _Guard:
    def __init__(self, hub: socket.socket, folder: Path, lock: int | None = None) -> None:
        self._hub = hub
        self._folder = folder
        self._lock = lock
        self._began = time.monotonic()
        self._tasks: dict[TaskId, _GuardedTask] = {}

    def run(self) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._hub, 1 << 20, 4)
            except OSError:
                data, fds = b"", []
            if not data:
                self._orphaned()
                return
            message = json.loads(data)
            task = TaskId(message.get("task") or "")
            match message["op"]:
                case "add":
                    output = fds[0] if fds else None  # none if this process has no free descriptors
                    self._tasks[task] = _GuardedTask(
                        message["record"],
                        _pidfd(message["record"]),
                        output,
                        message["log"],
                        message["connected"],
                    )
                case "connected" if task in self._tasks:
                    self._tasks[task].connected = True
                case "remove" if task in self._tasks:
                    self._drop(self._tasks.pop(task))
                case "goodbye":
                    return

    def _orphaned(self) -> None:
        self._take_up_untold()
        for task in self._tasks.values():
            _release(task.record)  # a paused task receives nothing
        for id in [id for id, task in self._tasks.items() if is_kept(task.record)]:
            self._drop(self._tasks.pop(id))
        self._end_others()
        folders.remove_sockets(self._folder)
        _remove_unfinished(self._folder)
        self._start_next()

    def _take_up_untold(self) -> None:
        """Take up boxes that have a record, but that the hub did not tell before it died. Their
        tasks are asked by no signal to end: they may be saving a checkpoint.
        """
        for file in sorted((self._folder / "boxes").glob("*.json")):
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                record = json.loads(file.read_text())
                task, _ = TaskId(str(record["task"])), record["isolation"]
                if task not in self._tasks:
                    self._tasks[task] = _GuardedTask(record, _pidfd(record), None, "", True)

    def _end_others(self) -> None:
        """End the tasks that do not outlive their hub."""
        for task in self._tasks.values():
            if not task.connected and task.pidfd is not None:
                _ask(task.record)
        deadline = time.monotonic() + GRACE_SECONDS
        poller = select.poll()
        for task in self._tasks.values():
            for fd in (task.output, task.pidfd):
                if fd is not None:
                    poller.register(fd, select.POLLIN)
        living = {task.pidfd for task in self._tasks.values() if task.pidfd is not None}
        logs = {task.output: task.log for task in self._tasks.values() if task.output is not None}
        while living and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poller.poll(left * 1000):
                if fd in living:
                    living.discard(fd)
                    poller.unregister(fd)
                elif not _copy(fd, logs[fd]):
                    poller.unregister(fd)
        for id, task in self._tasks.items():
            swept = sweep(task.record)
            if task.output is not None:
                while _copy(task.output, task.log):
                    pass
            if swept:
                _box_file(self._folder / "boxes", id).unlink(missing_ok=True)

    def _start_next(self) -> None:
        """Become the next hub if runs wait for one, unless one after the other dies at once."""
        lives = time.monotonic() - self._began >= _LIVES_SECONDS
        deaths = 0 if lives else int(os.environ.get(DEATHS) or 0) + 1
        if self._lock is None or deaths > _MOST_DEATHS or not folders.awaited(self._folder):
            return
        if (
            systemd.is_stopping()
        ):  # it would see jobs end with the machine, and take that for theirs
            return
        os.close(self._lock)
        environment = {**os.environ, DEATHS: str(deaths)}
        os.execve(sys.executable, [sys.executable, "-m", "headgate.hub.server"], environment)

    def _drop(self, task: _GuardedTask) -> None:
        for fd in (task.pidfd, task.output):
            if fd is not None:
                os.close(fd)


def _pidfd(record: Mapping[str, object]) -> int | None:
    """A pidfd of a box's first process; None: it has ended, even if its number is in use again."""
    try:
        pid = int(str(record.get("pid")))
        fd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return None
    process, started = processes.look(pid), record.get("started")
    if process is None or (started is not None and process.started != started):
        os.close(fd)
        return None
    return fd


def _copy(fd: int, log: str) -> bool:
    """Append readable output to the log. Returns False at the end of the output."""
    try:
        data = os.read(fd, 1 << 16)
        if data:
            with open(log, "ab") as file:
                file.write(data)
    except OSError:
        return False
    return bool(data)


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    hub, folder, lock = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    _Guard(socket.socket(fileno=hub), folder, lock).run()


if __name__ == "__main__":
    main()
