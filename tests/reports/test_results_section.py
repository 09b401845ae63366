"""Results of a sweep on the page: a table that is sorted by a click, and a line for each job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.reports.browsing import opened

from headgate.model.jobs import Job
from headgate.model.records import text_of
from headgate.model.sweeps import SweepTrial
from headgate.recorded.store import Recorder
from headgate.reports import html

ROWS = "return [...document.querySelectorAll('#results tbody tr')].map((row) => row.dataset.job)"
LINES = (
    "return [...document.querySelectorAll('.parallel polyline')].map((line) => line.dataset.job)"
)
SORT = """
    const named = (heading) => heading.textContent === arguments[0];
    [...document.querySelectorAll('#results th')].find(named).querySelector('button').click();
"""


def test_results_are_sorted_and_drawn_across_parameters(browser: Any, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    for position, (lr, loss) in enumerate([(0.1, 2.0), (0.001, 1.0), (0.01, 3.0), (1.0, None)]):
        trial = SweepTrial("s", {"lr": lr, "kind": "<b>" if position % 2 else "sgd", "same": 1})
        job = Job(name="abcd"[position], run="true", trial=trial)
        recorder.add("jobs", name=job.name, position=position, spec=text_of(job), state="done")
        if loss is not None:
            recorder.add("progress", t=1.0, task=f"{job.name}/worker-0", step=1, loss=loss)
    recorder.close()
    page = opened(browser, html.write(tmp_path / "run.sqlite", tmp_path / "report.html"))
    assert page.execute_script(ROWS) == ["b", "a", "c", "d"]
    assert page.execute_script(LINES) == ["c", "a", "b"]  # the best one lies on top
    page.execute_script(SORT, "lr")
    assert page.execute_script(ROWS) == ["b", "c", "a", "d"]
    page.execute_script(SORT, "lr")
    assert page.execute_script(ROWS) == ["d", "a", "c", "b"]
    axes = page.execute_script(
        "return [...document.querySelectorAll('.parallel .name')].map((name) => name.textContent)"
    )
    assert axes == ["lr", "kind", "loss"]
