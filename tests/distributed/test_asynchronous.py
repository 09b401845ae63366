"""Faults of a training in which workers do not wait for each other."""

from __future__ import annotations

import pytest
from tests.distributed.training import Training, uneven


@pytest.mark.long
def test_each_sample_is_trained_on_once_whoever_is_killed(training: Training) -> None:
    training.user.variables["HEADGATE_SNAPSHOT_SECONDS"] = "1"
    plan = ("--strategy", "ps", "--async", "--workers", "2", "--servers", "1")
    training.starts(*plan, waits=("worker-1@10",), script=("--table", "--leased"))
    training.is_at("worker-1", 10)
    training.kills("worker-1")  # which has a batch
    training.sees_fault("worker-1 was lost: killed by SIGKILL; the others go on")
    training.goes("worker-1@10")
    training.joins("worker-1", lives=2)
    training.goes_on("worker-1")

    began = training.now()
    training.kills("server-0")
    text = training.sees_fault("server-0 was started again and goes on from what it had")
    assert "is lost" in text
    [(seconds, _)] = training.costs("goes on from what it had")
    # the interval, the writing, and the time that it was gone
    assert seconds < 1 + 1 + training.now() - began
    training.goes_on("worker-1")

    training.changes_lab(without="c")  # where the server is: nobody comes back to that node
    training.sees_fault("server-0 was lost: its node c is gone; it is started again on")
    training.goes_on("worker-1")
    job = training.ends()
    assert (job["state"], job["attempt"]) == ("done", 1), training.story()
    assert uneven(training.steps()) == {}
