"""The isolation `container`: a task in a container of Docker Engine on this machine.

The container brings its own files and limits. Network, process ids and shared memory are those of the machine, or of
the node of a lab: the tasks of a job reach each other as under `process`, and nothing is asked of the image.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headgate.errors import IsolationError
from headgate.isolation import container_files as files
from headgate.isolation import container_limits as limits
from headgate.isolation import disks, processes
from headgate.isolation.base import HOST_IMAGE, Box, Isolation, Launch
from headgate.isolation.census import TAG
from headgate.isolation.cgroup_v1 import THROTTLES, CgroupsV1, cores_above, rates
from headgate.isolation.cgroup_v2 import CgroupsV2
from headgate.isolation.cgroups import Cgroups
from headgate.isolation.container_box import Container, ContainerBox
from headgate.isolation.container_daemon import TOKEN, Config, Daemon, GoneError, default_url
from headgate.isolation.container_network import Network
from headgate.isolation.container_parents import Parent, find_parent
from headgate.isolation.layout import Mode, folders_of
from headgate.isolation.process import GROUP_PATTERN, PREFIX
from headgate.isolation.spawning import find_program
from headgate.isolation.standins import Cores, StandIns
from headgate.shares import Share, Unlimited

GROUP, TASK, OWNER = "headgate.group", "headgate.task", "headgate.owner"
"""Labels of a container, besides `TOKEN`: the group of its hub, its task, and the process that started it."""
CGROUPS = Path("/sys/fs/cgroup")
_NO_PROGRAM = re.compile(r"executable file not found|no such file or directory|permission denied")


class ContainerIsolation(Isolation):
    """Boxes tasks in as containers.

    A container runs as the user of this process, with its folder to be written and what else its launch names mounted
    at the same paths. Of the image `host`, which is empty, it sees what this machine has installed.
    """

    name = "container"

    def __init__(self, group: str, *, daemon: str | None = None) -> None:
        """
        Args:
            group: As `ProcessIsolation`; of tasks of both with one group, weights count against each other.
            daemon: Where Docker Engine listens; None: as `DOCKER_HOST` says.

        Raises:
            ValueError: `group` cannot name a folder.
        """
        if not GROUP_PATTERN.fullmatch(group):
            raise ValueError(f"isolation group {group!r}: expected letters, digits, '.', '_' and '-', at most 64")
        self._group = group
        self._url = daemon or default_url()
        self._daemon: Daemon | None = None
        self._connecting = threading.Lock()
        self._cores = Cores()
        self._version: Mode = "v2" if (CGROUPS / "cgroup.controllers").exists() else "v1"

    def start(self, launch: Launch, share: Share, output_fd: int) -> Box:
        launch = replace(launch, env={**launch.env, TAG: launch.task})
        program = find_program(launch) if launch.image == HOST_IMAGE else None
        token = secrets.token_hex(8)
        try:
            daemon = self._connected()
            parent = find_parent(PREFIX + self._group, launch.place, daemon.driver)
            image = _host_image(daemon) if launch.image == HOST_IMAGE or launch.place is not None else launch.image
            labels = self._labels(launch, token)
            try:
                network = Network.of(daemon, launch.place, image, labels, parent.path)
                return self._begin(daemon, launch, program, share, output_fd, network, labels, parent)
            except BaseException:
                daemon.clear(token)
                parent.remove()
                raise
        except IsolationError as error:
            raise IsolationError(f"{launch.task}: {error}") from error

    def describe(self, launch: Launch, share: Share) -> Sequence[str]:
        program = None
        with contextlib.suppress(IsolationError):
            program = find_program(launch) if launch.image == HOST_IMAGE else None
        config = self._config(launch, program, share, Network("host", {}), {}, self._machine(None), None)
        host = config["HostConfig"]
        network = (
            f"the network of node {launch.place.hostname}" if launch.place is not None else "this machine's network"
        )
        return [
            f"docker create, image {launch.image}, as {config['User']}, in {network}",
            *(f"mount {m['Target']}, {'read-only' if m['ReadOnly'] else 'writable'}" for m in host["Mounts"]),
            *(f"with {name} {value}" for name, value in host.items() if name in _SHOWN and value),
            f"cd {launch.cwd}",
            f"exec {shlex.join(launch.argv)}",
        ]

    def check(self) -> None:
        self._connected()

    def lost(self) -> tuple[str, ...]:
        try:
            daemon = self._connected()
        except IsolationError as error:
            return (f"containers: {error}",)
        lines = []
        if os.geteuid() != 0:
            lines.append("disk rate of a task that runs: Docker cannot change it; run as root")
        if daemon.driver != "cgroupfs" or os.geteuid() != 0:
            why = f"Docker puts containers in a group of its own (driver {daemon.driver}, uid {os.geteuid()})"
            lines.append(f"CPU weight against tasks outside of containers: {why}; run as root with driver cgroupfs")
        if self._version == "v1":
            lines.append("disk rate of writes through the page cache: cgroup v1 cannot limit it; boot with cgroup v2")
        return tuple(lines)

    def sweep(self, record: Mapping[str, object]) -> None:
        token, url, folders = record.get("token"), record.get("daemon"), record.get("folders")
        if not isinstance(token, str) or not isinstance(url, str) or not isinstance(folders, Sequence):
            raise IsolationError(f"this is no record of a container: {dict(record)!r}; expected what Box.record gave")
        daemon = self._connected() if url == self._url else Daemon(url)
        for found in daemon.find(f"{TOKEN}={token}"):
            daemon.remove(found["id"])
        made = [Path(str(folder)) for folder in folders if record.get("boot") == processes.boot_id()]
        Parent(made=[folder for folder in made if folder.is_relative_to(CGROUPS)]).remove()

    # --- the parts of a start ---------------------------------------------------------------------------------------

    def _connected(self) -> Daemon:
        with self._connecting:
            if self._daemon is None:
                self._daemon = Daemon(self._url)
                self._clear(self._daemon)
            return self._daemon

    def _clear(self, daemon: Daemon) -> None:
        """Remove the containers of this user's processes that are gone, and left no record of them."""
        mine = f"{os.geteuid()}:"
        for found in daemon.find(OWNER):
            uid_boot, _, process = found[OWNER].partition("/")
            pid, _, started = process.partition("-")
            if not uid_boot.startswith(mine):
                continue
            leader = processes.look(int(pid)) if uid_boot == mine + processes.boot_id() else None
            if leader is None or str(leader.started) != started:
                with contextlib.suppress(IsolationError):
                    daemon.remove(found["id"])

    def _labels(self, launch: Launch, token: str) -> dict[str, str]:
        me = processes.look(os.getpid())
        owner = f"{os.geteuid()}:{processes.boot_id()}/{os.getpid()}-{me.started if me is not None else 0}"
        return {GROUP: self._group, TASK: launch.task, TOKEN: token, OWNER: owner}

    def _machine(self, parent: Parent | None) -> limits.Machine:
        cpu = parent.folders.get("cpu") if parent is not None and self._version == "v1" else None
        return limits.Machine(self._version, cores_above(cpu / "task") if cpu is not None else float("inf"))

    def _begin(
        self,
        daemon: Daemon,
        launch: Launch,
        program: str | None,
        share: Share,
        output_fd: int,
        network: Network,
        labels: Mapping[str, str],
        parent: Parent,
    ) -> Box:
        machine = self._machine(parent)
        config = self._config(launch, program, share, network, labels, machine, parent)
        config["Image"] = _host_image(daemon) if launch.image == HOST_IMAGE else launch.image
        try:
            id = daemon.create(config, f"headgate-{re.sub('[^A-Za-z0-9_.-]', '.', launch.task)}-{labels[TOKEN]}")
        except GoneError as error:
            cure = f"get it with: docker pull {launch.image}"
            raise IsolationError(f"image {launch.image!r} is not on this machine; {cure}") from error
        stream = daemon.attach(id)
        try:
            try:
                daemon.start(id)
            except IsolationError as error:
                raise IsolationError(_why_not(launch, str(error))) from error
            pid = int(daemon.state(id)["Pid"])
            folders = {name: path for name, path in folders_of(pid, CGROUPS, self._version).items() if id in path.name}
            cgroups = self._cgroups(folders, launch.cwd)
            if parent.path is not None and cgroups.folders:
                cgroups.weigh_group()
            where = "this machine" if launch.place is None else f"node {launch.place.hostname}"
            container = Container(daemon, id, labels[TOKEN], pid, cgroups, machine, parent, where)
            output = os.dup(output_fd)
        except BaseException:
            os.close(stream)
            raise
        return ContainerBox(launch.task, container, share, stream, output)

    def _cgroups(self, folders: Mapping[str, Path], cwd: str) -> Cgroups:
        kind: Callable[..., Cgroups] = CgroupsV1 if self._version == "v1" else CgroupsV2
        return kind(folders, StandIns(self._cores), disks.number_of(cwd))

    def _config(
        self,
        launch: Launch,
        program: str | None,
        share: Share,
        network: Network,
        labels: Mapping[str, str],
        machine: limits.Machine,
        parent: Parent | None,
    ) -> Config:
        """What is asked of Docker. Docker's own limits come on top of those of the parent."""
        mounts = files.mounts(launch, program)
        targets = {path: path for path in mounts}
        if launch.place is not None:
            targets["/etc/hosts"] = launch.place.hosts
        env, gpus = _gpus(launch)
        host = {
            "Mounts": [_mount(source, target, mounts.get(target, False)) for target, source in sorted(targets.items())],
            "NetworkMode": network.mode,
            "PidMode": "host",
            "IpcMode": "host",
            "UsernsMode": "host",
            "LogConfig": {"Type": "none"},
            **({"CgroupParent": parent.path} if parent is not None and parent.path is not None else {}),
            **limits.at_first(share, machine),
            **limits.disk_rates(_disk_rates(launch, share)),
            **gpus,
        }
        return {
            "Image": launch.image,
            "Entrypoint": [program or launch.argv[0]],
            "Cmd": list(launch.argv[1:]),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": launch.cwd,
            "User": f"{os.geteuid()}:{os.getegid()}",
            "Labels": dict(labels),
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": {**host, "GroupAdd": [str(group) for group in os.getgroups()]},
        }


_SHOWN = (
    "CpuShares",
    "CpuQuota",
    "CpuPeriod",
    "Memory",
    "MemorySwap",
    "BlkioDeviceReadBps",
    "DeviceRequests",
    "Devices",
)


def _mount(source: str, target: str, writable: bool) -> dict[str, object]:
    # What is mounted below it later is not to be seen half.
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not writable}


def _host_image(daemon: Daemon) -> str:
    """The name of the empty image, which is made where it is not there yet."""
    tag, content = files.host_image()
    name = f"{files.REPOSITORY}:{tag}"
    if not daemon.has_image(name):
        daemon.import_image(content, files.REPOSITORY, tag)
    return name


def _disk_rates(launch: Launch, share: Share) -> dict[str, float]:
    """Bytes a second by disk: of the share for that of its folder, and under v1, where a rate holds for a cgroup
    alone, those of its place."""
    found: dict[str, float] = {}
    place = launch.place.cgroups.get("blkio") if launch.place is not None else None
    if place is not None:
        found |= rates(Path(place, THROTTLES[0]))
    disk, rate = disks.number_of(launch.cwd), share.disk_bytes_per_second
    if disk is not None and rate is not None and not isinstance(rate, Unlimited):
        found[disk] = min(rate, found.get(disk, rate))
    return found


def _gpus(launch: Launch) -> tuple[dict[str, str], dict[str, object]]:
    """Environment and fields of the `HostConfig` for the GPUs: with the machine's own files its devices are enough, an
    image needs the NVIDIA container toolkit. A container counts those that it has from 0."""
    devices = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*"))
    chosen = devices if launch.gpus is None else list(launch.gpus)
    env = dict(launch.env)
    if launch.gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(chosen))))
    if not chosen:
        return env, {}
    if launch.image != HOST_IMAGE:
        request = {"DeviceIDs": [str(number) for number in chosen], "Capabilities": [["gpu"]]}
        return env, {"DeviceRequests": [request]}
    shared = [str(path) for path in sorted(Path("/dev").glob("nvidia[-a-z]*")) if path.is_char_device()]
    paths = [*(f"/dev/nvidia{number}" for number in chosen), *shared]
    return env, {
        "Devices": [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in paths]
    }


def _why_not(launch: Launch, text: str) -> str:
    if "device driver" in text and "gpu" in text:
        return (
            f"GPUs cannot be handed to image {launch.image!r}: Docker has no driver for them; install the NVIDIA "
            "container toolkit, or use `image: host`"
        )
    if "exec:" in text and (found := _NO_PROGRAM.search(text)) is not None:
        return f"{launch.argv[0]!r} cannot be started in image {launch.image!r}: {found[0]}"
    return text
