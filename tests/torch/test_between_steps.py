"""Checkpoints that are asked for where the models do not hold what is trained, or a step is half
done: a resume comes to the very weights of a training that was left alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg
from headgate.torch import boundary_state, request_timing

Mark = Callable[[int], None]
Attempting = Callable[..., Any]
Training = Callable[[Mark], dict[str, torch.Tensor]]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders do not wait for a step boundary that may come soon."""
    monkeypatch.setattr(request_timing, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(request_timing, "NEAR_SECONDS", 0.0)


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Dropout(0.2), nn.Linear(7, 2)
    ).double()


def samples(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 5).double(), torch.randn(count, 2).double())


def by_state_dict(model: nn.Module, other: nn.Module) -> None:
    model.load_state_dict(other.state_dict())


def by_data(model: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters()):
        mine.data.copy_(theirs.data)


def by_memory(model: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters()):
        mine.data = theirs.data.clone()


Exchange = Callable[[nn.Module, nn.Module], None]


class Averaged:
    """A training whose average stands in the model while it is validated."""

    def __init__(self, exchange: Exchange = by_state_dict) -> None:
        self.exchange = exchange
        self.model = network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.8)
        self.average = AveragedModel(self.model, avg_fn=lambda mean, now, _: 0.9 * mean + 0.1 * now)
        train = DataLoader(samples(48), batch_size=6, shuffle=True)
        self.validation: Any = DataLoader(samples(12), batch_size=3, shuffle=True)
        self.model, self.optimizer, self.train, self.validation = hg.prepare(
            self.model, self.optimizer, train, self.validation, scheduler=self.scheduler
        )
        hg.keep(average=self.average)
        self.seen: list[torch.Tensor] = []

    def step(self, features: torch.Tensor, targets: torch.Tensor) -> None:
        loss = nn.functional.mse_loss(self.model(features), targets)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.average.update_parameters(self.model)
        hg.report(loss=loss)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        trained = copy.deepcopy(self.model)
        self.exchange(self.model, self.average.module)
        self.model.eval()
        yield
        self.model.train()
        self.exchange(self.model, trained)

    def validate(self, mark: Mark, number: int) -> None:
        with self.averaged(), torch.no_grad():
            for place, (features, _) in enumerate(self.validation):
                self.seen.append(self.model(features).sum() + torch.rand(()))
                mark(10 * number + place)

    def result(self) -> dict[str, torch.Tensor]:
        averages = {f"average.{name}": value for name, value in self.average.state_dict().items()}
        return {**self.model.state_dict(), **averages}


def after_each_epoch(mark: Mark, exchange: Exchange = by_state_dict) -> dict[str, torch.Tensor]:
    training = Averaged(exchange)
    for epoch in hg.epochs(3):
        for features, targets in training.train:
            training.step(features, targets)
        training.scheduler.step()
        training.validate(mark, epoch)
    return training.result()


def within_an_epoch(mark: Mark, exchange: Exchange = by_data) -> dict[str, torch.Tensor]:
    training = Averaged(exchange)
    for _epoch in hg.epochs(2):
        for features, targets in training.train:
            training.step(features, targets)
            steps = int(training.average.n_averaged)  # which a resume from any of them goes on with
            if steps % 3 == 0:
                training.validate(mark, steps // 3 - 1)
    return training.result()


def into_the_next_epoch(mark: Mark) -> dict[str, torch.Tensor]:
    """The average stays until the next epoch has begun."""
    training = Averaged()
    trained: nn.Module | None = None
    for epoch in hg.epochs(3):
        if trained is not None:
            by_state_dict(training.model, trained)
        for features, targets in training.train:
            training.step(features, targets)
        trained = copy.deepcopy(training.model)
        by_state_dict(training.model, training.average.module)
        mark(epoch)
    assert trained is not None
    by_state_dict(training.model, trained)
    return training.result()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def alone(training: Training) -> dict[str, torch.Tensor]:
    return training(lambda number: None)


@pytest.mark.parametrize(
    "exchange",
    [by_state_dict, pytest.param(by_data, marks=pytest.mark.long), by_memory],
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize(
    "training", [after_each_epoch, within_an_epoch], ids=lambda each: each.__name__
)
def test_a_stop_in_a_validation_of_an_average_saves_what_is_trained(
    training: Callable[..., dict[str, torch.Tensor]], exchange: Exchange, attempt: Attempting
) -> None:
    whole = training(lambda number: None, exchange)
    first = attempt(lambda mark: training(mark, exchange), order_at=11)
    assert first.result is None
    resumed = attempt(lambda mark: training(mark, exchange), resume=first.checkpoint["path"])
    assert same(resumed.result, whole), first.checkpoint


def test_a_checkpoint_in_a_validation_changes_nothing_and_is_that_of_a_step(
    attempt: Attempting,
) -> None:
    whole = alone(after_each_epoch)
    first = attempt(after_each_epoch, order="checkpoint", order_at=1)
    assert same(first.result, whole)
    asked = next(message for message in first.of("checkpoint") if message["why"] == "request")
    assert (asked["step"], asked["epoch"], asked["position"]) == (7, 0, 7)
    assert same(attempt(after_each_epoch, resume=asked["path"]).result, whole)


def test_an_average_that_stays_into_the_next_epoch_is_not_saved(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_timing, "PATIENCE_SECONDS", 60.0)
    whole = alone(into_the_next_epoch)
    first = attempt(into_the_next_epoch, order_at=0)
    assert (first.checkpoint["step"], first.checkpoint["epoch"], first.checkpoint["position"]) == (
        9,
        1,
        1,
    )
    assert same(attempt(into_the_next_epoch, resume=first.checkpoint["path"]).result, whole)


def test_without_a_copy_a_checkpoint_waits_until_what_is_trained_is_back(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary_state, "MOST_BYTES", 0)
    whole = alone(after_each_epoch)
    first = attempt(after_each_epoch, order_at=1)
    assert (first.checkpoint["epoch"], first.checkpoint["position"]) == (1, 0)
    assert same(attempt(after_each_epoch, resume=first.checkpoint["path"]).result, whole)


def test_a_stop_ends_in_time_and_says_that_nothing_was_saved(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary_state, "MOST_BYTES", 0)
    monkeypatch.setattr(boundary_state, "_GRACE_SECONDS", 0.0)
    first = attempt(after_each_epoch, order_at=1)
    assert first.result is None
    assert not first.of("checkpoint")
    assert "do not hold the weights of the last step" in first.of("checkpoint_failed")[0]["error"]


def test_weights_that_the_script_clamps_after_each_step_are_those_that_are_trained(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary_state, "MOST_BYTES", 0)

    def clamped(mark: Mark) -> dict[str, torch.Tensor]:
        training = Averaged()
        for epoch in hg.epochs(3):
            for features, targets in training.train:
                training.step(features, targets)
                for parameter in training.model.parameters():
                    parameter.data.clamp_(-0.2, 0.2)
            mark(epoch)
        return training.result()

    whole = alone(clamped)
    first = attempt(clamped, order_at=1)
    assert (first.checkpoint["epoch"], first.checkpoint["position"]) == (2, 0)
    assert same(attempt(clamped, resume=first.checkpoint["path"]).result, whole)


# --- gradients ------------------------------------------------------------------------------------


def left_over(mark: Mark, keeps_zeros: bool = False, batches: int = 7) -> dict[str, torch.Tensor]:
    """A step after each third batch: at an epoch's end gradients are left over, which go on into
    the next.
    """
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    loader = DataLoader(samples(4 * batches), batch_size=4, shuffle=True)
    model, optimizer, train = hg.prepare(model, optimizer, loader)
    optimizer.zero_grad(set_to_none=not keeps_zeros)
    for epoch in hg.epochs(4):
        for number, (features, targets) in enumerate(train):
            loss = nn.functional.mse_loss(model(features), targets)
            (loss / 3).backward()  # type: ignore[no-untyped-call]
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=not keeps_zeros)
            hg.report(loss=loss)
            mark(100 + 10 * epoch + number)
        mark(epoch)
    return dict(model.state_dict())


@pytest.mark.parametrize("stop_at", [1, pytest.param(103, marks=pytest.mark.long), 115, 116])
@pytest.mark.parametrize("keeps_zeros", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_that_are_left_over_are_in_the_checkpoint(
    keeps_zeros: bool, stop_at: int, attempt: Attempting
) -> None:
    def training(mark: Mark) -> dict[str, torch.Tensor]:
        return left_over(mark, keeps_zeros)

    whole = alone(training)
    first = attempt(training, order_at=stop_at)
    assert first.result is None
    assert same(attempt(training, resume=first.checkpoint["path"]).result, whole), first.checkpoint


def never_dropped(mark: Mark) -> dict[str, torch.Tensor]:
    """Gradients decay by hand, and are never dropped."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    model, optimizer, train = hg.prepare(
        model, optimizer, DataLoader(samples(24), batch_size=4, shuffle=True)
    )
    for _epoch in hg.epochs(3):
        for number, (features, targets) in enumerate(train):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= 0.5
            nn.functional.mse_loss(model(features), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hg.report()
            mark(number)
    return dict(model.state_dict())


def test_gradients_that_the_script_never_drops_are_in_the_checkpoint(attempt: Attempting) -> None:
    whole = alone(never_dropped)
    first = attempt(never_dropped, order_at=4)
    assert same(attempt(never_dropped, resume=first.checkpoint["path"]).result, whole)


def test_gradients_that_were_used_take_no_room(attempt: Attempting) -> None:
    first = attempt(after_each_epoch, order="checkpoint", order_at=21)
    assert torch.load(first.of("checkpoint")[-1]["path"], weights_only=True)["gradients"] == []
