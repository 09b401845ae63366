"""Finds where cgroups can be made on this machine: v1, v2, both mounted side by side, or
nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headgate.machine.files import content
from headgate.machine.limits import has_limits

Mode = Literal["v1", "v2", "none"]

CGROUPS = Path("/sys/fs/cgroup")
V1_CONTROLLERS = ("cpu", "cpuacct", "memory", "cpuset", "blkio", "freezer")
V2_CONTROLLERS = ("cpu", "memory", "cpuset", "io")
LEAF = "headgate-hub"
"""The folder to which the processes of a delegated folder move, so that controllers can be enabled
for its children. The arbiter of a shared machine puts a hub into one.
"""
CURE = (
    "run as root, or in a delegated scope: systemd-run --user --scope -p Delegate=yes headgate ..."
)


@dataclass(frozen=True, slots=True)
class CgroupLayout:
    """The parents of the tasks' cgroups.

    Args:
        mode: The mechanism that limits tasks.
        bases: Parent folder by controller. v2 controllers share one folder, named `unified`.
        vacate: Whether the v2 folder has processes, which must move down a level before its
            controllers can be enabled for children.
        missing: By controller, why it is not available.
    """

    mode: Mode
    bases: Mapping[str, Path] = field(default_factory=dict)
    vacate: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A mounted cgroup hierarchy. `controllers` is empty for cgroup2. `own` is the folder of this
    process.
    """

    point: Path
    controllers: frozenset[str]
    own: Path


def find_layout(
    root: Path, proc: Path = Path("/proc/self"), also: tuple[str, ...] = ()
) -> CgroupLayout:
    """The best layout for this process: v1 if one of its controllers can be used, otherwise v2,
    otherwise none.

    Args:
        root: Where cgroups are mounted.
        proc: Folder of this process in /proc.
        also: Controllers besides those that tasks need.
    """
    for candidate in (find_v1(root, proc, also), find_v2(root, proc, also)):
        if candidate.bases:
            return candidate
    mounts = list(_mounts(root, proc))
    if not mounts:
        return CgroupLayout(
            "none", missing={"cgroup": f"no cgroup hierarchy is mounted under {root}"}
        )
    own = mounts[-1].own
    return CgroupLayout(
        "none", missing={"cgroup": f"uid {os.geteuid()} may not make cgroups in {own} or above"}
    )


def find_v1(
    root: Path, proc: Path = Path("/proc/self"), also: tuple[str, ...] = ()
) -> CgroupLayout:
    """The layout under v1. Cgroups are made below this process's own, so that its limits also hold
    for them.
    """
    bases: dict[str, Path] = {}
    missing = dict.fromkeys(V1_CONTROLLERS + also, f"no v1 hierarchy of it is mounted under {root}")
    unified = None
    for mount in _mounts(root, proc):
        if not mount.controllers:
            unified = mount.own.parent if mount.own.name == LEAF else mount.own
        for controller in mount.controllers & missing.keys():
            if _writable(mount.own):
                bases[controller] = mount.own
                del missing[controller]
            else:
                missing[controller] = f"{mount.own} is not writable for uid {os.geteuid()}"
    if bases and unified is not None and _writable(unified):
        # without controllers it still counts CPU and pressure, and can end all processes at once
        bases["unified"] = unified
    return CgroupLayout("v1", bases=bases, missing=missing)


def find_v2(
    root: Path, proc: Path = Path("/proc/self"), also: tuple[str, ...] = ()
) -> CgroupLayout:
    """The folder for groups under v2. Only a folder without processes can enable controllers for
    its children.

    For root it is the top one. Otherwise it is the nearest one above that belongs to this user and
    is empty. Or it was delegated and can be emptied into a folder below it. No folder above one
    with limits is used.
    """
    controllers = V2_CONTROLLERS + also
    best = CgroupLayout(
        "v2", missing=dict.fromkeys(controllers, f"no cgroup2 hierarchy is mounted under {root}")
    )
    for mount in _mounts(root, proc):
        if mount.controllers:
            continue
        why = f"{mount.own} is not writable for uid {os.geteuid()}"
        best = CgroupLayout("v2", missing=dict.fromkeys(controllers, why))
        for folder in _self_and_parents(mount):
            if not _writable(folder):
                continue
            vacate = not _is_top(folder) and _occupied(folder)
            offered = (folder / "cgroup.controllers").read_text().split()
            if vacate and not _may_vacate(folder, mount):
                offered = []
            bases = {name: folder for name in controllers if name in offered} | {"unified": folder}
            if len(bases) > len(best.bases):
                why = f"{folder} has only these controllers: {' '.join(offered) or 'none'}"
                missing = {name: why for name in controllers if name not in offered}
                best = CgroupLayout(
                    "v2", bases=bases, vacate=vacate and bool(offered), missing=missing
                )
    return best


def _self_and_parents(mount: CgroupMount) -> Iterator[Path]:
    """For root the top folder, then the own one and its parents, up to the first with limits, which
    have to stay in force. A hub that is in a leaf already goes on beside it.
    """
    own = mount.own.parent if mount.own.name == LEAF else mount.own
    folders = [own]
    while folders[-1] != mount.point and not has_limits(folders[-1]):
        folders.append(folders[-1].parent)
    is_free = own == mount.own and folders[-1] == mount.point
    if is_free and os.geteuid() == 0 and _is_top(mount.point):
        yield mount.point
    yield from folders


def roots(root: Path) -> dict[str, Path]:
    """Mount points of all hierarchies, by names of their controllers; `unified` is cgroup2."""
    return {
        name: mount.point
        for mount in _mounts(root, Path("/proc/self"))
        for name in mount.controllers or {"unified"}
    }


def passes_protection_on(root: Path, proc: Path = Path("/proc/self")) -> bool | None:
    """Whether `memory.low` of a cgroup protects what is below it (mount option
    `memory_recursiveprot`); None: v2 does not control memory here.
    """
    for line in (proc / "mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        point, kind = Path(_unescape(before.split(" ")[4])), after.split(" ", 1)[0]
        is_below = kind == "cgroup2" and point.is_relative_to(root)
        if is_below and "memory" in content(point / "cgroup.controllers").split():
            return "memory_recursiveprot" in after.rpartition(" ")[2].split(",")
    return None


def folders_of(pid: int, root: Path, version: Mode) -> dict[str, Path]:
    """The cgroups of a process by controller, as in `CgroupLayout.bases`; empty if it has ended."""
    proc = Path("/proc")
    try:
        mounts = list(_mounts(root, proc / "self", proc / str(pid)))
    except (FileNotFoundError, ProcessLookupError):
        return {}
    folders: dict[str, Path] = {}
    for mount in mounts:
        if not mount.controllers:
            folders["unified"] = mount.own
        folders |= {
            name: mount.own
            for name in V1_CONTROLLERS
            if version == "v1" and name in mount.controllers
        }
    if version == "v2" and (own := folders.get("unified")) is not None and own.is_dir():
        offered = (own / "cgroup.controllers").read_text().split()
        folders |= {name: own for name in V2_CONTROLLERS if name in offered}
    return folders


def _mounts(root: Path, proc: Path, whose: Path | None = None) -> Iterator[CgroupMount]:
    """Cgroup hierarchies mounted at or under `root` in which this process sees its own folder, or
    that of another process. `whose` is the other one's folder in /proc.
    """
    own: dict[frozenset[str], str] = {}
    for line in ((whose or proc) / "cgroup").read_text().splitlines():
        _, joined, own_path = line.split(":", 2)
        own[frozenset(joined.split(",")) if joined else frozenset()] = own_path
    for line in (proc / "mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        fs_root, point = (_unescape(part) for part in before.split(" ")[3:5])
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2") or not Path(point).is_relative_to(root):
            continue
        names = frozenset(options.split(",")) if kind == "cgroup" else frozenset()
        for controllers, path in own.items():
            if (
                (controllers <= names)
                if kind == "cgroup" and controllers
                else not (controllers or names)
            ):
                # In a container without a cgroup namespace, the path is the host's, whose folders
                # are not mounted.
                relative = (
                    os.path.relpath(path, fs_root) if Path(path).is_relative_to(fs_root) else "."
                )
                folder = Path(os.path.normpath(os.path.join(point, relative)))
                if folder.is_dir():
                    yield CgroupMount(Path(point), controllers, folder)


def _unescape(text: str) -> str:
    return text.encode().decode("unicode_escape") if "\\" in text else text


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _is_top(folder: Path) -> bool:
    """Whether it is the kernel's own root of cgroup2. Only that one may have both processes and
    enabled controllers.
    """
    return not (folder / "cgroup.type").exists()


def _occupied(folder: Path) -> bool:
    try:
        return bool((folder / "cgroup.procs").read_text().strip())
    except OSError:  # threaded: processes cannot be listed
        return True


def _may_vacate(folder: Path, mount: CgroupMount) -> bool:
    """Whether its processes may be moved: systemd marks what it delegates, and a container's whole
    tree is its own.
    """
    if not os.access(folder / "cgroup.subtree_control", os.W_OK):
        return False
    if folder == mount.point:
        return True
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(folder, name) == b"1":
                return True
        except OSError:
            continue
    return False
