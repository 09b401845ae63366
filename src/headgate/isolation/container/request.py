"""What is asked of Docker for a task: the body of `POST /containers/create`."""

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
    """All that a container is made from.

    Args:
        launch: What is started.
        image: Its image as Docker has it.
        program: Path of its program on this machine; None: it is one of the image.
        share: What it is granted at first.
        machine: What its limits are reckoned for.
        network: What it is joined to.
        parent: What its cgroups are in.
        labels: What it is found by.
        devices: Where this machine has its devices.
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
                # A first process that is number 1 of its own ignores what would end any other
                # (pid_namespaces(7)).
                "PidMode": "host",
                "IpcMode": "host",
                # as ever under v1: its cgroups have one name, here and there
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
        """What will be done, a line each."""
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
        """What it sees of this machine."""
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
    """What a container sees of this machine, by where it sees it.

    Args:
        launch: What is started.
        program: Path of its program on this machine; None: it is one of the image.
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
    """Bytes a second by disk: of the share for that of its folder, and under v1, where a rate holds
    for a cgroup alone, those of its place.
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
    """Environment and fields of the `HostConfig` for the GPUs: with the machine's own files its
    devices are enough, an image needs the NVIDIA container toolkit. A container counts those that
    it has from 0, in the order of their numbers, which the task is told; parts of GPUs (MIG) have
    the same names in it as outside.
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
        # the task's first one first
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
    whole = dict.fromkeys(gpu // PARTS - 1 if gpu >= PARTS else gpu for gpu in chosen)
    paths = [*(f"{devices}/nvidia{files.get(number, number)}" for number in whole), *control]
    return env, {
        "Devices": [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
            for path in paths
        ]
    }
