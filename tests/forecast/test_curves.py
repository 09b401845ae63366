"""How a loss goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headgate.forecast import curves
from headgate.forecast.loss_history import Losses

CURVES: dict[str, Callable[[float], float]] = {
    "power": lambda k: 1.5 + 8.0 * (k + 20.0) ** -0.5,
    "optimus": lambda k: 0.3 + 1.0 / (0.004 * k + 0.3),
    "sublinear": lambda k: 0.2 + 1.0 / (1e-6 * k * k + 1e-3 * k + 0.4),
    "superlinear": lambda k: 0.5 + 3.0 * 0.996**k,
}


def fitted(
    curve: Callable[[float], float], steps: int, noise: float = 0.0, seed: int = 0
) -> curves.Fit:
    random = np.random.default_rng(seed)
    losses = Losses()
    for step in range(1, steps + 1):
        losses.add(step, curve(step) + noise * random.standard_normal())
    fit = curves.fit(losses.points())
    assert fit is not None
    return fit


@pytest.mark.parametrize("family", CURVES)
def test_each_family_goes_on_as_it_began(family: str) -> None:
    curve = CURVES[family]
    fit = fitted(curve, 500)
    assert fit.level == pytest.approx(curve(500), rel=0.02)
    band = fit.at([1000.0])
    assert band.low[0] - 0.01 <= curve(1000) <= band.high[0] + 0.01
    estimate = fit.to(curve(800))
    assert estimate.steps == pytest.approx(300, rel=0.3)
    assert estimate.low <= 300 <= estimate.high


def test_the_band_holds_about_nine_of_ten() -> None:
    held, total = 0, 0
    for curve in CURVES.values():
        for seed in range(15):
            fit = fitted(curve, 400, noise=0.08, seed=seed)
            for ahead in (200, 400, 800):
                estimate = fit.to(curve(400 + ahead))
                held += estimate.low <= ahead <= estimate.high
                total += 1
    assert total == 180
    assert held / total >= 0.87


def test_noise_widens_the_band() -> None:
    quiet, loud = (
        fitted(CURVES["power"], 400, noise).to(CURVES["power"](800)) for noise in (0.01, 0.3)
    )
    assert loud.high / loud.low > 2 * quiet.high / quiet.low


def test_what_is_reached_already_takes_no_steps() -> None:
    assert fitted(CURVES["optimus"], 200).to(2.9) == (0.0, 0.0, 0.0, 1.0)


def test_what_no_curve_comes_to_is_as_far_as_it_lasted() -> None:
    estimate = fitted(CURVES["superlinear"], 3000).to(0.01)
    assert estimate.likely < 0.02
    assert estimate.steps == pytest.approx(3000, rel=0.02)
    assert estimate.high == pytest.approx(57_000, rel=0.02)


def test_progress_is_a_part_of_the_way_to_the_asymptote_whatever_the_scale() -> None:
    small = fitted(CURVES["superlinear"], 500)
    large = fitted(lambda k: 1e6 * CURVES["superlinear"](k), 500)
    assert small.asymptote == pytest.approx(0.5, abs=0.1)
    assert small.progress == pytest.approx(1 - 0.996**500, abs=0.05)
    assert large.progress == pytest.approx(small.progress, rel=1e-6)


def test_a_plateau_is_where_a_curve_falls_less_than_asked_for() -> None:
    # falls by 3 * 0.996^k * (1 - 0.996^100) in 100 steps: 0.01 of it from step 1155 on
    curve = CURVES["superlinear"]
    estimate = fitted(curve, 600).to_plateau(100, 0.01)
    assert estimate.steps == pytest.approx(1155 - 600 + 100, rel=0.3)
    assert estimate.low <= 655 <= estimate.high


def test_a_loss_that_never_changes_is_where_it_ends() -> None:
    fit = fitted(lambda k: 0.7, 100)
    assert (fit.level, fit.progress, fit.at([200.0]).middle[0], fit.to(0.7).steps) == (
        0.7,
        1.0,
        0.7,
        0.0,
    )
    assert fit.to(0.5).likely == 0.0
    assert fit.to_plateau(10).steps == pytest.approx(10)


def test_of_the_patience_of_early_stopping_what_has_passed_counts() -> None:
    # 3 * 0.996^k: it falls by less than 0.5 in 800 steps from 437 on
    ended = fitted(CURVES["superlinear"], 600)
    assert ended.to_plateau(800, 0.5).steps == pytest.approx(800)
    assert ended.to_plateau(800, 0.5, passed=800).steps == pytest.approx(437 + 800 - 600, rel=0.05)
    # it should have ended: what made it go on is not known
    over = ended.to_plateau(100, 0.5, passed=100)
    assert (over.steps, over.low) == pytest.approx((50, 5))
    assert over.high == pytest.approx(95)
    assert fitted(lambda k: 0.7, 100).to_plateau(10, passed=10).steps == pytest.approx(5, abs=1)
    begun = fitted(lambda k: 0.7, 20).to_plateau(100, passed=100)
    assert begun.steps == pytest.approx(80, abs=2)  # no more than all of its steps have passed


def test_a_loss_that_rises_is_not_said_to_fall() -> None:
    fit = fitted(lambda k: 1.0 + 0.001 * k, 300)
    assert fit.at([400.0]).middle[0] > fit.level
    assert fit.progress < 0.0
    assert fit.to(0.5).likely < 0.05


def test_negative_losses_and_few_points_are_fitted() -> None:
    fit = curves.fit([(k, -5.0 + 4.0 / k, 1.0) for k in range(1, 9)])
    assert fit is not None
    assert fit.asymptote == pytest.approx(-5.0, abs=0.5)


@pytest.mark.parametrize(
    "points", [[], [(1.0, 1.0, 1.0)] * 9, [(k, 1.0 / k, 1.0) for k in range(1, 6)]]
)
def test_too_little_is_not_fitted(points: list[tuple[float, float, float]]) -> None:
    assert curves.fit(points) is None


def test_no_number_spoils_a_fit() -> None:
    points = [(float(k), 1.0 + 5.0 / k, 1.0) for k in range(1, 60)]
    with_nan = [*points[:30], (30.5, float("nan"), 1.0), *points[30:]]
    assert curves.fit(with_nan).level == curves.fit(points).level  # type: ignore[union-attr]
