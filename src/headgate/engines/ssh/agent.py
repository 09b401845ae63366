"""An agent at the other end of `ssh`, and how Headgate gets there."""

from __future__ import annotations

import base64
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from pathlib import Path
from typing import Any

import headgate
from headgate.engines.remote import files
from headgate.engines.remote.link import AgentGone, AgentHandle, Lane
from headgate.engines.remote.pipe import Pipe
from headgate.engines.remote.settings import Settings
from headgate.engines.remote.wire import AgentCall, CallAnswered

PROGRAM = "headgate.hub.node_agent"
_MARK = b"headgate-agent\n"
_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-x", "-a", "--")
_END_SECONDS = 5.0
_MOST_GREETING = 1 << 20
"""A login may print so much before the agent answers."""
_BOOT = f"""
import io, os, struct, sys, tarfile, tempfile
if sys.version_info < (3, 11):
    sys.exit("its Python is too old: %s; install 3.11 or newer there" % sys.version.split()[0])
def take(count):
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more: sys.exit("the connection was closed")
        data += more
    return data
os.write(1, {_MARK!r})
packed = take(struct.unpack("!Q", take(8))[0])
folder = tempfile.mkdtemp(prefix="headgate-ssh-", dir="/tmp")
with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
    archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # 3.11.4 has it first
    archive.extractall(folder + "/library/headgate")
paths = folder + "/library", os.environ.get("PYTHONPATH", "")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
os.environ["HEADGATE_HOME"] = folder + "/home"
os.execv(sys.executable, [sys.executable, "-m", "{PROGRAM}", folder])
"""
"""What the Python there runs: it takes Headgate from its standard input and becomes the agent."""


def package() -> bytes:
    """Headgate itself, to be sent."""
    return files.pack(Path(headgate.__file__).parent)


def command() -> str:
    """What the user's shell there is given. This machine's Python is tried first: where homes are
    shared, it is there too.
    """
    boot = f"import base64; exec(base64.b64decode('{base64.b64encode(_BOOT.encode()).decode()}'))"
    script = (
        'for python in "$@"; do if command -v "$python" >/dev/null 2>&1; '
        'then exec "$python" -c "$0"; fi; done; echo "it has no python3" >&2; exit 127'
    )
    words = ("sh", "-c", script, boot, sys.executable, "python3", "python")
    return " ".join(["exec", *map(shlex.quote, words)])


class SshAgent(AgentHandle):
    """The agent on a machine.

    Args:
        host: The machine, as `ssh` takes it.
        package: Headgate itself.
        settings: What the agent is told at its start.
        owner: Tells what is found there from what other hubs left.
    """

    cluster = "ssh"

    def __init__(self, host: str, package: bytes, settings: Settings, owner: str) -> None:
        self._package, self._settings, self._owner = package, settings, owner
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*_SSH, *_ALIVE, host, command()],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self._errors = deque[str](maxlen=1)
        self._reads_errors = threading.Thread(target=self._read_errors, daemon=True)
        self._reads_errors.start()
        self._reads: threading.Thread | None = None
        self._pipe = Pipe(self._socket, b"", "hub")
        self._calls: dict[int, Future[CallAnswered]] = {}
        self._count = 0
        self._ended = False
        self._lock = threading.Lock()

    def ready(self, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        self._socket.settimeout(seconds)
        try:
            self._greet(deadline)
        except OSError as error:
            self.kill()
            raise AgentGone(self._why(str(error))) from error
        self._socket.settimeout(None)
        self._reads = threading.Thread(target=self._read, daemon=True)
        self._reads.start()
        self.call("commands", "open", self._settings, self._owner, seconds=seconds)
        return ""

    def call(self, lane: Lane, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        answer = Future[CallAnswered]()
        with self._lock:
            if self._ended:
                raise AgentGone(self._why("the connection is gone"))
            self._count += 1
            number = self._count
            self._calls[number] = answer
        self._pipe.send(AgentCall(number, lane, method, arguments))
        try:
            answered = answer.result(seconds)
        except LateError as error:
            raise AgentGone(f"it did not answer within {seconds:g} s") from error
        if answered.os_error:
            raise OSError(*answered.os_error)
        if answered.error:
            raise AgentGone(answered.error)
        return answered.value

    def kill(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):  # it is closed, or the other end is
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._reads is not None:
            self._reads.join(_END_SECONDS)
        self._socket.close()

    def _greet(self, deadline: float) -> None:
        """Wait for the Python there, whatever the login prints before, and send it Headgate."""
        heard = b""
        while not heard.endswith(_MARK):
            byte = self._socket.recv(1)
            if not byte or len(heard) > _MOST_GREETING or time.monotonic() > deadline:
                raise OSError("no Python answered there")
            heard += byte
        self._socket.sendall(struct.pack("!Q", len(self._package)))
        self._socket.sendall(self._package)

    def _read(self) -> None:
        while isinstance(answered := self._pipe.receive(), CallAnswered):
            with self._lock:
                waiting = self._calls.pop(answered.number, None)
            if waiting is not None:
                waiting.set_result(answered)
        with self._lock:
            self._ended = True
            left, self._calls = self._calls, {}
        why = self._why("the connection is gone") if left else ""
        for number, waiting in left.items():
            waiting.set_result(CallAnswered(number, None, why))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                if text := line.decode(errors="replace").strip():
                    self._errors.append(text)

    def _why(self, otherwise: str) -> str:
        """What `ssh` or the Python there said last."""
        self._reads_errors.join(_END_SECONDS)
        return self._errors[-1] if self._errors else otherwise
