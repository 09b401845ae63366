"""Proofs by pause, as a run stores them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, get_args

from headgate.model.units import say_percent

EFFECT = 0.05
"""The smallest effect worth a change: this much faster without the neighbour."""
Outcome = Literal["seen", "none", "open"]
"""`seen`: there is an effect; `none`: none of `EFFECT` or more; `open`: undecided."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Gain(NamedTuple):
    """How much faster a job would be without its neighbour, with the ends of an interval; 0.5 means
    50 %.
    """

    part: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Proof:
    """What pauses of one job showed about another.

    Args:
        culprit: The paused job.
        victim: The job whose steps were observed.
        pauses: Number of pauses.
        seconds: Length of each.
    """

    culprit: str
    victim: str
    pauses: int
    seconds: float
    gain: Gain
    outcome: Outcome

    def row(self) -> dict[str, object]:
        """The proof as a row of the store, without its time."""
        return {
            **asdict(self),
            "gain": self.gain.part,
            "low": self.gain.low,
            "high": self.gain.high,
        }

    def __str__(self) -> str:
        by, tail = (
            f"{say_percent(self.gain.low)} to {say_percent(self.gain.high)}",
            f"{self.pauses} pauses of {self.seconds:.2g} s",
        )
        if self.outcome == "open":
            return (
                f"{tail} do not tell whether {self.culprit} slows {self.victim}: without it, "
                f"{by} faster"
            )
        if self.outcome == "none":
            return (
                f"{self.culprit} does not slow {self.victim} by {say_percent(EFFECT)}: without it, "
                f"{by} faster; {tail}"
            )
        if self.gain.high < 0.0:
            waits = f"{self.victim} may wait for {self.culprit}, for a lock, a file or a pipe"
            return f"holding {self.culprit} makes {self.victim} slower, by {by}: {waits}; {tail}"
        return (
            f"{self.culprit} slows {self.victim}: without it, {say_percent(self.gain.part)} faster "
            f"({by}); {tail}"
        )
