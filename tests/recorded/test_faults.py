from __future__ import annotations

from typing import Any

from headgate.recorded.faults import survived
from headgate.recorded.rows import EventRow


def event(
    t: float,
    text: str,
    seconds: float | None = None,
    steps: int | None = None,
    kind: str = "fault",
    task: str | None = "a/worker-1",
) -> EventRow:
    return EventRow(t, "a", task, kind, text, seconds, steps)


def told(*events: EventRow) -> list[tuple[Any, ...]]:
    return [(fault.t, fault.text, fault.seconds, fault.steps) for fault in survived(events)]


def test_a_fault_costs_what_the_longest_waiting_task_says() -> None:
    found = told(
        event(0.0, "started", kind="running"),
        event(5.0, "killed by SIGKILL; the others go on"),
        event(5.4, "round 7 was done again", 0.3, 1),
        event(5.5, "round 7 was done again", 0.4, 0),
    )
    assert found == [(5.0, "killed by SIGKILL; the others go on\nround 7 was done again", 0.4, 1)]


def test_what_a_task_says_long_after_is_a_fault_of_its_own() -> None:
    assert told(event(5.0, "killed"), event(5000.0, "no answer for a while", 31.0)) == [
        (5.0, "killed", None, None),
        (5000.0, "no answer for a while", 31.0, None),
    ]


def test_a_job_that_was_thrown_back_tells_the_cost_however_late() -> None:
    caught_up = event(5000.0, "at step 90 again", 4990.0, 90, task=None)
    assert told(event(10.0, "all start again"), caught_up) == [
        (10.0, "all start again\nat step 90 again", 4990.0, 90)
    ]


def test_a_fault_that_nothing_tells_the_cost_of_has_none() -> None:
    assert told(event(10.0, "lost")) == [(10.0, "lost", None, None)]
    assert told() == []
