from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.diagnosis.made_up import Course, MadeUp, recording

from headgate.diagnosis.job_figures import figures
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.recorded.recording import read
from headgate.recorded.store import Recorder
from headgate.reports.explained import explained


def test_figures_are_those_of_the_store(store: Path) -> None:
    run = read(store)
    first, second = (figures(job) for job in run.jobs)
    assert (run.seconds, run.state, [node.name for node in run.nodes]) == (40.0, "done", ["nimbus"])
    assert (first.cpu_seconds, first.cpu_mean_cores, first.cpu_max_cores) == (15.0, 0.75, 1.0)
    assert (first.loss_first, first.loss_final, first.loss_best) == (1.0, 1 / 21, 1 / 21)
    assert first.steps == 200
    assert first.steps_per_second == pytest.approx(200 / 20, rel=0.05)
    assert first.granted_cores == pytest.approx(1.5)
    assert first.used_of_granted == pytest.approx(0.5)
    assert first.memory_peak_bytes == 300 * 2**20
    assert first.input_fraction == pytest.approx(0.007 / 0.019)
    assert (first.waited_seconds, second.waited_seconds) == (0.0, 10.0)
    assert (second.run_seconds, second.attempts, second.losses_not_numbers) == (28.0, 2, 1)


def test_the_first_reading_after_a_pause_does_not_reach_back_over_it(store: Path) -> None:
    run = read(store)
    job = run.job("b")
    assert job is not None
    # Readings at 10 and 23 s have no rates; those at 11 to 20 s and 24 to 40 s stand for a second
    # each.
    assert job.signal("cpu_cores").seconds == 27.0
    assert job.signal("memory_bytes").within(20, 22).seconds == 0.0


def test_every_number_of_the_store_goes_into_the_totals(store: Path) -> None:
    with RunReader(store) as reader:
        cores = reader.query("SELECT sum(cpu_cores) AS s FROM usage WHERE target = 'b/worker-0'")[
            0
        ]["s"]
        lowest = reader.query("SELECT min(loss) AS m FROM progress WHERE task = 'b/worker-0'")[0][
            "m"
        ]
    second = figures(read(store).jobs[1])
    assert second.cpu_seconds == pytest.approx(cores)
    assert second.loss_best == lowest


def test_a_run_without_an_end_was_interrupted_unless_its_hub_lives(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("meta", key="began", value="1000.0")
    recorder.add("meta", key="state", value="running")
    recorder.add(
        "jobs",
        name="a",
        position=0,
        state="running",
        reason="started",
        submitted=0.0,
        started=0.5,
        attempt=1,
    )
    recorder.add("tasks", id="a/worker-0", job="a", started=0.5)
    recorder.add("progress", t=9.0, task="a/worker-0", step=3, loss=1.0, count=1)
    recorder.flush()
    lock = runs.lock(tmp_path)
    try:
        assert [
            read(tmp_path / "run.sqlite").state,
            read(tmp_path / "run.sqlite").jobs[0].state,
        ] == ["running"] * 2
    finally:
        os.close(lock)
    recorder.close()
    run = read(tmp_path / "run.sqlite")
    assert (run.state, run.jobs[0].state, run.seconds) == ("interrupted", "interrupted", 9.0)
    assert figures(run.jobs[0]).run_seconds == 8.5


def test_tasks_of_a_job_are_told_together(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "jobs",
        name="a",
        position=0,
        state="done",
        submitted=0.0,
        started=0.0,
        ended=10.0,
        attempt=1,
    )
    for index in range(2):
        task = f"a/worker-{index}"
        recorder.add("tasks", id=task, job="a", started=0.0)
        recorder.add("shares", t=0.0, task=task, entitled_cores=1.0)
        for t in range(11):
            cores, core = (0.5, 0.3 + 0.1 * index) if t else (None, None)
            recorder.add(
                "usage",
                t=float(t),
                target=task,
                cpu_cores=cores,
                cpu_fullest_core=core,
                memory_bytes=100.0,
            )
            recorder.add(
                "progress", t=float(t), task=task, step=t, samples=t * 8, loss=1.0 + index, count=1
            )
    recorder.close()
    job = read(tmp_path / "run.sqlite").jobs[0]
    told = figures(job)
    assert (told.cpu_seconds, told.cpu_mean_cores, told.granted_cores) == (10.0, 1.0, 2.0)
    assert told.fullest_core_max == pytest.approx(0.4)
    assert told.memory_peak_bytes == 200.0
    # Both count the samples of all.
    assert (told.samples_per_second, told.steps_per_second) == (8.0, 1.0)
    assert (told.loss_first, told.loss_final) == (1.5, 1.5)
    assert np.isclose(job.entitled.integral, 20.0)


def test_a_decision_is_told_of_a_job_as_a_whole_and_once_and_a_worker_that_left_has_nothing(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "jobs",
        name="a",
        position=0,
        state="done",
        submitted=0.0,
        started=0.0,
        ended=10.0,
        attempt=1,
    )
    for index, end in enumerate((10.0, 6.0)):
        recorder.add("tasks", id=f"a/worker-{index}", job="a", attempt=1, started=0.0, ended=end)
    for t, worker, cores, reason in (
        (0.0, 0, 1.0, "first"),
        (0.001, 1, 1.0, "first"),
        (2.0, 0, 1.0, "first"),  # nothing new
        (2.001, 1, 1.0, "first"),
        (4.0, 0, 0.5, "1 before it"),
        (4.001, 1, 0.5, "1 before it"),
        (5.0, 0, 0.5, "2 before it"),
        (6.01, 0, 1.0, "2 before it"),
    ):
        recorder.add("shares", t=t, task=f"a/worker-{worker}", entitled_cores=cores, reason=reason)
    recorder.close()
    [job] = read(tmp_path / "run.sqlite").jobs
    assert [(each.before, each.cores, each.reason) for each in job.decisions] == [
        (None, 2.0, "first"),
        (2.0, 1.0, "1 before it"),
        (1.0, 1.0, "2 before it"),
    ]
    assert [round(each.t) for each in job.decisions] == [0, 4, 5]
    assert job.entitled.last == 1.0


def test_a_run_that_ends_while_it_is_read_was_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("meta", key="state", value="running")
    recorder.flush()

    def ends(_: Path) -> bool:
        recorder.add("meta", key="state", value="done")
        recorder.close()
        return False

    monkeypatch.setattr(runs, "alive", ends)
    assert read(tmp_path / "run.sqlite").state == "done"


def test_a_job_too_short_to_be_read_shows_what_the_kernel_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "jobs", name="a", position=0, state="done", submitted=0.0, started=0.0, ended=2.0, attempt=1
    )
    end = {"code": 0, "memory_peak_bytes": 2**20, "cpu_seconds": 1.7}
    recorder.add("tasks", id="a/worker-0", job="a", started=0.0, ended=2.0, exit=end)
    recorder.add("usage", t=0.9, target="a/worker-0", memory_bytes=1000.0)
    recorder.close()
    told = figures(read(tmp_path / "run.sqlite").jobs[0])
    assert (told.cpu_seconds, told.memory_peak_bytes) == (1.7, 2**20)
    assert told.cpu_mean_cores == pytest.approx(0.85)


@pytest.mark.parametrize(("again_ended", "expected"), [(30.0, 6.0 + 9.5), (None, 6.0 + 8.0)])
def test_earlier_attempts_are_told_from_their_readings(
    tmp_path: Path, again_ended: float | None, expected: float
) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "jobs",
        name="a",
        position=0,
        state="done",
        submitted=0.0,
        started=0.0,
        ended=again_ended or 29.0,
        attempt=2,
    )
    # The row of a task keeps the end of its first attempt until the second one ends.
    ended, spent = (again_ended, 9.5) if again_ended is not None else (7.0, 6.9)
    row = {"exit": {"code": 0, "cpu_seconds": spent}, "started": 20.0, "ended": ended}
    recorder.add("tasks", id="a/worker-0", job="a", **row)
    for at, kind in ((0.0, "running"), (7.0, "waiting"), (20.0, "running")):
        recorder.add("events", t=at, job="a", kind=kind, text="")
    for t in (*range(1, 8), *range(21, 30)):
        recorder.add(
            "usage", t=float(t), target="a/worker-0", cpu_cores=None if t in (1, 21) else 1.0
        )
    recorder.close()
    assert figures(read(tmp_path / "run.sqlite").jobs[0]).cpu_seconds == pytest.approx(expected)


def test_a_part_of_a_long_run_tells_where_the_time_went_as_all_of_it_does(tmp_path: Path) -> None:
    spans: dict[str, Course] = {
        "input": lambda t: 0.01 + 0.01 * (t % 3),
        "forward": 0.05,
        "backward": 0.02,
    }
    jobs = {
        "long": MadeUp(
            ran=lambda t: 1.0 + 0.5 * (t % 2),
            waited=lambda t: 0.5 * (300 < t < 900),
            end=1200,
            spans=spans,
        ),
        "other": MadeUp(ran=lambda t: 0.5 + 0.1 * (t % 5), start=300, end=900, spans=spans),
        "short": MadeUp(ran=0.2, start=500, end=520, spans=spans),
    }
    whole = recording(tmp_path / "run.sqlite", jobs)
    part = read(tmp_path / "run.sqlite", most=250)
    for job, of_it in zip(whole.jobs, part.jobs, strict=True):
        assert len(of_it.signal("cpu_cores")) <= 250
        assert of_it.progress.t[0] == job.progress.t[0]
        assert of_it.progress.t[-1] == job.progress.t[-1]
        assert of_it.signal("cpu_cores").integral == pytest.approx(
            job.signal("cpu_cores").integral, rel=0.02
        )
        assert job.division is not None
        assert of_it.division is not None
        assert of_it.division.seconds == pytest.approx(job.division.seconds, rel=0.05)
    assert part.jobs[2].division == whole.jobs[2].division, "few steps are all read"
    for found, known in zip(explained(part), explained(whole), strict=True):
        for name, estimate in known.parts.items():
            assert found.parts[name].seconds == pytest.approx(
                estimate.seconds, abs=0.02 * known.elapsed
            ), name
