"""On the nodes of a lab, Headgate gives a job several workers once its script is verified to train
the same by them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

import pytest
from tests.hub.user import User, speed, user
from tests.planning.jobs import profile

from headgate.model.jobs import Job
from headgate.profiling import store as profiles
from headgate.recorded.reader import RunReader
from headgate.sampling import machine
from headgate.testing import wait
from headgate.verification import store

__all__ = ["speed", "user"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("tc") is None,
        reason="a lab needs root, and the programs ip and tc",
    ),
]

LAB = "lab: true\nname: verified\noversubscribe: true\nnodes:\n" + "".join(
    f"  - {{name: {name}, cores: 1, memory: 1GiB, nic: 1Gbit}}\n" for name in "ab"
)
SCRIPT = """
import os, time, torch
import headgate.torch as hg
from part import scaled
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
for epoch in hg.epochs(10_000_000):
    for features, classes in loader:
        time.sleep(0.1)
        loss = torch.nn.functional.cross_entropy(scaled(model(features)), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
    if os.path.exists("go"):
        break
"""
RIGHT = "def scaled(scores):\n    return scores\n"
WRONG = (
    "def scaled(scores):\n    return scores / scores.std(0).detach()  # of a worker's own part\n"
)
NODE = "node.json"
RUN = ("run", "train.py", "--cluster", "verified")


class LabUser:
    """Somebody with a lab, a script, and its profile, by which several workers are best."""

    def __init__(self, user: User) -> None:
        self.user = user
        user.variables.pop("HEADGATE_VERIFY")
        user.variables.pop("HEADGATE_REPORT")
        user.write("train.py", SCRIPT)
        user.write("part.py", RIGHT)
        user.write("lab.yaml", LAB)
        user.types("lab", "up", "lab.yaml")
        script = str(user.folder / "train.py")
        key = profiles.key(
            Job(name="train", script=script, workdir=str(user.folder)),
            machine.detect(user.home / NODE),
        )
        heavy = profile(dense_bytes=100_000, memory_peak_bytes=64 << 20, batch=64)
        profiles.save(user.home / "profiles", key, heavy)

    def sees_event(self, run: str, kind: str, seconds: float = 60.0) -> str:
        """The first event of a kind, once it is there."""

        def look() -> str | None:
            with RunReader(self.user.home / "runs" / run / "run.sqlite") as reader:
                return next(
                    (row["text"] for row in reader.rows("events", "kind = ?", [kind])), None
                )

        return wait.until(look, seconds, f"run {run} tells a {kind}") or ""


@pytest.fixture
def lab(user: User) -> Iterator[LabUser]:
    yield LabUser(user)
    user.types("lab", "down", "verified")


def test_a_script_is_tried_beside_its_job_which_then_gets_several_workers(lab: LabUser) -> None:
    user = lab.user
    run = user.detaches(*RUN[1:])
    why = lab.sees_event(run, "plan")
    assert why.startswith("single, 1 worker on a, until it is verified that several train the same")
    user.sees_job("train", lambda job: bool(job["verified"]), run)
    wait.until(
        lambda: list((user.home / store.FOLDER).glob("*.json")), 600, what="the trial has ended"
    )
    verified = user.jobs(run)["train"]["verified"]
    assert verified["answer"] == "same", verified
    assert set(verified["sources"]) == {"0/train.py", "0/part.py"}
    assert "train: the same with 2 workers to " in user.types("status", run).stdout
    user.touch("go")
    user.sees_state("train", "done", run=run)
    (user.folder / "go").unlink()

    run = user.detaches(*RUN[1:])  # the verdict is known
    assert lab.sees_event(run, "plan").startswith("allreduce, 2 workers on a, b: ")
    user.touch("go")
    user.sees_state("train", "done", run=run)
    assert user.jobs(run)["train"]["verified"]["answer"] == "same"
    report = user.home / "runs" / run / "report.html"
    wait.until(report.exists, 60, what="the report is written")
    assert "the same with 2 workers to " in report.read_text()
    assert len(list((user.home / "runs").iterdir())) == 2  # those of trials are gone
    assert not list((user.home / "verifying").iterdir())


def test_one_that_differs_keeps_one_worker(lab: LabUser) -> None:
    user = lab.user
    user.write("part.py", WRONG)
    run = user.detaches(*RUN[1:])
    assert lab.sees_event(run, "warning", 600).startswith("differs with 2 workers by ")
    assert (
        json.loads(user.types("status", run, "--json").stdout)["jobs"][0]["verified"]["cause"]
        == "loss"
    )
    user.types("stop", "--kill")
    run = user.detaches(*RUN[1:])
    why = lab.sees_event(run, "plan")
    assert why.startswith(
        "single, 1 worker on a, because several would train something else: differs with 2 workers"
    )
    user.touch("go")
    user.sees_state("train", "done", run=run)
