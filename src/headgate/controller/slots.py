"""How many jobs of a group run at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from headgate.controller.records import JobRecord
from headgate.controller.shortage import Shortage
from headgate.model.identifiers import JobId


class Group(NamedTuple):
    """Jobs that share slots.

    Args:
        kind: All jobs, those of a run, those of a sweep, those of one script in a run, or those of
            a script whose memory is not known yet.
        name: The run, the sweep or the script.
    """

    kind: Literal["slots", "slots-of-run", "slots-of-sweep", "slots-of-script", "probe"]
    name: str = ""

    @property
    def is_usual(self) -> bool:
        """Whether it binds only jobs whose run and sweep have no slots of their own."""
        return self.kind == "slots-of-script" or self == ALL


ALL = Group("slots")
URGENT = Group("slots", "urgent")
"""Urgent jobs, which need no free slot of all jobs."""


def script_group(job: JobRecord) -> Group:
    """The jobs of a run that run the same script."""
    return Group("slots-of-script", JobId.of(job.run, job.script))


def groups_of(job: JobRecord) -> Iterator[tuple[Group, int | str | None]]:
    """The run of a job, and its sweep if that has slots of its own; each with the slots that the
    job states: a number, `auto`, or None.
    """
    yield Group("slots-of-run", job.run), job.spec.at_once
    trial = job.spec.trial
    if trial is not None and trial.at_once is not None:
        yield Group("slots-of-sweep", JobId.of(job.run, trial.sweep)), trial.at_once


class Slots:
    """Slots of groups, each held by a running job. A run or a sweep with slots of its own needs
    none of those of all jobs, or of a script.

    Attributes:
        own: The runs and sweeps that have slots of their own.
        of_script: Slots of each script in a run, where no other number is set; None: any number.
        idle_for: So many jobs of any script may start beyond those.
    """

    def __init__(self) -> None:
        self.of_script: int | None = None
        self.idle_for = 0
        self._most: dict[Group, int] = {}
        self.own: set[Group] = set()
        self._taken = Counter[Group]()
        self._holding = Counter[tuple[Group, ...]]()

    def limit(self, group: Group, most: int | None) -> bool:
        """Set how many jobs of a group may run at once; None: any number. Returns whether that is
        more than before.
        """
        before, had_own = self._limit_of(group), group in self.own
        self._most.pop(group, None)
        self.own.discard(group)
        if most is not None:
            self._most[group] = most
            if group.kind in ("slots-of-run", "slots-of-sweep"):
                self.own.add(group)
        after = self._limit_of(group)
        is_raised = before is not None and (after is None or after > before)
        return is_raised or (group in self.own and not had_own)

    def full(self, groups: Iterable[Group]) -> Group | None:
        """The first of these groups that has no slot left; None: a job of all of them may start."""
        groups = tuple(groups)
        has_own = URGENT in groups or not self.own.isdisjoint(groups)
        for group in groups:
            most = self._limit_of(group)
            if most is None or (group.is_usual and has_own) or self._count(group) < most:
                continue
            if group.kind != "slots-of-script" or self.idle_for <= 0:
                return group
        return None

    def _limit_of(self, group: Group) -> int | None:
        usual = self.of_script if group.kind == "slots-of-script" else None
        return self._most.get(group, usual)

    def _count(self, group: Group) -> int:
        if not group.is_usual:
            return self._taken[group]
        return sum(
            count for of, count in self._holding.items() if group in of and self.own.isdisjoint(of)
        )

    def shortage(self, group: Group) -> Shortage:
        """What a job of a full group lacks."""
        return Shortage(group.kind, count=self._limit_of(group) or 0)

    def take(self, groups: tuple[Group, ...]) -> None:
        """A job of these groups starts."""
        self._taken.update(groups)
        if groups:
            self._holding[groups] += 1

    def give(self, groups: tuple[Group, ...]) -> None:
        """A job of these groups has ended."""
        self._taken.subtract(groups)
        for group in groups:
            if not self._taken[group]:
                del self._taken[group]
        if groups:
            self._holding[groups] -= 1
            if not self._holding[groups]:
                del self._holding[groups]
