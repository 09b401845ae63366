"""The cgroups of a container in hierarchies that Docker does not manage: made next to its own, and
entered as it starts.

Its first process prepares the container, and waits for the runtime before it becomes the task. In
that time it is moved, so that the task's usage counts in the right cgroup.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from headgate.isolation.container.parents import Parent
from headgate.machine.cgroup_v1 import UNLIMITED_BYTES, CgroupsV1
from headgate.machine.cgroups import read_number
from headgate.machine.fallbacks import Cores, Fallbacks
from headgate.model.errors import IsolationError
from headgate.model.shares import UNLIMITED, Share, Unlimited

LOOK_SECONDS = 0.001
_ROUNDS = 1000
"""Most searches for processes started while others were moved."""


def first_share(share: Share, parent: Parent) -> Share:
    """The share with which Docker makes a container: no more memory than its node has, which Docker
    does not know.
    """
    if "memory" not in parent.unmanaged:
        return share
    most = read_number(parent.folders["memory"].parent.parent / "memory.limit_in_bytes")
    own = share.memory_bytes
    if (
        most is None
        or most > UNLIMITED_BYTES
        or (own is not None and not isinstance(own, Unlimited) and own <= most)
    ):
        return share
    return replace(share, memory_bytes=most)


def make(parent: Parent, id: str, share: Share, disk: str | None) -> Parent:
    """Make the cgroups, empty, with the limits of a share.

    They have the container's name, because the kernel's log names a cgroup whose process it kills.

    Args:
        parent: Parent of the container.
        id: Id of the container.
        share: Its initial share.
        disk: Device number of its folder's disk, `major:minor`; None: none.

    Returns:
        The parent, with these cgroups among those to remove.

    Raises:
        IsolationError: They cannot be made. Nothing of them is left.
    """
    inner = {name: parent.folders[name] / id for name in parent.unmanaged}
    parent = replace(parent, made=(*inner.values(), *parent.made))
    try:
        for name, folder in inner.items():
            outer = _only(name, folder.parent, disk)
            outer.create()
            _only(name, folder, disk).create()
            if name == "memory" and share.memory_bytes is not None:
                _only(name, folder, disk).apply(Share(memory_bytes=share.memory_bytes))
            # a rate only holds for one cgroup, so that of the node has to be repeated
            if name == "blkio":
                for write in (
                    outer.writes("disk_bytes_per_second", share.disk_bytes_per_second or UNLIMITED)
                    or ()
                ):
                    (folder / write.path.name).write_text(write.text)
    except (OSError, IsolationError) as error:
        parent.remove()
        raise IsolationError(f"the cgroups of its node cannot be entered: {error}") from error
    return parent


@contextmanager
def entering(parent: Parent, id: str) -> Iterator[None]:
    """A context in which a starting container's processes are moved there as they appear.

    Raises:
        IsolationError: The kernel refused it.
    """
    if not parent.unmanaged:
        yield
        return
    started = threading.Event()

    def watch() -> None:
        while not started.wait(LOOK_SECONDS):
            with suppress(IsolationError):  # it is tried again below
                _enter(parent, id)

    watching = threading.Thread(target=watch, name="headgate-entering", daemon=True)
    watching.start()
    try:
        yield
    finally:
        started.set()
        watching.join()
    for _ in range(_ROUNDS):
        if _enter(parent, id):
            return


def _enter(parent: Parent, id: str) -> bool:
    """Move processes that are not there yet. Returns whether there were none."""
    [own, *_] = (
        folder / id for name, folder in parent.folders.items() if name not in parent.unmanaged
    )
    is_member = True
    for name in parent.unmanaged:
        target = parent.folders[name] / id
        left = _pids(own) - _pids(target)
        _move(left, target)
        is_member = is_member and not left
    return is_member


def _move(pids: Iterable[str], target: Path) -> None:
    for pid in pids:
        try:
            (target / "cgroup.procs").write_text(pid)
        except ProcessLookupError:  # it has ended
            continue
        except OSError as error:
            raise IsolationError(
                f"process {pid} cannot be put into {target}: {error.strerror}"
            ) from error


def _pids(folder: Path) -> set[str]:
    try:
        return set((folder / "cgroup.procs").read_text().split())
    except OSError:  # it has ended, and its cgroup with it
        return set()


def _only(controller: str, folder: Path, disk: str | None) -> CgroupsV1:
    return CgroupsV1({controller: folder}, Fallbacks(Cores()), disk)
