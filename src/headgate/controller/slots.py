"""How many jobs of a group run at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from headgate.controller.shortage import Shortage


class Group(NamedTuple):
    """Jobs that share slots.

    Args:
        kind: All jobs, those of a run, or those of a script whose memory is not known yet.
        name: The run or the script.
    """

    kind: Literal["slots", "slots-of-run", "probe"]
    name: str = ""


ALL = Group("slots")
URGENT = Group("slots", "urgent")
"""Urgent jobs, which need no free slot of all jobs."""


class Slots:
    """Slots of groups, each held by a running job. A run with slots of its own needs none of those
    of all jobs.
    """

    def __init__(self) -> None:
        self._most: dict[Group, int] = {}
        self._runs: set[Group] = set()
        self._taken = Counter[Group]()

    def limit(self, group: Group, most: int | None) -> bool:
        """Set how many jobs of a group may run at once; None: any number. Returns whether that is
        more than before.
        """
        before = self._most.pop(group, None)
        self._runs.discard(group)
        if most is not None:
            self._most[group] = most
            if group.kind == "slots-of-run":
                self._runs.add(group)
        return before is not None and (most is None or most > before)

    def full(self, groups: Iterable[Group]) -> Group | None:
        """The first of these groups that has no slot left; None: a job of all of them may start."""
        groups = tuple(groups)
        has_own = URGENT in groups or not self._runs.isdisjoint(groups)
        for group in groups:
            counts = group in self._most and not (group == ALL and has_own)
            if counts and self._count(group) >= self._most[group]:
                return group
        return None

    def _count(self, group: Group) -> int:
        others = sum(self._taken[run] for run in self._runs) if group == ALL else 0
        return self._taken[group] - others

    def shortage(self, group: Group) -> Shortage:
        """What a job of a full group lacks."""
        return Shortage(group.kind, count=self._most[group])

    def take(self, groups: Iterable[Group]) -> None:
        """A job of these groups starts."""
        self._taken.update(groups)

    def give(self, groups: Iterable[Group]) -> None:
        """A job of these groups has ended."""
        self._taken.subtract(groups)
