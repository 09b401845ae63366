"""Where a job's time went: the record of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.diagnosis.attribution import (
    ITSELF,
    LEAST_PART,
    NODE,
    OTHERS,
    REST,
    LostTime,
    TimeEstimate,
    is_other_user,
)
from headgate.diagnosis.circumstances import Circumstances
from headgate.diagnosis.findings import MissingReading
from headgate.diagnosis.own_steps import Part
from headgate.recorded.jobs import RecordedJob

MOST_UNEXPLAINED = 0.3
"""If more than this fraction of the time is unexplained, no other cause can be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where a job's time went.

    Args:
        record: The recorded job.
        elapsed: Seconds from its submission to its end, or so far.
        parts: Parts that add up to `elapsed`.
        losses: Losses by culprit and resource, largest first.
        asked_to_wait: Seconds of `waiting` that its user requested: a start time, or the end of
            another job.
        disk_unsure: Seconds of `input` in which neighbours moved more on its disk than it did, at
            unknown cost.
        disk_mover: The neighbour that moved most meanwhile; empty: none did.
        missing_readings: Readings that the account needs and the run lacks.
        read: Whether there are readings of its CPU use; a short job may have none.
        may_have_lost: Seconds that neighbours on its GPU may have cost, if unknown.
        around: The circumstances of the job while it waited and ran.
    """

    record: RecordedJob
    elapsed: float
    parts: Mapping[Part, TimeEstimate]
    losses: Sequence[LostTime] = ()
    asked_to_wait: float = 0.0
    disk_unsure: float = 0.0
    disk_mover: str = ""
    may_have_lost: float = 0.0
    missing_readings: tuple[MissingReading, ...] = ()
    read: bool = True
    around: Circumstances = field(default_factory=Circumstances)

    @property
    def job(self) -> str:
        """Name of the job."""
        return self.record.name

    @property
    def culprits(self) -> tuple[str, ...]:
        """Jobs of its user that surely slowed it noticeably; if none did, the worst of those that
        surely slowed it.
        """
        losses = [
            loss
            for loss in self.losses
            if loss.to not in (ITSELF, NODE, OTHERS, REST)
            and loss.sure
            and not is_other_user(loss.to)
        ]
        worst = max((loss.lost.seconds for loss in losses), default=0.0)
        least = min(LEAST_PART * self.elapsed, worst)
        return tuple(dict.fromkeys(loss.to for loss in losses if loss.lost.seconds >= least))
