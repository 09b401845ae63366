"""Faults of an all-reduce training, and its end under another strategy."""

from __future__ import annotations

import pytest
from tests.distributed.training import Training, uneven


@pytest.mark.long
def test_it_starts_again_from_its_checkpoint_and_goes_on_under_another_strategy(
    training: Training,
) -> None:
    training.starts("--strategy", "allreduce", "--workers", "2", waits=("worker-1@50",))
    training.is_at("worker-1", 50)
    training.user.types("checkpoint")  # saved when the step is over that worker 1 is in
    training.goes("worker-1@50")
    training.waits_for(lambda: training.saved("request"), "the checkpoint is recorded")
    training.goes_on("worker-1")
    first = {step.life for step in training.steps()}
    training.kills("worker-1")
    training.sees_fault(
        "worker-1 was lost: killed by SIGKILL; all tasks are started again from step"
    )
    training.joins("worker-1", lives=2)
    again_from = min(step.step for step in training.steps() if step.life not in first)
    assert again_from in [point["step"] for point in training.rows("checkpoints")]
    training.sees_fault("again, as before its tasks were lost")
    [(seconds, steps)] = training.costs("again, as before its tasks were lost")
    assert seconds > 0
    assert (
        0
        < steps
        <= 1 + max(step.step for step in training.steps() if step.life in first) - again_from
    )

    training.user.types("resize", "digits", "--workers", "3")
    training.joins("worker-2")
    training.goes_on("worker-2")
    assert training.becomes("running")["attempt"] == 3
    training.user.types("stop")
    assert training.becomes("stopped")["state"] == "stopped"
    [resized, stopped] = training.saved("stop")
    assert (
        sorted(end.step for end in training.ended() if end.step > resized["step"])
        == [stopped["step"]] * 3
    )

    training.resumes("--strategy", "ps", "--workers", "2")
    training.goes_on("worker-1")
    [going_on] = training.said("running")
    assert going_on == f"going on from step {stopped['step']}"
    assert training.ends()["state"] == "done"
    counted = [
        step for step in training.steps() if step.life not in first or step.step < again_from
    ]
    assert uneven(counted) == {}
    assert {step.step for step in counted} == set(range(max(step.step for step in counted) + 1))
    assert training.last_progress() == (
        1 + max(step.step for step in counted),
        sum(len(s.samples) for s in counted),
    )
