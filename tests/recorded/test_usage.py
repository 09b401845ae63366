from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from headgate.recorded.usage import (
    EMPTY,
    Signal,
    completed,
    highest,
    means,
    rate,
    readings,
    settings,
    total,
)


def array(*values: float | None) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(values, dtype=float)


def test_a_reading_stands_for_the_time_since_the_one_before() -> None:
    signal = readings(array(1, 2, 4), array(None, 1.0, 2.0))
    assert (signal.integral, signal.seconds, signal.maximum) == (5.0, 3.0, 2.0)
    assert signal.mean == pytest.approx(5 / 3)


def test_a_first_reading_with_a_value_stands_for_one_usual_interval() -> None:
    assert readings(array(10, 12, 14), array(1, 1, 1)).seconds == 6.0


def test_a_sensor_that_failed_for_a_while_leaves_a_gap_and_no_zero() -> None:
    signal = readings(array(0, 1, 2, 3, 4), array(None, 2.0, None, None, 2.0))
    assert (signal.seconds, signal.mean) == (2.0, 2.0)


def test_a_setting_holds_until_the_next_one() -> None:
    signal = settings(array(0, 10), array(2.0, 0.5), until=30)
    assert signal.integral == 2.0 * 10 + 0.5 * 20
    assert signal.within(5, 15).integral == 2.0 * 5 + 0.5 * 5
    assert signal.during([(0, 1), (29, 40)]).integral == 2.0 + 0.5


def test_nothing_known_has_no_mean() -> None:
    empty = readings(array(), array())
    assert (empty.mean, empty.maximum, empty.last, empty.integral) == (None, None, None, 0.0)
    assert np.isnan(empty.buckets(np.linspace(0, 10, 3)).mean).all()


def test_the_total_of_tasks_is_taken_at_every_moment() -> None:
    first, second = (
        settings(array(0), array(1.0), until=10),
        settings(array(5), array(2.0), until=15),
    )
    both = total([first, second])
    assert (both.maximum, both.integral) == (3.0, 30.0)
    assert highest([first, second]).integral == 1.0 * 5 + 2.0 * 10


def test_buckets_tell_lowest_mean_and_highest() -> None:
    signal = readings(array(0, 1, 2, 3, 4), array(None, 1.0, 3.0, 0.0, 8.0))
    found = signal.buckets(array(0, 2, 4, 6))
    assert found.low.tolist()[:2] == [1.0, 0.0]
    assert found.mean.tolist()[:2] == [2.0, 4.0]
    assert found.high.tolist()[:2] == [3.0, 8.0]
    assert np.isnan(found.mean[2])


@tried(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 1e9)), min_size=1, max_size=50),
    st.integers(1, 40),
)
def test_buckets_keep_the_integral_and_the_extremes(
    steps: list[tuple[float, float]], count: int
) -> None:
    times = np.cumsum([0.0, *(step for step, _ in steps)])
    signal = Signal(times[:-1], times[1:], np.array([value for _, value in steps]))
    edges = np.linspace(0.0, times[-1], count + 1)
    found = signal.buckets(edges)
    assert np.sum(found.mean * np.diff(edges)) == pytest.approx(signal.integral, rel=1e-6, abs=1e-6)
    assert np.max(found.high) == signal.maximum
    assert (found.low <= found.mean).all()
    assert (found.mean <= found.high).all()


def test_a_rate_does_not_take_a_counter_that_starts_again_for_a_loss() -> None:
    assert rate(array(0, 1, 2, 3, 4), array(0, 10, 20, 0, 10)) == 10.0
    assert rate(array(0, 1, 2), array(None, 5, 15)) == 10.0
    assert rate(array(1), array(5)) is None


def test_points_are_averaged_by_weight() -> None:
    found = means(
        array(0.1, 0.2, 1.5, 1.6), array(1.0, 4.0, None, 2.0), array(1, 2, 1, 1), array(0, 1, 2, 3)
    )
    assert found.mean.tolist()[:2] == [3.0, 2.0]
    assert (found.low[0], found.high[0]) == (1.0, 4.0)
    assert np.isnan(found.mean[2])


def test_what_no_reading_saw_is_spread_over_the_time_without_one() -> None:
    read = readings(array(0.8, 1.8, 2.8), array(None, 1.0, 0.5))
    whole = completed(read, 0.0, 3.0, 2.5)
    assert whole.integral == pytest.approx(2.5)
    assert whole.value == pytest.approx([1.0, 1.0, 0.5, 1.0])
    assert (whole.start[0], whole.end[-1]) == (0.0, 3.0)


def test_a_task_that_was_never_read_in_time_has_its_mean() -> None:
    whole = completed(EMPTY, 5.0, 7.0, 1.7)
    assert whole.integral == pytest.approx(1.7)
    assert whole.mean == pytest.approx(0.85)


def test_nothing_is_spread_over_an_instant_or_taken_away() -> None:
    read = readings(array(0.01, 1.0), array(None, 1.0))
    assert completed(read, 0.0, 1.0, 2.0) is read
    assert completed(read, -5.0, 1.0, 0.5) is read
