"""The seconds of a step as a linear function of its batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LineFit:
    """Seconds of a step of b samples: `alpha + beta * b`. Neither is negative.

    Args:
        alpha: Seconds that do not depend on the batch.
        beta: Seconds per sample.
        relative_error: Root mean square of (fitted - measured) / measured. None with fewer than
            three batch sizes.
    """

    alpha: float
    beta: float
    relative_error: float | None


def fit_line(batches: Sequence[float], seconds: Sequence[float]) -> LineFit:
    """Least squares of the relative error, so that small batches count as much as large ones.

    Args:
        batches: Batch sizes, at least two different ones.
        seconds: Seconds of a step at each batch size, positive.

    Raises:
        ValueError: Fewer than two different sizes, or a time that is not positive.
    """
    if len(batches) != len(seconds) or len(set(batches)) < 2 or min(seconds) <= 0:
        raise ValueError(
            "expected positive seconds at two or more batch sizes, found "
            f"{list(zip(batches, seconds))}"
        )
    weights = [1 / s**2 for s in seconds]
    total = sum(weights)
    mean_b = sum(w * b for w, b in zip(weights, batches)) / total
    mean_s = sum(w * s for w, s in zip(weights, seconds)) / total
    covariance = sum(w * (b - mean_b) * (s - mean_s) for w, b, s in zip(weights, batches, seconds))
    beta = covariance / sum(w * (b - mean_b) ** 2 for w, b in zip(weights, batches))
    alpha = mean_s - beta * mean_b
    if beta < 0:
        alpha, beta = mean_s, 0.0
    elif alpha < 0:
        alpha = 0.0
        beta = sum(w * b * s for w, b, s in zip(weights, batches, seconds)) / sum(
            w * b * b for w, b in zip(weights, batches)
        )
    error = None
    if len(set(batches)) > 2:
        squares = [((alpha + beta * b - s) / s) ** 2 for b, s in zip(batches, seconds)]
        error = (sum(squares) / len(squares)) ** 0.5
    return LineFit(alpha, beta, error)
