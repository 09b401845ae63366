"""Proof by pause: the effect of short random pauses of a neighbour on the steps of another job.

A pause takes one of two adjacent windows of time, chosen by a coin. Without an effect, the
difference between the windows is as likely positive as negative, whatever else happens. So the
means of random subsets of the differences give an exact interval (Hartigan, Using subsample values
as typical values, JASA 1969). The interval is evaluated after pause counts fixed in advance. These
looks share an error of 5 % (Bonferroni). So all intervals hold at once 95 times of 100, whenever
the proof ends. Adjacent windows are as in duet benchmarking (Bulej and others, arXiv 2001.05811).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from headgate.diagnosis.attribution import LostTime, TimeEstimate, exact
from headgate.recorded.proofs import EFFECT, Gain, Outcome, Proof
from headgate.recorded.usage import Array

ERROR = 0.05
"""Probability, at most, that a proof sees a nonexistent effect."""
LEAST_PAUSES, MOST_PAUSES = 8, 512
"""Fewer pauses cannot be told from chance; more are never made."""
LEAST_REPORTS = 4.0
"""Mean reports of a step that a window has to contain."""
LEAST_STEPS = 8.0
"""Steps that a window should contain."""

_POWER = 0.8
"""Probability with which the planned number of pauses shows an effect of `EFFECT`."""
_MOST_LOOKS = 4
_SUBSETS = 20_000
_MOST_DIFFERENCE = 1.0
"""Largest difference that counts, three times as fast or slow: a window without a step, as during
an evaluation, counts for no more.
"""


class Window(NamedTuple):
    """A stretch of time, in seconds on any clock."""

    begin: float
    end: float


def difference(times: Array, steps: Array, held: Window, free: Window) -> float | None:
    """How much faster a job was in the window in which its neighbour was paused than in the free
    one: the difference of the rates divided by their mean. None: its reports cannot distinguish the
    windows.

    A report across the edge of a window is split by least squares. The steps between two reports
    are the sum of rate times overlap over the two windows and their surroundings.

    Args:
        times: When it reported, in seconds, in order.
        steps: Its step at each report.
    """
    margin = max(held.end - held.begin, free.end - free.begin)
    first, last = min(held.begin, free.begin) - margin, max(held.end, free.end) + margin
    inside = np.flatnonzero((times[1:] > first) & (times[:-1] < last))
    if not len(inside) or times[-1] < max(held.end, free.end):
        return None
    begins, ends = times[inside], times[inside + 1]
    made, lasted = steps[inside + 1] - steps[inside], ends - begins
    in_held, in_free = _overlap(begins, ends, held), _overlap(begins, ends, free)
    weight = 1.0 / np.sqrt(np.maximum(lasted, 1e-4))
    shares = np.column_stack([in_held, in_free, lasted - in_held - in_free]) * weight[:, None]
    solved, _, rank, _ = np.linalg.lstsq(shares, made * weight, rcond=1e-6)
    if rank < 3 or np.any(made < 0) or solved[0] + solved[1] <= 0.0:
        return None
    relative = 2.0 * float(solved[0] - solved[1]) / float(solved[0] + solved[1])
    return min(max(relative, -_MOST_DIFFERENCE), _MOST_DIFFERENCE)


def _overlap(begins: Array, ends: Array, window: Window) -> Array:
    inside: Array = np.maximum(np.minimum(ends, window.end) - np.maximum(begins, window.begin), 0.0)
    return inside


def report_seconds(times: Array, steps: Array) -> tuple[float, float] | None:
    """The median seconds between reports, and the mean seconds of a step; None: not known yet."""
    if len(times) < 2 * LEAST_REPORTS or steps[-1] <= steps[0]:
        return None
    return float(np.median(np.diff(times))), float(times[-1] - times[0]) / float(
        steps[-1] - steps[0]
    )


def window_seconds(reports: float, step: float, least: float, most: float) -> float | None:
    """Length of a pause that shows in steps of `step` seconds with a report every `reports`
    seconds; None: longer than `most`.
    """
    if max(reports, step) > most:
        return None
    return min(max(LEAST_REPORTS * reports, LEAST_STEPS * step, least), most)


def noise(times: Array, steps: Array, seconds: float) -> float | None:
    """Deviation of the difference between adjacent windows without a pause, robust against
    outliers; None: not known yet.
    """
    starts = np.arange(times[0] + seconds, times[-1] - 3 * seconds, 2 * seconds)
    pairs = (
        (Window(at, at + seconds), Window(at + seconds, at + 2 * seconds))
        for at in map(float, starts)
    )
    differences = [
        relative
        for held, free in pairs
        if (relative := difference(times, steps, held, free)) is not None
    ]
    if len(differences) < LEAST_PAUSES:
        return None
    low, high = np.quantile(differences, [0.1, 0.9])
    return max(float(high - low) / 2.563, 1e-3)


def pauses_needed(deviation: float) -> int:
    """How many pauses show an effect of `EFFECT` four times of five."""
    normal = NormalDist()
    deviations = normal.inv_cdf(1.0 - ERROR / 4) + normal.inv_cdf(_POWER)
    return max(math.ceil((deviations * deviation / EFFECT) ** 2) + 3, LEAST_PAUSES)


def looks(planned: int) -> dict[int, float]:
    """The pause counts at which a proof looks, each with its allowed error. The last look may spend
    half of the total.
    """
    counts = [planned]
    while len(counts) < _MOST_LOOKS and counts[-1] // 2 >= LEAST_PAUSES:
        counts.append(counts[-1] // 2)
    if len(counts) == 1:
        return {planned: ERROR}
    early = ERROR / 2 / (len(counts) - 1)
    return {**dict.fromkeys(reversed(counts[1:]), early), planned: ERROR / 2}


def interval(differences: Sequence[float], error: float) -> tuple[float, float]:
    """An interval that misses the mean difference with a probability of at most `error`, from means
    of random subsets; of all subsets if there are few.
    """
    values = np.asarray(differences, dtype=float)
    count = len(values)
    if 2**count <= _SUBSETS:
        chosen = (np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1
    else:
        chosen = np.random.default_rng(0).integers(0, 2, (_SUBSETS, count), dtype=np.int8)
        chosen = chosen[chosen.any(axis=1)]
    means = np.sort(chosen @ values / chosen.sum(axis=1))
    # Each of the n + 1 gaps between n means contains the truth with equal probability.
    outside = max(math.floor(error / 2 * (len(means) + 1)), 1)
    return float(means[outside - 1]), float(means[-outside])


def gain(difference: float) -> float:
    """Relative speedup between the windows, from a result of `difference`."""
    return (2.0 + difference) / (2.0 - difference) - 1.0


def judged(differences: Sequence[float], error: float) -> tuple[Gain, Outcome]:
    """Gain and outcome from all differences so far, at a look that may spend `error`."""
    low, high = interval(differences, error)
    judged_gain = Gain(gain(float(np.mean(differences))), gain(low), gain(high))
    if judged_gain.low > 0.0 or judged_gain.high < 0.0:
        return judged_gain, "seen"
    return judged_gain, "none" if judged_gain.high < EFFECT else "open"


@dataclass
class Pair:
    """Results of pausing one culprit for one victim so far."""

    culprit: str
    victim: str
    looks: Mapping[int, float]
    differences: list[float] = field(default_factory=list)
    found: Proof | None = None
    is_open: bool = True

    def add(self, difference: float, seconds: float) -> None:
        """Add a pause, and evaluate if this count was fixed in advance."""
        self.differences.append(difference)
        count = len(self.differences)
        if (error := self.looks.get(count)) is not None:
            gain, outcome = judged(self.differences, error)
            self.found = Proof(self.culprit, self.victim, count, seconds, gain, outcome)
            self.is_open = outcome == "open" and count < max(self.looks)


def planned_pair(culprit: str, victim: str, deviation: float) -> Pair:
    """A pair with enough planned pauses for an effect to exceed the noise of the victim's steps.

    Args:
        deviation: Deviation of the difference between windows without a pause (`noise`).
    """
    planned = min(pauses_needed(deviation), MOST_PAUSES)
    return Pair(culprit, victim, looks(planned))


# --- effect on the account of the job ----------------------------------------------------------


def replaced(
    losses: Sequence[LostTime],
    proofs: Sequence[Proof],
    beside: Mapping[str, Array],
    on_gpu: Collection[str] = (),
) -> list[LostTime]:
    """The losses with proved ones in place of counted or compared ones, if more accurate.

    If a proof finds more than was counted for its neighbour, the excess is first taken from the
    other neighbours' counted losses. Counting divided these by cores or bytes; whom a thread waited
    for was never observed.

    Args:
        losses: One for each culprit and resource.
        beside: Seconds of the job's steps during which each culprit ran, in each bucket.
        on_gpu: Culprits that used the job's GPU.
    """
    kept = list(losses)
    parts: dict[str, float] = {}  # the proved fraction of the time beside each culprit
    for proof in proofs:
        known = [loss for loss in kept if loss.to == proof.culprit]
        ran = float(np.sum(beside.get(proof.culprit, np.zeros(0))))
        band = _lost(proof.gain, ran)
        before = sum(loss.lost.high - loss.lost.low for loss in known)
        if proof.outcome == "open" and (not known or band.high - band.low > before):
            continue
        kept = [loss for loss in kept if loss.to != proof.culprit]
        if proof.outcome != "none":
            kept += _divided(proof.culprit, known, band, proof.culprit in on_gpu)
            if ran > 0.0:
                parts[proof.culprit] = band.seconds / ran
    return _without_overlap(kept, losses, parts, beside) if parts else kept


def _without_overlap(
    losses: Sequence[LostTime],
    counted: Sequence[LostTime],
    parts: Mapping[str, float],
    beside: Mapping[str, Array],
) -> list[LostTime]:
    """The losses without overlap: no second is lost twice.

    Each proof gives the gain with all other neighbours still present. So two proved together cost 1
    - (1 - p)(1 - q) of their common time, unless more was counted.

    Args:
        counted: The losses before any proof.
        parts: The proved fraction of the time beside each culprit, 0 to 1.
    """
    proved = [loss for loss in losses if loss.evidence == "proved"]
    through = {loss.resource for loss in proved}
    together = np.prod([1.0 - part * _there(beside[name]) for name, part in parts.items()], axis=0)
    most = float(np.sum((1.0 - together) * np.max([beside[name] for name in parts], axis=0)))
    before, now = (
        sum(loss.lost.seconds for loss in of if loss.resource in through)
        for of in (counted, proved)
    )
    fits = min(max(most, before) / now, 1.0) if now > 0.0 else 1.0
    beyond = fits * now - sum(loss.lost.seconds for loss in counted if loss.to in parts)
    others = [loss for loss in losses if loss.resource in through and loss.evidence == "counted"]
    others_total = sum(loss.lost.seconds for loss in others)
    left = 1.0 - min(max(beyond, 0.0) / others_total, 1.0) if others_total > 0.0 else 1.0
    scale = {id(loss): fits for loss in proved} | {id(loss): left for loss in others}
    return [_times(loss, scale.get(id(loss), 1.0)) for loss in losses]


def _there(seconds: Array) -> Array:
    return np.asarray(seconds > 0.0, dtype=float)


def _times(loss: LostTime, factor: float) -> LostTime:
    return replace(loss, lost=TimeEstimate(*(end * factor for end in loss.lost)))


def _lost(gain: Gain, seconds: float) -> TimeEstimate:
    part, low, high = (max(faster / (1.0 + faster), 0.0) * seconds for faster in gain)
    return TimeEstimate(part, low, high)


def _divided(
    to: str, known: Sequence[LostTime], band: TimeEstimate, on_gpu: bool
) -> list[LostTime]:
    """Divide a proved loss among resources in the proportions counted or compared. An uncounted
    rest is due to a shared GPU. Without any counted loss or shared GPU, it is due to caches and
    memory bandwidth.
    """
    total_seconds = sum(loss.lost.seconds for loss in known)
    if on_gpu and not any(loss.resource == "gpu" for loss in known):
        known = [
            *known,
            LostTime(to, "gpu", exact(max(band.seconds - total_seconds, 0.0)), "counted"),
        ]
        total_seconds = max(total_seconds, band.seconds)
    if total_seconds <= 0.0:
        return [LostTime(to, "memory", band, "proved")]
    shares = [loss.lost.seconds / total_seconds for loss in known]
    return [
        replace(loss, lost=TimeEstimate(*(end * share for end in band)), evidence="proved")
        for loss, share in zip(known, shares, strict=True)
    ]
