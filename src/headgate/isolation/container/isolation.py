"""The isolation `container`: a task in a container of Docker Engine on this machine.

The container brings its own files and limits. Network, process ids and shared memory are those of
the machine, or of a lab's node. So the tasks of a job reach each other as under `process`, and the
image has no requirements.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from headgate.isolation.base import (
    HOST_IMAGE,
    NEVER,
    WHILE_RUNNING,
    Box,
    Isolation,
    Launch,
    ignore,
)
from headgate.isolation.container import files, limits, unmanaged_cgroups
from headgate.isolation.container.box import Container, ContainerBox
from headgate.isolation.container.daemon import TOKEN, Daemon, GoneError, NoAnswerError, default_url
from headgate.isolation.container.network import Network, place_of
from headgate.isolation.container.parents import Parent, find_parent
from headgate.isolation.container.request import ContainerRequest
from headgate.isolation.process import BUFFERED_WRITES_V1, GROUP_PATTERN
from headgate.isolation.spawning import find_program
from headgate.machine import arbiter_socket, disks, processes
from headgate.machine.box_names import PREFIX, box_name
from headgate.machine.cgroup_layout import CGROUPS, Mode, folders_of
from headgate.machine.cgroup_v1 import CgroupsV1, cores_above
from headgate.machine.cgroup_v2 import CgroupsV2
from headgate.machine.cgroups import Cgroups
from headgate.machine.fallbacks import Cores, Fallbacks
from headgate.machine.process_table import TAG
from headgate.model.errors import IsolationError
from headgate.model.shares import Lever, Share, Uncontrolled

GROUP, TASK, OWNER, FOLDERS = (
    "headgate.group",
    "headgate.task",
    "headgate.owner",
    "headgate.recorded.folders",
)
"""Labels of a container besides `TOKEN`: its hub's group, its task, the process that started it,
and the cgroups to remove after it (one per line).
"""
SEEN_SECONDS = 2.0
"""Longest search for the cgroups of a first process. If it ends, they disappear with it."""
_MOST_TRIES = 3
"""Start attempts if the daemon dies during a start."""
_NO_PROGRAM = re.compile(r"executable file not found|no such file or directory|permission denied")


class ContainerIsolation(Isolation):
    """Boxes tasks in as containers.

    A container runs as the user of this process, with its folder writable and the launch's other
    paths mounted under the same names. With the empty image `host` it sees what this machine has
    installed.
    """

    name = "container"
    waits = True

    def __init__(self, group: str, *, daemon: str | None = None) -> None:
        """
        Args:
            group: As of `ProcessIsolation`. Tasks of both isolations with the same group compete by
                their weights.
            daemon: The default address of Docker Engine; None: that in `DOCKER_HOST`.

        Raises:
            ValueError: `group` cannot name a folder.
        """
        if not GROUP_PATTERN.fullmatch(group):
            raise ValueError(
                f"isolation group {group!r}: expected letters, digits, '.', '_' and '-', at most 64"
            )
        self._group = group
        self._url = daemon or default_url()
        self._daemons: dict[str, Daemon] = {}
        self._connecting = threading.Lock()
        self._cores = Cores()
        self._version: Mode = "v2" if (CGROUPS / "cgroup.controllers").exists() else "v1"

    def start(
        self,
        launch: Launch,
        share: Share,
        output_fd: int,
        stopped: threading.Event = NEVER,
        made: Callable[[Box], None] = ignore,
    ) -> Box:
        launch = replace(launch, env={**launch.env, TAG: launch.task})
        program = find_program(launch) if launch.image == HOST_IMAGE else None
        try:
            _check_mounts(launch)
            daemon, tries = self._connected(launch.daemon), 0
            while True:
                daemon.await_answer(stopped)
                try:
                    box = self._start(daemon, launch, program, share, output_fd)
                    break
                except NoAnswerError:  # it has gone meanwhile: once more when it is back
                    tries += 1
                    if tries == _MOST_TRIES:
                        raise
        except IsolationError as error:
            raise IsolationError(f"{launch.task}: {error}") from error
        try:
            made(box)
        except BaseException:
            box.close()
            raise
        return box

    def describe(self, launch: Launch, share: Share) -> Sequence[str]:
        _check_mounts(launch)
        program = None
        with contextlib.suppress(IsolationError):  # which `start` will say
            program = find_program(launch) if launch.image == HOST_IMAGE else None
        request = ContainerRequest(
            launch,
            launch.image,
            program,
            share,
            self._machine(Parent(), self._daemons.get(launch.daemon or self._url)),
        )
        return [*request.lines(), f"exec {shlex.join(launch.argv)}"]

    def check(self) -> None:
        self._connected()

    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        try:
            daemon = self._connected()
        except IsolationError as error:
            return (Uncontrolled(Lever.CONTAINERS, str(error)),)
        uncontrolled = []
        if os.geteuid() != 0:
            fixed = "Docker cannot change it; run as root"
            uncontrolled.append(Uncontrolled(Lever.DISK_RATE, fixed, scope=WHILE_RUNNING))
        if daemon.driver != "cgroupfs" or os.geteuid() != 0:
            why = (
                f"Docker puts containers in a group of its own (driver {daemon.driver}, uid "
                f"{os.geteuid()})"
            )
            cure, scope = "run as root with driver cgroupfs", "against tasks outside of containers"
            uncontrolled.append(Uncontrolled(Lever.CPU_WEIGHT, f"{why}; {cure}", scope=scope))
        if arbiter_socket.is_shared() and os.geteuid() != 0:
            outside = (
                "the limits of this user on a shared machine do not hold them, because Docker's "
                "daemon starts them outside of the user's cgroup; each holds to its job's limits"
            )
            uncontrolled.append(Uncontrolled(Lever.CONTAINERS, outside))
        if self._version == "v1":
            uncontrolled.append(BUFFERED_WRITES_V1)
        return tuple(uncontrolled)

    def sweep(self, record: Mapping[str, object]) -> None:
        token, url, folders = record.get("token"), record.get("daemon"), record.get("folders")
        if (
            not isinstance(token, str)
            or not isinstance(url, str)
            or not isinstance(folders, Sequence)
        ):
            raise IsolationError(
                f"this is no record of a container: {dict(record)!r}; expected what Box.record gave"
            )
        daemon = self._connected(url) if url in (self._url, *self._daemons) else Daemon(url)
        for container_id in daemon.find(f"{TOKEN}={token}"):
            daemon.remove(container_id["id"])
        if record.get("boot") == processes.boot_id():
            _remove_folders(folders)

    def release(self, record: Mapping[str, object]) -> None:
        token, url = str(record.get("token")), str(record.get("daemon"))
        daemon = self._connected(url) if url in (self._url, *self._daemons) else Daemon(url)
        for container_id in daemon.find(f"{TOKEN}={token}"):
            with contextlib.suppress(IsolationError):  # it was not held
                daemon.unpause(container_id["id"])

    # --- steps of a start -------------------------------------------------------------------------

    def _start(
        self, daemon: Daemon, launch: Launch, program: str | None, share: Share, output_fd: int
    ) -> Box:
        """Start a task in its own container.

        Raises:
            NoAnswerError: The daemon has gone. The rest of the container is removed once it is
                back.
        """
        token = secrets.token_hex(8)
        if launch.runtime is not None and launch.runtime not in daemon.runtimes:
            known = ", ".join(sorted(daemon.runtimes))
            raise IsolationError(
                f"`runtime`: the Docker daemon at {daemon.url} has no {launch.runtime!r}; expected "
                f"one of {known}, or add it below `runtimes` in its daemon.json"
            )
        if launch.image != HOST_IMAGE:
            launch = with_path_of_image(daemon, launch)
        parent = find_parent(
            PREFIX + self._group,
            box_name(launch.task, launch.private),
            launch.place,
            daemon.driver,
        )
        labels = {GROUP: self._group, TASK: launch.task, TOKEN: token, OWNER: owner(os.getpid())}
        labels[FOLDERS] = "\n".join(map(str, parent.made))
        try:
            parent.make()
            place = place_of(launch.place)
            host = _host_image(daemon) if launch.image == HOST_IMAGE or place is not None else ""
            image = host if launch.image == HOST_IMAGE else launch.image
            network = Network.of(daemon, place, host, labels, parent.path)
            machine = self._machine(parent, daemon)
            first = unmanaged_cgroups.first_share(share, parent)
            request = ContainerRequest(
                launch, image, program, first, machine, network, parent, labels
            )
            files.make_outputs(launch)
            return self._begin(daemon, request, share, output_fd)
        except BaseException:
            daemon.clear(token, parent.remove)
            raise

    def _connected(self, url: str = "") -> Daemon:
        """The daemon at an address, by default at this isolation's own."""
        url = url or self._url
        with self._connecting:
            if url not in self._daemons:
                daemon = Daemon(url)
                _remove_orphans(daemon)
                self._daemons[url] = daemon
            return self._daemons[url]

    def _machine(self, parent: Parent, daemon: Daemon | None) -> limits.DockerHost:
        cpu = parent.folders.get("cpu") if self._version == "v1" else None
        most = cores_above(cpu) if cpu is not None else float("inf")
        return limits.DockerHost(
            self._version, most, daemon is not None and limits.are_linear(daemon.components)
        )

    def _begin(
        self, daemon: Daemon, request: ContainerRequest, share: Share, output_fd: int
    ) -> Box:
        launch, token, parent = request.launch, request.labels[TOKEN], request.parent
        try:
            id = daemon.create(
                request.config(), f"headgate-{re.sub('[^A-Za-z0-9_.-]', '.', launch.task)}-{token}"
            )
        except GoneError as error:
            cure = f"get it with: docker pull {launch.image}"
            raise IsolationError(
                f"image {launch.image!r} is not on this machine; {cure}"
            ) from error
        stream = daemon.attach(id)
        try:
            if parent.unmanaged:
                parent = unmanaged_cgroups.make(parent, id, share, disks.number_of(launch.cwd))
            try:
                with unmanaged_cgroups.entering(parent, id):
                    daemon.start(id)
            except NoAnswerError:
                raise
            except IsolationError as error:
                raise IsolationError(_why_not(launch, str(error))) from error
            pid, cgroups = self._find_process(daemon, id, launch.cwd)
            outer = self._cgroups(parent.folders, launch.cwd) if parent.path is not None else None
            where = "this machine" if launch.place is None else f"node {launch.place.hostname}"
            mounted = frozenset(mount.target for mount in request.binds())
            container = Container(
                daemon,
                id,
                token,
                pid,
                cgroups,
                outer,
                launch.runtime,
                request.machine,
                parent,
                where,
                mounted,
                launch.keeps,
            )
            output = os.dup(output_fd)
        except BaseException:
            os.close(stream)
            daemon.clear(token, parent.remove)
            raise
        return ContainerBox(launch.task, container, share, stream, output)

    def _find_process(self, daemon: Daemon, id: str, cwd: str) -> tuple[int, Cgroups]:
        """Process id of a container's first process, 0 if it has ended already, and its cgroups.

        Raises:
            IsolationError: It runs, but its cgroups cannot be seen.
        """
        pid, deadline = int(daemon.state(id)["Pid"]), time.monotonic() + SEEN_SECONDS
        while pid and processes.look(pid) is not None:
            seen_folders = folders_of(pid, CGROUPS, self._version)
            if folders := {name: path for name, path in seen_folders.items() if id in path.name}:
                return pid, self._cgroups(folders, cwd)
            if time.monotonic() >= deadline:
                raise IsolationError(
                    "the cgroups of its container cannot be seen from here; run headgate outside "
                    "of a container, or share the machine's with it (docker run --cgroupns host -v "
                    "/sys/fs/cgroup:/sys/fs/cgroup)"
                )
            time.sleep(0.01)
        return 0, self._cgroups({}, cwd)

    def _cgroups(self, folders: Mapping[str, Path], cwd: str) -> Cgroups:
        kind: Callable[..., Cgroups] = CgroupsV1 if self._version == "v1" else CgroupsV2
        return kind(folders, Fallbacks(self._cores), disks.number_of(cwd))


def _check_mounts(launch: Launch) -> None:
    for path in (mount.source for mount in launch.mounts):
        if not os.path.exists(path):
            raise IsolationError(
                f"`mounts`: {path} does not exist on {socket.gethostname()}; create it, or "
                "leave it out"
            )


def marked() -> dict[str, str]:
    """Labels of a container that is removed soon, or once this process is gone."""
    return {TOKEN: secrets.token_hex(8), OWNER: owner(os.getpid())}


def with_path_of_image(daemon: Daemon, launch: Launch) -> Launch:
    """Append the image's PYTHONPATH to that of the task library, unless the job sets one."""
    added = launch.env.get("PYTHONPATH", "")
    with contextlib.suppress(GoneError):  # which making a container will say
        own = daemon.environment(launch.image).get("PYTHONPATH")
        if own and added and os.pathsep not in added:
            return replace(launch, env={**launch.env, "PYTHONPATH": added + os.pathsep + own})
    return launch


def owner(pid: int) -> str:
    """A unique label value for a process of this user, even if its process id is reused."""
    process = processes.look(pid)
    started = process.started if process is not None else 0
    return f"{os.geteuid()}:{processes.boot_id()}:{pid}:{started}"


def _remove_orphans(daemon: Daemon) -> None:
    """Remove the containers of this user's processes that are gone and left no record of them."""
    for container_id in daemon.find(OWNER):
        uid, _, pid, _ = container_id[OWNER].split(":")
        if uid == str(os.geteuid()) and container_id[OWNER] != owner(int(pid)):
            made = container_id.get(FOLDERS, "").splitlines()
            # The cgroups of `unmanaged_cgroups.make` have the container's name.
            folders = [*(f"{folder}/{container_id['id']}" for folder in made), *made]
            daemon.clear(container_id[TOKEN], partial(_remove_folders, folders))


def _remove_folders(folders: Iterable[object]) -> None:
    made = [Path(str(folder)) for folder in folders]
    Parent(made=[folder for folder in made if folder.is_relative_to(CGROUPS)]).remove()


def _host_image(daemon: Daemon) -> str:
    """The name of the empty image, which is made if it does not exist."""
    tag, content = files.host_image()
    name = f"{files.REPOSITORY}:{tag}"
    if not daemon.has_image(name):
        daemon.import_image(content, files.REPOSITORY, tag)
    return name


def _why_not(launch: Launch, text: str) -> str:
    if "device driver" in text and "gpu" in text:
        return (
            f"GPUs cannot be handed to image {launch.image!r}: Docker has no driver for them; "
            "install the NVIDIA container toolkit, or use `image: host`"
        )
    if "exec:" in text and (match := _NO_PROGRAM.search(text)) is not None:
        return f"{launch.argv[0]!r} cannot be started in image {launch.image!r}: {match[0]}"
    return text
