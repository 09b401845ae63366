"""The bars of jobs over a run, and the marks on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.recorded.recording import read
from headgate.recorded.store import Recorder
from headgate.reports.timeline import timeline

RESIZED = (4.0, "running", "resized from 2 to 3 workers: worker-2 joins")
FAILED = (4.0, "waiting", "exit code 1; tried again in 1 s")


@pytest.mark.parametrize(
    ("what", "failures"), [([RESIZED], 0), ([FAILED, (5.0, "running", "started (attempt 2)")], 1)]
)
def test_a_retry_is_drawn_as_a_failed_attempt_and_a_resize_is_not(
    tmp_path: Path, what: list[tuple[float, str, str]], failures: int
) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "jobs", name="a", position=0, state="done", submitted=0.0, started=0.0, ended=9.0, attempt=1
    )
    for at, kind, text in [(0.0, "running", "started"), *what, (9.0, "done", "finished")]:
        recorder.add("events", t=at, job="a", kind=kind, text=text)
    recorder.close()
    drawn = str(timeline(read(tmp_path / "run.sqlite")))
    assert drawn.count("an attempt failed") == failures
    assert ("attempt 2" in drawn) == bool(failures)
