"""Faults of a training whose workers add up gradients over the nodes of a Ray cluster: which steps
it is left with.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.distributed.training import SCRIPT, Training, save_digits, uneven
from tests.ray.hill import RAY, Hill, Somebody

from headgate import lab

# raylets take their time to start, and to be missed
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

OUTAGE_SECONDS = 5.0
THERE = """
    # What the script writes is to stay when its node's agent is gone: all nodes of the lab are on
    # this machine.
    import os, runpy

    script = os.path.abspath("digits.py")
    os.chdir(os.environ["STEPS"])
    runpy.run_path(script, run_name="__main__")
"""


class OnRay(Training):
    """Two workers, on nodes b and c."""

    def __init__(self, user: Somebody) -> None:
        data = user.folder.parent / "digits.npy"
        save_digits(data)
        user.write("there.py", THERE)
        user.write("digits.py", SCRIPT.read_text())
        user.variables["STEPS"] = str(user.folder)
        super().__init__(user, data, Path())

    def starts(self, *plan: str, waits: tuple[str, ...] = (), script: tuple[str, ...] = ()) -> None:
        args = [str(self._data), *(word for each in waits for word in ("--wait", each)), *script]
        words = [
            "run",
            "--detach",
            "--json",
            "there.py",
            "--name",
            "digits",
            "--nodes",
            "b,c",
            *RAY,
            *plan,
        ]
        self.run = str(self.user.types(*words, "--", *args).json["run"])

    def node(self, task: str) -> str:
        """That a task is on."""
        return next(str(row["node"]) for row in self.rows("tasks") if row["id"] == f"digits/{task}")


@pytest.fixture
def training(user: Somebody) -> OnRay:
    made = OnRay(user)
    made.starts("--strategy", "allreduce", "--workers", "2", waits=("worker-1@50",))
    made.is_at("worker-1", 50)
    return made


def test_a_link_that_is_down_for_five_seconds_costs_no_step(training: OnRay) -> None:
    training.goes("worker-1@50")
    training.goes_on("worker-1")
    node = training.node("worker-1")
    begun = time.monotonic()
    lab.change(f"hill/{node}", {}, plugged=False)
    before = len(training.steps())
    training.waits_for(lambda: time.monotonic() > begun + OUTAGE_SECONDS, "five seconds")
    assert len(training.steps()) <= before + 2  # that each of them was in
    lab.change(f"hill/{node}", {}, plugged=True)
    training.goes_on("worker-1")
    training.sees_fault("waited for the others in step")
    job = training.ends()
    assert (job["state"], job["attempt"]) == ("done", 1), training.story()
    assert training.lives("worker-0") == training.lives("worker-1") == 1
    steps = training.steps()
    assert uneven(steps) == {}
    for task in ("worker-0", "worker-1"):
        assert [step.step for step in training.steps(task)] == list(
            range(1 + max(step.step for step in steps))
        )
    assert training.last_progress() == (
        1 + max(step.step for step in steps),
        sum(len(s.samples) for s in steps),
    )


def test_a_raylet_that_is_killed_costs_the_steps_since_the_checkpoint_alone(
    training: OnRay, hill: Hill
) -> None:
    training.user.types("checkpoint")  # saved when the step is over that worker 1 is in
    training.goes("worker-1@50")
    training.waits_for(lambda: training.saved("request"), "the checkpoint is recorded")
    training.goes_on("worker-1")
    first = {step.life for step in training.steps()}
    node = training.node("worker-1")
    hill.loses(node)
    fault = training.sees_fault("all tasks are started again from step")
    assert f"node {node} is gone" in fault
    hill.starts(node)
    training.waits_for(lambda: {step.life for step in training.steps()} - first, "steps after it")
    again_from = min(step.step for step in training.steps() if step.life not in first)
    assert again_from in [row["step"] for row in training.rows("checkpoints")]
    job = training.ends()
    assert (job["state"], job["attempt"]) == ("done", 2), training.story()
    counted = [
        step for step in training.steps() if step.life not in first or step.step < again_from
    ]
    assert uneven(counted) == {}
    last = max(step.step for step in counted)
    assert {step.step for step in counted} == set(range(last + 1))
    assert training.last_progress() == (last + 1, sum(len(step.samples) for step in counted))
