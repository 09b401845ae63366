"""The cgroup that a task's containers are put in, beside those of the hub's tasks that are in none.

It outlives them: what was counted of a container is gone with its own cgroup, which the runtime removes at once.
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
        folders: The folder by controller of this isolation.
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


def find_parent(group: str, name: str, place: Place | None, driver: str) -> Parent:
    """The cgroup of a task's containers, in the folder of its group, in a place or on the machine as it is.

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
        first = "cpu" if "cpu" in roots else "unified"
        within = {first: found.bases.get(first, roots[first])}
    else:
        within = {each: Path(folder) for each, folder in place.cgroups.items() if each in roots}
    # By the hierarchy of the CPU: a hub's weights are to count, and so is a cap of its own.
    paths = {each: os.path.relpath(folder, roots[each]) for each, folder in within.items()}
    if len(set(paths.values())) > 1:
        raise IsolationError(
            f"node {place.hostname if place is not None else ''!r}: its cgroups have different paths "
            f"({', '.join(f'{each}: {path}' for each, path in paths.items())}), and Docker takes one for all; bring "
            "the lab up from a process that is in the same cgroup of every hierarchy"
        )
    path = os.path.normpath(f"/{next(iter(paths.values()))}/{group}/{name}")
    everywhere = {controller: Path(f"{root}{path}") for controller, root in roots.items()}
    made = [above for folder in dict.fromkeys(everywhere.values()) for above in _made(folder)]
    folders = {controller: everywhere[controller] for controller in found.bases if controller in everywhere}
    return Parent(path, folders or {"unified": everywhere["unified"]}, made)


def _made(folder: Path) -> Sequence[Path]:
    """The folder of a task, that of its group, and those above them that are not there yet."""
    return [folder, folder.parent, *(above for above in folder.parent.parents if not above.exists())]
