"""What a job lost: seconds with a band, to whom, through what, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Resource = Literal["cores", "memory", "disk", "network", "gpu", "loader", "servers", "straggler"]
Evidence = Literal["counted", "compared", "proved"]

OTHERS = "others"
"""Programs outside Headgate."""
REST = "other jobs"
"""In a run of very many jobs, those of it together that are not looked at one by one; no job's name
has a space.
"""
ITSELF = "itself"
"""Other tasks of the same job."""
NODE = "node"
"""The hypervisor below the node."""
COUNTED_ERROR = 0.41
"""Relative error of what was counted, to one side of a band of 90 %; docs/explain.md has how that
was checked.
"""
LEAST_PART = 0.05
"""Of a job's elapsed time: what cost less is not worth a verdict."""
LEAST_SECONDS = 0.05
"""Less is no loss that anybody would ask about."""


class TimeEstimate(NamedTuple):
    """Seconds, with the ends of a band that holds them 9 times of 10."""

    seconds: float
    low: float
    high: float


NONE = TimeEstimate(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class LostTime:
    """What a job lost to one culprit through one resource.

    Args:
        to: A job's name, `other jobs`, `others`, `itself` or `node`.
        perhaps: Whether it may as well be the job's own course: its steps changed just as the
            culprit came or went, and that was too seldom to tell.
    """

    to: str
    resource: Resource
    lost: TimeEstimate
    evidence: Evidence
    perhaps: bool = False

    @property
    def sure(self) -> bool:
        """Whether its band excludes that nothing was lost."""
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
    """The sum of estimates. Their errors count as independent."""
    seconds = sum(estimate.seconds for estimate in estimates)
    down = math.sqrt(sum((estimate.seconds - estimate.low) ** 2 for estimate in estimates))
    up = math.sqrt(sum((estimate.high - estimate.seconds) ** 2 for estimate in estimates))
    return TimeEstimate(seconds, max(seconds - down, 0.0), min(seconds + up, most))


def exact(seconds: float) -> TimeEstimate:
    return TimeEstimate(seconds, seconds, seconds)


def less(part: TimeEstimate, seconds: float) -> TimeEstimate:
    """An estimate without so many of its seconds, never below 0."""
    return TimeEstimate(*(max(end - seconds, 0.0) for end in part))


def within(seconds: float, error: float, most: float) -> TimeEstimate:
    """An estimate with a relative error on each side, never above `most`."""
    return TimeEstimate(
        seconds, max(seconds * (1.0 - error), 0.0), min(seconds * (1.0 + error), most)
    )
