"""The isolation `vm`: a task in its own guest, which is a task of the isolation `process` on this
machine.

The guest has its own kernel, processes and memory. It sees this machine's files read-only, except
those that the task may write. Its programs on this machine are in the task's box. So CPU weight and
cap, disk rate, readings and the task's end are those of the isolation `process`.
"""

from __future__ import annotations

import json
import marshal
import os
import shlex
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

import headgate
from headgate.isolation import launcher
from headgate.isolation.base import NEVER, WHILE_RUNNING, Box, Launch, ignore
from headgate.isolation.box import ProcessBox, said_shortage
from headgate.isolation.container.files import make_outputs, outputs
from headgate.isolation.process import ProcessIsolation
from headgate.isolation.spawning import find_program, order
from headgate.isolation.vm import probe
from headgate.isolation.vm.guest_channel import EVERYBODY
from headgate.isolation.vm.machines import NAME_SERVER, Machine
from headgate.machine import processes
from headgate.machine.enclosure import MemoryRecord
from headgate.model.cluster import Place
from headgate.model.endings import Exit
from headgate.model.errors import IsolationError
from headgate.model.shares import UNLIMITED, Lever, Share, Uncontrolled
from headgate.model.units import counted, say_bytes

PREFIX = "headgate-vm-"
"""Prefix of every guest's folder. No other folder is ever removed."""
TAP = "headgate-guest"
"""The interface that joins a guest to the network of its node, which has one guest at most."""
SYSTEM_BYTES = 192 << 20
"""Part of a guest's memory for its kernel and for starting the task."""
START_SECONDS = {"kvm": 60.0, "qemu": 300.0, "uml": 120.0}
"""Longest boot of a guest, by its machine."""
FRESH = ("/tmp", "/var/tmp", "/run")
"""Folders that are empty in a guest, except for paths that its task sees."""
CHANNEL, GUEST_CHANNEL = "HEADGATE_CHANNEL", "/run/headgate-channel"
_HERE = Path(__file__).parent

File = tuple[str, str, bool]
"""A path that a guest mounts specially: its path here, its path in the guest, and whether it may be
written.
"""


@dataclass(frozen=True, slots=True)
class Content:
    """The contents of a guest.

    Args:
        files: Paths that it mounts specially.
        container: The task's container (`bundle.start`); None: the task is in none.
    """

    files: Sequence[File]
    container: Mapping[str, object] | None = None


class VmBox(ProcessBox):
    """A task in a guest. Its first process here is the guest's monitor."""

    folder: Path
    """The guest's own folder."""
    machine: Machine
    memory_bytes: int | None = None
    """The memory limit of the task."""

    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        uncontrolled = list(super().apply(replace(share, memory_bytes=None)))
        if share.memory_bytes not in (None, self.memory_bytes or UNLIMITED):
            has = "none" if self.memory_bytes is None else say_bytes(self.memory_bytes)
            fixed = f"a guest's is set when it starts, and stays as it is: {has}"
            uncontrolled.append(Uncontrolled(Lever.MEMORY, fixed))
        if (
            isinstance(share.cpu_cap_cores, float | int)
            and share.cpu_cap_cores > self.machine.cores
        ):
            most = f"its guest cannot use more cores than it has: {self.machine.cores}"
            uncontrolled.append(Uncontrolled(Lever.CPU_CAP, most))
        return tuple(uncontrolled)

    def ask(self, number: int) -> None:
        self._tell(number)

    def terminate(self) -> None:
        self._tell(EVERYBODY)

    def _tell(self, number: int) -> None:
        self._release_for_good()
        if not self._closed and self._leader is not None:
            processes.send([self._leader], number)

    def reap(self) -> Exit:
        end = super().reap()
        try:
            report: dict[str, Any] = json.loads((self.folder / "end").read_text())
        except FileNotFoundError:  # the monitor was killed
            return end
        if (refused := report.get("refused")) is not None:
            return replace(end, reason=f"could not be started: {refused}")
        if (lost := report.get("lost")) is not None:
            return replace(end, reason=lost, lost=True)
        reason = None
        if (killed := report["kills"]) and report["status"] != 0:
            memory = MemoryRecord(report["peak"], killed, self.memory_bytes, report["at_limit"])
            reason = f"killed: {said_shortage(memory, 'its guest')}"
        over = reason is not None and report["at_limit"]
        return replace(
            end,
            memory_peak_bytes=report["peak"],
            kills=killed,
            over_memory=over,
            reason=reason,
            limit_bytes=self.memory_bytes if over else None,
        )

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def record(self) -> dict[str, object]:
        return {**super().record(), "guest": str(self.folder)}


class VmIsolation(ProcessIsolation):
    """Boxes tasks in as virtual machines, one each.

    On a lab's node the guest has the node's network, with its addresses, by a tap. Elsewhere it
    reaches other machines by QEMU's user network, and cannot be reached. The task's connection to
    its engine uses the line to its monitor.
    """

    name = "vm"
    box_class = VmBox

    def start(
        self,
        launch: Launch,
        share: Share,
        output_fd: int,
        stopped: threading.Event = NEVER,
        made: Callable[[Box], None] = ignore,
    ) -> Box:
        program = self.program(launch)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            try:
                machine = probe.machine()
                _check(launch)
                make_outputs(launch)
                seen = _with_channel_of_guest(launch)
                content = self.content(folder, machine, seen, program, share)
            except IsolationError as error:
                raise IsolationError(f"{launch.task}: {error}") from error
            memory = share.memory_bytes if isinstance(share.memory_bytes, int) else None
            _prepare(folder, machine, seen, program, memory, content, launch.env.get(CHANNEL, ""))

            def furnished(box: Box) -> None:
                assert isinstance(box, VmBox)
                box.folder, box.machine, box.memory_bytes = folder, machine, memory
                made(box)

            monitored, outside = _monitored(launch, folder), replace(share, memory_bytes=None)
            return super().start(monitored, outside, output_fd, stopped, furnished)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def program(self, launch: Launch) -> str | None:
        """Path of the task's program on this machine; None: it is in an image."""
        return find_program(launch)

    def content(
        self, folder: Path, machine: Machine, launch: Launch, program: str | None, share: Share
    ) -> Content:
        """The contents of a guest.

        Args:
            folder: The guest's own folder.
            machine: The guest's machine.
            launch: The launch in the guest, with its environment there.
            program: As of `program`.
            share: The task's initial share.

        Raises:
            IsolationError: A part of it is not on this machine.
        """
        for path in (mount.target for mount in launch.mounts):
            if not os.path.exists(path) and not path.startswith(
                tuple(f"{fresh_folder}/" for fresh_folder in FRESH)
            ):
                cure = (
                    f"name a folder that this machine has, one below {FRESH[0]}, or "
                    "`isolation: vm+container`"
                )
                raise IsolationError(
                    f"`mounts`: a guest sees this machine's files, and there is no {path}; {cure}"
                )
        return Content(list(files_of(launch, program)))

    def describe(self, launch: Launch, share: Share) -> Sequence[str]:
        *lines, _, _ = super().describe(launch, replace(share, memory_bytes=None))
        memory = share.memory_bytes if isinstance(share.memory_bytes, int) else None
        try:
            machine = probe.machine()
            cores = counted(machine.cores, "core")
            how = f"{machine.name}, {machine.kernel or 'its own kernel'}, {cores}"
        except IsolationError as error:
            how = f"not here: {error}"
        writes = ", ".join(
            target for _, target, writable in files_of(launch, launch.argv[0]) if writable
        )
        return [
            *lines,
            f"boot a guest ({how}) with {say_bytes(_size(memory, launch.place))} of memory",
            f"mount / read-only, an empty {', '.join(FRESH)}, and to be written: {writes}",
            f"cd {launch.cwd}",
            f"exec {shlex.join(launch.argv)}",
        ]

    def check(self) -> None:
        try:
            probe.machine()
        except IsolationError as error:
            raise IsolationError(f"isolation {self.name}: {error}") from None

    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        try:
            probe.machine()
        except IsolationError as error:
            return (Uncontrolled(Lever.GUESTS, str(error)),)
        fixed = "a guest's is set when it starts; start the job again"
        emulated = [
            Uncontrolled(Lever.GUESTS, emulation) for emulation in filter(None, [probe.emulation()])
        ]
        return (
            *super().uncontrolled(),
            Uncontrolled(Lever.MEMORY, fixed, scope=WHILE_RUNNING),
            *emulated,
        )

    def sweep(self, record: Mapping[str, object]) -> None:
        super().sweep(record)
        folder = Path(str(record.get("guest")))
        if not folder.name.startswith(PREFIX) or ".." in folder.parts:
            raise IsolationError(f"{folder} is not the folder of a guest; expected one {PREFIX}...")
        shutil.rmtree(folder, ignore_errors=True)


def _check(launch: Launch) -> None:
    """Refuse features that a guest does not have."""
    if launch.gpus:
        raise IsolationError(
            "a guest has no GPU; add `limits: {gpus: 0}`, or use another isolation"
        )
    for path in (mount.source for mount in launch.mounts):
        if not os.path.exists(path):
            raise IsolationError(f"`mounts`: {path} does not exist; create it, or leave it out")


def _monitored(launch: Launch, folder: Path) -> Launch:
    """The launch of the guest's monitor, in the task's place."""
    argv = (sys.executable, "-I", "-S", str(_HERE / "monitor.py"), str(folder))
    return replace(launch, argv=argv, env={"PATH": os.environ.get("PATH", os.defpath)}, cwd="/")


def _with_channel_of_guest(launch: Launch) -> Launch:
    """The launch with the channel's path in the guest."""
    if not launch.env.get(CHANNEL, "").startswith("unix:"):
        return launch
    return replace(launch, env={**launch.env, CHANNEL: f"unix:{GUEST_CHANNEL}"})


def _prepare(
    folder: Path,
    machine: Machine,
    launch: Launch,
    program: str | None,
    memory: int | None,
    content: Content,
    channel: str,
) -> None:
    """Write the orders of the monitor and of the guest."""
    scheme, _, channel = channel.partition(":")
    files = list(content.files)
    if launch.place is None and machine.name != "uml":
        (folder / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\n")
        files.append((str(folder / "resolv.conf"), os.path.realpath("/etc/resolv.conf"), False))
    settings = {
        "files": files,
        "network": str(folder / "network"),
        "hostname": launch.place.hostname if launch.place is not None else socket.gethostname(),
        "channel": GUEST_CHANNEL if scheme == "unix" else "",
        "user": (os.geteuid(), os.getegid(), os.getgroups()),
        "cwd": launch.cwd,
        "memory": memory,
        "launcher": launcher.__file__,
        "package": str(Path(headgate.__file__).parents[1]),
        "task": b""
        if program is None
        else marshal.dumps(order(program, replace(launch, place=None))),
        "container": content.container,
    }
    (folder / "order").write_bytes(marshal.dumps(settings))
    words = (sys.executable, "-I", "-S", str(_HERE / "guest.py"), str(folder / "order"))
    init = folder / "init"
    init.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
    init.chmod(0o700)
    tap = TAP if launch.place is not None else None
    root = folder / "root" if os.geteuid() == 0 else Path("/")
    plan = {
        "programs": machine.commands(folder, root, _size(memory, launch.place), tap),
        "network": machine.network(tap is not None),
        "device": machine.device,
        "tap": tap,
        "channel": channel,
        "writes": [source for source, _, writable in files if writable],
        "seconds": START_SECONDS[machine.name],
    }
    (folder / "plan").write_bytes(marshal.dumps(plan))


def _size(memory: int | None, place: Place | None) -> int:
    """Bytes of a guest's memory: the task's limit plus the guest's own need. Without a limit: the
    free memory minus the need of its programs on this machine.
    """
    if memory is not None:
        return memory + SYSTEM_BYTES
    free = [psutil.virtual_memory().available]
    for controller, name in (("memory", "memory.limit_in_bytes"), ("unified", "memory.max")):
        folder = place.cgroups.get(controller) if place is not None else None
        file = Path(folder) / name if folder is not None else None
        if (
            file is not None
            and file.exists()
            and (size_text := file.read_text().strip()).isdecimal()
        ):
            free.append(int(size_text))
    return max(min(free) - SYSTEM_BYTES, SYSTEM_BYTES)


def files_of(launch: Launch, program: str | None) -> Iterator[File]:
    """The paths that a guest mounts specially."""
    shown = {
        path: False
        for path in _needed(launch, program)
        if path.startswith(tuple(f"{fresh_folder}/" for fresh_folder in FRESH))
    }
    writes = (launch.cwd, *launch.writes, *outputs(launch))
    shown |= dict.fromkeys(map(os.path.realpath, writes), True)
    yield from (
        (path, path, writable)
        for path, writable in shown.items()
        if path != "/" and (os.path.isdir(path) or os.path.isfile(path))
    )
    yield from ((mount.source, mount.target, mount.writable) for mount in launch.mounts)


def _needed(launch: Launch, program: str | None) -> Iterator[str]:
    """Files that have to be visible wherever they are."""
    yield from launch.reads
    for program_path in filter(None, (program, sys.executable)):
        for path in (
            os.path.dirname(program_path),
            os.path.dirname(os.path.realpath(program_path)),
        ):
            yield from (path, os.path.dirname(path))
    yield from (sys.base_prefix, str(Path(headgate.__file__).parents[1]))
    yield from filter(os.path.isabs, launch.env.get("PYTHONPATH", "").split(os.pathsep))
