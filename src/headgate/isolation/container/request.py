"""The request to Docker for a task: the body of `POST /containers/create`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headgate.isolation.base import HOST_IMAGE, Launch
from headgate.isolation.container import files, limits
from headgate.isolation.container.daemon import Config
from headgate.isolation.container.network import MACHINE, Network
from headgate.isolation.container.parents import Parent
from headgate.machine import disks
from headgate.machine.cgroup_v1 import THROTTLES, rates
from headgate.model.cluster import PARTS
from headgate.model.mounts import Mount
from headgate.model.shares import Share, Unlimited
from headgate.sampling.gpu import device_numbers, open_nvml

_SHOWN = (
    "Runtime",
    "CpuShares",
    "CpuQuota",
    "CpuPeriod",
    "Memory",
    "MemorySwap",
    "BlkioDeviceReadBps",
    "BlkioDeviceWriteBps",
    "Devices",
    "DeviceRequests",
)


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """Everything that a container is made from.

    Args:
        launch: The launch.
        image: Its image, by Docker's name.
        program: Path of its program on this machine; None: it is in the image.
        share: Its initial share.
        machine: The basis of its limits.
        network: Its network.
        parent: The parent of its cgroups.
        labels: Its labels.
        devices: Folder of this machine's devices.
    """

    launch: Launch
    image: str
    program: str | None
    share: Share
    machine: limits.DockerHost
    network: Network = MACHINE
    parent: Parent = Parent()  # noqa: RUF009  # it is frozen
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: Path = Path("/dev")

    def config(self) -> Config:
        """The body of the request."""
        launch = self.launch
        env, gpus = _gpus(launch, self.devices)
        return {
            "Image": self.image,
            "Entrypoint": [self.program or launch.argv[0]],
            "Cmd": list(launch.argv[1:]),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": launch.cwd,
            "User": f"{os.geteuid()}:{os.getegid()}",
            "Labels": dict(self.labels),
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": {
                "Mounts": self._mounts(),
                "GroupAdd": [str(group) for group in os.getgroups()],
                "NetworkMode": self.network.mode,
                # A first process with number 1 in its own namespace ignores signals that would end
                # any other (pid_namespaces(7)).
                "PidMode": "host",
                "IpcMode": "host",
                # as always under v1: its cgroups have the same names inside and outside
                "CgroupnsMode": "host",
                "UsernsMode": "host",
                "LogConfig": {"Type": "none"},
                **({"Runtime": launch.runtime} if launch.runtime is not None else {}),
                **({"CgroupParent": self.parent.path} if self.parent.path is not None else {}),
                **limits.at_first(self.share, self.machine),
                **limits.disk_rates(_disk_rates(launch, self.share)),
                **gpus,
            },
        }

    def lines(self) -> Sequence[str]:
        """What will be done, one line for each step."""
        config, launch = self.config(), self.launch
        host = config["HostConfig"]
        network = "this machine" if launch.place is None else f"node {launch.place.hostname}"
        return [
            (
                f"docker create, image {launch.image}, as {config['User']}, in the network "
                f"of {network}"
            ),
            *(
                f"mount {mount['Target']}, {'read-only' if mount['ReadOnly'] else 'writable'}"
                for mount in host["Mounts"]
            ),
            *(f"with {name} {host[name]}" for name in _SHOWN if name in host),
            f"cd {launch.cwd}",
        ]

    def binds(self) -> list[Mount]:
        """The paths of this machine that it sees."""
        return binds(self.launch, self.program)

    def _mounts(self) -> list[dict[str, object]]:
        return [
            {
                "Type": "bind",
                "Source": mount.source,
                "Target": mount.target,
                "ReadOnly": not mount.writable,
            }
            for mount in self.binds()
        ]


def binds(launch: Launch, program: str | None) -> list[Mount]:
    """The paths of this machine that a container sees, by their paths in it.

    Args:
        launch: The launch.
        program: Path of its program on this machine; None: it is in the image.
    """
    binds_by_path = {
        path: Mount(path, path, writable)
        for path, writable in files.mounts(launch, program).items()
    }
    binds_by_path |= {mount.target: mount for mount in launch.mounts}
    if launch.place is not None:
        binds_by_path["/etc/hosts"] = Mount(launch.place.hosts, "/etc/hosts")
    return [binds_by_path[target] for target in sorted(binds_by_path)]


def _disk_rates(launch: Launch, share: Share) -> dict[str, float]:
    """Bytes per second by disk. The share's rate is for the disk of its folder. Under v1, where a
    rate only holds for one cgroup, the rates of its place are added.
    """
    disk_rates: dict[str, float] = {}
    place = launch.place.cgroups.get("blkio") if launch.place is not None else None
    if place is not None:
        disk_rates |= rates(Path(place, THROTTLES[0]))
    disk, rate = disks.number_of(launch.cwd), share.disk_bytes_per_second
    if disk is not None and rate is not None and not isinstance(rate, Unlimited):
        disk_rates[disk] = min(rate, disk_rates.get(disk, rate))
    return disk_rates


def _gpus(launch: Launch, devices: Path) -> tuple[dict[str, str], dict[str, object]]:
    """Variables and fields of the `HostConfig` for the GPUs.

    With the machine's own files the devices suffice; an image needs the NVIDIA container toolkit. A
    container counts its GPUs from 0, in the order of their numbers, and the task is told these.
    Parts of GPUs (MIG) have the same names inside and outside.
    """
    gpu_numbers = [
        int(number) for path in devices.glob("nvidia*") if (number := path.name[6:]).isdigit()
    ]
    files = device_numbers(open_nvml()) if gpu_numbers else {}
    numbers = {file: number for number, file in files.items()}
    chosen = (
        sorted({numbers.get(file, file) for file in gpu_numbers})
        if launch.gpus is None
        else list(launch.gpus)
    )
    env = dict(launch.env)
    in_parts = any(gpu >= PARTS for gpu in chosen)
    if launch.gpus is not None and not in_parts:
        counted = sorted(chosen)
        # the task's first GPU first
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(counted.index(gpu)) for gpu in chosen)
        env["HEADGATE_GPUS"] = ",".join(map(str, counted))
    if not chosen:
        return env, {}
    if launch.image != HOST_IMAGE:
        ids = env["CUDA_VISIBLE_DEVICES"].split(",") if in_parts else list(map(str, chosen))
        return env, {"DeviceRequests": [{"DeviceIDs": ids, "Capabilities": [["gpu"]]}]}
    devices_found = [
        *sorted(devices.glob("nvidia[-a-z]*")),
        *(sorted(devices.glob("nvidia-caps/*")) if in_parts else ()),
    ]
    control = [str(path) for path in devices_found if path.is_char_device()]
    devices_of = dict.fromkeys(gpu // PARTS - 1 if gpu >= PARTS else gpu for gpu in chosen)
    paths = [*(f"{devices}/nvidia{files.get(number, number)}" for number in devices_of), *control]
    return env, {
        "Devices": [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
            for path in paths
        ]
    }
