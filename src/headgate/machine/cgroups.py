"""Common code of cgroup v1 and v2: makes, writes, enters, empties and removes folders."""

from __future__ import annotations

import errno
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headgate.machine import processes
from headgate.machine.cgroup_layout import CURE
from headgate.machine.enclosure import FIELDS, Enclosure, Field, never
from headgate.machine.fallbacks import Fallbacks
from headgate.model.errors import IsolationError
from headgate.model.reason_text import in_words
from headgate.model.shares import WEIGHT_DEFAULT, Share, Uncontrolled, Unlimited
from headgate.model.units import say_bytes

KILL_SECONDS = 10.0
FREEZE_SECONDS = 1.0
"""Longest time until the processes of a task that is to be killed stand still."""
PERIOD_MICROSECONDS = 10_000
"""Period of the CPU cap. It is short, so that a capped task pauses for milliseconds and not for a
tenth of a second.
"""
QUOTA_LEAST_MICROSECONDS = 1_000
"""The kernel accepts no smaller quota. A smaller cap gets a longer period instead."""
PERIOD_MOST_MICROSECONDS = 1_000_000

Value = float | int | Unlimited


@dataclass(frozen=True, slots=True)
class Write:
    path: Path
    text: str

    def __str__(self) -> str:
        return f"write {self.text.strip()!r} to {self.path}"


class Cgroups(Enclosure):
    """The cgroups of one task, `<base>/<group>/<task>` in each hierarchy.

    `Fallbacks` substitute missing controllers as far as possible. The group weighs as much as that
    number of plain tasks. So programs outside compete with each task, and not with all tasks as
    with a single one.
    """

    weight_file: str
    """Name of the file with a cgroup's CPU weight, in the folder of the controller `cpu`."""
    weight_most: int
    """The kernel's largest weight."""
    kills_file: str
    """Name of the file that counts processes killed for lack of memory, in the folder of the
    controller `memory`.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        fallbacks: Fallbacks,
        disk: str | None = None,
        joined: Path | None = None,
    ) -> None:
        """
        Args:
            folders: Folder of the task by controller.
            fallbacks: Substitutes for missing controllers.
            disk: Device number `major:minor` of the disk for the disk rate; None: none.
            joined: Another folder, in a separate hierarchy, which the task's processes also enter.
        """
        self.folders = dict(folders)
        self.fallbacks = fallbacks
        self.disk = disk
        self.joined = joined

    @property
    def unique_folders(self) -> list[Path]:
        """The folders without repetition, because controllers may share one."""
        return list(dict.fromkeys(self.folders.values()))

    @property
    def entered(self) -> list[Path]:
        """The folders that the task's processes enter."""
        return [*self.unique_folders, *([] if self.joined is None else [self.joined])]

    @abstractmethod
    def setup(self, folder: Path) -> Sequence[Write]:
        """Writes to a new folder before processes may enter."""

    @abstractmethod
    def writes(self, field: Field, value: Value) -> Sequence[Write] | None:
        """The writes for a field of the share. None if its controller is missing.

        Raises:
            IsolationError: The value is not possible, and writing it would end the task.
        """

    @staticmethod
    @abstractmethod
    def in_kernel(weight: float) -> int:
        """A CPU weight in the kernel's unit."""

    @abstractmethod
    def disk_weight_writes(self, weight: float) -> Sequence[Write]:
        """The writes that give a task its CPU weight for the disk as well; empty if the kernel has
        no such weight.

        It only has an effect on disks with a suitable scheduler (BFQ, or io.cost), among tasks that
        compete.
        """

    @abstractmethod
    def pin_writes(self, cpus: frozenset[int] | None) -> Sequence[Write] | None:
        """The writes that pin the task. None if the controller is missing."""

    @abstractmethod
    def kill_once(self) -> None:
        """Kill the processes that are in it now."""

    def freeze(self, seconds: float, given_up: Callable[[], bool] = never) -> bool:
        """Stop the processes in it and their children. Returns whether all stood still within
        `seconds`, and before it was `given_up`.

        Raises:
            OSError: The kernel refused.
            IsolationError: It has no freezer.
        """
        folder = self.folders.get("unified")
        if folder is None or not (folder / "cgroup.freeze").exists():
            raise IsolationError(
                f"it cannot be held: there is no freezer among its cgroups; {CURE}"
            )
        (folder / "cgroup.freeze").write_text("1")
        return within(
            seconds,
            lambda: bool(read_counters(folder / "cgroup.events").get("frozen")),
            given_up,
        )

    def thaw(self) -> None:
        """Continue stopped processes.

        Raises:
            OSError: The kernel refused, or the cgroup is gone.
        """
        folder = self.folders.get("unified")
        if folder is not None and (folder / "cgroup.freeze").exists():
            (folder / "cgroup.freeze").write_text("0")

    def plan(self, share: Share) -> Sequence[str]:
        lines = [
            f"mkdir {group}"
            for group in dict.fromkeys(folder.parent for folder in self.unique_folders)
        ]
        for folder in self.unique_folders:
            lines.append(f"mkdir {folder}")
            lines += map(str, self.setup(folder))
        for field, value in _given(share):
            writes = self.writes(field, value)
            if writes is None:
                fallback = self.fallbacks.describe(field, value)
                lines += [in_words(fallback.warning())] if fallback is not None else []
            else:
                lines += map(str, writes)
        if (cpu := self.folders.get("cpu")) is not None:
            lines.append(
                "write the weight of as many plain tasks as it holds to "
                f"{cpu.parent / self.weight_file}"
            )
        return [*lines, *(f"write PID to {folder / 'cgroup.procs'}" for folder in self.entered)]

    def create(self) -> None:
        made: list[Path] = []
        try:
            for folder in self.unique_folders:
                self._make(folder)
                made.append(folder)
                for write in self.setup(folder):
                    write.path.write_text(write.text)
        except OSError as error:
            self._remove(made)
            raise IsolationError(f"the box cannot be made: {_text(error)}") from error
        self.weigh_group()

    def weigh_group(self, weight: float = WEIGHT_DEFAULT) -> None:
        """Give the group the total weight of its boxes if each weighed `weight`.

        The boxes' actual weights only divide what the group has. If they counted against the rest
        of the machine, including the hub, a policy with very unequal weights would starve the rest.
        """
        cpu = self.folders.get("cpu")
        boxes = len(list(cpu.parent.glob(f"*/{self.weight_file}"))) if cpu is not None else 0
        if boxes:
            self._weigh_group(boxes * self.in_kernel(weight))

    def weigh_around(self, weight: float) -> None:
        """Give the group the weight of its only box."""
        if "cpu" in self.folders:
            self._weigh_group(self.in_kernel(weight))

    def _weigh_group(self, weight: int) -> None:
        with suppress(OSError):  # the group went with its last box
            (self.folders["cpu"].parent / self.weight_file).write_text(
                str(min(weight, self.weight_most))
            )

    def _make(self, folder: Path) -> None:
        for attempt in range(3):
            self.make_group(folder.parent)
            try:
                folder.mkdir()
                return
            except FileNotFoundError:
                # the last box of the group was just removed, and the group with it
                if attempt == 2:
                    raise
            except FileExistsError:
                # a remaining folder that still has processes stays, and is reported
                if _processes(folder):
                    raise
                _remove_tree(folder)

    def make_group(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)

    def admit(self, pid: int) -> None:
        for folder in self.entered:
            try:
                (folder / "cgroup.procs").write_text(str(pid))
            except OSError as error:
                raise IsolationError(
                    f"process {pid} cannot be put into its box: {entry_refusal(pid, error)}"
                ) from error

    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        uncontrolled: list[Uncontrolled | None] = []
        refused: list[str] = []
        for field, value in _given(share):
            try:
                writes = self.writes(field, value)
                if writes is None:
                    uncontrolled.append(self.fallbacks.apply(field, value, self.pids()))
                    continue
                for write in writes:
                    write.path.write_text(write.text)
            except OSError as error:
                refused.append(self._refusal(field, value, error))
            except IsolationError as error:
                refused.append(str(error))
        if refused:
            raise IsolationError("; ".join(refused))
        return tuple(filter(None, uncontrolled))

    def _refusal(self, field: Field, value: Value, error: OSError) -> str:
        if (
            field == "memory_bytes"
            and error.errno == errno.EBUSY
            and not isinstance(value, Unlimited)
        ):
            return memory_refusal(value, self.memory_now())
        return f"{field} cannot be set to {value!r}: {_text(error)}"

    @abstractmethod
    def memory_now(self) -> int | None:
        """Bytes of the task's memory that cannot be reclaimed."""

    def pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        writes = self.pin_writes(cpus)
        if writes is None:
            return self.fallbacks.pin(cpus, self.pids())
        try:
            for write in writes:
                write.path.write_text(write.text)
        except OSError as error:
            raise IsolationError(
                f"the task cannot be pinned to cores {sorted(cpus or ())}: {_text(error)}"
            ) from error
        return ()

    def pids(self) -> list[int]:
        return _processes(self.unique_folders[0])

    def hold(self, seconds: float, given_up: Callable[[], bool] = never) -> None:
        try:
            stands = self.freeze(seconds, given_up)
        except OSError as error:
            self.release()
            raise IsolationError(
                f"it cannot be held: {_text(error)}; run headgate as root"
            ) from error
        if not stands:
            self.release()
            raise IsolationError(
                "it cannot be held now: a process of it is busy in the kernel; try again"
            )

    def release(self) -> None:
        with suppress(OSError):  # it has ended, and its cgroup with it
            self.thaw()

    def terminate(self, but: Collection[int] = ()) -> None:
        self.send(signal.SIGTERM, but)

    def send(self, number: signal.Signals, but: Collection[int] = ()) -> None:
        """Signal the processes that are in it now, but no process that reuses the number of one
        that has ended.
        """
        seen = [process for pid in self.pids() if (process := processes.look(pid)) is not None]
        difference = set(self.pids()).difference(but)
        processes.send([process for process in seen if process.pid in difference], number)

    def kill(self) -> None:
        deadline = time.monotonic() + KILL_SECONDS
        pause = 0.0005
        while self.pids():
            try:
                self.kill_once()
            except OSError as error:
                # Docker removes the cgroups of a container as soon as its last process is gone
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
            self.release()  # under v1 what is held does not die before
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
            if time.monotonic() > deadline:
                return  # stuck in the kernel: it goes as soon as it comes back from there

    def kills(self) -> int:
        folder = self.folders.get("memory")
        return (
            read_counters(folder / self.kills_file).get("oom_kill", 0) if folder is not None else 0
        )

    def cpu_seconds(self) -> float | None:
        if (folder := self.folders.get("cpuacct")) is not None:
            nanoseconds = read_number(folder / "cpuacct.usage")
            if nanoseconds is not None:
                return nanoseconds / 1e9
        if (folder := self.folders.get("unified")) is not None:
            microseconds = read_counters(folder / "cpu.stat").get("usage_usec")
            if microseconds is not None:
                return microseconds / 1e6
        return None

    def remove(self) -> None:
        self.fallbacks.forget()
        self._remove(self.unique_folders)

    def _remove(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            _remove_tree(folder)
        self.weigh_group()
        for group in {folder.parent for folder in self.unique_folders}:
            try:
                group.rmdir()
            except OSError:  # another box is in it, or it was not made
                continue


def within(seconds: float, done: Callable[[], bool], given_up: Callable[[], bool] = never) -> bool:
    """Whether `done` becomes true within `seconds`, and before it is `given_up`."""
    deadline = time.monotonic() + seconds
    while not (is_done := done()) and not given_up() and time.monotonic() < deadline:
        time.sleep(0.0005)
    return is_done


def cap_microseconds(cores: float) -> tuple[int, int]:
    """Quota and period for a cap in cores."""
    period = max(
        PERIOD_MICROSECONDS, min(round(QUOTA_LEAST_MICROSECONDS / cores), PERIOD_MOST_MICROSECONDS)
    )
    return max(QUOTA_LEAST_MICROSECONDS, round(cores * period)), period


def memory_refusal(limit: float, held: int | None) -> str:
    holds = f"the {say_bytes(held)} " if held is not None else "what "
    return (
        f"a memory limit of {say_bytes(limit)} is below {holds}that the task holds now; "
        "choose a higher one or stop it"
    )


def entry_refusal(pid: int, error: OSError) -> str:
    """Why the kernel refuses to put a process into a cgroup."""
    is_real_time = False
    if error.errno == errno.EINVAL:
        with suppress(OSError):  # it has ended
            policy = os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK
            is_real_time = policy in (os.SCHED_FIFO, os.SCHED_RR)
    if not is_real_time:
        return _text(error)
    return (
        "it has a real-time priority, and a new cgroup of v1 takes no such process; start the hub "
        "without `chrt`"
    )


def read_counters(path: Path) -> dict[str, int]:
    """Read a file of lines `name number`; empty if it cannot be read."""
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    except OSError:
        return {}


def read_number(path: Path) -> int | None:
    """Read a file with one number. None if it cannot be read or says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _given(share: Share) -> Iterator[tuple[Field, Value]]:
    for field in FIELDS:
        value: Value | None = getattr(share, field)
        if value is not None:
            yield field, value


def _text(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def _processes(folder: Path) -> list[int]:
    """Processes in it and in cgroups that the task made below it."""
    try:
        pids = [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
        if folder.stat().st_nlink > 2:
            for entry in os.scandir(folder):
                if entry.is_dir():
                    pids += _processes(Path(entry.path))
    except OSError:  # removed, or a threaded part, whose processes are listed further up
        return []
    return [pid for pid in pids if pid > 0]


def _remove_tree(folder: Path, seconds: float = 2.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            for entry in os.scandir(folder):
                if entry.is_dir():
                    _remove_tree(Path(entry.path), seconds)
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # The kernel releases the last process a moment after it has vanished from the list.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return
        time.sleep(0.002)
