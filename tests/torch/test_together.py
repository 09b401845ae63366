"""Scripts whose workers decide by their own numbers: told what differs and where, and none is
called done; and the calls by which all decide alike.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.harness.gang import Gang

from headgate.model.plans import Plan

SCRIPT = """
import math, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

torch.set_num_threads(1)
index = int(os.environ.get("HEADGATE_TASK", "worker-0").rpartition("-")[2])
torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
loader = DataLoader(data, batch_size=8, shuffle=True)
held_out = DataLoader(data, batch_size=16)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)

def step(features, targets):
    loss = nn.functional.mse_loss(model(features), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hg.report(loss=loss)
    return loss.item()

{body}
print("weights", *(p.sum().item() for p in model.parameters()), flush=True)
print("rate", optimizer.param_groups[0]["lr"], flush=True)
"""
USUAL = """
model, optimizer, loader = hg.prepare(model, optimizer, loader)
for epoch in hg.epochs(4):
    total = 0.0
    for batch, (features, targets) in enumerate(loader):
        {before}
        total += step(features, targets)
        {after}
    {between}
{end}
"""


def usual(before: str = "", after: str = "", between: str = "", end: str = "") -> str:
    body = textwrap.dedent(USUAL)
    for name, code, indent in (
        ("before", before, 8),
        ("after", after, 8),
        ("between", between, 4),
        ("end", end, 0),
    ):
        code = textwrap.indent(textwrap.dedent(code).strip("\n") or "pass", " " * indent)
        body = body.replace(" " * indent + f"{{{name}}}", code)
    return body


@contextmanager
def gang(folder: Path, body: str, plan: Plan) -> Iterator[Gang]:
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("{body}", textwrap.dedent(body)))
    with Gang(folder, plan, [sys.executable, str(script)]) as running:
        running.start()
        yield running


def plan(strategy: Any, workers: int = 2, **more: Any) -> Plan:
    return Plan(
        strategy=strategy,
        workers=workers,
        servers=int(strategy == "ps"),
        batch_per_worker=None,
        **more,
    )


def each(cases: Iterable[str], short: Collection[str]) -> pytest.MarkDecorator:
    """Every case under both strategies; those in `short` under one of them in every run of the
    tests.
    """
    pairs = [
        pytest.param(
            case,
            strategy,
            marks=() if case in short and number % 2 == place % 2 else pytest.mark.long,
        )
        for number, case in enumerate(sorted(cases, key=lambda case: case not in short))
        for place, strategy in enumerate(("allreduce", "ps"))
    ]
    return pytest.mark.parametrize(("case", "strategy"), pairs)


DIFFERENT = {
    "the rate set by hand": (
        usual(
            after=(
                "for group in optimizer.param_groups: group['lr'] = 0.1 / (1 + total * (index + 1))"
            )
        ),
        ["lr is", "in worker-0", "in worker-1", "epoch 0, batch 2"],
    ),
    "the rate set by hand before a step": (
        usual(
            before=(
                "if epoch == 1 and batch == 2: optimizer.param_groups[0]['lr'] = 0.05 * (1 + index)"
            )
        ),
        ["lr is 0.05 in worker-0, 0.1 in worker-1", "epoch 1, batch 3"],
    ),
    "the rate set by hand for one step": (
        usual(
            before=(
                "if epoch == 1 and batch == 2: optimizer.param_groups[0]['lr'] = 0.05 * (1 + index)"
            ),
            after="optimizer.param_groups[0]['lr'] = 0.1",
        ),
        ["lr is 0.05 in worker-0, 0.1 in worker-1", "epoch 1, batch 3"],
    ),
    "a scheduler stepped on each one's own loss": (
        usual(between="scheduler.step(total * (1 - 0.6 * index) ** epoch)"),
        ["lr is", "epoch 2, batch 1"],
    ),
    "the momentum": (
        usual(between="if index and epoch == 1: optimizer.param_groups[0]['momentum'] = 0.9"),
        ["momentum is 0.5 in worker-0, 0.9 in worker-1", "epoch 2, batch 1"],
    ),
    "batches left out": (
        usual(before="if index and epoch == 1 and batch == 3: continue"),
        [
            "worker-0 at epoch 1, batch 3, after step 9",
            "worker-1 at epoch 1, batch 4, after step 9",
        ],
    ),
    "an epoch that one leaves": (
        usual(after="if index and epoch == 1 and batch == 3: break"),
        [
            "worker-0 at epoch 1, batch 4, after step 10",
            "worker-1 at epoch 2, batch 0, after step 10",
        ],
    ),
    "accumulation": (
        """
        model, optimizer, loader = hg.prepare(model, optimizer, loader)
        for epoch in hg.epochs(2):
            for batch, (features, targets) in enumerate(loader):
                nn.functional.mse_loss(model(features), targets).backward()
                if (batch + 1) % (2 + index) == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
        [
            "worker-0 at epoch 0, batch 2, after step 1",
            "worker-1 at epoch 0, batch 2, after step 0",
        ],
    ),
    "a step that one does not take": (
        """
        model, optimizer, loader = hg.prepare(model, optimizer, loader)
        for epoch in hg.epochs(2):
            for batch, (features, targets) in enumerate(loader):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(features), targets)
                loss.backward()
                if index and epoch == 1 and batch == 1:
                    continue
                optimizer.step()
        """,
        [
            "worker-0 at epoch 1, batch 2, after step 8",
            "worker-1 at epoch 1, batch 2, after step 7",
        ],
    ),
    "stopping early": (
        usual(between="if index and epoch == 1: break"),
        ["worker-1 is at its end, after step 12", "epoch 2, after step 12"],
    ),
    "leaving by exit": (
        usual(after="if index and epoch == 1 and batch == 3: sys.exit()"),
        ["worker-1 is at its end", "after step 10"],
    ),
    "leaving at once": (
        usual(after="if index and epoch == 1 and batch == 3: os._exit(0)"),
        ["worker-1 is at its end", "after step 10"],
    ),
    "fewer epochs, and much to do after them": (
        """
        model, optimizer, loader = hg.prepare(model, optimizer, loader)
        for epoch in hg.epochs(4 - 2 * index):
            for features, targets in loader:
                step(features, targets)
        while index:
            time.sleep(0.1)
        """,
        ["worker-1 is past its loop over epochs, after step 12", "after step 12"],
    ),
    "asking alone": (
        usual(between="if hg.rank() == 0 and epoch == 1: hg.mean(total)"),
        ["worker-0 is in hg.mean()", "epoch 1, after step 12", "epoch 2, after step 12"],
    ),
    "asking for other things": (
        usual(between="hg.mean(total) if index else hg.agree(False)"),
        ["in hg.mean()", "in hg.agree()"],
    ),
    "an error that the script swallows": (
        """
        model, optimizer, loader = hg.prepare(model, optimizer, loader)
        for epoch in hg.epochs(2):
            for features, targets in loader:
                try:
                    step(features, targets)
                    optimizer.param_groups[0]["lr"] = 0.1 * (1 + index)
                except Exception as error:
                    print("went on after", error)
                    sys.exit()
        """,
        ["lr is 0.1 in worker-0, 0.2 in worker-1"],
    ),
}


SHORT = {
    "a scheduler stepped on each one's own loss",
    "batches left out",
    "stopping early",
    "fewer epochs, and much to do after them",
    "asking alone",
    "an error that the script swallows",
}


@each(DIFFERENT, SHORT)
def test_workers_that_decide_by_their_own_numbers_are_told_what_differs_and_where(
    case: str, strategy: str, tmp_path: Path
) -> None:
    body, words = DIFFERENT[case]
    with gang(tmp_path, body, plan(strategy)) as running:
        running.wait_for("worker-0", "hello")
        who = "worker-1" if "asking alone" in case else "worker-0"
        assert running.left(who) == 1, running.output(who)
        error = running.output(who).strip().splitlines()[-1]
    for word in words:
        assert word in error
    assert "hg.mean(value)" in error
    assert len(error) < 400  # what a reason quotes


ALIKE = {
    "a scheduler given to prepare": """
        model, optimizer, loader = hg.prepare(model, optimizer, loader, scheduler=scheduler)
        for epoch in hg.epochs(4):
            total = sum(step(*batch) for batch in loader)
            scheduler.step(total * (1 - 0.6 * index) ** epoch)
        print("saved", sorted(scheduler.state_dict()))
    """,
    "a mean and a decision": usual(
        before="if hg.agree(index == 1 and epoch == 1 and batch == 2): continue",
        between="""
            mean = hg.mean(torch.tensor(total, requires_grad=True))
            assert isinstance(mean, torch.Tensor) and mean.shape == ()
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + mean.item())
            if hg.agree(epoch == 2 and index == 0):
                break
        """,
    ),
    "one worker evaluates and writes": usual(
        between="""
            if hg.is_main():
                model.eval()
                with torch.no_grad():
                    losses = [nn.functional.mse_loss(model(x), y).item() for x, y in held_out]
                    print("loss", sum(losses))
                model.train()
        """,
        end="if hg.is_main(): time.sleep(3)",
    ),
    "all evaluate": usual(
        between="""
            model.eval()
            with torch.no_grad():
                found = [hg.mean(nn.functional.mse_loss(model(x), y).item()) for x, y in held_out]
            model.train()
        """,
    ),
    "numbers that are none": usual(
        between="""
            assert math.isnan(hg.mean(float("nan") if index else 1.0))
            assert hg.mean(float("inf")) == math.inf
            assert hg.mean(index) == 0.5
            assert hg.agree(hg.rank() == 1) is True
        """,
    ),
}


@each(
    ALIKE,
    {"a scheduler given to prepare", "a mean and a decision", "one worker evaluates and writes"},
)
def test_workers_that_decide_together_come_to_the_same(
    case: str, strategy: str, tmp_path: Path
) -> None:
    with gang(tmp_path, ALIKE[case], plan(strategy)) as running:
        running.finish()
        outputs = [running.output(f"worker-{number}") for number in (0, 1)]
    ends = [
        [line for line in output.splitlines() if line.startswith(("weights", "rate"))]
        for output in outputs
    ]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 2


def test_a_file_that_each_worker_saves_is_told_by_each(tmp_path: Path) -> None:
    """By PyTorch, which opens it itself, and before the first call of Headgate; the hub compares
    what it is told.
    """
    body = usual(
        between="torch.save(model.state_dict(), 'best.pt')",
        end="if hg.is_main(): torch.save({}, 'last.pt')",
    )
    with gang(
        tmp_path, "open('train.log', 'a').close()\n" + textwrap.dedent(body), plan("allreduce")
    ) as running:
        running.finish()
        messages = [running.of(f"worker-{number}", "writes") for number in (0, 1)]
    names = [[Path(message["path"]).name for message in worker] for worker in messages]
    assert names == [["train.log", "best.pt", "last.pt"], ["train.log", "best.pt"]]
    assert messages[0][1] == messages[1][1]
