"""Buffers that a model changes while it computes: compared between workers, or combined where the
script says how.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.torch.test_together import gang, plan, usual

NORMALISER = """
class Normaliser(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("wide", torch.zeros(1), persistent=False)

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.wide = torch.zeros(len(x) + index)
            if {own}:
                self.mean.lerp_(x.mean(0).detach(), 0.5)
                self.seen += len(x)
        return x - self.mean

model = nn.Sequential(Normaliser(), model)
{keep}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
SHOWN = "print('buffers', model[0].mean.tolist(), int(model[0].seen), int(model[0].steps))"


UNTRAINED = """
class Book(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x):
        self.mean.data = 0.5 * self.mean.data + 0.5 * x.mean(0).detach()
        return x - self.mean

model = nn.Sequential(Book(), model)
{keep}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def body(own: str, keep: str = "") -> str:
    return NORMALISER.format(own=own, keep=keep) + usual(end=SHOWN)


@pytest.mark.parametrize(
    ("script", "strategy"),
    [
        pytest.param(body("True"), "allreduce", marks=pytest.mark.long),
        pytest.param(body("True"), "ps", marks=pytest.mark.long),
        pytest.param(UNTRAINED.format(keep="") + usual(), "allreduce"),
    ],
    ids=["buffers", "buffers beside servers", "parameters that are not trained"],
)
def test_buffers_that_workers_change_by_their_own_samples_are_named(
    script: str, strategy: Any, tmp_path: Path
) -> None:
    with gang(tmp_path, script, plan(strategy)) as running:
        assert running.left("worker-0") == 1
        error = running.output("worker-0").strip().splitlines()[-1]
    assert "buffers are not the same any more: 0.mean. The model changes them" in error
    assert "epoch 0, batch 0" in error
    assert "hg.keep(module, across='mean')" in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "strategy"),
    [("'mean'", "allreduce"), pytest.param("'sum'", "ps", marks=pytest.mark.long)],
)
def test_buffers_are_combined_where_the_script_says_how(
    keep: str, strategy: Any, tmp_path: Path
) -> None:
    with gang(
        tmp_path, body("True", f"hg.keep(model[0], across={keep})"), plan(strategy)
    ) as running:
        running.finish()
        shown = {
            line
            for n in range(2)
            for line in running.output(f"worker-{n}").splitlines()
            if "buffers" in line
        }
    assert len(shown) == 1
    seen, steps = shown.pop().split()[-2:]
    assert (seen, steps) == (("96", "24") if keep == "'mean'" else ("192", "48"))


@pytest.mark.long
def test_parameters_that_are_not_trained_are_combined_as_buffers_are(tmp_path: Path) -> None:
    keep = UNTRAINED.format(keep="hg.keep(model[0], across='mean')")
    with gang(
        tmp_path, keep + usual(end="print('mean', model[0].mean.tolist())"), plan("allreduce")
    ) as running:
        running.finish()
        shown = {
            line
            for n in range(2)
            for line in running.output(f"worker-{n}").splitlines()
            if "mean" in line
        }
    assert len(shown) == 1


@pytest.mark.long
def test_buffers_that_are_the_same_in_all_workers_or_are_made_anew_are_no_fault(
    tmp_path: Path,
) -> None:
    with gang(tmp_path, body("False"), plan("allreduce")) as running:
        running.finish()
