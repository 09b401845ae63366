"""What a loss is a mean over, as its graph shows it, and what is said where that is not seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.gang import Gang
from torch import nn
from torch.nn import functional as F

from headgate.plans import Plan
from headgate.torch.dealing import Dealt
from headgate.torch.loss_mean import LossReading, read, watch
from headgate.torch.weighing import Weighing, Weight

model = nn.Linear(3, 5)
labels = torch.tensor([0, 1, -100, 2])
mask = torch.tensor([1.0, 0.0, 1.0, 0.25])
weights = torch.tensor([0.5, 2.0, 1.0, 1.0, 1.0])


def out() -> Any:
    return model(torch.arange(12.0).reshape(4, 3))


def each() -> Any:
    return F.cross_entropy(out(), labels.clamp(min=0), reduction="none")


def penalty() -> Any:
    return sum(parameter.square().sum() for parameter in model.parameters())


SEEN: dict[str, tuple[Callable[[], Any], float | None]] = {
    "ignored labels": (lambda: F.cross_entropy(out(), labels), 3),
    "weights of classes": (lambda: nn.CrossEntropyLoss(weight=weights)(out(), labels), 3.5),
    "label smoothing": (lambda: F.cross_entropy(out(), labels, label_smoothing=0.1), 3),
    "probabilities": (lambda: F.cross_entropy(out(), out().detach().softmax(1)), 4),
    "log likelihood": (lambda: nn.NLLLoss(ignore_index=0)(out().log_softmax(1), labels.clamp(min=0)), 2),
    "tokens": (lambda: F.cross_entropy(out().reshape(2, 2, 5).transpose(1, 2), labels.reshape(2, 2)), 3),
    "mean square": (lambda: F.mse_loss(out(), torch.zeros(4, 5)), 20),
    "binary": (lambda: F.binary_cross_entropy_with_logits(out(), torch.ones(4, 5), pos_weight=weights), 20),
    "masked mean": (lambda: (each() * mask).sum() / mask.sum(), 2.25),
    "masked mean, never by nothing": (lambda: (each() * 0).sum() / mask.mul(0).sum().clamp(min=1), 0),
    "selected": (lambda: each()[mask > 0.5].mean() * 3, 2),
    "sum by a number": (lambda: each().sum() * (1 / 4), 4),
    "negated": (lambda: -(each() * mask).sum().div(mask.sum()), 2.25),
    "scaled": (lambda: F.cross_entropy(out(), labels) * 65536.0 / 4, 12),
    "weighted mean": (lambda: torch.mean(each() * mask) / mask.mean(), 2.25),
    "a product by a sum": (lambda: (mask @ each()) / mask.sum(), 2.25),
    "one after another": (
        lambda: sum(F.cross_entropy(o[None], y[None]) for o, y in zip(out(), labels.abs() % 5)) / 4,
        4,
    ),
    "one after another, times a part": (lambda: sum(row.square().mean() for row in out()) * (1 / 4), 20),
    "of two": (lambda: 0.3 * F.cross_entropy(out(), labels) + 0.7 * F.cross_entropy(out(), labels), 3),
    "with a penalty": (lambda: F.cross_entropy(out(), labels) + 1e-4 * penalty() + model.weight.norm(), 3),
    "several": (lambda: torch.stack([F.cross_entropy(out(), labels) for _ in range(3)]).mean(), 9),
    "joined": (lambda: torch.cat([each(), each()]).sum() / 8, 8),
    "switched off": (lambda: out().sum() * 0.0, 0),
    "a penalty alone": (penalty, None),
    "a sum": (lambda: each().sum(), None),
    "a root": (lambda: F.mse_loss(out(), torch.zeros(4, 5)).sqrt(), None),
    "a quotient": (lambda: 1 - out().sigmoid().sum() / out().square().sum(), None),
}


@pytest.mark.parametrize("loss", SEEN)
def test_what_a_loss_is_a_mean_over_is_seen(loss: str) -> None:
    make, over = SEEN[loss]
    found = read([make()])
    assert found.over == over or found.over == pytest.approx(over)
    assert bool(found.doubt) == (loss in ("a sum", "a root", "a quotient"))


def test_a_loss_that_cannot_be_weighed_is_told_of() -> None:
    told: list[str] = []
    weighing = Weighing(told.append)
    weight = Weight(3.0, 1.0)
    weighing.sees([each().sum()])
    assert weighing.weigh(weight, 0, Dealt(0, 12, 3)) == weight
    for count in range(5):  # tokens and samples, in a proportion that changes
        kept = torch.arange(4) < count % 4 + 1
        weighing.sees([each()[kept].mean() + out().square().mean()])
        weighing.weigh(weight, 0, Dealt(0, 12, 3))
    for _ in range(2):
        weighing.sees([each().sum() / 12])
        weighing.weigh(weight, 0, Dealt(0, 12, 3))
    assert ["a sum over the batch" in told[0], "different numbers" in told[1]] == [True, True]
    assert "a sum divided by 12, the samples of all workers" in told[-1]


SCRIPT = """
import sys
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
kind = sys.argv[1]
data = TensorDataset(torch.randn(26, 3), torch.randint(0, 4, (26,)))
model = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=6, shuffle=True)
reduction = "sum" if kind == "sum" else "mean"
model, optimizer, loader = hg.prepare(model, optimizer, loader, loss_reduction=reduction)
losses = []
for epoch in hg.epochs(3):
    for x, y in loader:
        kept = y if kind != "ignoring" else y.masked_fill(x[:, 0] > 0.3, -100)
        loss = F.cross_entropy(model(x), kept, reduction=reduction)
        optimizer.zero_grad()
        (loss / 10 if kind == "sum" else loss).backward()
        optimizer.step()
        mean = loss.item() / (len(x) if kind == "sum" else 1)
        print(mean)
        hg.report(loss=mean)
        losses.append(mean)
print(sum(losses) / len(losses))
"""


@pytest.mark.parametrize(
    ("kind", "strategy", "workers"),
    [
        ("ignoring", "allreduce", 3),
        ("sum", "ps", 2),
        pytest.param("all", "ps", 3, marks=pytest.mark.long),
        pytest.param("ignoring", "ps", 2, marks=pytest.mark.long),
        pytest.param("sum", "allreduce", 3, marks=pytest.mark.long),
    ],
)
def test_the_loss_that_workers_report_is_that_of_one_process(
    kind: str, strategy: Any, workers: int, tmp_path: Path
) -> None:
    """Also where nothing counts in the part of a worker, whose own loss is no number."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), kind]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    plan = Plan(strategy=strategy, workers=workers, servers=int(strategy == "ps"), batch_per_worker=None)
    with Gang(tmp_path, plan, command) as gang:
        gang.start()
        gang.finish()
        told = [each for worker in range(workers) for each in gang.of(f"worker-{worker}", "progress")]
    parts = [(each["count"] * each.get("weight", 1.0), each["loss"]) for each in told if "loss" in each]
    if kind == "ignoring":
        assert any("nan" in gang.output(f"worker-{worker}") for worker in range(workers))
    assert sum(w * loss for w, loss in parts) / sum(w for w, _ in parts) == pytest.approx(float(alone.split()[-1]))


def test_a_term_that_matters_more_from_step_to_step_is_no_doubt() -> None:
    told: list[str] = []
    weighing = Weighing(told.append)
    for step in range(1, 9):
        loss = F.cross_entropy(out(), labels.abs() % 5) + step * 0.125 * out().square().mean()
        weighing.sees([loss + out().abs().mean() * (1 / step)])
        assert weighing.weigh(Weight(4.0, 1.0), 0, Dealt(0, 12, 4)).counts == 4
    assert told == []


CONSTANT: dict[str, tuple[Callable[[], Any], str]] = {
    "tokens of all": (lambda: each().sum() / 12, "divided by 12, the samples of all workers"),
    "numbers of all": (
        lambda: F.mse_loss(out(), torch.zeros(4, 5), reduction="sum") / 60,
        "the samples of all workers",
    ),
    "any": (lambda: each().sum() / 7, "divided by 7, which is the same in each step"),
    "any, times a part": (lambda: each().sum() * (1 / 7), "divided by 7, which is the same in each step"),
    "its own": (lambda: each().sum() / 4, ""),
    "its own, of many numbers each": (lambda: F.mse_loss(out(), torch.zeros(4, 5), reduction="sum") / 4, ""),
    "its own, accumulated": (lambda: each().sum() / 4 / 2, ""),
    "its mask's": (lambda: (each() * mask).sum() / mask.sum(), ""),
    "what is learned": (lambda: each().mean() / 7, ""),
}


@pytest.mark.parametrize("loss", CONSTANT)
def test_a_sum_that_is_divided_by_a_number_of_no_worker_is_told_of(loss: str) -> None:
    make, words = CONSTANT[loss]
    told: list[str] = []
    weighing = Weighing(told.append)
    for _ in range(6):
        weighing.sees([make()])
        weighing.weigh(Weight(4.0, 1.0), 0, Dealt(0, 12, 4))
    assert bool(told) == bool(words)
    assert all(words in text for text in told)


def test_a_sum_that_is_divided_by_the_same_number_for_parts_of_other_sizes_is_told_of() -> None:
    told: list[str] = []
    weighing = Weighing(told.append)
    for taken in (4, 3, 4):
        weighing.sees([each().sum() / 8])
        weighing.weigh(Weight(taken, 1.0), 0, Dealt(0, 12, taken))
    assert ["divided by 8, which is the same in each step" in text for text in told] == [True]


def test_a_backward_that_is_given_a_gradient_is_read_or_told_of() -> None:
    told: list[str] = []
    weighing = Weighing(told.append)
    watch(weighing.sees)
    F.cross_entropy(out(), labels).backward(torch.tensor(2.0))  # type: ignore[no-untyped-call]
    assert weighing.weigh(Weight(4.0, 1.0), 0, Dealt(0, 12, 4)).counts == 3
    for _ in range(2):
        each().backward(mask / mask.sum())
        weighing.weigh(Weight(4.0, 1.0), 0, Dealt(0, 12, 4))
    assert "begins with gradients that the script gives" in told[0]


def test_what_the_script_says_counts_before_what_is_seen() -> None:
    told: list[str] = []
    weighing = Weighing(told.append)
    weighing.by_batch = len
    weight = Weight(3.0, 1.0)
    weighing.fetched(0, [1, 2, 3, 4, 5])
    weighing.sees([each().sum()])
    assert weighing.weigh(weight, 0, None).counts == 5
    weighing.fetched(0, [1, 2])
    weighing.say(torch.tensor(7))
    assert weighing.weigh(weight, 0, None).counts == 7
    weighing.say(7)
    assert weighing.weigh(Weight(0.0, 0.0), None, None).counts == 0  # a borrowed sample never counts
    assert told == []
    for value in (float("nan"), -1, "many", torch.ones(2)):
        with pytest.raises(ValueError, match=r"report\(weight=\)"):
            weighing.say(value)
    assert LossReading().over is None
