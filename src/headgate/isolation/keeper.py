"""Keeps one task: it is the parent of the task's first process and outlives the hub.

It runs in the process of `launcher.py` and imports nothing of the package. The hub talks to it over
a socket, one JSON object a packet:

- `keep` hands it the reading end of the task's output. From then on the task outlives the hub.
- It tells how the task ended, and waits until the hub has read the output and closes with `bye`.

If the hub's end closes without that, the keeper appends the output to the log. It listens on a
socket of its own: the next hub that connects gets the output, and takes the place of the first.
If the task ends meanwhile, the keeper writes how to a file and ends, too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time

READ_BYTES = 1 << 16
_AGAIN_MILLISECONDS = 1000


class Keeper:
    """The keeper of a child of this process.

    Args:
        child: Process id of the child.
        hub: Descriptor of the socket to the hub.
        outlives: Whether the child is to outlive the hub. Then it ends with a hub that dies before
            `keep`, because no other will know it.
        refused: Descriptor of a pipe. The child writes to it if it ends without having become the
            task.
    """

    def __init__(self, child: int, hub: int, outlives: bool, refused: int) -> None:
        self._child = child
        self._refused = refused
        self._outlives = outlives
        self._hub: socket.socket | None = socket.socket(fileno=hub)
        self._listener: socket.socket | None = None
        self._output = -1
        self._appended = 0
        self._places: dict[str, str] = {}
        self._end: dict[str, object] | None = None

    def run(self) -> None:
        """Keep the child until its end is told."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        pidfd = os.pidfd_open(self._child)
        while not self._is_over():
            poller = select.poll()
            watched = [self._hub.fileno()] if self._hub is not None else []
            watched += [pidfd] if self._end is None else []
            if self._listener is not None:
                watched += [self._listener.fileno()]
                watched += [self._output] if self._output >= 0 else []
            for fd in watched:
                poller.register(fd, select.POLLIN)
            # an end that could not be written down is tried again
            for fd, _ in poller.poll(None if self._end is None else _AGAIN_MILLISECONDS):
                if fd == pidfd:
                    self._ended()
                elif self._hub is not None and fd == self._hub.fileno():
                    self._hear()
                elif self._listener is not None and fd == self._listener.fileno():
                    self._accept()
                elif fd == self._output:
                    self._append()
        self._close_listener()

    def _is_over(self) -> bool:
        """Whether nobody needs it: the end is told, or written down and the output with it."""
        if self._end is None or self._hub is not None:
            return False
        if not self._places:
            return True
        while self._output >= 0 and select.select([self._output], [], [], 0)[0]:
            self._append()
        return self._write_end()

    def _ended(self) -> None:
        _, status, used = os.wait4(self._child, 0)
        self._end = {
            "status": os.waitstatus_to_exitcode(status),
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "largest_kib": used.ru_maxrss,
            "at": time.monotonic(),
            "begun": not os.read(self._refused, 1),
        }
        if self._places and self._hub is not None:
            self._write_end()  # it may be told to nobody
        self._tell(self._end)

    def _write_end(self) -> bool:
        """Write the end to its file. Returns whether it could be written."""
        path = self._places["end"]
        try:
            with open(f"{path}.new", "w") as file:
                json.dump({**(self._end or {}), "appended": self._appended}, file)
            os.replace(f"{path}.new", path)
        except FileNotFoundError:  # the hub's folder is gone, and with it whoever would read it
            return True
        except OSError:
            return False
        return True

    def _tell(self, message: dict[str, object]) -> None:
        if self._hub is not None:
            try:
                self._hub.send(json.dumps(message).encode())
            except OSError:
                return  # its end is heard

    def _hear(self) -> None:
        assert self._hub is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._hub, READ_BYTES, 1)
        except OSError:
            data, descriptors = b"", []
        message = json.loads(data) if data else {}
        if message.get("op") == "keep" and descriptors:
            self._output, self._places = descriptors[0], message["places"]
        elif message.get("op") == "bye":
            self._places = {}
        if message.get("op") != "keep":
            self._hub.close()
            self._hub = None
            if self._places:
                self._listen()
            elif self._outlives and not data and self._end is None:
                os.kill(self._child, signal.SIGKILL)

    def _listen(self) -> None:
        path = self._places["socket"]
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if os.path.exists(path):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(1)

    def _accept(self) -> None:
        """Hand the output to the next hub."""
        assert self._listener is not None
        self._hub, _ = self._listener.accept()
        self._close_listener()
        message = json.dumps({"appended": self._appended, "end": self._end}).encode()
        self._appended = 0
        try:
            socket.send_fds(self._hub, [message], [self._output] if self._output >= 0 else [])
        except OSError:
            return  # its end is heard

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            if os.path.exists(self._places["socket"]):
                os.unlink(self._places["socket"])

    def _append(self) -> None:
        """Append what can be read of the output to the log."""
        try:
            data = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # the end of a pseudo-terminal
            data = b""
        if not data:
            os.close(self._output)
            self._output = -1
            return
        try:
            with open(self._places["log"], "ab") as file:
                file.write(data)
            self._appended += len(data)
        except OSError:
            return  # the disk is full
