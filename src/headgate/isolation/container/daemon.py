"""Talks to Docker Engine on this machine, and interprets its failures."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import struct
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from headgate.model.errors import IsolationError, MissingExtraError

SOCKET = Path("/var/run/docker.sock")
ANSWER_SECONDS = 30.0
"""Longest wait for an answer of the daemon. A machine that is out of memory is slow."""
RESTART_SECONDS = 60.0
"""Longest wait for a daemon that has gone,"""
RETRY_SECONDS = 0.5
"""and the interval between requests."""

TOKEN = "headgate.token"
"""Label shared by the containers of one task only."""

_LINE_BYTES = 1 << 16
"""Longer lines are passed on in parts."""

Config = dict[str, Any]
"""A request of the Docker Engine API (`POST /containers/create`)."""


class Change(IntEnum):
    """Kind of a change (Docker Engine API, `GET /containers/{id}/changes`)."""

    MODIFIED = 0
    ADDED = 1
    DELETED = 2


class NoAnswerError(IsolationError):
    """The daemon does not exist, or does not answer."""


class GoneError(IsolationError):
    """There is no such container or image."""


def default_url() -> str:
    """The daemon's address: `DOCKER_HOST`, or the default one."""
    return os.environ.get("DOCKER_HOST") or f"unix://{SOCKET}"


class Daemon:
    """A Docker Engine. May be used by several threads.

    Args:
        url: Its address, `unix://PATH`.
    """

    def __init__(self, url: str) -> None:
        """
        Raises:
            MissingExtraError: The SDK is not installed.
            NoAnswerError: Nothing answers there, or this user has no permission.
            IsolationError: It is on another machine, or cannot be used.
        """
        try:
            import docker
            import requests
        except ImportError as error:
            raise MissingExtraError("docker", "isolation 'container'") from error
        self.url = url
        self._answers = docker.errors
        self._failures = (docker.errors.DockerException, requests.RequestException, OSError)
        with self._asking("say its version"):
            self._api = docker.APIClient(base_url=url, timeout=ANSWER_SECONDS)
            # A connection for each request, because a kept one would fail after a restart of the
            # daemon.
            self._api.headers["Connection"] = "close"
            self._api.close()  # that on which it asked for the version
            info, about = self._api.info(), self._api.version()
        # by token, the tasks whose containers could not be removed
        self._left: dict[str, Callable[[], None]] = {}
        self._clearing = threading.Lock()
        self.version = str(info.get("ServerVersion"))
        self.driver = str(info.get("CgroupDriver"))
        """The driver of its cgroups: `cgroupfs` or `systemd`."""
        self.components = {
            str(component["Name"]): str(component["Version"])
            for component in about.get("Components") or ()
        }
        """Versions of its components, including the default runtime."""
        self.runtimes = frozenset(map(str, info.get("Runtimes") or ()))
        """Names of its runtimes."""
        if any("rootless" in option for option in info.get("SecurityOptions") or ()):
            raise IsolationError(
                f"the Docker daemon at {url} is a rootless one, whose files and limits are not "
                "this user's; name another with DOCKER_HOST"
            )

    def check(self) -> None:
        """Check that it answers.

        Raises:
            NoAnswerError: It does not.
        """
        with self._asking("answer"):
            self._api.ping()

    def await_answer(self, given_up: threading.Event) -> bool:
        """Wait until it answers, as long as a restart takes. Returns whether it was gone. Then
        removes what could not be removed meanwhile.

        Args:
            given_up: Ends the wait.

        Raises:
            NoAnswerError: It does not come back, or the wait was ended.
        """
        deadline, away = time.monotonic() + RESTART_SECONDS, False
        while True:
            try:
                self.check()
                break
            except NoAnswerError:
                away = True
                if time.monotonic() >= deadline or given_up.wait(RETRY_SECONDS):
                    raise
        self._clear_left()
        return away

    def create(self, config: Config, name: str) -> str:
        """Create a container without starting it. Returns its id.

        Raises:
            GoneError: Its image is not on this machine.
        """
        with self._asking("make a container"):
            return str(self._api.create_container_from_config(config, name)["Id"])

    def start(self, id: str) -> None:
        with self._asking("start a container"):
            self._api.start(id)

    def attach(self, id: str) -> int:
        """A descriptor of the container's output from now on, in frames (`Unframer`)."""
        with self._asking("hand out a container's output"):
            stream = self._api.attach_socket(id, params={"stdout": 1, "stderr": 1, "stream": 1})
            fd = os.dup(stream.fileno())
            os.set_blocking(fd, True)
            # the SDK stores the owner of the connection on the stream
            with contextlib.suppress(AttributeError):
                stream._response.close()
            stream.close()
            return fd

    def state(self, id: str) -> Mapping[str, Any]:
        """Its state in the API's form: `Pid`, `Running`, `OOMKilled`, `ExitCode`, `Status`."""
        with self._asking("look at a container"):
            state: Mapping[str, Any] = self._api.inspect_container(id)["State"]
            return state

    def wait(self, id: str) -> int:
        """The exit status of a container whose first process has ended; 128 plus the number of a
        signal that ended it.
        """
        with self._asking("wait for a container"):
            return int(self._api.wait(id, timeout=ANSWER_SECONDS)["StatusCode"])

    def is_removed(self, id: str, seconds: float) -> bool:
        """Whether an ended container is being removed, observed for up to `seconds`."""
        try:
            with self._asking("wait for a container's removal"):
                self._api.wait(id, timeout=seconds, condition="removed")
        except GoneError:
            return True
        except IsolationError:
            return False
        return True

    def update(self, id: str, changes: Mapping[str, object]) -> None:
        """Change limits of a running container. The names are those of the SDK's
        `update_container`.
        """
        with self._asking("change the limits of a container"):
            self._api.update_container(id, **changes)

    def pause(self, id: str) -> None:
        """Freeze the processes of a container."""
        with self._asking("pause a container"):
            self._api.pause(id)

    def unpause(self, id: str) -> None:
        with self._asking("unpause a container"):
            self._api.unpause(id)

    def kill(self, id: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the first process of a container."""
        with self._asking("signal a container"):
            self._api.kill(id, number)

    def remove(self, id: str) -> None:
        """Kill and remove a container; does nothing if it is gone."""
        try:
            with self._asking("remove a container"):
                self._api.remove_container(id, force=True, v=True)
        except GoneError:
            return
        except IsolationError as error:
            # Another process is removing it, for example at the end of its first process.
            if "already in progress" not in str(error):
                raise

    def clear(self, token: str, then: Callable[[], None]) -> None:
        """Remove the containers of a task, now or as soon as other containers can be removed.

        Args:
            token: Value of their label.
            then: Removes what is around them; called again if they are removed later.
        """
        if self._try_to_clear(token, then):
            self._clear_left()

    def _clear_left(self) -> None:
        # a start waits for it, and makes no folder that another thread then removes
        with self._clearing:
            for token in list(self._left):
                if not self._try_to_clear(token, self._left.pop(token)):
                    break  # it is away again

    def _try_to_clear(self, token: str, then: Callable[[], None]) -> bool:
        try:
            for container_id in self.find(f"{TOKEN}={token}"):
                self.remove(container_id["id"])
        except IsolationError:
            self._left.setdefault(token, then)  # what a start names first knows of all its folders
            return False
        finally:
            then()
        return True

    def find(self, *labels: str) -> Sequence[Mapping[str, str]]:
        """The labels of all containers with these labels (`name=value`, or only a name), with the
        id as `id`.
        """
        with self._asking("list containers"):
            containers = self._api.containers(all=True, filters={"label": list(labels)})
        return [{**container["Labels"], "id": container["Id"]} for container in containers]

    def changes(self, id: str) -> dict[str, Change]:
        """Paths that differ between a container and its image. Mounted paths are left out."""
        with self._asking("say what a container wrote"):
            changes = {
                str(entry["Path"]): Change(entry["Kind"]) for entry in self._api.diff(id) or ()
            }
        return {path: change for path, change in changes.items() if change is not Change.DELETED}

    @contextmanager
    def archive(self, id: str, path: str) -> Iterator[tarfile.TarFile | None]:
        """The files at a path of a container, and below it, as an archive to be read once, in
        order. None if there are none. Names in it begin with the last part of the path.
        """
        try:
            with self._asking("read files of a container"):
                parts, _ = self._api.get_archive(id, path)
        except GoneError:
            yield None
            return
        try:
            with (
                self._asking("read files of a container"),
                closing(parts),
                tarfile.open(fileobj=io.BufferedReader(_StreamedFile(parts)), mode="r|") as archive,
            ):
                yield archive
        except tarfile.TarError as error:  # it ends too early
            raise IsolationError(f"Docker does not read files of a container: {error}") from error

    def has_image(self, name: str) -> bool:
        try:
            with self._asking("look for an image"):
                self._api.inspect_image(name)
        except GoneError:
            return False
        return True

    def image_id(self, name: str) -> str:
        """A unique id of an image.

        Raises:
            GoneError: The image is not on this machine.
        """
        with self._asking("look for an image"):
            return str(self._api.inspect_image(name)["Id"])

    def export(self, image: str, labels: Mapping[str, str]) -> Iterator[bytes]:
        """All files of an image, as an archive in parts, from a container with these labels that
        never runs.
        """
        config = {
            "Image": image,
            "Entrypoint": ["-"],
            "Labels": dict(labels),
            "HostConfig": {"NetworkMode": "none"},
        }
        with self._asking("write out an image"):
            id = str(self._api.create_container_from_config(config)["Id"])
            try:
                yield from self._api.export(id)
            finally:
                self._api.remove_container(id, force=True, v=True)

    def environment(self, image: str) -> Mapping[str, str]:
        """The variables that an image sets.

        Raises:
            GoneError: The image is not on this machine.
        """
        with self._asking("look for an image"):
            config = self._api.inspect_image(image).get("Config") or {}
        return dict(line.partition("=")[::2] for line in config.get("Env") or ())

    def import_image(self, tar: bytes, repository: str, tag: str) -> None:
        with self._asking("import an image"):
            self._api.import_image_from_data(tar, repository=repository, tag=tag)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        _check(self.url)  # first, since the SDK lets a socket lie that cannot be connected
        try:
            yield
        except self._answers.NotFound as error:
            raise GoneError(_line(error.explanation)) from error
        except self._answers.APIError as error:
            raise IsolationError(f"Docker does not {what}: {_line(error.explanation)}") from error
        except self._failures as error:
            raise NoAnswerError(
                f"the Docker daemon at {self.url} does not answer ({_line(_cause(error))}); start "
                "it (systemctl start docker), or name another with DOCKER_HOST"
            ) from error


class _StreamedFile(io.RawIOBase):
    """Parts of a file, readable as a file."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = part
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class Unframer:
    """Removes the frames from a container's output: a stream's number, three zeros, the length in
    four bytes, the text (Docker Engine API, `POST /containers/{id}/attach`).

    The two streams come by two pipes. An incomplete line of one is held back, so that the other
    does not end up in it.
    """

    def __init__(self) -> None:
        self._left = 0
        self._header = b""
        self._stream = 1
        self._begun: dict[int, bytes] = {}

    @property
    def holds(self) -> bool:
        """Whether an incomplete line is held back."""
        return any(self._begun.values())

    def rest(self) -> bytes:
        """The incomplete lines held back."""
        begun, self._begun = self._begun, {}
        return b"".join(begun.values())

    def feed(self, data: bytes) -> bytes:
        """The complete lines of both streams."""
        printed = []
        while data:
            if self._left == 0:
                wanted = 8 - len(self._header)
                self._header, data = self._header + data[:wanted], data[wanted:]
                if len(self._header) == 8:
                    self._stream = self._header[0]
                    self._left, self._header = int.from_bytes(self._header[4:], "big"), b""
                continue
            text = self._begun.get(self._stream, b"") + data[: self._left]
            whole = (
                len(text)
                if len(text) > _LINE_BYTES
                else max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            )
            printed.append(text[:whole])
            self._begun[self._stream] = text[whole:]
            self._left, data = max(self._left - len(data), 0), data[self._left :]
        return b"".join(printed)


def _from_where(url: str) -> str:
    """How the default address was chosen, for messages."""
    return (
        "; DOCKER_HOST is not set"
        if url == f"unix://{SOCKET}" and not os.environ.get("DOCKER_HOST")
        else ""
    )


def _check(url: str) -> None:
    """Check a daemon's address without connecting. Raises if it is wrong."""
    if not url.startswith("unix://"):
        raise IsolationError(
            f"the Docker daemon at {url} may be another machine's; expected one of this machine "
            "(DOCKER_HOST=unix://...)"
        )
    path = url.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ANSWER_SECONDS)
            probe.connect(path)
            listener, _, _ = struct.unpack(
                "3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
    except PermissionError:
        raise NoAnswerError(
            f"uid {os.geteuid()} may not use the Docker daemon at {url}; join the group that may "
            "(sudo usermod -aG docker USER, then log in again), or run as root"
        ) from None
    except OSError as error:
        raise NoAnswerError(
            f"no Docker daemon answers at {url} ({error.strerror or error}{_from_where(url)}); "
            "start it (systemctl start docker), install it (apt-get install docker.io), or name "
            "another with DOCKER_HOST"
        ) from None
    if listener == 0:  # the kernel's word for a process that has no number here
        raise IsolationError(
            f"the Docker daemon at {url} counts processes otherwise than this one, which is in a "
            "container itself; run headgate outside of it, or share the machine's process ids "
            "with it (docker run --pid host)"
        )


def _cause(error: BaseException) -> str:
    """The innermost cause. The SDK's exceptions have it three levels deep."""
    cause = str(error)
    for argument in error.args:
        if isinstance(argument, BaseException):
            cause = _cause(argument)
    return cause


def _line(text: object) -> str:
    return " ".join(str(text).split())[:400]
