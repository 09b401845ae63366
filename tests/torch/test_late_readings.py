"""What a GPU has computed is read once it is there; a machine without a GPU plays one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
import torch

from headgate.task.observed_steps import Marks
from headgate.torch import late_readings
from headgate.torch.late_readings import DeviceSteps, LateLoss


class Event:
    """An event of a GPU that is `behind`: a second passes there between two of them."""

    behind = False
    apart = False
    seconds: Iterator[int] = count()

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.moment = next(Event.seconds)

    def query(self) -> bool:
        return not Event.behind

    def elapsed_time(self, later: Event) -> float:
        if Event.apart:
            raise RuntimeError("events of two devices")
        return 1000.0 * (later.moment - self.moment)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> DeviceSteps:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(late_readings, "cuda_in_use", lambda: True)
    monkeypatch.setattr(Event, "behind", False)
    monkeypatch.setattr(Event, "apart", False)
    return DeviceSteps()


def marked(steps: DeviceSteps, number: int) -> Marks:
    """The marks of a step."""
    moment, marks = steps.next(number), Marks(0.0, ["input", "forward", "input"])
    if moment is not None:
        marks.moments = [moment() for _ in range(4)]
    return marks


def test_a_step_is_timed_by_the_events_at_its_marks(steps: DeviceSteps) -> None:
    assert list(steps.ended(1, marked(steps, 1))) == [(1, {"input": 2.0, "forward": 1.0})]
    assert steps.in_use


def test_nothing_waits_for_a_gpu_that_is_behind(steps: DeviceSteps) -> None:
    Event.behind = True
    assert list(steps.ended(1, marked(steps, 1))) == []
    Event.behind = False
    assert [number for number, _ in steps.ended(2, marked(steps, 2))] == [1, 2]


def test_most_steps_take_no_moment(steps: DeviceSteps) -> None:
    assert 0 < sum(steps.next(number) is not None for number in range(21, 221)) <= 8


def test_a_process_with_two_gpus_is_timed_by_its_own_clock(steps: DeviceSteps) -> None:
    Event.apart = True
    assert list(steps.ended(1, marked(steps, 1))) == []
    assert steps.next(2) is None
    assert not steps.in_use


def test_a_loss_is_taken_once() -> None:
    loss = LateLoss()
    loss.begin(torch.tensor(2.0, requires_grad=True))
    assert (loss.take(), loss.take()) == (2.0, None)


@pytest.mark.parametrize("value", [3.0, torch.ones(2), torch.tensor(1), [torch.ones(())]])
def test_what_is_no_loss_is_ignored(value: object) -> None:
    loss = LateLoss()
    loss.begin(value)
    assert loss.take() is None
