"""The progress of several workers as one course."""

from __future__ import annotations

import math

from headgate.hub.state.merged_progress import MergedProgress
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress

FIRST, SECOND = TaskId("r/a/worker-0"), TaskId("r/a/worker-1")


def test_the_lowest_worker_sets_the_pace_and_losses_are_weighted_by_what_they_stand_for() -> None:
    course = MergedProgress()
    assert course.add(Progress(SECOND, step=7, loss=4.0, count=1), FIRST) is None
    assert (
        course.add(Progress(SECOND, step=9, loss=1.0, count=2, metrics={"accuracy": 0.5}), FIRST)
        is None
    )
    own = Progress(
        FIRST, step=8, epoch=1, samples=640, loss=1.0, count=1, metrics={"accuracy": 0.9, "lr": 0.1}
    )
    assert course.add(own, FIRST) == Progress(
        FIRST,
        step=8,
        epoch=1,
        samples=640,
        loss=1.75,
        count=4,
        metrics={"accuracy": 0.6, "lr": 0.1},
    )


def test_one_without_news_counts_with_what_it_said_last_until_it_is_lost() -> None:
    course = MergedProgress()
    course.add(Progress(SECOND, step=1, loss=3.0), FIRST)
    course.add(Progress(FIRST, step=1, loss=1.0), FIRST)
    merged = course.add(Progress(FIRST, step=2, loss=1.0), FIRST)
    assert merged is not None and merged.loss == 2.0
    course.drop(SECOND)
    merged = course.add(Progress(FIRST, step=3, loss=1.0), FIRST)
    assert merged is not None and merged.loss == 1.0


def test_another_takes_over_when_the_lowest_is_gone() -> None:
    course = MergedProgress()
    assert course.add(Progress(SECOND, step=5, loss=3.0), FIRST) is None
    merged = course.add(Progress(SECOND, step=6, loss=3.0), SECOND)
    assert merged == Progress(SECOND, step=6, loss=3.0, count=2)


def test_a_loss_that_is_no_number_on_any_worker_is_none_of_the_job() -> None:
    course = MergedProgress()
    course.add(Progress(SECOND, step=1, loss=math.nan), FIRST)
    merged = course.add(Progress(FIRST, step=1, loss=1.0), FIRST)
    assert merged is not None and merged.loss is not None and math.isnan(merged.loss)


def test_a_report_without_a_loss_has_none() -> None:
    assert MergedProgress().add(Progress(FIRST, step=3), FIRST) == Progress(FIRST, step=3)


def test_losses_count_by_what_they_weigh_and_one_of_nothing_does_not() -> None:
    course = MergedProgress()
    course.add(Progress(SECOND, step=1, loss=4.0, count=1, weight=0.5), FIRST)
    course.add(Progress(SECOND, step=2, loss=1.0, count=2, weight=1.0), FIRST)
    merged = course.add(
        Progress(FIRST, step=2, loss=1.0, count=3, weight=1.5, metrics={"accuracy": 0.8}), FIRST
    )
    assert merged == Progress(
        FIRST, step=2, loss=(2 + 2 + 4.5) / 7, count=6, metrics={"accuracy": 0.8}
    )
    course.add(Progress(SECOND, step=3, loss=math.nan, weight=0.0), FIRST)
    merged = course.add(Progress(FIRST, step=3, loss=1.0), FIRST)
    assert merged is not None and merged.loss == 1.0
