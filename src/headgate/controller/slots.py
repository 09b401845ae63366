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


class Slots:
    """Slots of groups, each held by a running job."""

    def __init__(self) -> None:
        self._most: dict[Group, int] = {}
        self._taken = Counter[Group]()

    def limit(self, group: Group, most: int | None) -> bool:
        """Set how many jobs of a group may run at once; None: any number. Returns whether that is
        more than before.
        """
        before = self._most.pop(group, None)
        if most is not None:
            self._most[group] = most
        return before is not None and (most is None or most > before)

    def full(self, groups: Iterable[Group]) -> Group | None:
        """The first of these groups that has no slot left."""
        for group in groups:
            if group in self._most and self._taken[group] >= self._most[group]:
                return group
        return None

    def shortage(self, group: Group) -> Shortage:
        """What a job of a full group lacks."""
        return Shortage(group.kind, count=self._most[group])

    def take(self, groups: Iterable[Group]) -> None:
        """A job of these groups starts."""
        self._taken.update(groups)

    def give(self, groups: Iterable[Group]) -> None:
        """A job of these groups has ended."""
        self._taken.subtract(groups)
