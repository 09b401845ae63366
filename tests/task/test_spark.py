"""The event log of Spark, as a run of Spark 4.3 wrote it: its stages, without the details of where
each was called.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.task.spark import stages

LOG = Path(__file__).with_name("spark_events.jsonl").read_text().splitlines()


def test_the_stages_of_an_event_log_divide_their_time_and_tell_what_they_shuffled() -> None:
    first, second = stages(LOG)
    assert (first["step"], second["step"]) == (0, 1)
    spans = [{span["name"]: span for span in stage["spans"]} for stage in (first, second)]
    assert first["seconds"] == pytest.approx(6.215)
    assert sum(span["seconds"] for span in spans[0].values()) == pytest.approx(first["seconds"])
    assert spans[0]["shuffle write"]["bytes_out"] == spans[1]["shuffle read"]["bytes_in"] == 602
    assert spans[0]["shuffle write"]["seconds"] == pytest.approx(0.0954, abs=1e-4)


def test_lines_that_are_damaged_or_tell_of_a_failed_stage_are_left_out() -> None:
    failed = LOG[1].replace('"Stage ID":0', '"Stage ID":0,"Failure Reason":"lost"')
    lines = [LOG[1][:200], failed, LOG[1].replace('"Submission Time"', '"Began"'), LOG[2]]
    assert [stage["step"] for stage in stages(lines)] == [1]
