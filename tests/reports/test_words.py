from __future__ import annotations

from pathlib import Path

import pytest

from headgate.diagnosis.job_figures import figures
from headgate.model.units import counted
from headgate.recorded.recording import read
from headgate.recorded.store import Recorder
from headgate.reports.words import listed, say, what_happened


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (None, "s", "–"),
        (0.0, "", "0"),
        (1234567.0, "", "1,234,567"),
        (0.012345, "", "0.0123"),
        (2.0, "cores", "2 cores"),
        (0.456, "%", "46 %"),
        (0.0456, "%", "4.6 %"),
        (0.0001, "%", "0 %"),
        (3 * 2**20, "B/s", "3 MiB/s"),
        (125.0, "s", "2 min 5 s"),
    ],
)
def test_figures_as_people_read_them(value: float | None, unit: str, said: str) -> None:
    assert say(value, unit) == said


def test_names_are_listed_and_counted() -> None:
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert listed(list("abcdefg")) == "a, b, c, d and 3 more"
    assert [counted(1, "job"), counted(1200, "step")] == ["1 job", "1,200 steps"]


def test_what_happened_names_the_fullest_resource_and_faults(store: Path) -> None:
    run = read(store)
    told = what_happened(run, [figures(job) for job in run.jobs])
    assert told[1] == (
        "The fullest resource was CPU: 91 % on average, 100 % at most, its fullest core 95 %. "
        "Of the others, at most 25 % of memory. Programs outside this run used 0.945 cores of "
        "nimbus on average."
    )
    assert told[2] == (
        "b took 2 attempts and b reported a loss that is not a number 1 time. 1 warning "
        "under Events."
    )


def test_what_was_learned_is_said_with_the_last_of_each_metric(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "jobs",
        name="cnn",
        position=0,
        state="done",
        submitted=0.0,
        started=0.0,
        ended=9.0,
        attempt=1,
    )
    recorder.add("tasks", id="cnn/worker-0", job="cnn")
    for t, loss, accuracy in ((1.0, 2.0, 0.1), (8.0, 0.5, 0.98)):
        metrics = {"accuracy": accuracy}
        recorder.add(
            "progress", t=t, task="cnn/worker-0", step=int(t), loss=loss, count=1, metrics=metrics
        )
    recorder.close()
    run = read(tmp_path / "run.sqlite")
    told = what_happened(run, [figures(job) for job in run.jobs])
    assert told[-1] == "Loss, first to last: cnn from 2 to 0.5. At the end: cnn accuracy 0.98."
