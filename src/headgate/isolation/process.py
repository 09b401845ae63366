"""The isolation `process`: a task in its own cgroups, or with fallbacks if none can be written."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from headgate.isolation.base import NEVER, Box, Isolation, Launch, ignore
from headgate.isolation.box import ProcessBox
from headgate.isolation.kept import KeptProcess
from headgate.isolation.spawning import Spawned, find_program
from headgate.isolation.unboxed import Unboxed
from headgate.machine import cgroup_layout, disks, processes
from headgate.machine.box_names import PREFIX, box_name
from headgate.machine.cgroup_v1 import CgroupsV1
from headgate.machine.cgroup_v2 import CgroupsV2
from headgate.machine.enclosure import Enclosure
from headgate.machine.fallbacks import Cores, Fallbacks
from headgate.machine.files import content
from headgate.machine.process_table import TAG, ProcessTable
from headgate.model.cluster import Place
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.shares import Lever, Share, Uncontrolled, Unlimited

GROUP_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

WITHOUT_CONTROLLER = {
    "cpu": {
        Lever.CPU_WEIGHT: "nice stands in",
        Lever.CPU_CAP: "tasks are pinned to whole cores",
    },
    "memory": {Lever.MEMORY: "it holds for each process, whose allocations then fail"},
    "cpuset": {Lever.CPU_SET: "affinity stands in, which a task can change by itself"},
    "io": {Lever.DISK_RATE: "it is not limited"},
    "blkio": {Lever.DISK_RATE: "it is not limited"},
}
"""Levers that are lost without a controller, and their fallbacks."""
WITHOUT_CGROUPS = {
    Lever.CPU_WEIGHT: "nice stands in, which without root can only go up",
    Lever.CPU_CAP: "tasks are pinned to whole cores, which is coarser",
    Lever.MEMORY: (
        "it holds for each process, not for the task, whose allocations then fail (MemoryError)"
    ),
    Lever.DISK_RATE: "it is not limited",
    Lever.ENDING: (
        "a daemon that scrubs its environment, leaves its session and loses its parent is not found"
    ),
}
BUFFERED_WRITES_V1 = Uncontrolled(
    Lever.BUFFERED_WRITES, "cgroup v1 cannot limit it; boot with cgroup v2"
)


class ProcessIsolation(Isolation):
    """Boxes tasks in as plain processes of this machine.

    The cgroups of a task are `headgate-<group>/<task>` in each hierarchy, `/` in the task's id
    written as `:`. The group's folder is removed with its last box. A task with a place has them
    below the place's cgroups, and runs with its network namespace, host name and `/etc/hosts`. That
    takes root.
    """

    name = "process"
    box_class: type[ProcessBox] = ProcessBox

    def __init__(
        self,
        group: str,
        *,
        mode: Literal["auto", "v1", "v2", "none"] = "auto",
        root: Path = cgroup_layout.CGROUPS,
    ) -> None:
        """
        Args:
            group: Distinguishes the boxes of this hub from those of others; letters, digits, `.`,
                `_` and `-`.
            mode: What to use: the best available, cgroup v1, cgroup v2, or no cgroup.
            root: Where cgroups are mounted.

        Raises:
            ValueError: `group` cannot name a folder.
            IsolationError: `mode` names a cgroup version that this process cannot use.
        """
        if not GROUP_PATTERN.fullmatch(group):
            raise ValueError(
                f"isolation group {group!r}: expected letters, digits, '.', '_' and '-', at most 64"
            )
        self._group = PREFIX + group
        self._searched = mode, root
        self._found_from, self._found = _own_cgroups(), _layout(mode, root)
        self._cores = Cores()
        self._process_table = ProcessTable()

    @property
    def _layout(self) -> cgroup_layout.CgroupLayout:
        """The parents of cgroups; others once this process is moved, as by an arbiter."""
        if (own := _own_cgroups()) != self._found_from:
            self._found_from, self._found = own, _layout(*self._searched)
        return self._found

    @property
    def mode(self) -> cgroup_layout.Mode:
        """The mechanism that limits tasks here."""
        return self._layout.mode

    def start(
        self,
        launch: Launch,
        share: Share,
        output_fd: int,
        stopped: threading.Event = NEVER,
        made: Callable[[Box], None] = ignore,
    ) -> Box:
        launch = _tagged(launch)
        program = find_program(launch)
        enclosure = self._enclosure(launch, share)
        with _names_task(launch):
            enclosure.create()
        try:
            child = Spawned(launch, output_fd)
            try:
                with _names_task(launch):
                    enclosure.admit(child.pid)
                    enclosure.apply(share)
                    place = launch.place
                    if place is not None and place.cpus and "cpuset" not in place.cgroups:
                        enclosure.pin(frozenset(place.cpus))
                box = self.box_class(
                    launch.task, child.process, enclosure, self.mode, _where(launch)
                )
                made(box)
                child.release(program)
            except BaseException:
                child.abort()
                raise
        except BaseException:
            enclosure.remove()
            raise
        return box

    def describe(self, launch: Launch, share: Share) -> Sequence[str]:
        enter_command = [] if launch.place is None else _entering(launch.place)
        return [
            *self._enclosure(launch, share).plan(share),
            *enter_command,
            f"cd {launch.cwd}",
            f"exec {shlex.join(launch.argv)}",
        ]

    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        missing = self._layout.missing
        if self.mode == "none":
            cause = f"no cgroup ({missing.get('cgroup', 'not asked for')}); {cgroup_layout.CURE}"
            return tuple(
                Uncontrolled(lever, f"{fallback}: {cause}")
                for lever, fallback in WITHOUT_CGROUPS.items()
            )
        uncontrolled = [
            Uncontrolled(
                lever,
                (
                    f"{fallback}: no {controller} controller ({missing[controller]}); "
                    f"{cgroup_layout.CURE}"
                ),
            )
            for controller, fallbacks in WITHOUT_CONTROLLER.items()
            if controller in missing
            for lever, fallback in fallbacks.items()
        ]
        if self.mode == "v1" and "blkio" not in missing:
            uncontrolled.append(BUFFERED_WRITES_V1)
        return tuple(uncontrolled)

    def take_up(self, record: Mapping[str, object]) -> tuple[Box, int, int]:
        recorded, task = self._recorded(record), TaskId(str(record["task"]))
        if recorded is None:
            raise IsolationError(f"{task}: it ran before this machine was started again")
        enclosure, _ = recorded
        process, output, appended = KeptProcess.taken_up(record)
        box = self.box_class(task, process, enclosure, _mode(record), "this machine")
        return box, output, appended

    def sweep(self, record: Mapping[str, object]) -> None:
        if (recorded := self._recorded(record)) is None:
            return
        enclosure, groups = recorded
        enclosure.kill()
        enclosure.remove()
        # a process that died while removing the box may have left folders of earlier places
        for group in groups:
            with contextlib.suppress(OSError):  # another box is in it
                group.rmdir()

    def release(self, record: Mapping[str, object]) -> None:
        if (enclosure := self._recorded(record)) is not None:
            enclosure[0].release()
            processes.wake(enclosure[0].pids())  # nor does it hear anything that somebody stopped

    def _recorded(self, record: Mapping[str, object]) -> tuple[Enclosure, set[Path]] | None:
        """The enclosure in a record, and the folders of its group; None: of an earlier boot, which
        nothing outlives.

        Raises:
            IsolationError: It is no record of a box.
        """
        task, mode, folders = record.get("task"), record.get("mode"), record.get("folders")
        if not isinstance(task, str) or not isinstance(folders, Mapping):
            raise IsolationError(
                f"this is no record of a box: {dict(record)!r}; expected what Box.record gave"
            )
        if record.get("boot") != processes.boot_id():
            return None
        if mode == "none":
            return Unboxed(
                task, Fallbacks(self._cores), self._process_table, _recorded_leader(record)
            ), set()
        paths = {str(name): Path(str(path)) for name, path in folders.items()}
        for path in paths.values():
            if not path.parent.name.startswith(PREFIX) or ".." in path.parts:
                raise IsolationError(
                    f"{path} is not the cgroup of a box; expected it below a folder {PREFIX}..."
                )
        made = {name: path for name, path in paths.items() if path.is_dir()}
        kind = CgroupsV1 if mode == "v1" else CgroupsV2
        return kind(made or paths, Fallbacks(self._cores)), {path.parent for path in paths.values()}

    def _enclosure(self, launch: Launch, share: Share) -> Enclosure:
        layout, fallbacks = self._layout, Fallbacks(self._cores)
        if layout.mode == "none":
            return Unboxed(launch.task, fallbacks, self._process_table)
        name = box_name(launch.task, launch.private)
        moved = _moved(layout, launch.place)
        folders = {
            controller: moved.get(base, base) / self._group / name
            for controller, base in layout.bases.items()
        }
        if layout.mode == "v1":
            joined = None
            if isinstance(share.disk_bytes_per_second, Unlimited | None) and (
                joined := _disk_of(layout, moved)
            ):
                del folders["blkio"]
            return CgroupsV1(folders, fallbacks, disks.number_of(launch.cwd), joined)
        return CgroupsV2(
            folders, fallbacks, disks.number_of(launch.cwd), layout.vacate and not moved
        )


def remove_empty_groups() -> None:
    """Remove empty cgroups left by this user's hubs that died while making a box, on this machine
    and on nodes of labs. Those of a process id in use stay.
    """
    bases, roots = (
        cgroup_layout.find_layout(cgroup_layout.CGROUPS).bases,
        cgroup_layout.roots(cgroup_layout.CGROUPS),
    )
    leading = next(
        (
            os.path.relpath(bases[n], roots[n])
            for n in ("cpu", "unified")
            if n in bases and n in roots
        ),
        ".",
    )
    # Docker has one path for all hierarchies
    of_containers = (point / leading for point in roots.values())
    name = f"{PREFIX}{os.geteuid()}-*"
    for base in {*bases.values(), *of_containers}:
        # it was removed meanwhile; the next search finds the rest
        with contextlib.suppress(FileNotFoundError):
            # Also next to it, where a hub started in another session had its own.
            for group in [*base.parent.glob(f"*/{name}"), *base.glob(f"{PREFIX}lab-*/*/{name}")]:
                hub = group.name.rpartition("-")[2]
                if hub.isdecimal() and processes.look(int(hub)) is None:
                    _remove_empty(group)


def _remove_empty(group: Path) -> None:
    for folder in [*group.glob("*/"), group]:
        with contextlib.suppress(OSError):  # somebody is in it
            folder.rmdir()


def _layout(mode: Literal["auto", "v1", "v2", "none"], root: Path) -> cgroup_layout.CgroupLayout:
    if mode == "auto":
        return cgroup_layout.find_layout(root)
    if mode == "none":
        return cgroup_layout.CgroupLayout("none")
    layout = cgroup_layout.find_v1(root) if mode == "v1" else cgroup_layout.find_v2(root)
    if not layout.bases:
        causes = "; ".join(dict.fromkeys(layout.missing.values()))
        raise IsolationError(f"cgroup {mode} cannot be used here: {causes}; {cgroup_layout.CURE}")
    return layout


def _own_cgroups() -> str:
    return content(Path("/proc/self/cgroup"))


def _moved(layout: cgroup_layout.CgroupLayout, place: Place | None) -> Mapping[Path, Path]:
    """The folders of a place that replace this machine's. They are mapped by folder, because
    controllers with a common folder have one hierarchy, which a task enters once.
    """
    named = {} if place is None else place.cgroups
    return {
        layout.bases[name]: Path(folder) for name, folder in named.items() if name in layout.bases
    }


def _disk_of(layout: cgroup_layout.CgroupLayout, moved: Mapping[Path, Path]) -> Path | None:
    """The folder of a place in v1's hierarchy of disk rates, if it is separate. Such a rate holds
    for one folder, so tasks only share the place's rate if they are in it.
    """
    base = layout.bases.get("blkio")
    if base is None or list(layout.bases.values()).count(base) > 1:
        return None
    return moved.get(base)


def _where(launch: Launch) -> str:
    return "this machine" if launch.place is None else f"node {launch.place.hostname}"


def _entering(place: Place) -> Sequence[str]:
    return (
        f"enter the network namespace {place.namespace}",
        f"be called {place.hostname}, in a UTS namespace of its own",
        (
            f"mount {place.hosts} over /etc/hosts, and a sysfs of that network over /sys, in a "
            "mount namespace of its own"
        ),
    )


@contextlib.contextmanager
def _names_task(launch: Launch) -> Iterator[None]:
    """Let errors of what holds a task say which task it is."""
    try:
        yield
    except IsolationError as error:
        raise IsolationError(f"{launch.task}: {error}") from error


def _mode(record: Mapping[str, object]) -> cgroup_layout.Mode:
    mode = str(record["mode"])
    modes: Mapping[str, cgroup_layout.Mode] = {"v1": "v1", "v2": "v2"}
    return modes.get(mode, "none")


def _tagged(launch: Launch) -> Launch:
    """The launch with the task's id in its environment, by which its processes are found without
    cgroups.
    """
    return replace(launch, env={**launch.env, TAG: launch.task})


def _recorded_leader(record: Mapping[str, object]) -> processes.Process | None:
    pid, began = record.get("pid"), record.get("started")
    if not isinstance(pid, int) or not isinstance(began, int):
        return None
    return processes.Process(pid=pid, parent=0, session=pid, started=began)
