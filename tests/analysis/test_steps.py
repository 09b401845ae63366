from __future__ import annotations

import pytest

from headgate.analysis.steps import divide


def test_a_step_divides_by_the_time_of_all_sampled_steps() -> None:
    division = divide(
        [
            (1, "forward", 0.2),
            (1, "input", 0.1),
            (1, "backward", 0.7),
            (2, "input", 1.1),
            (2, "forward", 0.2),
            (2, "backward", 0.7),
        ]
    )
    assert division is not None
    assert division.steps == 2
    assert division.step_seconds == pytest.approx(1.5)
    assert list(division.seconds) == ["input", "forward", "backward"]
    assert division.input_fraction == pytest.approx(1.2 / 3.0)
    assert division.fraction("backward") == pytest.approx(0.7 / 1.5)
    assert 0.1 <= division.input_low < division.input_high <= 0.55


def test_spans_of_another_name_are_kept_after_the_known_ones() -> None:
    division = divide([(1, "zeta", 1.0), (1, "other", 1.0), (1, "alpha", 1.0), (1, "push", 1.0)])
    assert division is not None
    assert list(division.seconds) == ["push", "other", "alpha", "zeta"]
    assert division.input_fraction == 0.0


def test_without_spans_there_is_no_division_and_steps_of_no_time_divide_nothing() -> None:
    assert divide([]) is None
    division = divide([(1, "input", 0.0)])
    assert division is not None
    assert (division.input_fraction, division.fraction("input")) == (0.0, 0.0)
