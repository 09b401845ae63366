"""What a script keeps in several workers: what is each one's own is each one's again after a
resume.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.gang import Gang

from headgate.model.plans import Plan

SCRIPT = """
import os, sys, time, torch
from torch import nn
import headgate.torch as hg

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(2)

class Carried:
    def __init__(self):
        self.state = None
    def state_dict(self):
        return {} if self.state is None else {"state": self.state}
    def load_state_dict(self, saved):
        self.state = saved.get("state")

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.GRUCell(3, 5), nn.Linear(5, 1)
    def forward(self, features, state):
        state = self.inner(features, state)
        return self.out(state), state

class Scale:
    def __init__(self):
        self.value, self.count = torch.zeros(2), 0
    def state_dict(self):
        return {"value": self.value.clone(), "count": self.count}
    def load_state_dict(self, saved):
        self.value, self.count = saved["value"].clone(), saved["count"]

segments = [(torch.randn(6, 3), torch.randn(6, 1)) for _ in range(10)]
model = Cell()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
average = torch.optim.swa_utils.AveragedModel(model)
model, optimizer, loader = hg.prepare(model, optimizer, segments)
carried, scale = Carried(), Scale()
{keep}
stop_at = int(os.environ.get("STOP_AT", "-1"))
number = 0
for epoch in hg.epochs(3):
    for features, targets in loader:
        found, state = model(features, carried.state)
        carried.state = state.detach()
        scale.value += features.mean(0)[:2]
        scale.count += 1
        loss = nn.functional.mse_loss(found, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        hg.report(loss=loss)
        number += 1
        if number == stop_at:
            hg._door.session._channel.send({"type": "waiting"})
            while not hg._door.session._channel.pending:
                time.sleep(0.001)
if "OUT" in os.environ:
    torch.save({"model": model.state_dict(), "carried": carried.state, "scale": scale.state_dict(),
                "average": average.state_dict()}, f"{os.environ['OUT']}-{hg.rank()}.pt")
"""
OWN = (
    'hg.keep(carried=carried, across="worker"); hg.keep(average=average); '
    'hg.keep(scale=scale, across="mean")'
)


class Attempts:
    """Attempts of a script in two workers, or in one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def run(
        self, keep: str, strategy: Any = "allreduce", workers: int = 2, **variables: str
    ) -> Gang:
        """Start it; where it stops it is told to, and has ended well when this returns."""
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        script = folder / "script.py"
        script.write_text(textwrap.dedent(SCRIPT).replace("{keep}", keep))
        plan = Plan(
            strategy=strategy, workers=workers, servers=int(strategy == "ps"), batch_per_worker=None
        )
        environment = {"OUT": str(folder / "out"), **variables}
        with Gang(folder, plan, [sys.executable, str(script)], environment) as gang:
            gang.start()
            if "STOP_AT" in variables:
                for worker in range(workers):
                    gang.wait_for(f"worker-{worker}", "waiting")
                for worker in range(workers):
                    gang.send(f"worker-{worker}", {"type": "stop"})
            gang.finish()
        return gang

    def results(self, workers: int = 2) -> list[dict[str, Any]]:
        folder = self.folder / str(self.count)
        return [
            torch.load(folder / f"out-{worker}.pt", weights_only=True) for worker in range(workers)
        ]


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def saved(gang: Gang) -> dict[str, Any]:
    return gang.of("worker-0", "checkpoint")[-1]


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("ps", marks=pytest.mark.long)])
def test_each_worker_goes_on_from_its_own_state(strategy: str, attempts: Attempts) -> None:
    attempts.run(OWN, strategy)
    whole = attempts.results()
    assert not torch.equal(whole[0]["carried"], whole[1]["carried"])
    first = attempts.run(OWN, strategy, STOP_AT="14")
    contents = torch.load(saved(first)["path"], weights_only=True)
    assert set(contents["own"]) == {"carried"}
    assert saved(first)["own_states"] is True
    attempts.run(OWN, strategy, HEADGATE_RESUME=saved(first)["path"])
    for mine, then in zip(attempts.results(), whole):
        assert torch.allclose(mine["carried"], then["carried"], rtol=0, atol=1e-12)
        for part in ("model", "average"):
            assert all(
                torch.allclose(mine[part][n], v, rtol=0, atol=1e-12) for n, v in then[part].items()
            )
    means = [result["scale"]["value"] for result in attempts.results()]
    both = sum(result["scale"]["value"] for result in whole) / 2
    assert torch.allclose(sum(means) / 2, both)  # what the first half came to was shared out evenly


@pytest.mark.long  # what each has goes on in a shorter one
def test_what_differs_without_a_word_is_told_and_kept_for_each(attempts: Attempts) -> None:
    keep = "hg.keep(carried=carried, average=average)"
    attempts.run(keep)
    whole = attempts.results()
    first = attempts.run(keep, STOP_AT="14")
    notes = [note["text"] for note in first.of("worker-0", "note")]
    assert [note for note in notes if "carried differs between the workers (state)" in note]
    assert not [note for note in notes if "average differs" in note]
    attempts.run(keep, HEADGATE_RESUME=saved(first)["path"])
    assert all(
        torch.allclose(a["carried"], b["carried"]) for a, b in zip(attempts.results(), whole)
    )
    with pytest.raises(
        AssertionError, match=r"(?s)each worker's own.*that of 2 workers.*found 1.*--workers 2"
    ):
        attempts.run(keep, workers=1, HEADGATE_RESUME=saved(first)["path"])


@pytest.mark.long
def test_what_is_said_to_be_equal_is_checked(attempts: Attempts) -> None:
    keep = 'hg.keep(carried=carried, average=average, across="equal")'
    first = attempts.run(keep, STOP_AT="14")
    notes = [note["text"] for note in first.of("worker-0", "note")]
    assert [
        note
        for note in notes
        if "carried differs" in note and "though keep(across='equal')" in note
    ]
    assert torch.load(saved(first)["path"], weights_only=True)["own"] == {}
    attempts.run(keep, HEADGATE_RESUME=saved(first)["path"])


def test_the_state_of_one_worker_is_no_state_of_two(attempts: Attempts) -> None:
    first = attempts.run(OWN, workers=1, STOP_AT="14")
    with pytest.raises(AssertionError, match=r"(?s)that of 1 workers.*found 2"):
        attempts.run(OWN, workers=2, HEADGATE_RESUME=saved(first)["path"])
