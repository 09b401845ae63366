"""Predict all plans from a few measurements: physics fitted robustly, plus a Gaussian process for
the residuals.

The logarithm of the throughput is a Gaussian process. Its mean is the physics at its most probable
parameters. Its covariance has three parts: the uncertainty of the parameters (through the formula's
slopes at each plan), a smooth function of the plan's shape (Matérn 5/2), and an independent part of
each plan. Near measurements it interpolates. Far from them it extrapolates like the physics, with a
band that shows the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import least_squares, minimize

from headgate.planning import physics
from headgate.planning.features import Features, Floats, Indices, part

_SCALE = 0.05  # of the logarithm: measurements further from the formula count for less
# usual value, and deviation of its logarithm
_SMOOTH, _OWN, _LENGTH = (0.10, 0.7), (0.06, 0.5), (1.5, 0.7)
_MOST = 200  # most measurements used to fit the covariance
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Belief:
    """Knowledge of the logarithm of each plan's throughput.

    Args:
        physics: Most probable parameters.
        mean: Mean of each plan, (plans,).
        deviation: Standard deviations, (plans,).
    """

    physics: Floats
    mean: Floats
    deviation: Floats
    _slopes: Floats
    _shape: Floats
    _told: Indices
    _weights: tuple[Floats, bool]
    _smooth: float
    _own: float
    _lengths: Floats

    def covariance(self, of: Indices, others: Indices) -> Floats:
        """Covariance between plans and other plans, by index."""
        between = self._before(of, others)
        if self._told.size == 0:
            return between
        left, right = self._before(of, self._told), self._before(self._told, others)
        return np.asarray(between - left @ cho_solve(self._weights, right))

    def _before(self, of: Indices, others: Indices) -> Floats:
        smooth = self._smooth**2 * _matern(self._shape[of], self._shape[others], self._lengths)
        own = self._own**2 * (of[:, None] == others[None, :])
        return np.asarray(self._slopes[of] @ self._slopes[others].T + smooth + own)


def fit(
    of: Features,
    prior: physics.Prior,
    indices: Sequence[int],
    logs: Sequence[float],
    noise: Sequence[float],
) -> Belief:
    """Learn from measurements.

    Args:
        of: Features of all plans.
        prior: Prior of the parameters.
        indices: Indices of the measured plans, each once.
        logs: Logarithms of their throughputs.
        noise: Standard deviations of these measurements.
    """
    at = np.asarray(indices, np.intp)
    y, sigma = np.asarray(logs, np.float64), np.asarray(noise, np.float64)
    most_probable = _most_probable(of, prior, at, y)
    log_now, slopes = physics.slopes(most_probable, of)
    mean = log_now + slopes @ (prior.mean - most_probable)
    known = slopes * prior.deviation
    residual = y - mean[at]
    smooth, own, lengths = _covariance(known[at], of.shape[at], residual, sigma)
    told_matrix = known[at] @ known[at].T + smooth**2 * _matern(of.shape[at], of.shape[at], lengths)
    told_matrix += np.diag(own**2 + sigma**2)
    weights = cho_factor(told_matrix, lower=True) if at.size else (np.zeros((0, 0)), True)
    prior_variance = (known**2).sum(1) + smooth**2 + own**2
    if at.size == 0:
        return Belief(
            most_probable,
            mean,
            np.sqrt(prior_variance),
            known,
            of.shape,
            at,
            weights,
            smooth,
            own,
            lengths,
        )
    cross = known @ known[at].T + smooth**2 * _matern(of.shape, of.shape[at], lengths)
    cross[at, np.arange(at.size)] += own**2
    after = mean + cross @ cho_solve(weights, residual)
    variance = prior_variance - (cross * cho_solve(weights, cross.T).T).sum(1)
    deviation = np.sqrt(np.maximum(variance, _TINY))
    return Belief(
        most_probable, after, deviation, known, of.shape, at, weights, smooth, own, lengths
    )


def _most_probable(of: Features, prior: physics.Prior, at: Indices, y: Floats) -> Floats:
    """Parameters by regularized robust least squares: a single outlier counts for little."""
    if at.size == 0:
        return prior.mean
    measured = part(of, at)

    def off(parameters: Floats) -> Floats:
        residual = (np.log(physics.seconds(parameters, measured).throughput) - y) / _SCALE
        soft = np.sign(residual) * np.sqrt(2 * (np.sqrt(1 + residual**2) - 1))
        return np.concatenate([soft, (parameters - prior.mean) / prior.deviation])

    def slopes(parameters: Floats) -> Floats:
        values_now, of_logs = physics.slopes(parameters, measured)
        residual = (values_now - y) / _SCALE
        root = np.sqrt(1 + residual**2)
        # The derivative of sqrt(2 (root - 1)), which is 1 for a zero residual.
        soft = np.abs(residual) / (root * np.sqrt(np.maximum(2 * (root - 1), _TINY**2)))
        soft = np.where(np.abs(residual) < 1e-4, 1.0, soft)
        return np.concatenate([soft[:, None] * of_logs / _SCALE, np.diag(1 / prior.deviation)])

    return np.asarray(least_squares(off, prior.mean, slopes, max_nfev=200).x)


def _covariance(
    known: Floats, shape: Floats, rest: Floats, sigma: Floats
) -> tuple[float, float, Floats]:
    """The most probable amplitude and smoothness of the residuals, given their priors."""
    usual = np.log([_SMOOTH[0], _OWN[0], *[_LENGTH[0]] * shape.shape[1]])
    deviation = np.array([_SMOOTH[1], _OWN[1], *[_LENGTH[1]] * shape.shape[1]])
    known, shape, rest, sigma = (parameter[:_MOST] for parameter in (known, shape, rest, sigma))
    from_physics = known @ known.T

    def unlikely(values: Floats) -> float:
        smooth, own, lengths = math.exp(values[0]), math.exp(values[1]), np.exp(values[2:])
        matrix = (
            from_physics + smooth**2 * _matern(shape, shape, lengths) + np.diag(own**2 + sigma**2)
        )
        try:
            factor = cho_factor(matrix, lower=True)
        except np.linalg.LinAlgError:
            return 1e10
        fit = 0.5 * rest @ cho_solve(factor, rest) + np.log(np.diag(factor[0])).sum()
        return float(fit + 0.5 * (((values - usual) / deviation) ** 2).sum())

    fitted = usual
    if rest.size >= 4:
        fitted = np.clip(
            minimize(unlikely, usual, method="L-BFGS-B", options={"maxiter": 40}).x, -7.0, 3.0
        )
    return math.exp(fitted[0]), math.exp(fitted[1]), np.exp(fitted[2:])


def _matern(a: Floats, b: Floats, lengths: Floats) -> Floats:
    """Matérn 5/2 correlation between rows."""
    apart = (((a / lengths)[:, None, :] - (b / lengths)[None, :, :]) ** 2).sum(-1)
    root = np.sqrt(5.0 * apart)
    return np.asarray((1 + root + root**2 / 3) * np.exp(-root))
