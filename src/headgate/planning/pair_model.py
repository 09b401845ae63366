"""A model of what a pair of jobs cost each other, fitted to pairs that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Pair = tuple[str, str]

FEWEST_JOBS, FEWEST_PAIRS = 4, 8
"""Below which nothing is predicted."""
_MOST_PAIRS = 2000
"""The model solves a system of so many equations at most; more pairs are a sample of themselves."""
_SETTINGS = tuple((length, noise) for length in (0.7, 1.2, 2.5, 5.0) for noise in (0.05, 0.3))
"""Deviations of a figure within which jobs are alike, and the part of the variance that no figure
explains.
"""
_PECULIAR = 0.1
"""Variance of what is peculiar to a job, whatever its figures say."""
_FAR = 2.5
"""Deviations: figures that are further off count as so far off."""
_NEXT_TO_NOTHING = 0.01
"""Of what is usual: figures below that are all alike."""
_LEAST = 0.01
_BAND = 0.9


class Kept(NamedTuple):
    """The part of its throughput alone that a job keeps beside another, with a band that holds nine
    of ten.
    """

    part: float
    low: float
    high: float


class PairModel:
    """Predicts what a job keeps of its throughput beside another.

    A Gaussian process over pairs. Its kernel adds how alike the first jobs of two pairs are by
    their solo figures, how alike the second ones are, and the product of both. A job that was
    measured in pairs has a term of its own besides, so measured pairs complete those between them.
    Length scale and noise are those with the least error on jobs that are left out entirely. That
    error also scales the band.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2 and
        5.4.2.

    Args:
        solo: Figures of each job alone, all at least 0, by name: any that tell what it uses. A job
            may lack some.
        pairs: By job and other: the part of its throughput that the job keeps.

    Attributes:
        error: Mean absolute error on jobs that were left out.

    Raises:
        ValueError: There are too few jobs or pairs.
    """

    def __init__(
        self, solo: Mapping[str, Mapping[str, float]], pairs: Mapping[Pair, float]
    ) -> None:
        jobs = sorted({job for pair in pairs for job in pair})
        if len(jobs) < FEWEST_JOBS or len(pairs) < FEWEST_PAIRS:
            raise ValueError(
                f"{len(pairs)} pairs of {len(jobs)} jobs; expected {FEWEST_PAIRS} of {FEWEST_JOBS}"
            )
        self._solo, self._figures = solo, _Figures({job: solo.get(job, {}) for job in jobs})
        self._pairs = list(pairs)
        if len(self._pairs) > _MOST_PAIRS:
            drawn = np.random.default_rng(0).choice(len(self._pairs), _MOST_PAIRS, replace=False)
            self._pairs = [self._pairs[i] for i in sorted(drawn)]
        kept = np.array([pairs[pair] for pair in self._pairs])
        self._mean, self._deviation = float(kept.mean()), max(float(kept.std()), 1e-3)
        target = (kept - self._mean) / self._deviation
        rows = []
        for length, noise in _SETTINGS:
            kernel = self._kernel(self._pairs, self._pairs, length)
            inverse = np.asarray(
                np.linalg.inv(kernel + noise * np.eye(len(target))), dtype=np.float64
            )
            off, z = _left_out(inverse, target, self._pairs, jobs)
            rows.append((float(np.mean(np.abs(off))), length, noise, inverse, z))
        error, self._length, self._noise, self._inverse, z = min(
            rows, key=lambda pair_row: pair_row[0]
        )
        self.error = error * self._deviation
        self._weights = self._inverse @ target
        self._z = float(np.quantile(np.abs(z), _BAND))

    def predict(self, job: str, other: str) -> Kept:
        """What a job keeps beside another. Either may be new: it then goes by its figures in
        `solo`.
        """
        [row] = self._kernel([(job, other)], self._pairs, self._length)
        [[prior]] = self._kernel([(job, other)], [(job, other)], self._length)
        variance = max(prior + self._noise - row @ self._inverse @ row, 0.0)
        part, off = row @ self._weights * self._deviation, self._z * variance**0.5 * self._deviation
        return Kept(
            *(float(np.clip(self._mean + part + shift, _LEAST, 1.0)) for shift in (0.0, -off, off))
        )

    def _kernel(self, some: Sequence[Pair], others: Sequence[Pair], length: float) -> Array:
        """How alike pairs are: a matrix."""
        total, product = np.ones((len(some), len(others))), np.ones((len(some), len(others)))
        for side in (0, 1):
            names, theirs = ([pair[side] for pair in pairs] for pairs in (some, others))
            jobs = list(dict.fromkeys((*names, *theirs)))
            x = np.array([self._figures.of(self._solo.get(job, {})) for job in jobs])
            width = max(x.shape[1], 1)
            apart = ((x[:, None] - x[None]) ** 2).sum(-1) / width
            alike = np.exp(-apart / (2.0 * length**2))
            places = {job: i for i, job in enumerate(jobs)}
            at = np.ix_([places[job] for job in names], [places[job] for job in theirs])
            total += (alike + x @ x.T / width + _PECULIAR * np.eye(len(jobs)))[at]
            product *= alike[at]
        return total + product


class _Figures:
    """Solo figures on a scale on which they compare: logarithms, in deviations from the mean of the
    jobs known.
    """

    def __init__(self, known: Mapping[str, Mapping[str, float]]) -> None:
        names = sorted({name for figures in known.values() for name in figures})
        self._scale: dict[str, tuple[float, float, float]] = {}
        for name in names:
            values = [figures[name] for figures in known.values() if name in figures]
            usual = float(np.median([value for value in values if value > 0] or [1.0]))
            logs = np.log(np.array(values) + _NEXT_TO_NOTHING * usual)
            if len(values) * 2 >= len(known) and logs.std() > 1e-9:
                self._scale[name] = usual, float(logs.mean()), float(logs.std())

    def of(self, figures: Mapping[str, float]) -> Array:
        """One number for each figure; 0, the mean, for one that is missing."""
        zeros = np.zeros(len(self._scale))
        for i, (name, (usual, mean, deviation)) in enumerate(self._scale.items()):
            if name in figures:
                zeros[i] = (np.log(figures[name] + _NEXT_TO_NOTHING * usual) - mean) / deviation
        return np.clip(zeros, -_FAR, _FAR)


def _left_out(
    inverse: Array, target: Array, pairs: Sequence[Pair], jobs: Sequence[str]
) -> tuple[Array, Array]:
    """Errors of all pairs of each job, predicted without them, and the same in deviations that are
    expected.
    """
    weights = inverse @ target
    off, z = [], []
    for job in jobs:
        out = np.flatnonzero([job in pair for pair in pairs])
        covariance = np.linalg.inv(inverse[np.ix_(out, out)])
        off.append(covariance @ weights[out])
        z.append(off[-1] / np.sqrt(np.maximum(np.diag(covariance), 1e-12)))
    return np.concatenate(off), np.concatenate(z)
