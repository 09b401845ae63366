"""Models, optimizers, groups and loaders that come, or come again, while a script trains: a resume
comes to the very weights of a training that was left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import headgate.torch as hg
from headgate.torch.checkpoints import ResumeError

Mark = Callable[[int], None]
Attempting = Callable[..., Any]
Result = dict[str, torch.Tensor]
Training = Callable[[Mark], Result]


def samples(count: int, width: int = 4) -> TensorDataset:
    return TensorDataset(torch.randn(count, width).double(), torch.randn(count, 1).double())


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6).double()
        self.neck = nn.Linear(6, 6).double()
        self.head = nn.Linear(6, 1).double()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.relu(self.neck(torch.tanh(self.body(features)))))
        return result


def train(model: nn.Module, optimizer: Any, loader: Any, mark: Mark, first: int) -> None:
    for number, (features, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(features), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        hg.report(loss=loss)
        mark(first + number)


def thaws_in_groups(mark: Mark) -> Result:
    """The neck thaws in epoch 1, the body in epoch 2, each in a group of its own; the rate is
    halved each epoch.
    """
    torch.manual_seed(1)
    model = Layers()
    model.body.requires_grad_(False)
    model.neck.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.02)
    loader = DataLoader(samples(32), batch_size=8, shuffle=True)
    hg.prepare(model, optimizer, loader)
    for epoch in hg.epochs(4):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * 0.5**epoch
        if epoch in (1, 2):
            part = (model.neck, model.body)[epoch - 1]
            part.requires_grad_(True)
            optimizer.add_param_group(
                {"params": part.parameters(), "lr": 0.003 * epoch, "betas": (0.8, 0.9)}
            )
        train(model, optimizer, loader, mark, 10 * epoch)
        mark(100 + epoch)
    return dict(model.state_dict())


def thaws(mark: Mark) -> Result:
    """All is in the optimizer from the first, and a part is frozen: the body until epoch 1, the
    neck from then on.
    """
    torch.manual_seed(1)
    model = Layers()
    model.body.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loader = DataLoader(samples(32), batch_size=8, shuffle=True)
    hg.prepare(model, optimizer, loader)
    for epoch in hg.epochs(4):
        if epoch == 1:
            model.body.requires_grad_(True)
            model.neck.requires_grad_(False)
        train(model, optimizer, loader, mark, 10 * epoch)
        mark(100 + epoch)
    return dict(model.state_dict())


def again_in_each_epoch(mark: Mark) -> Result:
    """Batches grow: each epoch prepares another loader, with the same model and optimizer."""
    torch.manual_seed(1)
    data, model = samples(48), Layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    for epoch in hg.epochs(4):
        loader = DataLoader(data, batch_size=4 * (1 + epoch), shuffle=True)
        hg.prepare(model, optimizer, loader, scheduler=scheduler)
        hg.keep(model=model)
        train(model, optimizer, loader, mark, 10 * epoch)
        scheduler.step()
        mark(100 + epoch)
    return dict(model.state_dict())


def another_optimizer_in_each_epoch(mark: Mark) -> Result:
    torch.manual_seed(1)
    data, model = samples(32), Layers()
    for epoch in hg.epochs(4):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02 / (1 + epoch))
        loader = DataLoader(data, batch_size=8, shuffle=True)
        hg.prepare(model, optimizer, loader)
        train(model, optimizer, loader, mark, 10 * epoch)
        mark(100 + epoch)
    return dict(model.state_dict())


def folds(mark: Mark) -> Result:
    """A model, an optimizer and a division of the data for each of three folds, drawn at random as
    each begins.
    """
    torch.manual_seed(1)
    data, results = samples(36), {}
    for fold in range(3):
        order = torch.randperm(36).tolist()
        model = Layers()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        loader = DataLoader(Subset(data, order[12:]), batch_size=8, shuffle=True)
        hg.prepare(model, optimizer, loader)
        for epoch in hg.epochs(2):
            train(model, optimizer, loader, mark, 100 * fold + 10 * epoch)
        held_out = torch.stack([data[place][0] for place in order[:12]])
        results[f"{fold}.score"] = model(held_out).detach().sum()
        results.update(
            {f"{fold}.{name}": value.clone() for name, value in model.state_dict().items()}
        )
    return results


def two_models(mark: Mark) -> Result:
    """The second model comes in epoch 1, with an optimizer and a schedule of its own."""
    torch.manual_seed(1)
    data, first = samples(32), Layers()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.02, momentum=0.9)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    hg.prepare(first, optimizer, loader)
    for _epoch in hg.epochs(1):
        train(first, optimizer, loader, mark, 0)
    second = Layers()
    other = torch.optim.Adam(second.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(other, 0.5)
    hg.prepare(second, other, scheduler=schedule)
    for epoch in hg.epochs(3):
        for number, (features, targets) in enumerate(loader):
            for model, stepped in ((first, optimizer), (second, other)):
                stepped.zero_grad()
                nn.functional.mse_loss(model(features), targets).backward()  # type: ignore[no-untyped-call]
                stepped.step()
            hg.report()
            mark(100 + 10 * epoch + number)
        schedule.step()
    parts = {"first": first, "second": second}
    return {
        f"{name}.{key}": value
        for name, model in parts.items()
        for key, value in model.state_dict().items()
    }


def first_one_then_another_in_each_epoch(mark: Mark) -> Result:
    torch.manual_seed(1)
    model, loader = Layers(), DataLoader(samples(32), batch_size=8, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    hg.prepare(model, optimizer, loader)
    for epoch in hg.epochs(4):
        if epoch:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.02 / (1 + epoch))
            hg.prepare(model, optimizer)
        train(model, optimizer, loader, mark, 10 * epoch)
        mark(100 + epoch)
    return dict(model.state_dict())


STOPS = {
    thaws_in_groups: [2, 11, 101, 22, 33],
    thaws: [2, 11, 101, 22],
    again_in_each_epoch: [2, 12, 101, 21, 31],
    another_optimizer_in_each_epoch: [2, 12, 101, 22],
    first_one_then_another_in_each_epoch: [2, 12, 101, 22],
    folds: [1, 11, 101, 112, 200],
    two_models: [2, 101, 112, 123],
}
LONG = {
    thaws: [2, 11, 101],
    again_in_each_epoch: [2, 21],
    another_optimizer_in_each_epoch: [2, 12],
    first_one_then_another_in_each_epoch: [2, 101],
    folds: [1, 112],
}
"""Of these, stops where another training is stopped as well: before the first that is prepared
later, and between two of them.
"""


@pytest.mark.parametrize(
    ("training", "stop_at"),
    [
        pytest.param(
            *(training, at),
            id=f"{training.__name__}-{at}",
            marks=[pytest.mark.long] * (at in LONG.get(training, ())),
        )
        for training, stops in STOPS.items()
        for at in stops
    ],
)
def test_a_resume_is_the_same_as_left_alone(
    training: Training, stop_at: int, attempt: Attempting
) -> None:
    whole = training(lambda number: None)
    first = attempt(training, order_at=stop_at)
    assert first.result is None
    assert first.checkpoint["position"] is not None, first.of("note")
    resumed = attempt(training, resume=first.checkpoint["path"])
    assert resumed.result.keys() == whole.keys()
    far = {name: (value - whole[name]).abs().max().item() for name, value in resumed.result.items()}
    assert not any(far.values()), (far, first.checkpoint)


def test_a_model_that_is_prepared_again_is_one(attempt: Attempting) -> None:
    done = attempt(again_in_each_epoch, order="checkpoint", order_at=30)
    assert done.of("progress")[-1]["step"] == 12 + 6 + 4 + 3
    saved = torch.load(done.of("checkpoint")[-1]["path"], weights_only=True)
    assert [len(saved[section]) for section in ("models", "optimizers", "schedulers")] == [1, 1, 1]


def test_each_fold_counts_its_steps(attempt: Attempting) -> None:
    assert attempt(folds).of("progress")[-1]["step"] == 3 * 2 * 3


def test_what_the_checkpoint_has_nothing_of_is_said_once(attempt: Attempting) -> None:
    first = attempt(folds, order_at=1)
    notes = [note["text"] for note in attempt(folds, resume=first.checkpoint["path"]).of("note")]
    assert len([note for note in notes if "starts afresh" in note]) == 1


def test_an_optimizer_that_is_not_made_again_is_told(attempt: Attempting) -> None:
    """One that the script makes in an epoch, and goes on with: a resume in a later epoch has the
    one before it.
    """

    def training(mark: Mark) -> None:
        torch.manual_seed(1)
        model = Layers()
        optimizer: Any = torch.optim.SGD(model.head.parameters(), lr=0.02)
        loader = DataLoader(samples(32), batch_size=8)
        hg.prepare(model, optimizer, loader)
        for epoch in hg.epochs(3):
            if epoch == 1:
                optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
                hg.prepare(model, optimizer)
            train(model, optimizer, loader, mark, 10 * epoch)

    first = attempt(training, order_at=21)
    with pytest.raises(ResumeError, match="optimizer does not fit"):
        attempt(training, resume=first.checkpoint["path"])


def test_an_optimizer_beside_another_is_kept_with_it(attempt: Attempting) -> None:
    """The second one comes for the same model in epoch 1, and both train on."""

    def training(mark: Mark) -> Result:
        torch.manual_seed(1)
        model, loader = Layers(), DataLoader(samples(32), batch_size=8, shuffle=True)
        first = torch.optim.Adam(model.head.parameters(), lr=0.02)
        second = torch.optim.Adam(model.body.parameters(), lr=0.01)
        hg.prepare(model, first, loader)
        for _epoch in hg.epochs(1):
            train(model, first, loader, mark, 0)
        hg.prepare(model, second)
        for epoch in hg.epochs(2):
            for number, (features, targets) in enumerate(loader):
                model.zero_grad()
                nn.functional.mse_loss(model(features), targets).backward()  # type: ignore[no-untyped-call]
                second.step()
                first.step()
                hg.report()
                mark(100 + 10 * epoch + number)
        return dict(model.state_dict())

    whole = training(lambda number: None)
    first = attempt(training, order_at=111)
    resumed = attempt(training, resume=first.checkpoint["path"]).result
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_checkpoint_of_an_earlier_version_is_resumed(attempt: Attempting) -> None:
    """It has no word of groups, frozen parameters and gradients."""
    whole = two_models(lambda number: None)
    path = attempt(two_models, order_at=112).checkpoint["path"]
    contents = torch.load(path, weights_only=True)
    for name in ("gradients", "groups", "frozen", "prepared", "own", "own_states", "ends"):
        del contents[name]
    for position in contents["loaders"]:
        del position["born"]
    torch.save(contents, path)
    resumed = attempt(two_models, resume=path).result
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
