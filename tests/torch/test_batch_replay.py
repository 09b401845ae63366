"""Batches that are gone through again without the loader: told of, and resumed right where that can
be.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.gang import Gang
from tests.torch.test_resume import Learner, data, seeded
from torch.utils.data import DataLoader, Dataset

import headgate.torch as hg
from headgate.model.plans import Plan

Training = Callable[[Callable[[int], None]], list[torch.Tensor]]
CYCLE, LIST = "itertools.cycle repeats", "as with list(loader)"
KEEPS = "the script keeps the batches of a pass that was resumed in its middle"


def prepared(at_step: Callable[[int], None], *sizes: int) -> tuple[Learner, list[Any]]:
    learner = Learner(at_step)
    return learner, learner.prepare(
        *(DataLoader(data(size), batch_size=8, shuffle=True) for size in sizes)
    )


def cycled(at_step: Callable[[int], None]) -> list[torch.Tensor]:
    """A pass is nine batches, an epoch is five steps."""
    learner, (train,) = prepared(at_step, 70)
    batches = itertools.cycle(train)
    for _epoch in hg.epochs(6):
        for _ in range(5):
            learner.learn(*next(batches))
    return learner.weights()


def sliced(at_step: Callable[[int], None]) -> list[torch.Tensor]:
    learner, (train,) = prepared(at_step, 70)
    for _epoch in hg.epochs(3):
        for features, labels in itertools.islice(itertools.cycle(train), 12):
            learner.learn(features, labels)
    return learner.weights()


def beside_a_larger_one(at_step: Callable[[int], None]) -> list[torch.Tensor]:
    learner, (small, large) = prepared(at_step, 22, 72)
    for _epoch in hg.epochs(3):
        for (others, _), (features, labels) in zip(itertools.cycle(small), large):
            learner.learn(features + 0.1 * others.mean(), labels)
    return learner.weights()


@pytest.mark.parametrize(
    ("training", "stop_at", "saved_at", "position"),
    [
        pytest.param(cycled, 7, 10, 0, id="in the first pass of a cycle"),
        pytest.param(cycled, 13, 15, 0, id="in the second"),
        pytest.param(cycled, 23, 25, 0, id="in the third", marks=pytest.mark.long),
        pytest.param(sliced, 16, 24, 0, id="in a slice of one"),
        pytest.param(beside_a_larger_one, 10, 10, 1, id="in the first pass beside a loader"),
        pytest.param(beside_a_larger_one, 16, 16, 7, id="in the third beside a loader"),
    ],
)
def test_a_cycle_goes_on_after_a_resume_with_the_batches_that_it_had(
    training: Training, stop_at: int, saved_at: int, position: int, attempt: Callable[..., Any]
) -> None:
    def seeded_training(at_step: Callable[[int], None]) -> list[torch.Tensor]:
        seeded()
        return training(at_step)

    alone = seeded_training(lambda step: None)
    first = attempt(seeded_training, order_at=stop_at)
    assert first.result is None
    assert (first.checkpoint["step"], first.checkpoint["position"]) == (saved_at, position)
    steps: list[int] = []
    resumed = attempt(
        lambda at_step: seeded_training(steps.append), resume=first.checkpoint["path"]
    )
    assert steps[0] == saved_at + 1
    assert all(map(torch.equal, resumed.result, alone))
    notes = [note["text"] for note in resumed.of("note")]
    assert any(CYCLE in note for note in notes)
    assert not any("drawn at random" in note or "had more batches" in note for note in notes)


class Drawn(Dataset[Any]):
    """Samples that are drawn as they are read."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.randn(8), index % 3


def drawn(at_step: Callable[[int], None]) -> list[torch.Tensor]:
    learner = Learner(at_step)
    (train,) = learner.prepare(DataLoader(Drawn(), batch_size=8))
    batches = itertools.cycle(train)
    for _epoch in hg.epochs(3):
        for _ in range(4):
            learner.learn(*next(batches))
    return learner.weights()


def kept_by_itself(at_step: Callable[[int], None]) -> list[torch.Tensor]:
    learner, (train,) = prepared(at_step, 72)

    def again_and_again() -> Iterator[Any]:
        batches = []
        for batch in train:
            batches.append(batch)
            yield batch
        while True:
            yield from batches

    batches = again_and_again()
    for _epoch in hg.epochs(4):
        for _ in range(5):
            learner.learn(*next(batches))
    return learner.weights()


def broken_off(at_step: Callable[[int], None]) -> list[torch.Tensor]:
    learner, (train,) = prepared(at_step, 96)
    for _epoch in hg.epochs(1):
        for number, (features, labels) in enumerate(train):
            if number == 6:
                break
            learner.learn(features, labels)
    return learner.weights()


@pytest.mark.parametrize(
    ("training", "stop_at", "told"),
    [
        pytest.param(
            drawn,
            6,
            "drawn at random as they are read",
            id="batches that are drawn as they are read",
        ),
        pytest.param(kept_by_itself, 4, KEEPS, id="batches that the script keeps"),
        pytest.param(
            broken_off,
            4,
            "had more batches than in a run",
            id="an epoch that the script breaks off",
        ),
    ],
)
def test_what_a_resume_does_not_bring_back_is_told(
    training: Training, stop_at: int, told: str, attempt: Callable[..., Any]
) -> None:
    first = attempt(training, order_at=stop_at)
    resumed = attempt(training, resume=first.checkpoint["path"])
    assert any(told in note["text"] for note in resumed.of("note"))


def in_a_list(at_step: Callable[[int], None]) -> list[torch.Tensor]:
    learner, (train,) = prepared(at_step, 40)
    batches = list(train)
    for _epoch in hg.epochs(3):
        for features, labels in batches:
            learner.learn(features, labels)
    return learner.weights()


@pytest.mark.parametrize(("training", "told"), [(in_a_list, LIST), (cycled, CYCLE)])
def test_batches_that_are_replayed_are_told_of(
    training: Training, told: str, attempt: Callable[..., Any]
) -> None:
    notes = [note["text"] for note in attempt(training).of("note")]
    assert (
        [note for note in notes if CYCLE in note or LIST in note]
        == [note for note in notes if told in note]
        != []
    )


SCRIPT = """
import itertools, os, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(2)
def data(samples):
    rows = TensorDataset(torch.randn(samples, 4), torch.randn(samples, 1))
    return DataLoader(rows, batch_size=6, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, small, large = hg.prepare(model, optimizer, data(17), data(42))
stop_at, number = int(os.environ.get("STOP_AT", "-1")), 0
for epoch in hg.epochs(3):
    for (features, targets), _ in zip(itertools.cycle(small), large):
        loss = nn.functional.mse_loss(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
        number += 1
        if number == stop_at:
            hg._door.session._channel.send({"type": "waiting"})
            while not hg._door.session._channel.pending:
                time.sleep(0.001)
torch.save(model.state_dict(), f"{os.environ['OUT']}-{hg.rank()}.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("ps", marks=pytest.mark.long)])
def test_workers_go_through_a_cycle_as_one_process_does(strategy: Any, tmp_path: Path) -> None:
    def run(workers: int, **variables: str) -> Gang:
        folder = tmp_path / f"{workers}{''.join(variables)}"
        folder.mkdir()
        (folder / "script.py").write_text(SCRIPT)
        named = (
            {"strategy": strategy, "servers": int(strategy == "ps")}
            if workers > 1
            else {"strategy": "single"}
        )
        plan = Plan(workers=workers, batch_per_worker=None, **named)
        command = [sys.executable, str(folder / "script.py")]
        with Gang(folder, plan, command, {"OUT": str(folder / "out"), **variables}) as gang:
            gang.start()
            for worker in range(workers) if "STOP_AT" in variables else ():
                gang.wait_for(f"worker-{worker}", "waiting")
                gang.send(f"worker-{worker}", {"type": "stop"})
            gang.finish()
        return gang

    def weights(gang: Gang) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = torch.load(gang.folder / "out-0.pt", weights_only=True)
        return loaded

    alone = weights(run(1))
    *_, checkpoint = run(2, STOP_AT="12").of("worker-0", "checkpoint")
    assert (checkpoint["step"], checkpoint["position"]) == (13, 6)
    resumed = weights(run(2, HEADGATE_RESUME=checkpoint["path"]))
    for name, weight in alone.items():
        assert torch.allclose(resumed[name], weight, rtol=0, atol=1e-13)
