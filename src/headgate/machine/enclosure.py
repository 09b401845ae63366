"""What holds the processes of one task together: a set of cgroups, or nothing but their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
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
    """What the kernel counted of a task's memory.

    Args:
        peak_bytes: Most memory it held, page cache left out as far as that can be told; None where
            nobody counted.
        kills: Processes of it that the kernel killed for want of memory.
        limit_bytes: Its limit now; None where it has none.
        at_limit: Whether it ever ran into a limit of its own.
    """

    peak_bytes: int | None = None
    kills: int = 0
    limit_bytes: int | None = None
    at_limit: bool = False


class Enclosure(ABC):
    """Holds the processes of one task; `ProcessIsolation` puts one around each."""

    folders: Mapping[str, Path]
    """Folder of the task's cgroup by controller."""

    @abstractmethod
    def plan(self, share: Share) -> Sequence[str]:
        """What `create`, `admit` and `apply` would do, a line each, without doing it."""

    @abstractmethod
    def create(self) -> None:
        """Make it, empty.

        Raises:
            IsolationError: It cannot be made, or is there already with processes in it; nothing was
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
    def hold(self) -> None:
        """Stop every process in it where it stands.

        Raises:
            IsolationError: They cannot be stopped, or not in time; they run on.
        """

    @abstractmethod
    def release(self) -> None:
        """Let them run on; does nothing where they do."""

    @abstractmethod
    def terminate(self, but: Collection[int] = ()) -> None:
        """Ask every process to end, but those of these numbers."""

    @abstractmethod
    def kill(self) -> None:
        """End every process, those forked meanwhile too, held or not; returns when none is left or
        10 s have passed.
        """

    @abstractmethod
    def memory(self) -> MemoryRecord:
        """What was counted up to now; nothing of what goes away while it is read, as the cgroup of
        a container does.
        """

    @abstractmethod
    def kills(self) -> int:
        """Processes of it that the kernel has killed for want of memory; 0 where nobody counted."""

    @abstractmethod
    def cpu_seconds(self) -> float | None:
        """CPU time of all that was ever in it, up to now; None where nobody counted."""

    @abstractmethod
    def remove(self) -> None:
        """Remove it once it is empty; does nothing when it is gone."""


def cpu_list(cpus: frozenset[int]) -> str:
    """Cores as the kernel lists them: `0-3,6`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
