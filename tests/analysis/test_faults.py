from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headgate.analysis.faults import survived
from headgate.analysis.progress import Progress


def steps(*pairs: tuple[float, float]) -> Progress:
    """Progress of which only times and steps are known."""
    t, step = np.array(pairs, dtype=float).reshape(-1, 2).T
    nothing = np.full(len(t), np.nan)
    return Progress(t, step, nothing, nothing, nothing, nothing, ("w",) * len(t), 0, None, {})


def event(
    t: float, text: str, seconds: float | None = None, steps: int | None = None, kind: str = "fault"
) -> dict[str, Any]:
    return {"t": t, "job": "a", "task": "a/worker-1", "kind": kind, "text": text, "seconds": seconds, "steps": steps}


def told(events: Sequence[dict[str, Any]], progress: Progress, saved: int | None = None) -> list[tuple[Any, ...]]:
    checkpoints = [] if saved is None else [{"t": 0.0, "step": saved}]
    return [(fault.t, fault.text, fault.seconds, fault.steps) for fault in survived(events, progress, checkpoints)]


def test_a_fault_costs_what_the_longest_waiting_task_says() -> None:
    events = [
        event(0.0, "started", kind="running"),
        event(5.0, "killed by SIGKILL; the others go on"),
        event(5.4, "round 7 was done again", 0.3, 1),
        event(5.5, "round 7 was done again", 0.4, 1),
    ]
    assert told(events, steps((1.0, 1), (9.0, 9))) == [
        (5.0, "killed by SIGKILL; the others go on\nround 7 was done again", 0.4, 1)
    ]


def test_what_a_task_says_long_after_is_a_fault_of_its_own() -> None:
    events = [event(5.0, "killed"), event(5000.0, "no answer for a while", 31.0)]
    assert told(events, steps((1.0, 1), (9.0, 9))) == [
        (5.0, "killed", None, None),
        (5000.0, "no answer for a while", 31.0, None),
    ]


def test_a_job_thrown_back_pays_until_it_is_as_far_again() -> None:
    progress = steps((8.0, 80), (9.0, 90), (14.0, 60), (16.0, 80), (17.0, 91))
    assert told([event(10.0, "all start again")], progress, saved=55) == [(10.0, "all start again", 7.0, 35)]
    assert told([event(10.0, "all start again")], progress) == [(10.0, "all start again", 7.0, 90)]


def test_a_second_fault_before_the_first_is_made_up_for_ends_what_that_cost() -> None:
    progress = steps((9.0, 90), (14.0, 60), (20.0, 60), (24.0, 100))
    events = [event(10.0, "first"), event(15.0, "second")]
    assert [(fault[0], fault[2]) for fault in told(events, progress, saved=55)] == [(10.0, 5.0), (15.0, 9.0)]


def test_a_fault_that_nothing_tells_the_cost_of_has_none() -> None:
    assert told([event(10.0, "lost")], steps((9.0, 90))) == [(10.0, "lost", None, None)]
    assert told([event(10.0, "lost")], steps((9.0, 90), (11.0, 20))) == [(10.0, "lost", None, None)]
    assert told([event(10.0, "lost")], steps((9.0, 90), (11.0, 110))) == [(10.0, "lost", None, None)]
    assert told([], steps()) == []
