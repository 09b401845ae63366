"""A worker joins a script whose loader cannot say where it is, or that does not count its
epochs.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.gang import Gang

from headgate.model.plans import Plan

SCRIPT = """
import os, sys
from pathlib import Path

import torch
from torch import nn

import headgate.torch as hg
from headgate.testing import wait

torch.set_num_threads(1)
torch.manual_seed(1)


class Own:
    def __len__(self):
        return 10

    def __iter__(self):
        for step in range(10):
            if step == 5:
                wait.until((Path(sys.argv[1]) / "asked").exists, 100)
            yield torch.ones(4, 2), torch.ones(4, 1)


model = nn.Linear(2, 1)
model, optimizer, loader = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), Own())
for _ in hg.epochs(3) if os.environ["COUNTS"] else range(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        hg.report(loss=loss)
"""


@contextmanager
def joined(folder: Path, counts: str, joiners: int = 1) -> Iterator[Gang]:
    """A job of one worker, in the middle of whose epoch others join."""
    script = folder / "own.py"
    script.write_text(textwrap.dedent(SCRIPT))
    plan = Plan(strategy="ps", workers=1, servers=1, batch_per_worker=None)
    with Gang(folder, plan, [sys.executable, str(script), str(folder)], {"COUNTS": counts}) as gang:
        gang.start()
        gang.wait_for("worker-0", "progress")
        for name in [f"worker-{1 + i}" for i in range(joiners)]:
            gang.start(name, joins=True)
            gang.wait_for(name, "joining")
        (folder / "asked").touch()
        yield gang


@pytest.mark.long
def test_between_two_epochs_where_there_is_no_way_to_in_the_middle_of_one(tmp_path: Path) -> None:
    with joined(tmp_path, "yes") as gang:
        gang.finish()
        [saved] = [each for each in gang.of("worker-0", "checkpoint") if each["why"] == "join"]
        assert (saved["epoch"], saved["position"]) == (1, 0)
        assert (
            gang.of("worker-1", "progress")[-1]["step"]
            == gang.of("worker-0", "progress")[-1]["step"]
        )


@pytest.mark.long
def test_two_at_once(tmp_path: Path) -> None:
    with joined(tmp_path, "yes", joiners=2) as gang:
        gang.finish()
        steps = {gang.of(f"worker-{i}", "progress")[-1]["step"] for i in range(3)}
        assert len(steps) == 1


@pytest.mark.long
def test_not_at_all_where_epochs_are_not_counted_which_holds_nobody_up(tmp_path: Path) -> None:
    with joined(tmp_path, "") as gang:
        [failed] = gang.wait_for("worker-0", "checkpoint_failed")
        assert "does not use headgate.torch.epochs" in failed["error"]
        assert gang.left("worker-0") == 0
