"""Today's controller does with recorded runs what it did with them.

Where a change of a decision is meant: `headgate replay FILE --save FILE`, for each file that fails.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.model import actions, events
from headgate.model.errors import HeadgateError, UsageError
from headgate.simulation.replay import load, replay, save

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))


def test_there_are_recorded_runs() -> None:
    assert len(RECORDED) >= 2


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_run_is_decided_as_it_was(path: Path) -> None:
    result = replay(load(path))
    assert result.stopped == ""
    assert result.actions > 5
    assert result.differences == (), f"headgate replay {path}"


def test_another_decision_is_found_and_can_be_saved(tmp_path: Path) -> None:
    entries = load(RECORDED[0])
    entry = next(entry for entry in entries.values() if isinstance(entry.what, actions.StartTask))
    assert isinstance(entry.what, actions.StartTask)
    other = replace(entry.what, node="elsewhere")
    result = replay(entries | {entry.id: replace(entry, what=other)})
    (difference,) = result.differences
    assert other in difference.recorded
    assert entry.what in difference.today
    save(result, tmp_path / "saved" / "run.jsonl")
    assert replay(load(tmp_path / "saved" / "run.jsonl")).differences == ()


def test_a_controller_that_fails_at_an_event_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object, now: float, event: events.Event) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("headgate.controller.core.Controller.step", fails)
    result = replay(load(RECORDED[0]))
    assert len(result.differences) == result.events
    assert "broken" in result.differences[0].error


def test_a_log_goes_as_far_as_it_is_whole() -> None:
    entries = load(RECORDED[0])
    half = len(entries) // 2
    without = {id: entry for id, entry in entries.items() if id != half}
    result = replay(without)
    assert result.differences == ()
    assert "a run that is gone" in result.stopped
    marked = without | {half + 1: replace(entries[half], what=events.ReadingsLeftOut(3))}
    assert "leaves out readings" in replay(marked).stopped
    with pytest.raises(HeadgateError, match="the beginning of the log is missing"):
        replay({id: entry for id, entry in entries.items() if id > 1})


def test_what_is_no_recorded_run_says_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"t": 1}\n')
    with pytest.raises(UsageError, match="--save"):
        load(tmp_path / "other.jsonl")
