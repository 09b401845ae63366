"""What a script spends time on beside its steps is timed and told."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from headgate.task import observed_session
from headgate.task.call_session import CallSession
from headgate.task.observed_steps import EVALUATION, Marks
from headgate.task.overheads import OverheadClock


def test_seconds_are_summed_up_and_told_once_a_second() -> None:
    now = [0.0]
    overheads, sent = OverheadClock(lambda: now[0]), list[dict[str, Any]]()
    overheads.tell(sent.append)
    overheads.add("evaluation", 0.25)
    overheads.tell(sent.append)
    overheads.add("evaluation", 0.5)
    overheads.add("evaluation", 0.5)
    overheads.add("saving", 1e-6)  # too little to be told
    overheads.tell(sent.append)
    assert sent == [{"type": "asides", "seconds": {"evaluation": 0.25}}]
    now[0] = 1.0
    overheads.tell(sent.append)
    overheads.add("saving", 0.5)
    overheads.tell(sent.append, now=True)
    assert [message["seconds"] for message in sent[1:]] == [
        {"evaluation": 1.0},
        {"saving": pytest.approx(0.5, abs=1e-5)},
    ]


def test_time_in_the_collector_of_garbage_counts() -> None:
    overheads, sent = OverheadClock(), list[dict[str, Any]]()
    kept = [[number] for number in range(200_000)]
    overheads.watch_garbage()
    overheads.watch_garbage()
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(overheads._collected)
    overheads.tell(sent.append)
    assert overheads._collected not in gc.callbacks
    assert sent[0]["seconds"]["garbage-collection"] > 0.001
    assert len(kept) == 200_000


def test_an_evaluation_counts_if_the_parts_of_the_step_after_it_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overheads, sent = OverheadClock(), list[dict[str, Any]]()
    monkeypatch.setattr(observed_session, "overheads", overheads)
    session = CallSession.__new__(CallSession)
    session.measure(1, Marks(0.0, [EVALUATION, "compute"], [2.0, 3.0], are_whole=False))
    overheads.tell(sent.append)
    assert sent == [{"type": "asides", "seconds": {EVALUATION: 2.0}}]
