"""A place on this machine, made of a network namespace and cgroups of its own, for tests of what
runs there.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headgate.machine.cgroup_layout import V2_CONTROLLERS, CgroupLayout, find_layout
from headgate.model.cluster import Place
from headgate.testing.wait import until

ADDRESS, NEIGHBOUR = "10.99.9.1", "10.99.9.2"
"""Its own address, and one that it can send to though nobody is there."""


@contextmanager
def placed(folder: Path, name: str) -> Iterator[Place]:
    """A place whose interface `eth0` leads out to the machine; all of it is gone afterwards.

    Args:
        folder: Where its hosts file goes.
        name: At most 8 characters; becomes its host name.
    """
    if os.geteuid() != 0:
        pytest.skip("a network namespace and cgroups of its own need root")
    if shutil.which("ip") is None:
        pytest.skip("a network namespace is made by ip, of the package iproute2")
    unique = f"{name}-{os.getpid()}"
    hosts = folder / f"hosts-{name}"
    hosts.write_text(f"127.0.0.1 localhost\n{ADDRESS} {name}\n")
    layout = find_layout(Path("/sys/fs/cgroup"))
    with ExitStack() as undo:
        _ip("netns", "add", unique)
        undo.callback(_ip, "netns", "delete", unique)
        _ip("link", "add", unique, "type", "veth", "peer", "name", "eth0", "netns", unique)
        _ip("link", "set", unique, "up")
        for command in (
            f"addr add {ADDRESS}/24 dev eth0",
            "link set lo up",
            "link set eth0 up",
            f"neigh add {NEIGHBOUR} lladdr 02:00:00:00:00:01 dev eth0",
        ):
            _ip("-netns", unique, *command.split())
        folders = {
            controller: base / f"place-{unique}" for controller, base in layout.bases.items()
        }
        for made in dict.fromkeys(folders.values()):
            _make(made, layout)
            undo.callback(until, lambda gone=made: _removed(gone), what=f"the end of {made}")
        # so that what others run meanwhile does not keep its tasks from what they may use
        if "cpu" in folders:
            weight = folders["cpu"] / ("cpu.weight" if layout.mode == "v2" else "cpu.shares")
            weight.write_text("10000" if layout.mode == "v2" else str(1 << 18))
        yield Place(
            namespace=f"/run/netns/{unique}",
            hostname=name,
            hosts=str(hosts),
            cgroups={controller: str(path) for controller, path in folders.items()},
        )


def set_cores(place: Place, cores: float) -> None:
    """Let all that runs in a place use so many cores together."""
    folder, period = Path(place.cgroups["cpu"]), 10_000
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{round(cores * period)} {period}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(period))
        (folder / "cpu.cfs_quota_us").write_text(str(round(cores * period)))


def set_memory(place: Place, count: int) -> None:
    """Let all that runs in a place hold so many bytes together."""
    folder = Path(place.cgroups["memory"])
    name = "memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes"
    (folder / name).write_text(str(count))


def set_disk_rate(place: Place, disk: str, rate: int) -> None:
    """Limit what each process in a place reads of a disk, in bytes a second; 0 lifts the limit."""
    if "io" in place.cgroups:
        (Path(place.cgroups["io"]) / "io.max").write_text(f"{disk} rbps={rate or 'max'}")
    else:
        (Path(place.cgroups["blkio"]) / "blkio.throttle.read_bps_device").write_text(
            f"{disk} {rate}"
        )


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stdout=subprocess.DEVNULL)


def _make(folder: Path, layout: CgroupLayout) -> None:
    if layout.mode == "v2":
        for controller in V2_CONTROLLERS:
            if controller in layout.bases:
                (folder.parent / "cgroup.subtree_control").write_text(f"+{controller}")
    folder.mkdir()
    if layout.mode == "v1" and layout.bases.get("cpuset") == folder.parent:
        for name in ("cpuset.cpus", "cpuset.mems"):
            (folder / name).write_text((folder.parent / name).read_text())


def _removed(folder: Path) -> bool:
    """Whether it is gone; the kernel lets go of the last process a moment after its end."""
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
