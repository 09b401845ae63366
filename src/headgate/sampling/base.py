"""The contract of a sampler: what reads one resource."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.model.cluster import Place
from headgate.sampling.columns import Column


class Boxed(Protocol):
    """What a sampler needs to know of a task; the `Box` of an isolation has it."""

    @property
    def cgroups(self) -> Mapping[str, object]: ...

    def pids(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Target:
    """A task to read, or (with `box` None) a node: this machine, or what runs in a `place` on it.
    Of GPUs those with these indices count; None: all.
    """

    id: str
    box: Boxed | None
    place: Place | None = None
    gpus: tuple[int, ...] | None = None


class Sampler(ABC):
    """Reads one resource of tasks or of the node.

    It must:

    1. Give rates since its last reading of a target, never running totals; a first reading has no
       rates.
    2. Name only columns of `columns`, each finite and not negative.
    3. Leave out what it cannot read; raise only when it can read nothing at all.
    4. Forget targets that it is no longer handed, and never raise because one ended meanwhile.
    """

    name: str

    @abstractmethod
    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        """Readings by target id.

        Args:
            now: Seconds; the denominator of rates. A reading at the same `now` as the last has no
                rates.
        """
