"""The network of a container: the machine's, or that of a lab's node.

Docker can join a container to the network of another container, but to no other namespace. So an
idle container enters the node's network and holds it for the container of the task. If this process
has a network of its own, like the agent of a lab's node, its tasks share it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headgate.isolation.container import files
from headgate.isolation.container.daemon import TOKEN, Daemon
from headgate.model.cluster import Place
from headgate.model.errors import IsolationError

ENTER_SECONDS = 10.0
NAMED = Path("/run/netns")


def place_of(own: Place | None) -> Place | None:
    """The place whose network a task has: its own, or that of this process in a named namespace
    (`ip netns`); None: the machine's.
    """
    if own is not None:
        return own
    stat = os.stat("/proc/self/ns/net")
    for path in NAMED.glob("*"):
        with contextlib.suppress(OSError):  # it went meanwhile
            if os.path.samestat(stat, path.stat()):
                return Place(str(path), socket.gethostname(), "/etc/hosts", {})
    return None


@dataclass(frozen=True, slots=True)
class Network:
    """The network that a container is joined to.

    Args:
        mode: `NetworkMode` of its `HostConfig`.
    """

    mode: str

    @staticmethod
    def of(
        daemon: Daemon,
        place: Place | None,
        image: str,
        labels: Mapping[str, str],
        parent: str | None,
    ) -> Network:
        """The network of a place, or the machine's.

        Args:
            daemon: The container's daemon.
            place: The task's place.
            image: The empty image of this machine.
            labels: Labels of the task's containers.
            parent: The parent of their cgroups.

        Raises:
            IsolationError: The place does not exist, or cannot be entered.
        """
        if place is None:
            return MACHINE
        id = daemon.create(
            _holder(place, image, labels, parent), f"headgate-network-{labels[TOKEN]}"
        )
        daemon.start(id)
        pid = int(daemon.state(id)["Pid"])
        if not _entered(pid, place.namespace):
            raise IsolationError(
                f"node {place.hostname!r} cannot be entered: {place.namespace}; is the lab down? "
                "bring it up again: headgate lab up FILE"
            )
        return Network(f"container:{id}")


MACHINE = Network("host")
"""The machine's network."""


def _holder(
    place: Place, image: str, labels: Mapping[str, str], parent: str | None
) -> dict[str, object]:
    enter, sleep = shutil.which("nsenter"), shutil.which("sleep")
    if enter is None or sleep is None:
        raise IsolationError(
            "a container joins a node by nsenter, of the package util-linux; install it"
        )
    if not os.path.exists(place.namespace):
        raise IsolationError(
            f"node {place.hostname!r} cannot be entered: {place.namespace} does not exist; is the "
            "lab down? bring it up again: headgate lab up FILE"
        )
    mounts = files.system_mounts(place.namespace)
    return {
        "Image": image,
        "Hostname": place.hostname,
        "Entrypoint": [enter, f"--net={place.namespace}", sleep, "infinity"],
        "User": "0:0",
        "Labels": dict(labels),
        "HostConfig": {
            "Mounts": [
                {"Type": "bind", "Source": path, "Target": path, "ReadOnly": True}
                for path in sorted(mounts)
            ],
            "NetworkMode": "none",
            # as this process sees them; Docker may not
            "ExtraHosts": _hosts(Path(place.hosts)),
            "PidMode": "host",
            "UsernsMode": "host",
            "CapAdd": ["SYS_ADMIN"],
            "LogConfig": {"Type": "none"},
            "CpuShares": 2,  # the least: it has nothing to do
            **({"CgroupParent": parent} if parent is not None else {}),
        },
    }


def _hosts(path: Path) -> list[str]:
    """The names in a hosts file, each with its address."""
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [
        f"{name}:{address}"
        for address, *names in filter(None, lines)
        for name in names
        if name != "localhost"
    ]


def _entered(pid: int, namespace: str) -> bool:
    """Whether a process enters a network namespace within a short time."""
    wanted, deadline = os.stat(namespace).st_ino, time.monotonic() + ENTER_SECONDS
    while pid and time.monotonic() < deadline:
        try:
            if os.stat(f"/proc/{pid}/ns/net").st_ino == wanted:
                return True
        except OSError:  # it ended
            return False
        time.sleep(0.002)
    return False
