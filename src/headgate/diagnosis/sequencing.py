"""What jobs that slowed each other would have had from running one after the other, the shortest
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import mean
from typing import NamedTuple

from headgate.diagnosis.findings import OrderFacts, Remedy, RemedyKind, SoloEnd

_LEAST_GAIN = 0.05
"""Of the mean time until a job is done: what gains less is not worth another order."""


class SoloTime(NamedTuple):
    """What is known of a job's time beside others and alone.

    Args:
        alone: Seconds that it needs, or has needed so far, without what others cost it.
        elapsed: Seconds that it took, or has taken so far.
        done: Whether that is all.
        goes_on: Whether it still waits or runs.
    """

    alone: float
    elapsed: float
    done: bool
    goes_on: bool = False


_UNKNOWN = SoloTime(0.0, 0.0, False)


def in_order(jobs: Iterable[str], solo_times: Mapping[str, SoloTime]) -> tuple[str, ...]:
    """Jobs as they would run one after the other: the shortest first, and last those whose length
    is not known.
    """

    def length(job: str) -> tuple[bool, float, str]:
        solo = solo_times.get(job, _UNKNOWN)
        return not solo.done, solo.alone, job

    return tuple(sorted(jobs, key=length))


def one_after_the_other(
    order: Sequence[str], solo_times: Mapping[str, SoloTime], after: Mapping[str, str]
) -> Remedy:
    """Whether to run jobs one after the other: where that makes them faster on average, or nothing
    is known of it. Of jobs that go on, it is not known which is the shorter one.

    All of them are told the same, so that the verdicts of two jobs never contradict each other.

    Args:
        order: At least two jobs, as `in_order` has them.
        solo_times: By job.
        after: What a job has in `after:`.
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
