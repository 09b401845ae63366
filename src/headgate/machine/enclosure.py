"""Holds the processes of one task together: by a set of cgroups, or only by their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from headgate.model.shares import Share, Uncontrolled

Field = Literal[
    "cpu_weight", "cpu_cap_cores", "memory_bytes", "disk_bytes_per_second", "gpu_fraction"
]
FIELDS: tuple[Field, ...] = get_args(Field)
"""The fields of a `Share`, in the order in which they are applied."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """The kernel's record of a task's memory.

    Args:
        peak_bytes: Peak memory, without page cache as far as possible; None if not counted.
        kills: Number of its processes that the kernel killed for lack of memory.
        limit_bytes: Its present limit; None: no limit.
        at_limit: Whether it ever reached a limit of its own.
    """

    peak_bytes: int | None = None
    kills: int = 0
    limit_bytes: int | None = None
    at_limit: bool = False


def never() -> bool:
    """What is waited for is not given up."""
    return False


class Enclosure(ABC):
    """Holds the processes of one task. `ProcessIsolation` makes one for each task."""

    folders: Mapping[str, Path]
    """Folder of the task's cgroup by controller."""

    @abstractmethod
    def plan(self, share: Share) -> Sequence[str]:
        """What `create`, `admit` and `apply` would do, one line for each step, without doing it."""

    @abstractmethod
    def create(self) -> None:
        """Make it, empty.

        Raises:
            IsolationError: It cannot be made, or exists already with processes in it. Nothing was
                changed.
        """

    @abstractmethod
    def admit(self, pid: int) -> None:
        """Put a process in.

        Raises:
            IsolationError: It cannot be put in.
        """

    @abstractmethod
    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        """As `Box.apply`."""

    @abstractmethod
    def pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        """As `Box.pin`."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Every living process in it."""

    @abstractmethod
    def hold(self, seconds: float, given_up: Callable[[], bool] = never) -> None:
        """Stop every process in it. Waits up to `seconds`, and until `given_up`, until all stand
        still.

        Raises:
            IsolationError: They cannot be stopped, or not in time. They run on.
        """

    @abstractmethod
    def release(self) -> None:
        """Continue its processes; does nothing if they run."""

    @abstractmethod
    def terminate(self, but: Collection[int] = ()) -> None:
        """Ask every process to end, except those with these numbers."""

    @abstractmethod
    def kill(self) -> None:
        """End every process, including those forked meanwhile and held ones. Returns when none is
        left or 10 s have passed.
        """

    @abstractmethod
    def memory(self) -> MemoryRecord:
        """The record so far; without what disappears while it is read, as the cgroup of a container
        may.
        """

    @abstractmethod
    def kills(self) -> int:
        """Number of its processes that the kernel has killed for lack of memory; 0 if not
        counted.
        """

    @abstractmethod
    def cpu_seconds(self) -> float | None:
        """CPU seconds of all processes that were ever in it; None if not counted."""

    @abstractmethod
    def remove(self) -> None:
        """Remove it once it is empty; does nothing if it is gone."""


def cpu_list(cpus: frozenset[int]) -> str:
    """A list of cores in the kernel's notation: `0-3,6`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
