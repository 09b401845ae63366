"""Faults of a training in which a step does without the gradients of one worker."""

from __future__ import annotations

import pytest
from tests.distributed.training import Training


@pytest.mark.long
def test_the_rest_goes_on_at_its_own_pace_when_a_node_is_slow_or_a_worker_is_killed(
    training: Training,
) -> None:
    plan = ("--strategy", "ps", "--workers", "3", "--backup-workers", "1")
    training.starts(*plan, script=("--work", "0.01"))
    training.waits_for(
        lambda: len({step.task for step in training.steps()}) == 3, "all are at work"
    )
    training.changes("c", "cores=0.05")
    training.goes_on("worker-0", 5)  # by when the limit is in force
    before = len(training.steps("worker-2"))
    training.goes_on("worker-0", 60)
    assert len(training.steps("worker-2")) - before < 30

    training.changes("c", "cores=2")
    training.goes_on("worker-2", 5)  # in a new process where it had fallen too far behind to go on
    lives = training.lives("worker-2")
    training.kills("worker-2")
    training.sees_fault("worker-2 was lost: killed by SIGKILL; the others go on")
    training.goes_on("worker-0", 60)
    training.joins("worker-2", lives=lives + 1)
    job = training.ends()
    assert (job["state"], job["attempt"]) == ("done", 1), training.story()
    assert any(
        "came too late" in text and "did not train, or only in part" in text
        for text in training.said("note")
    )
