"""What trains and was given neither to `prepare` nor to `keep` is told of at its first step."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.torch.test_together import gang, plan, usual

BODY = """
model, loader = network(), DataLoader(data(), batch_size=8)
other = network()
kind = sys.argv[1]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
if kind == "a warm-up":
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [
        torch.optim.lr_scheduler.LinearLR(optimizer),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
    ], [2])
if kind == "an optimizer":
    model, _, loader = hg.prepare(model, None, loader)
elif kind in ("a scheduler", "a kept scheduler"):
    model, optimizer, loader = hg.prepare(model, optimizer, loader)
else:
    model, optimizer, loader = hg.prepare(model, optimizer, loader, scheduler=scheduler)
if kind == "a kept scheduler":
    hg.keep(schedule=scheduler)
second = torch.optim.Adam(other.parameters())
attack = torch.zeros(8, 8, requires_grad=True)
attacks = torch.optim.SGD([attack], lr=0.1)
for epoch in hg.epochs(2):
    for features, labels in loader:
        out = model(features + attack)
        if kind == "another module":
            out = out + other(features)
        loss = nn.functional.cross_entropy(out, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        attacks.step()
        second.step()
        hg.report(loss=loss)
    scheduler.step()
"""
TOLD = {
    "an optimizer": [
        "the optimizer SGD trains a prepared model and was not given to prepare",
        "scheduler StepLR was not",
    ],
    "a scheduler": ["the learning-rate scheduler StepLR was not given to prepare"],
    "another module": ["the optimizer Adam trains 4 parameters that no prepared model has"],
    "a kept scheduler": [],
    "a warm-up": [],
    "all": [],
}


@pytest.mark.parametrize(
    "kind",
    [
        "an optimizer",
        "a kept scheduler",
        *(pytest.param(k, marks=pytest.mark.long) for k in list(TOLD)[1:] if "kept" not in k),
    ],
)
def test_what_trains_and_is_in_no_checkpoint_is_told_of_once(
    kind: str, start: Callable[..., Any]
) -> None:
    script = start(BODY, kind)
    script.finish()
    notes = [message["text"] for message in script.listener.of("note")]
    warned = [
        note
        for note in notes
        if "was not given to prepare" in note or "no prepared model has" in note
    ]
    assert len(warned) == len(TOLD[kind])
    assert all(any(words in note for note in warned) for words in TOLD[kind])


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("ps", marks=pytest.mark.long)])
def test_workers_do_not_train_a_module_each_by_itself(strategy: str, tmp_path: Path) -> None:
    body = """
        other = nn.Linear(4, 1)
        others = torch.optim.SGD(other.parameters(), lr=0.1)
    """
    training = usual(
        before=(
            "others.zero_grad(); nn.functional.mse_loss(other(features), "
            "targets).backward(); others.step()"
        )
    )
    with gang(tmp_path, textwrap.dedent(body) + training, plan(strategy)) as running:
        assert running.left("worker-0") == 1
        error = running.output("worker-0").strip().splitlines()[-1]
    assert "the optimizer SGD steps a parameter of shape (1, 4) that no prepared model had" in error
