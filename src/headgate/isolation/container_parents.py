"""The cgroup that containers are put in, beside the tasks of the same hub that are in none.

Docker takes one path for all hierarchies of cgroup v1, whatever this process is called in each.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headgate.cluster import Place
from headgate.errors import IsolationError
from headgate.isolation import layout

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Parent:
    """Where the cgroups of a container go.

    Args:
        path: As Docker has it, below the root of each hierarchy; None: where Docker puts them by itself.
        folders: The folder by controller.
        made: Folders that are made on the way and are to be removed again, each before the one that it is in.
    """

    path: str | None = None
    folders: Mapping[str, Path] = field(default_factory=dict)
    made: Sequence[Path] = ()

    def remove(self) -> None:
        """Remove it with its last box."""
        for folder in self.made:
            with contextlib.suppress(OSError):  # another box is in it, or it is gone
                folder.rmdir()


def find_parent(group: str, place: Place | None, driver: str) -> Parent:
    """The cgroup of a group of boxes, in a place or on the machine as it is.

    Only root can remove it afterwards, and only the driver `cgroupfs` takes any path; otherwise Docker's own is used.

    Raises:
        IsolationError: Docker cannot put a container within the limits of the place.
    """
    found = layout.find_layout(CGROUPS)
    ours = found.mode != "none" and os.geteuid() == 0 and driver == "cgroupfs"
    if not ours:
        if place is not None:
            raise IsolationError(
                f"node {place.hostname!r}: containers are put in a node's cgroups by root, with Docker's driver "
                f"cgroupfs (native.cgroupdriver=cgroupfs); found uid {os.geteuid()}, driver {driver}"
            )
        return Parent()
    roots = layout.roots(CGROUPS)
    if place is None:
        name = "cpu" if "cpu" in roots else "unified"
        within = {name: found.bases.get(name, roots[name])}
    else:
        within = {name: Path(folder) for name, folder in place.cgroups.items() if name in roots}
    # By the hierarchy of the CPU: a hub's weights are to count, and so is a cap of its own.
    paths = {name: os.path.relpath(folder, roots[name]) for name, folder in within.items()}
    if len(set(paths.values())) > 1:
        raise IsolationError(
            f"node {place.hostname if place is not None else ''!r}: its cgroups have different paths "
            f"({', '.join(f'{name}: {path}' for name, path in paths.items())}), and Docker takes one for all; bring "
            "the lab up from a process that is in the same cgroup of every hierarchy"
        )
    path = os.path.normpath(f"/{next(iter(paths.values()))}/{group}")
    folders = {name: Path(f"{root}{path}") for name, root in roots.items()}
    made = [above for folder in dict.fromkeys(folders.values()) for above in _missing(folder)]
    return Parent(path, folders, made)


def _missing(folder: Path) -> Sequence[Path]:
    """The folder, and those above it that are not there yet."""
    return [folder, *(above for above in folder.parents if not above.exists())]
