"""Time lost by a job: seconds with a band, culprit, resource and evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from headgate.sampling.outside_programs import OUTSIDE

Resource = Literal["cores", "memory", "disk", "network", "gpu", "loader", "servers", "straggler"]
Evidence = Literal["counted", "compared", "proved"]

OTHERS = OUTSIDE
"""Culprit: programs outside Headgate."""
_OF_USER = ":"
REST = "other jobs"
"""Culprit in a run of very many jobs: all jobs without an individual comparison. No job's name
contains a space.
"""
ITSELF = "itself"
"""Culprit: other tasks of the same job."""
NODE = "node"
"""Culprit: the hypervisor below the node."""
COUNTED_ERROR = 0.41
"""Relative error of counted losses, to one side of a 90 % band; docs/explain.md says how that was
checked.
"""
LEAST_PART = 0.05
"""Fraction of a job's elapsed time below which a cost is not worth a verdict."""
LEAST_SECONDS = 0.05
"""Seconds below which a loss is ignored."""


class TimeEstimate(NamedTuple):
    """Seconds, with the ends of a 90 % band."""

    seconds: float
    low: float
    high: float


NONE = TimeEstimate(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class LostTime:
    """Time that a job lost to one culprit through one resource.

    Args:
        to: A job's name, `other jobs`, `others`, `itself` or `node`.
        perhaps: Whether it may be the job's own course: its steps changed when the culprit came or
            left, too seldom to be sure.
    """

    to: str
    resource: Resource
    lost: TimeEstimate
    evidence: Evidence
    perhaps: bool = False

    @property
    def sure(self) -> bool:
        """Whether its band excludes zero."""
        return self.lost.low > LEAST_SECONDS


def merged(losses: Sequence[LostTime], most: float) -> list[LostTime]:
    """One loss for each culprit and resource, with the evidence of the larger part."""
    alike: dict[tuple[str, str], list[LostTime]] = {}
    for loss in losses:
        alike.setdefault((loss.to, loss.resource), []).append(loss)
    return [
        replace(
            max(same, key=lambda loss: loss.lost.seconds),
            lost=sum_of([loss.lost for loss in same], most),
        )
        for same in alike.values()
    ]


def sum_of(estimates: Sequence[TimeEstimate], most: float) -> TimeEstimate:
    """The sum of estimates with independent errors."""
    seconds = sum(estimate.seconds for estimate in estimates)
    down = math.sqrt(sum((estimate.seconds - estimate.low) ** 2 for estimate in estimates))
    up = math.sqrt(sum((estimate.high - estimate.seconds) ** 2 for estimate in estimates))
    return TimeEstimate(seconds, max(seconds - down, 0.0), min(seconds + up, most))


def exact(seconds: float) -> TimeEstimate:
    return TimeEstimate(seconds, seconds, seconds)


def less(part: TimeEstimate, seconds: float) -> TimeEstimate:
    """An estimate reduced by some seconds, never below 0."""
    return TimeEstimate(*(max(end - seconds, 0.0) for end in part))


def within(seconds: float, error: float, most: float) -> TimeEstimate:
    """An estimate with a relative error on each side, never above `most`."""
    return TimeEstimate(
        seconds, max(seconds * (1.0 - error), 0.0), min(seconds * (1.0 + error), most)
    )


def is_other_user(culprit: str) -> bool:
    """Whether a culprit is a job of another user, `USER:JOB`."""
    return _OF_USER in culprit
