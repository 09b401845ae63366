"""The arbiter of a machine that an agent runs on hears how long jobs take there."""

from __future__ import annotations

import time

import pytest

from headgate.arbiter.records import Span
from headgate.engines.base import Slot
from headgate.hub.node_sharing import _TaskParts
from headgate.model.identifiers import TaskId

TASK = TaskId("r/vae/worker-0")


def test_what_is_left_of_a_job_falls_from_when_it_may_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot = Slot("m", 1.0, takes=(60.0, 30.0, 90.0))
    assert slot == Slot("m", 1.0, takes=(50.0, 20.0, 80.0)), "its part is the same"
    part = _TaskParts({TASK: slot})
    assert part.demand("k").left == Span(60.0, 30.0, 90.0)
    part.begun = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: 140.0)
    assert part.demand("k").left == Span(20.0, 0.0, 50.0)
    assert _TaskParts({TASK: Slot("m", 1.0)}).demand("k").left is None
