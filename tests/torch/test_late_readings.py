"""What a GPU has computed is read once it is there; a machine without a GPU plays one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, ClassVar

import pytest
import torch

from headgate.task.observed_steps import Marks, ObservedSteps
from headgate.torch import device_copies, late_readings
from headgate.torch.device_copies import DeviceCopies
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


class Observer:
    """What sees a script."""

    is_on = True

    def __init__(self) -> None:
        self.steps = ObservedSteps(lambda count, marks: None)
        self.steps.moment = object

    def attempt(self, call: Any, *args: object) -> None:
        call(*args)

    def marks_copies(self) -> bool:
        return True


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceCopies]:
    """Of a script that compiles nothing."""
    monkeypatch.setattr(device_copies, "has_compiled", lambda: False)
    copies = DeviceCopies(Observer())  # type: ignore[arg-type]
    copies.step_begins()
    copies.step_begins()
    yield copies
    copies.end()
    assert not {"to", "cuda"} & vars(torch.Tensor).keys()


def test_copies_to_a_device_are_marked(copies: DeviceCopies) -> None:
    steps, batch = copies._observer.steps, torch.ones(2)
    steps.fetching()
    steps.fetched(1, 2, True)
    assert batch.to("meta").to("meta").device.type == "meta"
    assert batch.to(device="cpu", dtype=torch.float64).to(batch).dtype is torch.float32
    assert batch.to(torch.float64).to(torch.ones(1, device="meta")).is_meta
    with pytest.raises(RuntimeError, match="no such device"):
        batch.to("no such device")
    steps.backward_begins()
    torch.nn.Linear(1, 1, bias=False).to("meta")  # its weight overrides no function
    steps.backward_ends()
    named, copies_of_batch = steps.take().names, ("forward", "copy") * 2
    assert named[:6] == ["other", "input", *copies_of_batch]
    assert named[6:] == ["forward", "forward", "backward", "copy", "backward"]


class Own(torch.Tensor):
    """Overrides functions, and keeps which."""

    functions: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.functions.append(func)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def test_classes_and_compilers_see_the_own_methods_of_pytorch(copies: DeviceCopies) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor.to(x.to(torch.float64), torch.float16)

    assert "to" in vars(torch.Tensor)
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).dtype is torch.float16
    torch.ones(2).to(torch.ones(1).as_subclass(Own))
    assert torch._C.TensorBase.to in Own.functions
    assert "to" not in vars(torch.Tensor)
    copies.step_begins()
    assert "to" not in vars(torch.Tensor)


def test_a_mode_and_a_compiled_function_end_the_watch_for_copies(
    monkeypatch: pytest.MonkeyPatch, copies: DeviceCopies
) -> None:
    with torch.device("meta"):
        assert torch.ones(2).to("meta").is_meta
    assert "to" not in vars(torch.Tensor)
    again = DeviceCopies(Observer())  # type: ignore[arg-type]
    again.step_begins()
    again.step_begins()
    assert "to" in vars(torch.Tensor)
    monkeypatch.setattr(device_copies, "has_compiled", lambda: True)
    again.step_begins()
