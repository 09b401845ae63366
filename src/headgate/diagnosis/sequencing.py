"""Compare running mutually slowing jobs together with running them one after the other, shortest
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import mean
from typing import NamedTuple

from headgate.diagnosis.remedies import OrderFacts, Remedy, RemedyKind, SoloEnd

_LEAST_GAIN = 0.05
"""Fraction of the mean completion time: a smaller gain is not worth another order."""


class SoloTime(NamedTuple):
    """A job's time beside others and alone.

    Args:
        alone: Seconds that it needs, or has needed so far, without the cost of others.
        elapsed: Seconds that it took, or has taken so far.
        done: Whether both are final.
        goes_on: Whether it still waits or runs.
    """

    alone: float
    elapsed: float
    done: bool
    goes_on: bool = False


_UNKNOWN = SoloTime(0.0, 0.0, False)


def in_order(jobs: Iterable[str], solo_times: Mapping[str, SoloTime]) -> tuple[str, ...]:
    """Jobs in their best sequence: shortest first, those of unknown length last."""

    def length(job: str) -> tuple[bool, float, str]:
        solo = solo_times.get(job, _UNKNOWN)
        return not solo.done, solo.alone, job

    return tuple(sorted(jobs, key=length))


def one_after_the_other(
    order: Sequence[str], solo_times: Mapping[str, SoloTime], after: Mapping[str, str]
) -> Remedy:
    """The remedy to run jobs one after the other if that is faster on average, or if nothing is
    known. The order of unfinished jobs is unknown.

    All these jobs get the same remedy, so that the verdicts of two jobs never contradict each
    other.

    Args:
        order: At least two jobs, ordered by `in_order`.
        solo_times: Times by job.
        after: The `after:` of each job.
    """
    known = [solo_times.get(job, _UNKNOWN) for job in order]
    if sum(not solo.done for solo in known) > 1 and any(solo.goes_on for solo in known):
        return Remedy(kind=RemedyKind.WAIT_FOR_ENDS)
    first, second, *others = order
    facts, gain = OrderFacts(order, replaced=after.get(second, "")), 1.0
    if all(solo.done for solo in known):
        ends = list(accumulate(solo.alone for solo in known))
        gain = 1.0 - mean(ends) / max(mean(solo.elapsed for solo in known), 1e-9)
        job_ends = tuple(
            SoloEnd(job, end, solo.elapsed)
            for job, end, solo in zip(order, ends, known, strict=True)
        )
        facts = OrderFacts(order, job_ends, known[0].alone < known[1].alone, facts.replaced)
    return Remedy(
        kind=RemedyKind.LEAVE_TOGETHER if gain < _LEAST_GAIN else RemedyKind.RUN_IN_TURN,
        settings={} if others else {"after": first},
        job="" if others else second,
        facts=facts,
    )
