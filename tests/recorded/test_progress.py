from __future__ import annotations

import numpy as np
import pytest

from headgate.recorded.progress import ProgressSeries, growth_rate, together

NAN = float("nan")


def reports(*rows: tuple[float, str, float, float, float, float]) -> ProgressSeries:
    """From rows of time, task, step, samples, loss and count."""
    table = np.array([[row[0], *row[2:]] for row in rows], dtype=float)
    epoch = np.full(len(rows), NAN)
    return ProgressSeries(
        t=table[:, 0],
        step=table[:, 1],
        epoch=epoch,
        samples=table[:, 2],
        loss=table[:, 3],
        count=table[:, 4],
        task=tuple(row[1] for row in rows),
        not_number=np.zeros(len(rows)),
        epochs=None,
        metrics={},
    )


def test_the_loss_of_several_workers_is_their_mean_by_weight() -> None:
    both = together(
        reports(
            (1.0, "w0", 10, 640, 2.0, 3),
            (1.1, "w1", 10, 640, 4.0, 1),
            (2.0, "w0", 20, 1280, 1.0, 1),
            (2.1, "w1", 19, 1216, NAN, 1),
            (3.0, "w0", 30, 1920, NAN, 1),
        ),
        synchronous=True,
    )
    assert both.t.tolist() == [1.1, 2.1, 3.0]
    assert both.loss.tolist()[:2] == [2.5, 1.0]
    assert np.isnan(both.loss[2])
    assert (both.step.tolist(), both.samples.tolist()) == ([10, 20, 30], [640, 1280, 1920])
    assert both.count.tolist() == [4.0, 1.0, 1.0]
    assert set(both.task) == {"w0"}


def test_what_asynchronous_workers_counted_is_added_up() -> None:
    both = together(
        reports(
            (1.0, "w0", 1, 100, 1.0, 1),
            (2.0, "w0", 2, 200, 1.0, 1),
            (2.1, "w1", 1, 50, 1.0, 1),
            (3.0, "w0", 3, 300, 1.0, 1),
        ),
        synchronous=False,
    )
    assert both.samples.tolist() == [100.0, 250.0, 350.0]


def test_reports_of_one_task_are_left_as_they_are() -> None:
    one = reports((1.0, "w0", 1, 100, 1.0, 1), (2.0, "w0", 2, 200, 1.0, 1))
    assert together(one, synchronous=True) is one


def test_a_pace_has_no_part_where_its_counter_started_again() -> None:
    found = growth_rate(
        np.array([0.0, 1.0, 3.0, 4.0, 5.0]), np.array([0.0, 10.0, NAN, 0.0, 30.0]), 1.0
    )
    assert (found.start.tolist(), found.end.tolist(), found.value.tolist()) == (
        [0.0, 4.0],
        [1.0, 5.0],
        [10.0, 30.0],
    )
    assert growth_rate(np.array([1.0]), np.array([1.0]), 1.0).mean is None


def test_a_pace_is_no_larger_because_two_reports_came_at_once() -> None:
    found = growth_rate(
        np.array([0.1, 0.9, 1.899, 1.9, 2.9]), np.array([0.0, 8.0, 17.0, 18.0, 28.0]), 1.0
    )
    assert found.value.tolist() == pytest.approx([10.0, 10.0, 10.0])
    assert found.integral == pytest.approx(28.0)


@pytest.mark.parametrize("synchronous", [True, False])
def test_workers_that_count_no_samples_have_none_together(synchronous: bool) -> None:
    both = together(
        reports((1.0, "w0", 1, NAN, 1.0, 1), (1.0, "w1", 1, NAN, 2.0, 1)),
        synchronous=synchronous,
    )
    assert np.isnan(both.samples).all()
