"""Reported training progress of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.recorded.usage import EMPTY, Array, Signal


@dataclass(frozen=True, slots=True, eq=False)
class ProgressSeries:
    """Reports of a job in the order of time, as arrays of one length; NaN: the report had no such
    field.
    """

    t: Array
    step: Array
    epoch: Array
    samples: Array
    loss: Array
    count: Array
    task: tuple[str, ...]
    not_number: Array  # 1 if the loss was NaN or infinite, else 0
    epochs: int | None
    metrics: Mapping[str, tuple[Array, Array]]


_NOTHING: Array = np.empty(0)
NO_PROGRESS = ProgressSeries(
    _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, (), _NOTHING, None, {}
)


def together(progress: ProgressSeries, *, synchronous: bool) -> ProgressSeries:
    """Merge the reports of a job's workers round by round into those of one.

    The loss is the mean, weighted by the number of losses in each report. Workers of a synchronous
    plan all count the same samples. Workers of an asynchronous plan count their own, which are
    summed.
    """
    names = list(dict.fromkeys(progress.task))
    if len(names) < 2:
        return progress
    task = np.array([names.index(name) for name in progress.task])
    # the number of earlier rounds, for each report
    turn = np.zeros(len(task), dtype=int)
    heard: set[int] = set()
    now = 0
    for index, worker in enumerate(task.tolist()):
        if worker in heard:
            heard, now = set(), now + 1
        heard.add(worker)
        turn[index] = now
    rounds = now + 1
    last = np.searchsorted(turn, np.arange(rounds), side="right") - 1
    known = np.isfinite(progress.loss)
    weight = np.bincount(turn[known], progress.count[known], rounds)
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = np.bincount(turn[known], (progress.loss * progress.count)[known], rounds) / weight
    if synchronous:
        samples = _highest(turn, progress.samples, rounds)
    else:
        # The latest values of each worker up to a round; zero before its first.
        zeros = np.zeros((len(names), rounds))
        for worker in range(len(names)):
            is_own = (task == worker) & np.isfinite(progress.samples)
            if is_own.any():
                at = np.searchsorted(turn[is_own], np.arange(rounds), side="right") - 1
                zeros[worker] = np.where(at >= 0, progress.samples[is_own][np.maximum(at, 0)], 0.0)
        samples = (
            zeros.sum(axis=0) if np.isfinite(progress.samples).any() else np.full(rounds, np.nan)
        )
    return ProgressSeries(
        t=progress.t[last],
        step=_highest(turn, progress.step, rounds),
        epoch=_highest(turn, progress.epoch, rounds),
        samples=samples,
        loss=loss,
        count=np.where(weight > 0, weight, 1.0),
        task=(progress.task[0],) * rounds,
        not_number=(np.bincount(turn, progress.not_number, rounds) > 0.0).astype(float),
        epochs=progress.epochs,
        metrics=progress.metrics,
    )


def _highest(turn: npt.NDArray[np.int_], values: Array, rounds: int) -> Array:
    result = np.full(rounds, np.nan)
    np.fmax.at(result, turn, values)
    return result


def growth_rate(times: Array, counter: Array, least: float) -> Signal:
    """Growth of a counter a second, without stretches in which it started again.

    Args:
        times: When it was read, in order.
        least: About the least seconds between two compared readings. Readings in quick succession
            reflect their delivery more than their growth.
    """
    kept = np.isfinite(counter)
    t, values = times[kept], counter[kept]
    if len(t) < 2:
        return EMPTY
    # The last reading of each stretch, and the very first one.
    last = np.flatnonzero(np.append(np.diff(np.floor(t / least)) > 0, True))
    chosen = np.unique(np.append(0, last))
    t, grown = t[chosen], np.diff(values[chosen])
    seconds = np.diff(t)
    good = (seconds > 0) & (grown >= 0)
    return Signal(t[:-1][good], t[1:][good], grown[good] / seconds[good])
