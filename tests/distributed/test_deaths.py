"""kill -9 of hub and guard while a job of several nodes runs."""

from __future__ import annotations

import os
import signal

import pytest
from tests.distributed.training import Training, groups


@pytest.mark.long
def test_of_hub_and_guard_leaves_nothing_but_the_lab(training: Training) -> None:
    user = training.user
    before = groups()
    training.starts("--strategy", "ps", "--workers", "2")
    training.goes_on("worker-1")
    assert groups() != before
    hub = user.traces.hub()
    assert hub is not None
    os.kill(hub, signal.SIGSTOP)  # so that it starts no other guard
    user.kills(user.traces.guard())
    user.kills(hub)
    training.waits_for(lambda: not user.traces.hub(), "the hub is gone")
    [told, *_] = [each for each in user.json("ps") if each["id"] == training.run]
    assert told["state"] == "interrupted"
    assert user.traces.all() == []
    assert groups() == before
    assert [
        (node["node"]["name"], node["processes"], node["state"])
        for node in user.json("lab", "status")
    ] == [(name, 0, "ready") for name in "abc"]
