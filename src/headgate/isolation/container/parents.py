"""The cgroup around a task's containers, next to those of the hub's other tasks.

It outlives the containers' own cgroups, whose counters are lost when the runtime removes them.
Docker takes one path for all hierarchies of cgroup v1, whatever this process is called in each. If
the other cgroups of a place have a different path than that of its CPU, a container's processes are
moved there once it runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headgate.machine import cgroup_layout
from headgate.machine.box_names import PREFIX
from headgate.model.cluster import Place
from headgate.model.errors import IsolationError

REMOVAL_SECONDS = 2.0
MAKE_SECONDS = 2.0
"""Longest time to retry making a folder whose parent others remove."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent of a container's cgroups.

    Args:
        path: Its path for Docker, below the root of each hierarchy; None: Docker's default.
        folders: The folder of each controller.
        unmanaged: Controllers that Docker does not manage there: in their hierarchies it puts the
            container elsewhere.
        own: The folder at `path` in each hierarchy.
        made: Folders that are made on the way and are to be removed again, each before its parent.
    """

    path: str | None = None
    folders: Mapping[str, Path] = field(default_factory=dict)
    unmanaged: frozenset[str] = frozenset()
    own: Sequence[Path] = ()
    made: Sequence[Path] = ()

    def make(self) -> None:
        """Make what Docker would make on its way to the container.

        Docker fails if the last box of the group is removed meanwhile, and the group with it. A
        group with something in it stays.

        Raises:
            IsolationError: The kernel refused it.
        """
        for folder in self.own:
            _make(folder)

    def remove(self) -> None:
        """Remove it with its last box, and what a runtime left of removed containers (runsc)."""
        for folder in self.made:
            for left in folder.glob("[0-9a-f]" * 64):
                with contextlib.suppress(OSError):  # somebody is in it
                    left.rmdir()
            _remove(folder)


def find_parent(group: str, name: str, place: Place | None, driver: str) -> Parent:
    """The parent of a task's containers, in the folder of its group, in a place or on the machine
    itself.

    Only root can remove it afterwards, and only the driver `cgroupfs` takes any path. Otherwise
    Docker's own parent is used.

    Raises:
        IsolationError: Docker cannot put a container within the limits of the place.
    """
    layout = cgroup_layout.find_layout(cgroup_layout.CGROUPS)
    ours = layout.mode != "none" and os.geteuid() == 0 and driver == "cgroupfs"
    if not ours:
        if place is not None:
            raise IsolationError(
                f"node {place.hostname!r}: containers are put in a node's cgroups by root, with "
                "Docker's driver cgroupfs (native.cgroupdriver=cgroupfs); found uid "
                f"{os.geteuid()}, driver {driver}"
            )
        return Parent()
    roots = cgroup_layout.roots(cgroup_layout.CGROUPS)
    if place is None:
        first = "cpu" if "cpu" in roots else "unified"
        within = {first: layout.bases.get(first, roots[first])}
    else:
        within = {
            hierarchy: Path(folder)
            for hierarchy, folder in place.cgroups.items()
            if hierarchy in roots
        }
    # By the hierarchy of the CPU, because a hub's weights have to count, and so has a cap of its
    # own.
    paths = {
        hierarchy: os.path.relpath(folder, roots[hierarchy]) for hierarchy, folder in within.items()
    }
    leading = paths.get("cpu") or next(iter(paths.values()))
    path = os.path.normpath(f"/{leading}/{group}/{name}")
    everywhere = {controller: Path(f"{root}{path}") for controller, root in roots.items()}
    unmanaged = {
        hierarchy: within[hierarchy] / group / name
        for hierarchy in paths
        if paths[hierarchy] != leading
    }
    kept = {above for folder in within.values() for above in (folder, *folder.parents)}
    own = tuple(dict.fromkeys(everywhere.values()))
    every = dict.fromkeys([*own, *unmanaged.values()])
    made = dict.fromkeys(
        above for folder in every for above in _missing_folders(folder) if above not in kept
    )
    folders = {
        base: (everywhere | unmanaged).get(base) or everywhere["unified"] for base in layout.bases
    }
    return Parent(path, folders, frozenset(unmanaged), own, tuple(made))


def _missing_folders(folder: Path) -> Sequence[Path]:
    """The folder of a task, that of its group, and parents that exist for nothing else. These are
    missing, or belong to a place in a hierarchy where it has none.
    """
    above = folder.parent.parent
    beyond = [
        folder_above
        for folder_above in (above, *above.parents)
        if not folder_above.exists() or _is_ours(folder_above)
    ]
    return [folder, folder.parent, *beyond]


def _make(folder: Path) -> None:
    deadline = time.monotonic() + MAKE_SECONDS
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return
        except OSError as error:
            # It was removed after its parent was found, or while its entries were listed.
            gone = isinstance(error, FileNotFoundError | FileExistsError)
            if not gone or time.monotonic() >= deadline:
                raise IsolationError(
                    f"the cgroup {folder} cannot be made: {error.strerror}"
                ) from error


def _remove(folder: Path) -> None:
    """Remove a cgroup unless it has processes. The kernel releases the last process a moment after
    its end.
    """
    deadline = time.monotonic() + REMOVAL_SECONDS
    while True:
        try:
            folder.rmdir()
            return
        except OSError as error:
            busy = error.errno == errno.EBUSY and time.monotonic() < deadline
            if not busy or _is_used(folder):
                return
        time.sleep(0.002)


def _is_used(folder: Path) -> bool:
    try:
        return any(entry.is_dir() for entry in folder.iterdir()) or bool(
            (folder / "cgroup.procs").read_text()
        )
    except OSError:  # it is gone
        return True


def _is_ours(folder: Path) -> bool:
    return any(candidate.name.startswith(PREFIX) for candidate in (folder, *folder.parents))
