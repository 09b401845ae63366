"""What jobs that slowed each other would have had from running one after the other, the shortest
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import mean
from typing import NamedTuple

from headgate.model.units import say_seconds

_NAMED = 8
"""As many jobs as an advice names."""
_LEAST_GAIN = 0.05
"""Of the mean time until a job is done: what gains less is not worth another order."""


class Turn(NamedTuple):
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


def in_order(jobs: Iterable[str], turns: Mapping[str, Turn]) -> tuple[str, ...]:
    """Jobs as they would run one after the other: the shortest first, and last those whose length
    is not known.
    """
    unknown = Turn(0.0, 0.0, False)
    return tuple(
        sorted(
            jobs,
            key=lambda job: (not turns.get(job, unknown).done, turns.get(job, unknown).alone, job),
        )
    )


def one_after_the_other(
    order: Sequence[str], turns: Mapping[str, Turn], after: Mapping[str, str]
) -> str:
    """What to do about jobs that slowed each other, with what it would bring each where all of them
    are done. Of jobs that go on, it is not known which is the shorter one.

    All of them are told the same, so that the verdicts of two jobs never contradict each other.

    Args:
        order: At least two jobs, as `in_order` has them.
        turns: By job.
        after: What a job has in `after:`.
    """
    unknown = Turn(0.0, 0.0, False)
    known = [turns.get(job, unknown) for job in order]
    if sum(not turn.done for turn in known) > 1 and any(turn.goes_on for turn in known):
        return (
            "Once these jobs have ended, `headgate explain` says what it would bring to run "
            "them one after the other."
        )
    brings, gain = "", 1.0
    if all(turn.done for turn in known):
        ends = list(accumulate(turn.alone for turn in known))
        gain = 1.0 - mean(ends) / max(mean(turn.elapsed for turn in known), 1e-9)
        changes = [
            f"{job} after {say_seconds(end)} instead of {say_seconds(turn.elapsed)}"
            for job, end, turn in zip(order, ends, known, strict=True)
        ]
        changes[0] = changes[0].replace(" after ", " would be done after ", 1)
        brings = f"{', '.join(changes[:-1])} and {changes[-1]}." if len(changes) <= _NAMED else ""
    first, second, *others = order
    instead = f", in place of `after: {after[second]}`" if second in after else ""
    if gain < _LEAST_GAIN:
        stay = f"Leave it so. One after the other they gain nothing on average: {brings}"
        chosen = (
            f" If {first} matters more: in a job file, give {second} `after: {first}`{instead}."
        )
        return stay if others else stay + chosen
    then = f" Then {brings}" if brings else ""
    if others:
        names = ", ".join(order[:_NAMED])
        names += f" and {len(order) - _NAMED} more" if len(order) > _NAMED else ""
        chain = "In a job file, give each `after:` with the name of the one before it."
        shortest = ", the shortest first" if brings else ""
        return f"Run them one after the other{shortest}: {names}. {chain}{then}"
    shorter = ", which is shorter" if brings and known[0].alone < known[1].alone else ""
    return (
        f"Run {second} after {first}{shorter}: in a job file, give it `after: "
        f"{first}`{instead}.{then}"
    )
