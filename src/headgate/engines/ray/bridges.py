"""The two ways to a bridge: a process beside the hub, and a job on the cluster that calls the
hub.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import shlex
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import headgate
from headgate.engines.ray.jobs_api import JobsApi
from headgate.engines.remote import files
from headgate.engines.remote.bridge import Bridge
from headgate.engines.remote.pipe import Pipe
from headgate.model.errors import HeadgateError

CALL_SECONDS = 120.0
"""How long a submitted bridge may take to call the hub: Ray starts two processes for it."""
_LOOK_SECONDS = 1.0
_GREETING_SECONDS = 10.0

_CALL = """
import hashlib, hmac, os, shutil, signal, socket, struct, subprocess, sys, tarfile, tempfile
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, lambda *_: None)
key = bytes.fromhex(os.environ["HEADGATE_BRIDGE_KEY"])
host, port = os.environ["HEADGATE_HUB"].rsplit(":", 1)
hub = socket.create_connection((host, int(port)), 60)
hub.settimeout(None)
hub.sendall(hmac.new(key, b"bridge calls", hashlib.sha256).digest())
stream = hub.makefile("rb", buffering=0)
def take(count):
    data = b""
    while len(data) < count:
        more = stream.read(count - len(data))
        if not more: sys.exit("the hub closed the connection")
        data += more
    return data
seal = take(32)
packed = take(struct.unpack("!Q", take(8))[0])
expected = hmac.new(key, packed, hashlib.sha256).digest()
if not hmac.compare_digest(seal, expected): sys.exit("wrong signature")
folder = tempfile.mkdtemp(prefix="headgate-ray-bridge-", dir="/tmp")
try:
    import io
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder + "/headgate", filter="tar")
    bridge = [sys.executable, "-m", "headgate.engines.ray.bridge", str(hub.fileno())]
    environment = {**os.environ, "PYTHONPATH": folder}
    code = subprocess.run(bridge, pass_fds=[hub.fileno()], env=environment).returncode
finally:
    shutil.rmtree(folder, ignore_errors=True)
sys.exit(code)
"""
"""The program of the submitted job: it calls the hub, gets Headgate from it, and runs its bridge.
Each end proves that it has the key before the other uses anything from it.
"""


def start(address: str) -> Bridge:
    """Start the bridge to a cluster.

    Args:
        address: With `http://HOST:PORT` of its dashboard, the bridge is a job there. With anything
            else, it is a process here.

    Raises:
        UsageError: The address makes no sense.
        HeadgateError: The cluster does not run the job, or it cannot reach this machine.
    """
    return Submitted(address) if address.startswith(("http://", "https://")) else Child()


class Child(Bridge):
    """A bridge as a process beside the hub."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headgate.engines.ray.bridge", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pipe = Pipe(ours, b"", "hub")

    def wait(self) -> str:
        return f"code {self._process.wait()}"

    def kill(self) -> None:
        self._process.kill()


class Submitted(Bridge):
    """A bridge as a job on the cluster, submitted through Ray's Jobs API. This machine needs no
    Ray, and no Python like the cluster's.
    """

    is_far = True

    def __init__(self, url: str) -> None:
        self._api = JobsApi(url)
        self._id = f"headgate-{secrets.token_hex(6)}"
        key = secrets.token_bytes(32)
        with socket.create_server((_address_towards(self._api.host, self._api.port), 0)) as server:
            host, port = server.getsockname()[:2]
            env = {"HEADGATE_HUB": f"{host}:{port}", "HEADGATE_BRIDGE_KEY": key.hex()}
            self._api.submit(self._id, f"python -c {shlex.quote(_CALL)}", env)
            try:
                connection = self._called(server, key)
            except HeadgateError:
                self.kill()
                raise
        packed = files.pack(Path(headgate.__file__).parent)
        self.pipe = Pipe(connection, key, "hub")
        with contextlib.suppress(OSError):  # whoever hung up says so when it is asked
            connection.sendall(
                hmac.new(key, packed, hashlib.sha256).digest() + struct.pack("!Q", len(packed))
            )
            connection.sendall(packed)

    def wait(self) -> str:
        with contextlib.suppress(HeadgateError):
            deadline = time.monotonic() + _GREETING_SECONDS
            while (how := self._api.ended(self._id)) is None and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            return how or "without a message"
        return "without a message"

    def kill(self) -> None:
        with contextlib.suppress(HeadgateError):
            self._api.stop(self._id)

    def _called(self, server: socket.socket, key: bytes) -> socket.socket:
        """Accept the connection of a caller that has the key.

        Raises:
            HeadgateError: No such caller came.
        """
        greeting = hmac.new(key, b"bridge calls", hashlib.sha256).digest()
        server.settimeout(_LOOK_SECONDS)
        deadline = time.monotonic() + CALL_SECONDS
        while time.monotonic() < deadline:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                if (how := self._api.ended(self._id)) is not None:
                    raise HeadgateError(
                        f"Ray ended the job through which Headgate connects: {how}"
                    ) from None
                continue
            connection.settimeout(_GREETING_SECONDS)
            with contextlib.suppress(OSError):
                if hmac.compare_digest(
                    connection.recv(len(greeting), socket.MSG_WAITALL), greeting
                ):
                    connection.settimeout(None)
                    return connection
            connection.close()
        host, port = server.getsockname()[:2]
        raise HeadgateError(
            f"the job on the cluster at {self._api.url} did not connect to {host}:{port} "
            f"within {CALL_SECONDS:g} s; "
            "check that the cluster's head can reach this machine, and has room for a job"
        )


def _address_towards(host: str, port: int) -> str:
    """This machine's address on the way to a host."""
    try:
        kind, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as towards:
            towards.connect(where)  # sends nothing
            return str(towards.getsockname()[0])
    except OSError as error:
        raise HeadgateError(
            f"--address: {host} cannot be reached: {error.strerror or error}; check its name "
            "and the network"
        ) from error
