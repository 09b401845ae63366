"""What a script tells of its own early stopping becomes the rule that its job is predicted by."""

from __future__ import annotations

import json

import pytest
from tests.hub.user import User

from headgate.hub.state.job import LiveJob
from headgate.model.jobs import Job
from headgate.model.progress_rule import ProgressRule
from headgate.recorded.reader import RunReader
from headgate.testing import wait

SCRIPT = """
    from headgate.task import Channel, TaskEnvironment

    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "plain", "1", 0)
    channel.send({"type": "stopping", "patience": 3, "min_delta": 0.1, "monitor": "loss"})
    channel.send({"type": "progress", "step": 1, "loss": 1.0})
    channel.wait_for(lambda: channel.stopping, 300)
    channel.send({"type": "stopping", "patience": None})
    channel.flush(5)
"""


@pytest.mark.parametrize(
    ("monitor", "least"), [("loss", 0.1), ("val_loss", 0.1), ("val_accuracy", 0.0)]
)
def test_its_least_gain_counts_where_it_is_of_the_scale_of_the_job_s_metric(
    monitor: str, least: float
) -> None:
    job = LiveJob(Job(name="a", script="a.py", progress=ProgressRule(goal=0.5)), 0, 0.0)
    job.stops_after(3, 0.1, monitor)
    assert job.spec.progress.stopping == (3, least)
    job.stops_after(None)
    assert job.spec.progress == ProgressRule(goal=0.5)


@pytest.mark.parametrize(
    ("rule", "stopping"),
    [
        (ProgressRule(patience=9), (9, 0.0)),
        (ProgressRule(patience=9, min_delta=0.2), (9, 0.2)),
        (ProgressRule(min_delta=0.2), (3, 0.2)),
    ],
)
def test_what_the_user_wrote_counts_instead(
    rule: ProgressRule, stopping: tuple[int, float]
) -> None:
    job = LiveJob(Job(name="a", script="a.py", progress=rule), 0, 0.0)
    job.stops_after(3, 0.1, "loss")
    assert job.spec.progress.stopping == stopping
    job.stops_after(None)
    assert job.spec.progress == rule


def test_a_script_that_no_longer_ends_by_itself_says_so(user: User) -> None:
    user.write("learn.py", SCRIPT)
    run = user.detaches("learn.py")

    def told() -> object:
        with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
            [row] = reader.rows("jobs")
            return json.loads(row["spec"])["progress"]["script_stopping"]

    user.sees_job("learn", lambda job: job["step"] == 1, run, "it has told its patience")
    wait.until(lambda: told() == [3, 0.1], 60, "its patience is in the store")
    user.types("stop", f"{run}/learn")
    user.sees_state("learn", "stopped", run=run)
    wait.until(lambda: told() is None, 60, "it has none any more")
