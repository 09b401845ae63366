"""The cgroups of a container in hierarchies where Docker has no say: made beside its own, and
entered as it starts.

Its first process prepares the container, and waits for a word of the runtime before it becomes the
task. That is time enough to move it, so that what the task holds counts where it ought to.
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
"""Times that it is looked for processes which were started while others were moved."""


def first_share(share: Share, parent: Parent) -> Share:
    """The share that Docker makes a container with: no more memory than its node has, which Docker
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
    """Make them, empty, and with the limits of a share.

    They have the container's name, by which the kernel's log tells whom it has killed.

    Args:
        parent: Of the container.
        id: Of the container.
        share: What it is granted at first.
        disk: Device number of the disk of its folder, `major:minor`; None where there is none.

    Returns:
        The parent, with these among what is to be removed.

    Raises:
        IsolationError: They cannot be made; nothing of them is left.
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
            # a rate holds for a cgroup alone, so that of the node is to be repeated
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
    """While the context lasts, in which the container is started, its processes are moved there as
    they come.

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
    """Move what is not there yet; whether nothing was left to be moved."""
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
