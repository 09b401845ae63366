"""A model of the slowdown of job pairs, fitted to measured pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Pair = tuple[str, str]

FEWEST_JOBS, FEWEST_PAIRS = 4, 8
"""Fewest jobs and pairs for a prediction."""
_MOST_PAIRS = 2000
"""Most pairs, and so most equations to solve; larger tables are sampled."""
_SETTINGS = tuple((length, noise) for length in (0.7, 1.2, 2.5, 5.0) for noise in (0.05, 0.3))
"""Candidate length scales (in deviations of a figure) and noise fractions of the variance."""
_PECULIAR = 0.1
"""Variance of a job's own term, which no figure explains."""
_FAR = 2.5
"""Figures further off than this many deviations are clipped."""
_NEXT_TO_NOTHING = 0.01
"""Figures below this fraction of the usual value count as equal."""
_LEAST = 0.01
_BAND = 0.9


class Kept(NamedTuple):
    """The fraction of its throughput that a job keeps beside another, with a 90 % band."""

    part: float
    low: float
    high: float


class PairModel:
    """Predicts the fraction of its throughput that a job keeps beside another.

    A Gaussian process over pairs. Its kernel adds the similarity of the first jobs of two pairs by
    their solo figures, that of the second jobs, and the product of both. Each measured job has a
    term of its own, so measured pairs complete those between them. Length scale and noise minimize
    the error on jobs that are left out entirely. That error also scales the band.

    Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2 and
    5.4.2.

    Args:
        solo: Non-negative figures of each job alone, by name, that show its resource use. A job may
            lack some.
        pairs: By job and other job: the fraction of its throughput that the first keeps.

    Attributes:
        error: Mean absolute error on left-out jobs.

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
        """Predict what a job keeps beside another. A new job is predicted from its figures in
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
        """Kernel matrix between pairs."""
        total, product = np.ones((len(some), len(others))), np.ones((len(some), len(others)))
        for side in (0, 1):
            names, other_names = ([pair[side] for pair in pairs] for pairs in (some, others))
            jobs = list(dict.fromkeys((*names, *other_names)))
            x = np.array([self._figures.of(self._solo.get(job, {})) for job in jobs])
            width = max(x.shape[1], 1)
            apart = ((x[:, None] - x[None]) ** 2).sum(-1) / width
            alike = np.exp(-apart / (2.0 * length**2))
            places = {job: i for i, job in enumerate(jobs)}
            at = np.ix_([places[job] for job in names], [places[job] for job in other_names])
            total += (alike + x @ x.T / width + _PECULIAR * np.eye(len(jobs)))[at]
            product *= alike[at]
        return total + product


class _Figures:
    """Solo figures made comparable: logarithms, in deviations from the mean of known jobs."""

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
        """One number for each figure; a missing figure is 0, the mean."""
        zeros = np.zeros(len(self._scale))
        for i, (name, (usual, mean, deviation)) in enumerate(self._scale.items()):
            if name in figures:
                zeros[i] = (np.log(figures[name] + _NEXT_TO_NOTHING * usual) - mean) / deviation
        return np.clip(zeros, -_FAR, _FAR)


def _left_out(
    inverse: Array, target: Array, pairs: Sequence[Pair], jobs: Sequence[str]
) -> tuple[Array, Array]:
    """Errors of all pairs of each job when that job is left out, absolute and in expected
    deviations.
    """
    weights = inverse @ target
    off, z = [], []
    for job in jobs:
        out = np.flatnonzero([job in pair for pair in pairs])
        covariance = np.linalg.inv(inverse[np.ix_(out, out)])
        off.append(covariance @ weights[out])
        z.append(off[-1] / np.sqrt(np.maximum(np.diag(covariance), 1e-12)))
    return np.concatenate(off), np.concatenate(z)
