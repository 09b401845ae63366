"""Extrapolate a loss: families of curves fitted to the reports, with their uncertainty.

All families are `c + a g(u)`. u is the step relative to the steps so far, and few numbers shape g.
The best a and c of each shape on a grid follow in closed form, all at once. So a fit takes about a
millisecond, needs no starting point, and has no iteration that could fail to converge. Each shape
is weighted by its likelihood. Forecasts are quantiles over curves drawn with these weights.

| family | g(u) | source |
|---|---|---|
| `power` | (u + s)^-p | scaling laws; fits real training losses best |
| `optimus` | 1 / (u + s) | Optimus (EuroSys 2018): l(k) = 1/(ak + b) + c |
| `sublinear` | 1 / (u² + bu + s) | SLAQ (SoCC 2017): l(k) = 1/(ak² + bk + c) + d |
| `superlinear` | exp(-pu) | SLAQ: l(k) = μ^(k-b) + c |

Late points weigh more, as in SLAQ and Optimus: by exp(-1) for each fifth of the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headgate.forecast.epoch_steps import Estimate

Array = npt.NDArray[np.float64]

FEWEST_POINTS: Final = 6
"""Fewest points for a fit."""
FAMILIES: Final = ("power", "optimus", "sublinear", "superlinear")

_MOST_POINTS: Final = 64
_DRAWS: Final = 400
_RECENT: Final = 0.2
_FAR: Final = 50.0
"""A curve that takes this many times the steps so far counts as never arriving."""
_BACK: Final = 0.98
"""Curves are followed back over this fraction of the steps so far; before it, some are infinite."""
_INDEPENDENT: Final = 0.45
"""Fraction of the points' information that counts: no family is exactly true, and a schedule may
change it.
"""
_RESOLUTION: Final = 0.004
"""Error of the grid for a noiseless curve, as a fraction of its drop."""
_SCALE_LOW: Final = 0.9
_SCALE_HIGH: Final = 0.7
"""Factor on the distance of the band's upper end from the median, in logarithms, relative to the
draws.

With these factors the band contains slightly more than nine of ten forecasts for the curves of
`benchmarks/loss_prediction.py`, with other seeds than it reports (split conformal prediction). It
contains slightly more because losses of large models surprise more often.
"""


class Band(NamedTuple):
    """Median of a loss at some steps with a 90 % band over the curves, without noise."""

    middle: Array
    low: Array
    high: Array


class _Shapes(NamedTuple):
    """Shapes of g, one in each row: family, p, s and b, and prior probability."""

    family: npt.NDArray[np.intp]
    p: Array
    s: Array
    b: Array
    prior: Array

    def take(self, rows: npt.NDArray[np.intp]) -> _Shapes:
        return _Shapes(
            self.family[rows], self.p[rows], self.s[rows], self.b[rows], self.prior[rows]
        )

    def at(self, u: Array) -> Array:
        """g of each shape (rows) at each u (columns)."""
        family, p, s, b = (column[:, None] for column in self[:4])
        with np.errstate(over="ignore", under="ignore"):
            sublinear = 1.0 / (u * u + b * u + s)
            return np.where(
                family <= 1, (u + s) ** -p, np.where(family == 2, sublinear, np.exp(-p * u))
            )

    def inverse(self, g: Array) -> Array:
        """The u at which each shape has fallen to its g; infinite: never."""
        with np.errstate(all="ignore"):
            half = self.b / 2.0
            power = g ** (-1.0 / np.maximum(self.p, 1e-9)) - self.s
            sublinear = np.sqrt(np.maximum(half * half + 1.0 / g - self.s, 0.0)) - half
            u = np.where(
                self.family <= 1, power, np.where(self.family == 2, sublinear, -np.log(g) / self.p)
            )
        return np.where(g > 0.0, np.nan_to_num(u, nan=np.inf, posinf=np.inf), np.inf)


@cache
def _grid() -> _Shapes:
    starts = np.geomspace(1e-3, 3.0, 12)
    powers = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.85, 1.4, 2.0, 3.0)
    rows = [(0, p, s, 0.0, 1 / 144) for p in powers for s in starts]
    rows += [(1, 1.0, s, 0.0, 1 / 144) for s in starts]
    rows += [
        (2, 1.0, s, b, 1 / 80)
        for b in np.geomspace(1e-2, 10.0, 8)
        for s in np.geomspace(1e-3, 10.0, 10)
    ]
    rows += [(3, p, 0.0, 0.0, 1 / 48) for p in np.geomspace(0.1, 100.0, 48)]
    family, *others = np.array(rows).T
    return _Shapes(family.astype(np.intp), *others)


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Curves that may have produced the reports, drawn by likelihood.

    Args:
        family: The likeliest of `FAMILIES`.
        step: The last known step.
        level: The loss there, by the curves.
        start: The loss at the first step, by the curves.
        noise: Standard deviation of a point about the curve.
        asymptote: The final loss: the median over the curves.
    """

    family: str
    step: float
    level: float
    start: float
    noise: float
    asymptote: float
    _shapes: _Shapes
    _a: Array
    _c: Array
    _origin: float
    _span: float

    def at(self, steps: Sequence[float] | Array) -> Band:
        """The loss at some steps."""
        low, middle, high = np.quantile(
            self._curves(np.asarray(steps, dtype=float)), (0.05, 0.5, 0.95), axis=0
        )
        return Band(middle, low, high)

    def to(self, target: float) -> Estimate:
        """Steps left until a loss.

        If hardly any curve reaches it, only the job's age counts. Then the remaining time has a
        median equal to the age, and a 90 % band from a 19th to 19 times of it (Gott, Nature 1993).
        """
        if self.level <= target:
            return Estimate(0.0, 0.0, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            g = np.where(self._a > 0.0, (target - self._c) / self._a, -1.0)
        return self._estimate(np.maximum((self._shapes.inverse(g) - 1.0) * self._span, 1.0))

    def to_plateau(self, patience: float, least: float = 0.0, passed: float = 0.0) -> Estimate:
        """Steps left until early stopping.

        If most curves say that the patience is over, the job should have ended. Then something has
        restarted the count, and every part of the patience is equally likely.

        Args:
            patience: Steps with an improvement of at most `least` after which the job ends.
            least: Least improvement, at least an eighth of a point's noise.
            passed: Steps of the patience that may have passed already.
        """
        least = max(least, self.noise / 8.0)
        passed = min(passed, patience, _BACK * self._span)
        future = np.concatenate(
            (np.linspace(-passed / self._span, 0.0, 21), np.geomspace(0.01, _FAR, 80))
        )
        steps = self.step + future * self._span
        gain = self._curves(steps) - self._curves(steps + patience)
        flat = gain <= least
        first = np.where(flat.any(axis=1), future[flat.argmax(axis=1)], np.inf)
        if passed == patience > 0.0 and flat[:, 0].mean() > 0.5:
            return Estimate(0.5 * patience, 0.05 * patience, 0.95 * patience)
        return self._estimate(np.maximum(first * self._span + patience, 1.0))

    @property
    def progress(self) -> float:
        """Fraction of the way from the start to the asymptote, 0 to 1; negative if the loss has
        risen.
        """
        total_drop = abs(self.start - self.asymptote)
        return (self.start - self.level) / total_drop if total_drop > 0.0 else 1.0

    def _curves(self, steps: Array) -> Array:
        u = np.maximum(steps - self._origin, 0.0) / self._span
        return self._c[:, None] + self._a[:, None] * self._shapes.at(u)

    def _estimate(self, left: Array) -> Estimate:
        reached = left[left < _FAR * self._span]
        likely = len(reached) / len(left)
        if len(reached) < 5:
            return Estimate(self._span, self._span / 19.0, self._span * 19.0, likely)
        low, middle, high = np.quantile(reached, (0.05, 0.5, 0.95), method="nearest")
        low = middle * (low / middle) ** _SCALE_LOW
        return Estimate(
            float(middle), float(low), float(middle * (high / middle) ** _SCALE_HIGH), likely
        )


def fit(points: Sequence[tuple[float, float, float]]) -> Fit | None:
    """Fit all families.

    Args:
        points: Step, loss and number of reports of each point, in the order of steps, as from
            `losses.Losses.points`.

    Returns:
        None: fewer than `FEWEST_POINTS`, or no two different steps.
    """
    table = np.array(points, dtype=float).reshape(-1, 3)
    table = table[np.isfinite(table).all(axis=1)]
    if len(table) < FEWEST_POINTS or not table[-1, 0] > table[0, 0]:
        return None
    while len(table) > _MOST_POINTS:
        table = _halved(table)
    step, loss, count = table.T
    span = (step[-1] - step[0]) * len(step) / (len(step) - 1)
    origin = step[-1] - span
    low, scale = float(loss.min()), float(loss.max() - loss.min())
    if scale <= 1e-9 * max(abs(low), 1e-300):
        return _constant(origin, span, float(loss[-1]))
    grid = _grid()
    u = (step - origin) / span
    g = grid.at(u)
    # Scaled from 1 at the first point to 0 at the last, like the losses.
    last, height = g[:, -1:], g[:, :1] - g[:, -1:]
    regress = _regress(
        (g - last) / height, (last / height)[:, 0], (loss - low) / scale, u, count, -low / scale
    )
    rows, a, c = _draw(regress, np.random.default_rng(0))
    a = a / height[rows, 0]
    c = c - a * last[rows, 0]
    if low >= 0.0:
        c = np.maximum(c, -low / scale)  # a loss that was never negative has no negative curve
    shapes = grid.take(rows)
    ends = low + scale * np.median(c[:, None] + a[:, None] * shapes.at(u[[0, -1]]), axis=0)
    return Fit(
        family=FAMILIES[int(grid.family[regress.sse.argmin()])],
        step=float(step[-1]),
        level=float(ends[1]),
        start=float(ends[0]),
        noise=regress.noise * scale,
        asymptote=float(low + scale * np.median(c)),
        _shapes=shapes,
        _a=a * scale,
        _c=c * scale + low,
        _origin=origin,
        _span=span,
    )


class _ShapeFits(NamedTuple):
    """For each shape: the best a and c, the residual, and the terms of its uncertainty."""

    a: Array
    c: Array
    sse: Array
    spread: Array
    mean: Array
    weight: float
    independent: float
    noise: float


def _regress(g: Array, above: Array, y: Array, u: Array, count: Array, floor: float) -> _ShapeFits:
    """Weighted least squares of `y = c + a g` for every row of g, in three rounds that reduce the
    weight of outliers (Huber). No asymptote `c - a above` is below `floor`, the zero of such a
    loss.
    """
    weights = known = np.exp((u - 1.0) / _RECENT) * count / count.max()
    for _ in range(3):
        total = weights.sum()
        mean, middle = g @ weights / total, float(y @ weights / total)
        apart = g - mean[:, None]
        spread = np.maximum((apart * apart) @ weights, 1e-300)
        a = (apart @ (weights * (y - middle))) / spread
        c = middle - a * mean
        off = y - c[:, None] - a[:, None] * g
        sse = (off * off) @ weights
        scaled = np.abs(off[sse.argmin()]) * np.sqrt(known / known.max())
        noise = 1.4826 * float(np.median(scaled)) + 1e-12
        used, weights = weights, known * np.minimum(1.0, 2.5 * noise / np.maximum(scaled, 1e-12))
    if floor <= 0.0:
        bound = g + above[:, None]
        least = (bound @ (used * (y - floor))) / ((bound * bound) @ used)
        is_below = c - a * above < floor
        a, c = np.where(is_below, least, a), np.where(is_below, floor + least * above, c)
        off = y - c[:, None] - a[:, None] * g
        sse = (off * off) @ used
    best = off[sse.argmin()] * np.sqrt(used)
    related = min(max(float(best[1:] @ best[:-1]) / (float(best @ best) + 1e-30), 0.0), 0.95)
    points = float(used.sum() ** 2 / (used * used).sum())
    independent = max(points * (1.0 - related) / (1.0 + related) * _INDEPENDENT, 3.0)
    sse = sse + _RESOLUTION**2 * used.sum()
    return _ShapeFits(a, c, sse, spread, mean, float(used.sum()), independent, noise)


def _draw(
    shape_fits: _ShapeFits, random: np.random.Generator
) -> tuple[npt.NDArray[np.intp], Array, Array]:
    """Draw curves by likelihood: rows of the grid, and a and c for each."""
    likely = np.log(_grid().prior) - 0.5 * shape_fits.independent * np.log(
        shape_fits.sse / shape_fits.sse.min()
    )
    chance = np.exp(likely - likely.max()).cumsum()
    rows = np.searchsorted(chance / chance[-1], (np.arange(_DRAWS) + 0.5) / _DRAWS).clip(
        max=len(chance) - 1
    )
    free = max(shape_fits.independent - 2.0, 2.0)
    variance = shape_fits.sse[rows] / free
    turns = random.standard_normal((2, _DRAWS)) / np.sqrt(random.chisquare(free, _DRAWS) / free)
    a = shape_fits.a[rows] + turns[0] * np.sqrt(variance / shape_fits.spread[rows])
    c = (
        shape_fits.c[rows]
        + turns[1] * np.sqrt(variance / shape_fits.weight)
        - (a - shape_fits.a[rows]) * shape_fits.mean[rows]
    )
    return rows, a, c


def _constant(origin: float, span: float, loss: float) -> Fit:
    """The fit of a constant loss."""
    still = np.full(_DRAWS, loss)
    shapes = _grid().take(np.zeros(_DRAWS, dtype=np.intp))
    return Fit(
        "power", origin + span, loss, loss, 0.0, loss, shapes, np.zeros(_DRAWS), still, origin, span
    )


def _halved(table: Array) -> Array:
    """Merge neighbouring pairs; with an odd number the first stays."""
    odd = len(table) % 2
    first, second = table[odd::2], table[odd + 1 :: 2]
    count = first[:, 2:] + second[:, 2:]
    merged = (first * first[:, 2:] + second * second[:, 2:]) / count
    merged[:, 2:] = count
    return np.concatenate([table[:odd], merged])
