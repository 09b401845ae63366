"""A training that is stopped and resumed ends with the very same weights as one that was left
alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import headgate.torch as hg
from headgate.task import saving
from headgate.torch.checkpoints import ResumeError

Step = Callable[[int], None]
Attempting = Callable[..., Any]
Batch = tuple[torch.Tensor, torch.Tensor]


def seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def data(samples: int = 72) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 8), torch.randint(0, 3, (samples,)))


class Learner:
    """A network with dropout, Adam and a schedule; `learn` takes one step and says so."""

    def __init__(self, at_step: Step, accumulate: int = 1) -> None:
        self.model: nn.Module = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [1, 2], 0.5)
        self.loss = nn.CrossEntropyLoss()
        self.at_step = at_step
        self.accumulate = accumulate
        self.batches = 0

    def prepare(self, *loaders: Any) -> list[Any]:
        return list(hg.prepare(self.model, self.optimizer, *loaders, scheduler=self.scheduler)[2:])

    def learn(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        noise = torch.randn_like(features) * random.random() * float(np.random.rand())
        loss = self.loss(self.model(features + 0.1 * noise), labels)
        loss.backward()
        self.batches += 1
        if self.batches % self.accumulate == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            hg.report(loss=loss)
            self.at_step(int(self.optimizer.state_dict()["state"][0]["step"]))

    def weights(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self.model.state_dict().values()]


def shuffled(at_step: Step) -> list[torch.Tensor]:
    learner = Learner(at_step)
    train, validation = learner.prepare(
        DataLoader(data(), batch_size=8, shuffle=True),
        DataLoader(data(), batch_size=24, shuffle=True),
    )
    for _epoch in hg.epochs(3):
        for features, labels in train:
            learner.learn(features, labels)
        learner.scheduler.step()
        learner.model.eval()
        for features, _labels in validation:
            learner.model(features)
        learner.model.train()
    return learner.weights()


def with_workers(at_step: Step) -> list[torch.Tensor]:
    learner = Learner(at_step)
    (train,) = learner.prepare(
        DataLoader(data(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    )
    for _epoch in hg.epochs(3):
        for features, labels in train:
            learner.learn(features, labels)
        learner.scheduler.step()
    return learner.weights()


def own_generator(at_step: Step) -> list[torch.Tensor]:
    learner = Learner(at_step)
    generator = torch.Generator().manual_seed(7)
    dataset = data()
    sampler = RandomSampler(dataset, replacement=True, num_samples=72, generator=generator)
    (train,) = learner.prepare(
        DataLoader(dataset, batch_size=8, sampler=sampler, generator=generator)
    )
    for _epoch in hg.epochs(3):
        for features, labels in train:
            learner.learn(features, labels)
    return learner.weights()


def two_at_once(at_step: Step) -> list[torch.Tensor]:
    learner = Learner(at_step)
    left, right = learner.prepare(
        DataLoader(data(), batch_size=8, shuffle=True),
        DataLoader(data(), batch_size=8, shuffle=True),
    )
    for _epoch in hg.epochs(3):
        for (features, labels), (others, _) in zip(left, right):
            learner.learn(features + 0.1 * others, labels)
    return learner.weights()


def accumulated(at_step: Step) -> list[torch.Tensor]:
    learner = Learner(at_step, accumulate=3)
    (train,) = learner.prepare(DataLoader(data(216), batch_size=8, shuffle=True))
    for _epoch in hg.epochs(3):
        for features, labels in train:
            learner.learn(features, labels)
    return learner.weights()


class Stream(IterableDataset[Batch]):
    def __iter__(self) -> Iterator[Batch]:
        for _ in range(72):
            yield torch.randn(8), torch.randint(0, 3, ())


def streamed(at_step: Step) -> list[torch.Tensor]:
    learner = Learner(at_step)
    (train,) = learner.prepare(DataLoader(Stream(), batch_size=8))
    for _epoch in hg.epochs(3):
        for features, labels in train:
            learner.learn(features, labels)
    return learner.weights()


def endless_iterator(at_step: Step) -> list[torch.Tensor]:
    """An epoch is five steps, whatever the loader's length: its iterator lives from one epoch into
    the next.
    """
    learner = Learner(at_step)
    (train,) = learner.prepare(DataLoader(data(), batch_size=8, shuffle=True))
    batches = iter(train)
    for _epoch in hg.epochs(6):
        for _ in range(5):
            try:
                features, labels = next(batches)
            except StopIteration:
                batches = iter(train)
                features, labels = next(batches)
            learner.learn(features, labels)
    return learner.weights()


def left_early(at_step: Step) -> list[torch.Tensor]:
    """The loop over the loader is left before its end."""
    learner = Learner(at_step)
    (train,) = learner.prepare(DataLoader(data(96), batch_size=8, shuffle=True))
    for _epoch in hg.epochs(3):
        for number, (features, labels) in enumerate(train):
            if number == 9:
                break
            learner.learn(features, labels)
        learner.scheduler.step()
    return learner.weights()


def validated_within(at_step: Step) -> list[torch.Tensor]:
    """Validation happens in the middle of the loop over the training data."""
    learner = Learner(at_step)
    train, validation = learner.prepare(
        DataLoader(data(), batch_size=8, shuffle=True),
        DataLoader(data(), batch_size=24, shuffle=True),
    )
    for _epoch in hg.epochs(3):
        for features, labels in train:
            learner.learn(features, labels)
            if int(features[0, 0] * 100) % 3 == 0:
                for others, _ in validation:
                    learner.model(others)
        learner.scheduler.step()
    return learner.weights()


def several_passes(at_step: Step) -> list[torch.Tensor]:
    learner = Learner(at_step)
    passes, validation = learner.prepare(
        DataLoader(data(24), batch_size=8, shuffle=True), DataLoader(data(), batch_size=24)
    )
    for _epoch in hg.epochs(3):
        for _pass in range(3):  # three passes make an epoch
            for features, labels in passes:
                learner.learn(features, labels)
        learner.scheduler.step()
        assert len(list(validation)) == 3
    return learner.weights()


def batches_in_a_list(at_step: Step) -> list[torch.Tensor]:
    learner = Learner(at_step)
    (train,) = learner.prepare([(torch.randn(8, 8), torch.randint(0, 3, (8,))) for _ in range(9)])
    for _epoch in hg.epochs(3):
        for features, labels in train:
            learner.learn(features, labels)
    return learner.weights()


def mixed_precision(at_step: Step) -> list[torch.Tensor]:
    learner = Learner(at_step)
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    (train,) = learner.prepare(DataLoader(data(), batch_size=8, shuffle=True))
    hg.keep(scaler=scaler)
    step = 0
    for _epoch in hg.epochs(3):
        for features, labels in train:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = learner.loss(learner.model(features), labels)
            learner.optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(learner.optimizer)
            scaler.update()
            hg.report(loss=loss)
            step = int(learner.optimizer.state_dict()["state"][0]["step"])
            learner.at_step(step)
    return [*learner.weights(), torch.tensor(scaler.get_scale())]


ALL = [
    shuffled,
    with_workers,
    own_generator,
    two_at_once,
    accumulated,
    streamed,
    validated_within,
    several_passes,
    batches_in_a_list,
    mixed_precision,
]


@pytest.mark.parametrize(
    ("training", "stop_at"),
    [
        *(pytest.param(training, 13, id=f"{training.__name__}-within") for training in ALL),
        *(
            pytest.param(
                *(training, 18),
                id=f"{training.__name__}-last",  # batch of an epoch
                marks=[] if training in (shuffled, accumulated, streamed) else pytest.mark.long,
            )
            for training in ALL
        ),
    ],
)
def test_stopped_and_resumed_is_the_same_as_left_alone(
    training: Callable[[Step], list[torch.Tensor]], stop_at: int, attempt: Attempting
) -> None:
    def seeded_training(at_step: Step) -> list[torch.Tensor]:
        seeded()
        return training(at_step)

    alone = seeded_training(lambda step: None)
    first = attempt(seeded_training, order_at=stop_at)
    assert first.result is None
    assert (first.checkpoint["why"], first.checkpoint["step"]) == ("stop", stop_at)
    assert first.checkpoint["position"] is not None, first.of("note")
    torch.load(first.checkpoint["path"], weights_only=True)
    steps: list[int] = []

    def resumed_training(at_step: Step) -> list[torch.Tensor]:
        return seeded_training(steps.append)

    resumed = attempt(resumed_training, resume=first.checkpoint["path"])
    assert steps[0] == stop_at + 1
    assert all(map(torch.equal, resumed.result, alone))
    assert resumed.of("progress")[-1]["step"] == steps[-1]


@pytest.mark.parametrize(
    "training", [endless_iterator, left_early], ids=lambda training: training.__name__
)
def test_loops_that_count_their_own_batches_resume_between_epochs(
    training: Callable[[Step], list[torch.Tensor]],
    attempt: Attempting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saving, "SHARE", 1.0)  # save after every epoch

    def seeded_training(at_step: Step) -> list[torch.Tensor]:
        seeded()
        return training(at_step)

    alone = attempt(seeded_training)
    *_, before_last, last = alone.of("checkpoint")
    assert before_last["position"] == 0
    assert before_last["epoch"] == last["epoch"] - 1
    resumed = attempt(seeded_training, resume=before_last["path"])
    assert all(map(torch.equal, resumed.result, alone.result))


def test_a_checkpoint_on_request_changes_nothing_and_can_be_resumed_from_twice(
    attempt: Attempting,
) -> None:
    def training(at_step: Step) -> list[torch.Tensor]:
        seeded()
        return shuffled(at_step)

    alone = training(lambda step: None)
    first = attempt(training, order="checkpoint", order_at=12)
    assert all(map(torch.equal, first.result, alone))
    asked = next(message for message in first.of("checkpoint") if message["why"] == "request")
    assert (asked["step"], asked["epoch"], asked["position"]) == (12, 1, 3)
    assert asked["bytes"] == Path(asked["path"]).stat().st_size
    second = attempt(training, order_at=16, resume=asked["path"])
    assert (
        second.checkpoint["step"],
        second.checkpoint["epoch"],
        second.checkpoint["position"],
    ) == (16, 1, 7)
    third = attempt(training, resume=second.checkpoint["path"])
    assert all(map(torch.equal, third.result, alone))
    assert third.of("progress")[-1]["samples"] == 3 * 72


def test_an_orphaned_task_saves_and_ends(attempt: Attempting, tmp_path: Path) -> None:
    orphaned = attempt(shuffled, order="hang up", order_at=5)
    assert orphaned.result is None
    assert [path.name for path in tmp_path.glob("*/checkpoints/step-*.pt")] == ["step-5.pt"]


def test_a_model_that_changed_gives_one_clear_error(attempt: Attempting) -> None:
    first = attempt(shuffled, order_at=5)

    def changed(at_step: Step) -> None:
        hg.prepare(nn.Sequential(nn.Linear(8, 99)))

    with pytest.raises(
        ResumeError, match=r"(?s)checkpoint's model does not fit.*size mismatch.*--from-scratch"
    ):
        attempt(changed, resume=first.checkpoint["path"])


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint"])
def test_a_checkpoint_that_cannot_be_read_gives_one_clear_error(
    attempt: Attempting, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "step-1.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ResumeError, match="resume from another one"):
        attempt(shuffled, resume=str(path))


class Mover:
    """A loader of someone's own."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.loader = DataLoader(dataset, batch_size=8, shuffle=True)
        self.purpose = "kept"

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader


def test_an_unknown_loader_starts_its_epoch_again_and_says_so(attempt: Attempting) -> None:
    passes: list[int] = []

    def training(at_step: Step) -> list[torch.Tensor]:
        seeded()
        learner = Learner(at_step)
        mover = Mover(data())
        (train,) = learner.prepare(mover)
        assert train is mover
        assert isinstance(train, Mover)
        assert train.purpose == "kept"
        for epoch in hg.epochs(2):
            for features, labels in train:
                learner.learn(features, labels)
                passes.append(epoch)
        return learner.weights()

    first = attempt(training, order_at=12)
    assert first.checkpoint["position"] is None
    assert first.checkpoint["epoch"] == 1
    assert "Mover is neither a DataLoader nor a sequence" in first.of("note")[0]["text"]
    passes.clear()
    attempt(training, resume=first.checkpoint["path"])
    assert passes == [1] * 9


def test_epochs_that_are_not_ours_are_started_again_and_said_so(attempt: Attempting) -> None:
    def training(at_step: Step) -> list[torch.Tensor]:
        seeded()
        learner = Learner(at_step)
        (train,) = learner.prepare(DataLoader(data(), batch_size=8, shuffle=True))
        for _epoch in range(2):
            for features, labels in train:
                learner.learn(features, labels)
        return learner.weights()

    first = attempt(training, order_at=12)
    assert first.checkpoint["position"] is None
    assert "does not use headgate.torch.epochs" in first.of("note")[0]["text"]
    resumed = attempt(training, resume=first.checkpoint["path"])
    assert resumed.of("progress")[-1]["step"] == 12 + 18


def test_several_phases_of_epochs_are_told_apart(attempt: Attempting) -> None:
    def training(at_step: Step) -> list[torch.Tensor]:
        seeded()
        learner = Learner(at_step)
        (train,) = learner.prepare(DataLoader(data(), batch_size=8, shuffle=True))
        for _epoch in hg.epochs(1):
            for features, labels in train:
                learner.learn(features, labels)
        for _epoch in hg.epochs(2):
            for features, labels in train:
                learner.learn(features, labels)
        return learner.weights()

    alone = training(lambda step: None)
    first = attempt(training, order_at=20)
    assert (first.checkpoint["epoch"], first.checkpoint["position"]) == (1, 2)
    resumed = attempt(training, resume=first.checkpoint["path"])
    assert all(map(torch.equal, resumed.result, alone))


def test_only_the_last_two_checkpoints_are_kept_and_all_can_be_read(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SHARE", 1.0)

    def training(at_step: Step) -> list[torch.Tensor]:
        seeded()
        learner = Learner(at_step)
        (train,) = learner.prepare(DataLoader(data(), batch_size=8))
        for _epoch in hg.epochs(4):
            for features, labels in train:
                learner.learn(features, labels)
        return learner.weights()

    done = attempt(training)
    assert [(m["step"], m["epoch"], m["position"], m["why"]) for m in done.of("checkpoint")] == [
        (9, 1, 0, "epoch"),
        (18, 2, 0, "epoch"),
        (27, 3, 0, "epoch"),
        (36, 4, 0, "epoch"),
    ]
    folder = Path(done.checkpoint["path"]).parent
    assert sorted(path.name for path in folder.iterdir()) == ["step-27.pt", "step-36.pt"]
    third = torch.load(folder / "step-27.pt", weights_only=True)
    assert set(third["models"][0]) == set(Learner(lambda step: None).model.state_dict())
    resumed = attempt(training, resume=str(folder / "step-27.pt"))
    assert all(map(torch.equal, resumed.result, done.result))
