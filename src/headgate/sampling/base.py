"""The contract of a sampler, which reads one resource."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.model.cluster import Place
from headgate.sampling.columns import Column


class Boxed(Protocol):
    """The part of a task's `Box` that samplers need."""

    @property
    def cgroups(self) -> Mapping[str, object]: ...

    def pids(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Target:
    """A task to read, or (if `box` is None) a node: this machine, or a `place` on it. Only GPUs
    with these indices count; None: all.
    """

    id: str
    box: Boxed | None
    place: Place | None = None
    gpus: tuple[int, ...] | None = None


class Sampler(ABC):
    """Reads one resource of tasks or of the node.

    It must:

    1. Give rates since its last reading of a target, never running totals. A first reading has no
       rates.
    2. Name only columns of `columns`, each finite and not negative.
    3. Leave out what it cannot read, and raise only if it can read nothing at all.
    4. Forget targets that are no longer passed in, and never raise because one ended meanwhile.
    """

    name: str

    @abstractmethod
    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        """Readings by target id.

        Args:
            now: Time in seconds, from which rates are computed. A reading at the same `now` as the
                last one has no rates.
        """
