"""Jobs of several workers are verified without being asked, and the verdict is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.hub.user import User, speed, user

from headgate.hub.parts import verifying
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.verification import store
from headgate.verification.verdict import FirstDifference, Sameness, Verification, Why

__all__ = ["speed", "user"]

SCRIPT = """
import sys, time, torch
import headgate.torch as hg
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
for epoch in hg.epochs(200):
    for features, classes in loader:
        time.sleep(0.2)
        scores = model(features)
        scores = scores / scores.std(0).detach()  # of a worker's own part
        loss = torch.nn.functional.cross_entropy(scores, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
"""
ALLREDUCE = Plan(strategy="allreduce", workers=2, batch_per_worker=None)


def test_a_verdict_is_kept_as_it_was(tmp_path: Path) -> None:
    job = Job(name="a", script="train.py", workdir=str(tmp_path))
    difference = FirstDifference(3, 1, "gradient", ("head.weight",), 0.44)
    found = Verification(
        Sameness.DIFFERS, 2, steps=6, cause=Why.LOSS, difference=difference, detail=("a",)
    )
    store.save(tmp_path / "verified", "key", found)
    assert store.load(tmp_path / "verified", "key", job) == found
    (tmp_path / "verified" / "key.json").write_text("{")
    assert store.load(tmp_path / "verified", "key", job) is None


def test_a_verdict_holds_for_its_strategy_whatever_the_workers_are() -> None:
    job = Job(name="a", script="train.py")
    four = Plan(strategy="allreduce", workers=4, batch_per_worker=None)
    servers = Plan(strategy="ps", workers=2, servers=1, batch_per_worker=None)
    assert store.key(job, "profile", ALLREDUCE, None) == store.key(job, "profile", four, None)
    assert store.key(job, "profile", ALLREDUCE, None) != store.key(job, "profile", servers, None)
    assert store.key(job, "profile", ALLREDUCE, None) != store.key(job, "other", ALLREDUCE, None)


def test_what_is_not_verified_yet_is_said_before_it_starts(user: User) -> None:
    user.write("train.py", SCRIPT)
    user.variables.pop("HEADGATE_VERIFY")
    words = ("run", "train.py", "--strategy", "allreduce", "--workers", "2", "--dry-run")
    assert "train: not verified" in user.types(*words).stdout
    assert "train: not verified" not in user.types(*words, "--verify", "off").stdout
    assert user.json(*words)[0]["verified"]["cause"] == "not-yet"
    servers = ("run", "train.py", "--strategy", "ps", "--async", *words[4:])
    assert user.json(*servers)[0]["verified"]["cause"] == "asynchronous"
    user.write("plain.py", "print('step 1 loss 0.5')")
    assert "not verified" not in user.types("run", "plain.py", *words[2:]).stdout


@pytest.mark.long  # it is tried from the 20th second on
def test_a_strict_job_that_differs_is_stopped_and_the_verdict_is_known_the_next_time(
    user: User,
) -> None:
    assert verifying.LATER_SECONDS < 60.0
    user.write("train.py", SCRIPT)
    words = ("run", "train.py", "--strategy", "allreduce", "--workers", "2", "--verify", "strict")
    user.variables.pop("HEADGATE_VERIFY")
    user.starts(*words).communicate(timeout=600)
    [job] = user.json("status")["jobs"]
    assert job["state"] == "stopped"
    assert "verify: strict" in job["reason"]
    assert (job["verified"]["answer"], job["verified"]["cause"]) == ("differs", "loss")
    [kept] = (user.home / "verified").glob("*.json")
    assert json.loads(kept.read_text())["answer"] == "differs"
    assert "train: differs with 2 workers by" in user.types(*words, "--dry-run").stdout
