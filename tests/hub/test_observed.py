"""Plain PyTorch scripts under a hub: steps and spans from within, losses from what they print."""

from __future__ import annotations

import json

import pytest
from tests.hub.user import User

from headgate.hub.state.task import SILENT_SECONDS, ObservedTask
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress
from headgate.recorded.reader import RunReader

TASK = TaskId("r/j/worker-0")
SCRIPT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.randn(4), torch.randn(1)

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for features, targets in DataLoader(Slow(), batch_size=8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()
    print(f"epoch {epoch + 1}/3 loss {1 / (epoch + 1)}", flush=True)
"""


def test_a_plain_script_has_exact_steps_and_spans(user: User) -> None:
    user.write("train.py", SCRIPT)
    user.types("run", "train.py")
    job = user.jobs()["train"]
    assert (job["step"], job["epoch"], job["loss"]) == (36, 3, pytest.approx(1 / 3))
    [store] = user.home.glob("runs/*/run.sqlite")
    with RunReader(store) as reader:
        spans = list(reader.rows("spans"))
    seconds = dict.fromkeys(("input", "forward", "backward", "optimizer", "other"), 0.0)
    for span in spans:
        seconds[span["name"]] += span["seconds"]
    assert seconds["input"] > 0.5 * sum(seconds.values())
    assert {span["workers"] for span in spans if span["name"] == "input"} == {0}


def test_a_script_whose_framework_tells_no_step_is_told_of(user: User) -> None:
    lines = ("import torch", "weight = torch.ones(1)", "for epoch in (1, 2):", "    weight -= 0.1")
    user.write(
        "train.py", "\n".join([*lines, "    print(f'epoch {epoch}/2 loss {weight.item()}')"])
    )
    user.types("run", "train.py")
    [store] = user.home.glob("runs/*/run.sqlite")
    with RunReader(store) as reader:
        notes = [json.loads(row["why"]) for row in reader.rows("events", "kind = 'note'")]
    assert {"kind": "steps-unseen", "facts": {"frameworks": ["torch"]}} in notes


def test_a_plain_script_is_not_observed_if_its_user_says_so(user: User) -> None:
    user.write("train.py", SCRIPT)
    user.types("run", "--no-observe", "train.py")
    job = user.jobs()["train"]
    assert (job["step"], job["epoch"]) == (None, 3)


def test_a_printed_loss_has_the_step_that_was_counted() -> None:
    observed = ObservedTask()
    observed.counted(Progress(TASK, step=50, samples=400, loss=2.0), 0.0)
    printed = observed.printed(Progress(TASK, step=100, steps=1000, loss=1.0))
    assert (printed.step, printed.steps, printed.samples, printed.loss) == (50, 500, 400, 1.0)


def test_losses_of_backward_passes_count_only_if_none_is_printed() -> None:
    silent, prints = ObservedTask(), ObservedTask()
    report = Progress(TASK, step=1, loss=2.0)
    assert silent.counted(report, 0.0).loss is None
    assert silent.counted(report, SILENT_SECONDS).loss == 2.0
    prints.counted(report, 0.0)
    prints.printed(Progress(TASK, step=None, loss=1.0))
    assert prints.counted(report, SILENT_SECONDS).loss is None


def test_a_report_from_before_the_first_step_stays_as_it_is() -> None:
    printed = Progress(TASK, step=3, steps=9, loss=1.0)
    assert ObservedTask().printed(printed) == printed
