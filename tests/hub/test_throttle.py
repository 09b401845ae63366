"""What a task prints of its progress, told no oftener than is of use."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headgate.forecast.loss_history import Losses
from headgate.hub.parts.throttle import AT_ONCE, EVERY_SECONDS, ProgressThrottle
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress


@dataclass(eq=False)
class Timer:
    at: float
    act: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Loop:
    """A loop whose time the test sets."""

    now: float = 1000.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at, act))
        return self.timers[-1]

    @property
    def waiting(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def passes(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [timer for timer in self.waiting if timer.at <= until]:
            first = min(due, key=lambda timer: timer.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.act()
        self.now = until


class Task:
    """A task that prints, and what was told of it: when, and what."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.told: list[tuple[float, Progress]] = []
        self.throttle = ProgressThrottle(
            lambda progress: self.told.append((self.loop.now, progress)),
            cast(asyncio.AbstractEventLoop, cast(Any, self.loop)),
        )
        self.step = 0

    def prints(self, loss: float | None = 1.0, epoch: int | None = None, **metrics: float) -> None:
        self.step += 1
        self.throttle.add(
            Progress(
                TaskId("r/a/worker-0"), step=self.step, epoch=epoch, loss=loss, metrics=metrics
            )
        )

    def floods(self) -> None:
        """Print so much that what comes next is held."""
        while len(self.told) == self.step:
            self.prints()
        self.loop.passes(EVERY_SECONDS)
        self.told.clear()


@pytest.fixture
def task() -> Task:
    return Task()


def test_lines_that_come_seldom_are_told_at_once(task: Task) -> None:
    for _ in range(3 * AT_ONCE):
        task.prints()
        assert task.told[-1] == (
            task.loop.now,
            Progress(TaskId("r/a/worker-0"), step=task.step, loss=1.0),
        )
        task.loop.passes(1.01 * EVERY_SECONDS)
    assert task.loop.waiting == []


def test_of_a_flood_the_first_lines_are_told_one_by_one_and_then_ten_means_a_second(
    task: Task,
) -> None:
    for _ in range(10_000):
        task.prints(float(task.step + 1))
        task.loop.passes(0.001)
    task.throttle.flush()
    assert len(task.told) == pytest.approx(AT_ONCE + 10.0 / EVERY_SECONDS, abs=3)
    assert [progress.loss for _, progress in task.told[:3]] == [1.0, 2.0, 3.0]
    assert sum(progress.count for _, progress in task.told) == 10_000
    total = sum((progress.loss or 0.0) * progress.count for _, progress in task.told)
    assert total == pytest.approx(10_000 * 10_001 / 2)
    assert task.told[-1][1].step == 10_000


def test_the_rest_is_told_soon_though_nothing_more_is_printed(task: Task) -> None:
    task.floods()
    task.prints(3.0, accuracy=0.5)
    task.prints(4.0, error=0.25)
    task.prints(None, accuracy=0.75)
    assert task.told == []
    task.loop.passes(EVERY_SECONDS)
    [(_, told)] = task.told
    assert (told.step, told.count, told.loss) == (task.step, 2, 3.5)
    assert told.metrics == {"accuracy": 0.75, "error": 0.25}
    assert task.loop.waiting == []


def test_a_loss_that_is_no_number_counts_if_it_lasts(task: Task) -> None:
    losses = Losses()
    for step in range(20_000):
        task.prints(math.nan if step % 97 == 0 else 2.0)
        task.loop.passes(0.001)
    for _, progress in task.told:
        losses.add(progress.step, progress.loss or 0.0, progress.count)
    assert not losses.diverging
    assert losses.step > 19_000
    task = Task()
    task.floods()
    task.prints(2.0)
    task.prints(math.nan)
    task.loop.passes(EVERY_SECONDS)
    assert math.isnan(task.told[-1][1].loss or 0.0)


def test_what_is_told_before_its_time_is_not_told_again(task: Task) -> None:
    task.floods()
    task.prints()
    task.throttle.flush()
    assert len(task.told) == 1
    assert task.loop.waiting == []
    task.throttle.flush()
    assert len(task.told) == 1


def test_an_epoch_is_told_apart_from_the_next_unless_they_come_too_fast(task: Task) -> None:
    task.floods()
    task.prints(1.0, epoch=1)
    task.prints(None, epoch=1, val_loss=2.0)
    task.prints(3.0, epoch=2)
    task.loop.passes(1.0)
    told = [(progress.epoch, progress.loss, dict(progress.metrics)) for _, progress in task.told]
    assert told == [(1, 1.0, {"val_loss": 2.0}), (2, 3.0, {})]
    task = Task()
    for epoch in range(10_000):
        task.prints(epoch=epoch)
        task.loop.passes(0.001)
    assert len(task.told) <= AT_ONCE + 10.0 / EVERY_SECONDS + 3
