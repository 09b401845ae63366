"""What a loss is a mean over, as its graph shows it, and what is said where that is not seen."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.gang import Gang
from tests.torch.conftest import run_alone
from torch import nn
from torch.nn import functional as F

from headgate.model.plans import Plan
from headgate.torch import loss_terms, normalisers
from headgate.torch.gradient_weights import GradientWeights, LossError, Weight
from headgate.torch.loss_mean import LossReading, read, watch
from headgate.torch.sharding import Assigned

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
    "log likelihood": (
        lambda: nn.NLLLoss(ignore_index=0)(out().log_softmax(1), labels.clamp(min=0)),
        2,
    ),
    "tokens": (
        lambda: F.cross_entropy(out().reshape(2, 2, 5).transpose(1, 2), labels.reshape(2, 2)),
        3,
    ),
    "mean square": (lambda: F.mse_loss(out(), torch.zeros(4, 5)), 20),
    "binary": (
        lambda: F.binary_cross_entropy_with_logits(out(), torch.ones(4, 5), pos_weight=weights),
        20,
    ),
    "masked mean": (lambda: (each() * mask).sum() / mask.sum(), 2.25),
    "masked mean, never by nothing": (
        lambda: (each() * 0).sum() / mask.mul(0).sum().clamp(min=1),
        0,
    ),
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
    "one after another, times a part": (
        lambda: sum(row.square().mean() for row in out()) * (1 / 4),
        20,
    ),
    "of two": (
        lambda: 0.3 * F.cross_entropy(out(), labels) + 0.7 * F.cross_entropy(out(), labels),
        3,
    ),
    "with a penalty": (
        lambda: F.cross_entropy(out(), labels) + 1e-4 * penalty() + model.weight.norm(),
        3,
    ),
    "several": (lambda: torch.stack([F.cross_entropy(out(), labels) for _ in range(3)]).mean(), 9),
    "joined": (lambda: torch.cat([each(), each()]).sum() / 8, 8),
    "switched off": (lambda: out().sum() * 0.0, 0),
    "a penalty alone": (penalty, None),
    "a sum": (lambda: each().sum(), None),
    "a root": (lambda: F.mse_loss(out(), torch.zeros(4, 5)).sqrt(), None),
    "a quotient": (lambda: 1 - out().sigmoid().sum() / out().square().sum(), None),
}


@pytest.fixture
def following() -> Iterator[None]:
    """What losses are divided by is followed while a test runs."""
    normalisers.follow()
    yield
    normalisers.leave()


@pytest.mark.parametrize("loss", SEEN)
def test_what_a_loss_is_a_mean_over_is_seen(loss: str, following: None) -> None:
    make, over = SEEN[loss]
    seen = read([make()])
    assert seen.over == over or seen.over == pytest.approx(over)
    assert bool(seen.doubt) == (loss in ("a sum", "a root", "a quotient"))


Parts = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], Any]
PARTS = ((0, 5), (5, 8), (8, 12))
data = torch.randn(12, 3, generator=torch.Generator().manual_seed(3)).double()
kinds = torch.tensor([0, 1, 2, 0, 4, 2, 1, 0, -100, -100, -100, -100])
few = torch.tensor([1.0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0]).double()
double = nn.Linear(3, 5).double()


def losses(out: Any, labels: Any) -> Any:
    return F.cross_entropy(out, labels.clamp(min=0), reduction="none")


def one_by_one(out: Any, x: Any, labels: Any, mask: Any) -> Any:
    return sum(F.cross_entropy(o[None], y[None]) for o, y in zip(out, labels.clamp(min=0))) / len(
        out
    )


def where_any(out: Any, x: Any, labels: Any, mask: Any) -> Any:
    loss = out.square().mean()
    return loss + F.cross_entropy(out, labels) if (labels >= 0).any() else loss


RIGHT: dict[str, Parts] = {
    "labelled and all": lambda out, x, y, m: (
        F.cross_entropy(out, y) + 0.3 * F.mse_loss(out[:, :3], x)
    ),
    "scaled": lambda out, x, y, m: (F.cross_entropy(out, y) + out.abs().mean()) * 65536.0 / 4,
    "two masks": lambda out, x, y, m: (
        (losses(out, y) * m).sum() / m.sum() + (losses(out, y) * (1 - m)).sum() / (1 - m).sum()
    ),
    "added up": lambda out, x, y, m: (
        (losses(out, y) * m).sum() / int(sum([m.sum(), (m * m).sum()])) + out.mean()
    ),
    "classes that weigh": lambda out, x, y, m: (
        F.cross_entropy(out, y, weight=torch.arange(1.0, 6.0).double()) + F.mse_loss(out[:, :3], x)
    ),
    "kept from nothing": lambda out, x, y, m: losses(out, y).sum() / m.sum().clamp(min=1),
    "kept from little": lambda out, x, y, m: losses(out, y).sum() / torch.clamp_min(m.sum(), 4.5),
    "by the greater": lambda out, x, y, m: (
        losses(out, y).sum() / torch.maximum(m.sum(), torch.ones(()))
    ),
    "by where": lambda out, x, y, m: losses(out, y).sum() / torch.where(m.sum() > 0, m.sum(), 1.0),
    "by a whole number": lambda out, x, y, m: losses(out, y).sum() / max(1, int(m.sum())),
    "by a number": lambda out, x, y, m: losses(out, y).sum() / max(m.sum().item(), 1.0),
    "by the built-in max": lambda out, x, y, m: losses(out, y).sum() / max(m.sum(), 1),
    "by or": lambda out, x, y, m: losses(out, y).sum() / (int(m.sum()) or 1),
    "and a little": lambda out, x, y, m: losses(out, y).sum() / (m.sum() + 1e-6),
    "and a little, as a number": lambda out, x, y, m: (
        losses(out, y).sum() / (m.sum().item() + 1e-6)
    ),
    "times one over": lambda out, x, y, m: (
        losses(out, y).sum() * (1 / (m > 0).double().sum().clamp(min=1))
    ),
    "two sums by one": lambda out, x, y, m: (
        (losses(out, y).sum() + 2 * (losses(out, y) * m).sum()) / m.sum().clamp_(1)
    ),
    "smoothed labels": lambda out, x, y, m: (
        F.cross_entropy(out, y, label_smoothing=0.2) + 0.1 * out.abs().mean()
    ),
    "smoothed labels, by a part that is no fraction": lambda out, x, y, m: F.cross_entropy(
        out, y, label_smoothing=0.15
    ),
    "smoothed labels of classes that weigh": lambda out, x, y, m: F.cross_entropy(
        out, y, torch.tensor([0.3, 1.1, 0.7, 2.0, 0.9]).double(), label_smoothing=0.15
    ),
    "of classes": lambda out, x, y, m: (
        F.cross_entropy(out, y, torch.arange(1.0, 6).double()) + out.square().mean()
    ),
    "selected": lambda out, x, y, m: (
        F.mse_loss(out[m > 0][:, :3], x[m > 0]) + F.l1_loss(out[:, :3], x)
    ),
    "one by one": lambda out, x, y, m: one_by_one(out, x, y, m) + F.cross_entropy(out, y),
    "a term that a part may lack": where_any,
    "with a penalty": lambda out, x, y, m: (
        F.cross_entropy(out, y) + out.square().mean() + double.weight.square().sum()
    ),
    "a list": lambda out, x, y, m: torch.stack(
        [F.cross_entropy(out, y), out.square().mean()]
    ).mean(),
    "by nothing": lambda out, x, y, m: (losses(out, y) * m).sum() / m.sum() + out.square().mean(),
    "its own samples": lambda out, x, y, m: (
        losses(out, y).sum() / len(out) + 0.5 * F.cross_entropy(out, y)
    ),
}


class _Round:
    """Workers that train on parts of a batch, as they would in processes of their own."""

    def __init__(self, loss_of: Parts, parts: Sequence[tuple[int, int]] = PARTS) -> None:
        self._loss_of = loss_of
        self._parts = parts
        self.notes: list[str] = []
        self.value = math.nan  # of the loss that they report together
        self.workers = [
            GradientWeights(lambda p: "head", self._meet, lambda: None, self.notes.append)
            for _ in parts
        ]
        normalisers.follow()

    def _meet(self, value: Any) -> dict[int, Any]:
        return {
            n: {"slots": loss_terms.as_message(worker._own), "said": False}
            for n, worker in enumerate(self.workers)
        }

    def gradient(self, times: int = 1) -> torch.Tensor:
        """What a step of all comes to."""
        for _ in range(times):
            total, self.value, gradients = 0.0, 0.0, []
            made = []
            for worker, (begin, end) in zip(self.workers, self._parts):
                loss = self._part(begin, end)
                worker.sees([loss])
                worker.weigh(
                    Weight(float(end - begin), 1.0), 0, Assigned(0, len(data), end - begin)
                )
                made.append(loss)
            sums = [sum(numbers) for numbers in zip(*(worker.numbers() for worker in self.workers))]
            for worker, loss in zip(self.workers, made):
                asks = worker.asks
                weight = worker.agree(sums) if asks else worker._weight
                if not asks:
                    worker.check(sums)
                double.zero_grad()
                loss.backward()
                assert double.weight.grad is not None
                gradients.append(
                    double.weight.grad * weight.counts if weight.counts else double.weight.grad * 0
                )
                if weight.counts:
                    self.value += float(loss.detach()) * worker.value_factor * weight.counts
                total += weight.counts
                worker.settle()
        self.value /= total
        return sum(torch.nan_to_num(gradient) for gradient in gradients) / total  # type: ignore[return-value]

    def alone(self) -> torch.Tensor:
        double.zero_grad()
        self._part(0, len(data)).backward()
        assert double.weight.grad is not None
        return double.weight.grad.clone()

    def loss(self) -> float:
        return float(self._part(0, len(data)).detach())

    def _part(self, begin: int, end: int) -> Any:
        x, y, mask = data[begin:end], kinds[begin:end], few[begin:end]
        return self._loss_of(double(x), x, y, mask)


@pytest.mark.parametrize("loss", RIGHT)
def test_each_term_of_a_loss_weighs_what_it_is_a_mean_over(loss: str, following: None) -> None:
    running = _Round(RIGHT[loss])
    expected = running.alone()
    assert torch.allclose(running.gradient(), expected, rtol=1e-10, atol=0)
    assert torch.allclose(running.gradient(15), expected, rtol=1e-10, atol=0)
    assert all(worker.asks for worker in running.workers)  # what a part lacks may come at any step
    assert len(running.notes) == (len(PARTS) if loss == "a term that a part may lack" else 0) * 16


OVER_ONE_COUNT = [
    "kept from nothing",
    "kept from little",
    "by a whole number",
    "by a number",
    "and a little",
    "times one over",
    "two sums by one",
]


@pytest.mark.parametrize("loss", OVER_ONE_COUNT)
def test_the_reported_loss_is_that_of_the_whole_batch(loss: str, following: None) -> None:
    running = _Round(RIGHT[loss])
    for _ in range(2):
        running.gradient()
        assert running.value == pytest.approx(running.loss(), rel=1e-10)


PLAIN: dict[str, Parts] = {
    "one mean": lambda out, x, y, m: F.mse_loss(out[:, :3], x),
    "tokens": lambda out, x, y, m: F.cross_entropy(out, y),
    "a mask": lambda out, x, y, m: (losses(out, y) * m).sum() / m.sum(),
    "means over as many for each": lambda out, x, y, m: (
        F.mse_loss(out[:, :3], x) + 0.1 * out.mean(1).square().mean()
    ),
}


@pytest.mark.parametrize("loss", PLAIN)
def test_no_worker_waits_for_counts_where_one_weight_will_do(loss: str, following: None) -> None:
    running = _Round(PLAIN[loss])
    assert torch.allclose(running.gradient(15), running.alone(), rtol=1e-10, atol=0)
    assert not any(worker.asks for worker in running.workers)
    assert "sum" not in vars(torch.Tensor)  # and nothing is followed any more
    running._loss_of = RIGHT["labelled and all"]  # a loss that comes later, in all workers
    assert torch.allclose(running.gradient(), running.alone(), rtol=1e-10, atol=0)
    assert all(worker.asks for worker in running.workers)


def test_a_term_that_comes_late_in_some_workers_alone_is_refused(following: None) -> None:
    running = _Round(lambda out, x, y, m: out.square().mean())
    running.gradient(15)
    running._loss_of = where_any
    with pytest.raises(LossError, match="for the first time after many steps"):
        running.gradient()


TOLD: dict[str, tuple[Parts, str]] = {
    "a sum": (lambda out, x, y, m: losses(out, y).sum(), "a sum over the batch is part of it"),
    "a root": (lambda out, x, y, m: F.mse_loss(out[:, :3], x).sqrt(), "made by Sqrt"),
    "by a root": (
        lambda out, x, y, m: losses(out, y).sum() / (m.sum() + 1).sqrt(),
        r"sqrt\(\) makes",
    ),
    "by a spread": (lambda out, x, y, m: F.mse_loss(out[:, :3], x) / x.var(), r"var\(\) makes"),
    "the samples of all": (
        lambda out, x, y, m: losses(out, y).sum() / 12,
        "divided by 12, the samples of all workers",
    ),
    "a constant": (
        lambda out, x, y, m: losses(out, y).sum() / 7,
        "divided by 7, which is the same in all workers",
    ),
    "one, of which nothing is known": (
        lambda out, x, y, m: losses(out, y).sum() / max(1, m.nonzero().shape[0]),
        "may stand for a count of nothing",
    ),
    "a floor that no part reaches": (
        lambda out, x, y, m: losses(out, y).sum() / max(10, int(m.sum())),
        "in a way that is not seen|same in all workers",
    ),
    "a weight by its own numbers": (
        lambda out, x, y, m: out.square().mean() + out.abs().mean() * (3 + out.detach().mean() * 2),
        "multiplied by a number that is not the same in all workers",
    ),
    "classes counted in each part": (
        lambda out, x, y, m: F.cross_entropy(
            out, y, weight=torch.bincount(y.clamp(min=0), minlength=5).double() + 1
        ),
        "has class weights that differ between workers",
    ),
    "positives counted in each part": (
        lambda out, x, y, m: F.binary_cross_entropy_with_logits(
            out[:, 0], m, pos_weight=(1 - m).sum() / m.sum().clamp(min=1), reduction="none"
        ).mean(),
        "has class weights that differ between workers",
    ),
    "a normaliser that goes on": (
        lambda out, x, y, m: losses(out, y).sum() / (0.9 * 100 + 0.1 * max(m.sum().item(), 1)),
        "not known to be a count",
    ),
    "padded in each part": (
        lambda out, x, y, m: F.mse_loss(
            out.repeat(1, int(m.sum()) + 1), out.detach().repeat(1, int(m.sum()) + 1) + 1
        ),
        "pads its samples to its own longest",
    ),
    "a sum, one by one": (
        lambda out, x, y, m: sum(
            F.cross_entropy(o[None], k[None]) for o, k in zip(out, y.clamp(min=0))
        ),
        "gone through one after another",
    ),
}


@pytest.mark.parametrize("loss", TOLD)
def test_a_loss_that_cannot_be_weighed_is_refused_before_its_first_step(
    loss: str, following: None
) -> None:
    loss_of, words = TOLD[loss]
    with pytest.raises(LossError, match=words):
        _Round(loss_of).gradient()


def test_a_count_that_is_the_same_by_chance_is_no_constant(following: None) -> None:
    def loss_of(out: Any, x: Any, y: Any, m: Any) -> Any:
        return (losses(out, y) * (m * 0 + 1)).sum() / (m * 0 + 1).sum()

    running = _Round(loss_of, ((0, 3), (3, 6), (6, 9), (9, 12)))
    assert torch.allclose(running.gradient(), running.alone())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("ps", marks=pytest.mark.long)])
def test_terms_are_weighed_in_workers_of_their_own(
    strategy: Any, wrong_answers: Callable[..., dict[str, float]]
) -> None:
    plan = Plan(
        strategy=strategy, workers=2, servers=int(strategy == "ps"), batch_per_worker=(9, 3)
    )
    assert wrong_answers(plan, "labelled_and_all", "guarded", "ignoring") == {}


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "strategy", "workers"),
    [
        ("ignoring", "allreduce", 3),
        pytest.param("sum", "ps", 2, marks=pytest.mark.long),
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
    alone = run_alone(script, tmp_path, kind)
    plan = Plan(
        strategy=strategy, workers=workers, servers=int(strategy == "ps"), batch_per_worker=None
    )
    with Gang(tmp_path, plan, command) as gang:
        gang.start()
        gang.finish()
        messages = [
            message
            for worker in range(workers)
            for message in gang.of(f"worker-{worker}", "progress")
        ]
    parts = [
        (message["count"] * message.get("weight", 1.0), message["loss"])
        for message in messages
        if "loss" in message
    ]
    if kind == "ignoring":
        assert any("nan" in gang.output(f"worker-{worker}") for worker in range(workers))
    assert sum(w * loss for w, loss in parts) / sum(w for w, _ in parts) == pytest.approx(
        float(alone.split()[-1])
    )


def _alone() -> GradientWeights:
    return GradientWeights(
        lambda parameter: "head", lambda value: None, lambda: None, lambda text: None
    )


def test_a_backward_that_is_given_a_gradient_is_read_or_refused() -> None:
    weighing = _alone()
    watch(weighing.sees, lambda error: None)
    F.cross_entropy(out(), labels).backward(torch.tensor(2.0))  # type: ignore[no-untyped-call]
    assert weighing.weigh(Weight(4.0, 1.0), 0, Assigned(0, 12, 4)).counts == 3
    each().backward(mask / mask.sum())
    weighing.weigh(Weight(4.0, 1.0), 0, Assigned(0, 12, 4))
    weighing.say(2)  # it may be said after backward
    weighing.settle()
    weighing.weigh(Weight(4.0, 1.0), 0, Assigned(0, 12, 4))
    each().backward(mask / mask.sum())
    weighing.weigh(Weight(4.0, 1.0), 0, Assigned(0, 12, 4))
    with pytest.raises(LossError, match="begins with gradients that the script gives"):
        weighing.settle()


def test_what_the_script_says_counts_before_what_is_seen() -> None:
    weighing = _alone()
    weighing.by_batch = len
    weight = Weight(3.0, 1.0)
    weighing.fetched(0, [1, 2, 3, 4, 5])
    weighing.sees([each().sum()])
    assert weighing.weigh(weight, 0, None).counts == 5
    weighing.fetched(0, [1, 2])
    weighing.say(torch.tensor(7))
    assert weighing.weigh(weight, 0, None).counts == 7
    weighing.say(7)
    # a borrowed sample never counts
    assert weighing.weigh(Weight(0.0, 0.0), None, None).counts == 0
    weighing.settle()
    for value in (float("nan"), -1, "many", torch.ones(2)):
        with pytest.raises(ValueError, match=r"report\(weight=\)"):
            weighing.say(value)
    assert LossReading().over is None
