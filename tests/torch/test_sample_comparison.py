"""Losses that compare the samples of a batch are told of; those that only look like it are not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.gang import Gang
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headgate.model.plans import Plan
from headgate.torch.sample_comparison import SampleComparison

N = 8
MATRICES = "use_mm_for_euclid_dist"
Loss = Callable[[Any, Any], Any]
torch.manual_seed(0)
body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
square = nn.Linear(6, N)  # as many features as samples
conv = nn.Sequential(
    nn.Conv1d(6, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 5)
)
words = nn.Embedding(20, 16)
places = nn.Embedding(N, 16)
encoder = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
late = nn.TransformerEncoderLayer(16, 4, 32, batch_first=False)
queries = nn.Parameter(torch.randn(N, 5))
table = torch.randn(N, 6)
labels = torch.arange(N) % 5
recurrent = nn.GRUCell(6, 5)


def rows() -> Any:
    return torch.randn(N, 6)


def tokens(length: int = 7) -> Any:
    return torch.randint(0, 20, (N, length))


def errors(out: Any) -> Any:
    return (out - torch.ones(N, 5)).square().mean(1)


def attention(h: Any) -> Any:
    return (h @ h.transpose(1, 2)).softmax(-1) @ h


def unit(x: Any) -> Any:
    return F.normalize(body(x), dim=1)


COUPLED: dict[str, tuple[str, Loss, Callable[[], Any]]] = {
    "in-batch negatives": (
        "Mm",
        lambda x, n: F.cross_entropy(unit(x) @ unit(x).T / 0.5, torch.arange(n)),
        rows,
    ),
    "two views": (
        "Mm",
        lambda x, n: F.cross_entropy(unit(x) @ unit(x).T, torch.arange(2 * n).roll(n)),
        lambda: torch.randn(2 * N, 6),
    ),
    "two views, joined": (
        "Mm",
        lambda x, n: (z := torch.cat([unit(x), unit(x + 1)])).mm(z.t()).logsumexp(1).mean(),
        rows,
    ),
    "einsum": (
        "Bmm",
        lambda x, n: torch.einsum("id,jd->ij", body(x), body(x)).square().mean(),
        rows,
    ),
    "correlation": (
        "Mm",
        lambda x, n: (body(x).T @ body(x) / n - torch.eye(5)).square().mean(),
        rows,
    ),
    "hard examples": ("Topk", lambda x, n: errors(body(x)).topk(3).values.mean(), rows),
    "sorted": ("Sort", lambda x, n: errors(body(x)).sort()[0][:4].mean(), rows),
    "median": ("Median", lambda x, n: body(x).median(0)[0].square().mean(), rows),
    "k-th": ("Kthvalue", lambda x, n: body(x).kthvalue(2, 0)[0].square().mean(), rows),
    "worst": ("Max", lambda x, n: body(x).max(dim=0)[0].square().mean(), rows),
    "running sum": ("Cumsum", lambda x, n: body(x).cumsum(0).square().mean(), rows),
    "ranking": ("Logcumsumexp", lambda x, n: body(x)[:, 0].logcumsumexp(0).mean(), rows),
    "distances": (
        "EuclideanDist",
        lambda x, n: torch.cdist(body(x), body(x), compute_mode=MATRICES).mean(),
        rows,
    ),
    "triplets": ("Cdist", lambda x, n: torch.cdist(body(x), body(x), p=1).max(1)[0].mean(), rows),
    "pairs": (
        "Sub",
        lambda x, n: (body(x)[:, None] - body(x)[None]).square().sum(-1).exp().mean(),
        rows,
    ),
    "uniformity": ("Pdist", lambda x, n: torch.pdist(body(x)).mean(), rows),
    "over samples": ("LogSoftmax", lambda x, n: F.log_softmax(body(x), 0).mean(), rows),
    "spread": ("Std", lambda x, n: F.relu(1 - body(x).std(0)).mean(), rows),
    "norm of samples": (
        "LinalgVectorNorm",
        lambda x, n: F.normalize(body(x), dim=0).abs().mean(),
        rows,
    ),
    "mixed": ("Flip", lambda x, n: (body(x) + body(x).flip(0)).square().mean(), rows),
    "images": (
        "Mm",
        lambda x, n: (z := conv(x)).mm(z.t()).square().mean(),
        lambda: torch.randn(N, 6, 6),
    ),
    "sentences": (
        "Mm",
        lambda x, n: (z := encoder(words(x)).mean(1)).mm(z.t()).square().mean(),
        tokens,
    ),
}

ALONE: dict[str, tuple[Loss, Callable[[], Any]]] = {
    "classes": (lambda x, n: F.cross_entropy(body(x), labels[:n]), rows),
    "as many classes": (lambda x, n: F.cross_entropy(square(x), torch.arange(n)), rows),
    "over classes": (lambda x, n: square(x).softmax(1).topk(2, 1)[0].mean(), rows),
    "over features": (
        lambda x, n: (F.normalize(square(x), dim=1) + F.layer_norm(square(x), (N,))).abs().mean(),
        rows,
    ),
    "a mean of outputs": (
        lambda x, n: F.mse_loss(body(x), torch.ones(n, 5), reduction="none").mean(0).sum(),
        rows,
    ),
    "masked": (lambda x, n: errors(body(x))[labels > 1].mean(), rows),
    "weighted": (lambda x, n: (torch.rand(n) @ errors(body(x))) / n, rows),
    "a bank": (lambda x, n: F.cross_entropy(body(x) @ queries.T, torch.arange(n)), rows),
    "constants": (
        lambda x, n: (body(table) @ body(table).T).square().mean() + body(x).square().mean(),
        rows,
    ),
    "to constants": (lambda x, n: torch.cdist(body(x), body(table)).min(1)[0].mean(), rows),
    "weights": (
        lambda x, n: body(x).square().mean() + (square.weight @ square.weight.T).square().mean(),
        rows,
    ),
    "batch normalisation": (lambda x, n: conv(x).square().mean(), lambda: torch.randn(N, 6, 6)),
    "attention": (lambda x, n: attention(words(x)).square().mean(), tokens),
    "attention over as many": (
        lambda x, n: attention(words(x) + places(torch.arange(n))).mean(),
        lambda: tokens(N),
    ),
    "a transformer": (lambda x, n: encoder(words(x)).square().mean(), tokens),
    "of as many places": (
        lambda x, n: encoder(words(x) + places(torch.arange(n))).square().mean(),
        lambda: tokens(N),
    ),
    "places first": (lambda x, n: late(words(x.T)).square().mean(), tokens),
    "places first, as many": (lambda x, n: late(words(x.T)).square().mean(), lambda: tokens(N)),
    "places first, twice as many": (
        lambda x, n: late(words(x.T)).square().mean(),
        lambda: tokens(2 * N),
    ),
    "linear attention": (
        lambda x, n: torch.einsum("btd,bte->bde", words(x), words(x)).square().mean(),
        lambda: tokens(N),
    ),
    "rows of features": (
        lambda x, n: attention(body(x)).square().mean(),
        lambda: torch.randn(N, N, 6),
    ),
    "channels first": (
        lambda x, n: attention(body(x.transpose(0, 1)).transpose(0, 1)).mean(),
        lambda: torch.randn(N, 4, 6),
    ),
    "one after another": (
        lambda x, n: sum((z := body(r)).mm(z.t()).square().mean() for r in x) / n,
        lambda: torch.randn(N, N, 6),
    ),
    "step by step": (
        lambda x, n: recurrent(x[:, 1], recurrent(x[:, 0])).square().mean(),
        lambda: torch.randn(N, 2, 6),
    ),
    "over time": (
        lambda x, n: body(x).cumsum(1).softmax(1).sort(1)[0].square().mean(),
        lambda: torch.randn(N, 4, 6),
    ),
    "instance normalisation": (lambda x, n: F.instance_norm(words(x)).square().mean(), tokens),
    "computed again": (lambda x, n: checkpoint(body, x, use_reentrant=False).square().mean(), rows),
}


def told(loss: Loss, draw: Callable[[], Any]) -> list[str]:
    """What is told in three steps."""
    kinds: list[str] = []
    coupling = SampleComparison(kinds.append)
    for _ in range(3):
        coupling.fed(N)
        made = loss(draw(), N)
        coupling.sees([made], 0)
        made.backward()
    return kinds


@pytest.mark.parametrize("loss", COUPLED)
def test_a_loss_that_compares_samples_is_told_once(loss: str) -> None:
    kind, make, draw = COUPLED[loss]
    assert told(make, draw) == [kind]


@pytest.mark.parametrize("loss", ALONE)
def test_a_loss_of_samples_by_themselves_is_not_told(loss: str) -> None:
    assert told(*ALONE[loss]) == []


def test_a_step_with_batches_of_several_sizes_is_not_judged() -> None:
    kinds: list[str] = []
    coupling = SampleComparison(kinds.append)
    for _ in range(3):
        coupling.fed(N)
        coupling.fed(N // 2)
        coupling.sees([errors(body(rows())).topk(3).values.mean()], 0)
    assert kinds == []


SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 3)), batch_size=8, shuffle=True)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
for epoch in hg.epochs(1):
    for (x,) in loader:
        errors = model(x).square().mean(1)
        loss = (errors.topk(2).values if sys.argv[1] == "hard" else errors).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
"""


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("hard", "allreduce"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (("all", "allreduce"), ("hard", "ps"))
        ),
    ],
)
def test_one_of_all_workers_warns(kind: str, strategy: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    plan = Plan(strategy=strategy, workers=2, servers=int(strategy == "ps"), batch_per_worker=None)
    with Gang(tmp_path, plan, [sys.executable, str(script), kind]) as gang:
        gang.start()
        gang.finish()
        notes = [note for worker in range(2) for note in gang.of(f"worker-{worker}", "note")]
    warnings = [note["text"] for note in notes if note.get("warns")]
    assert [("by Topk" in text, "2 workers" in text) for text in warnings] == [(True, True)] * (
        kind == "hard"
    )
