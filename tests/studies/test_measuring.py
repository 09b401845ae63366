"""What a run of which every number is known tells of its cell."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.made_up import MadeUp, recording

from headgate.model.plans import Plan
from headgate.model.records import text_of
from headgate.studies.measuring import NotMeasuredError, NotTogetherError, measured


def test_rates_come_from_the_window_in_which_all_are_warm_and_none_has_ended(
    tmp_path: Path,
) -> None:
    jobs = {
        # faster once the other has ended
        "early": MadeUp(ran=1.0, steps=lambda t: 10.0 if t <= 20 else 40.0, end=30),
        "late": MadeUp(ran=0.5, steps=5.0, start=5, end=20),
    }
    recording(tmp_path / "run.sqlite", jobs)
    found = measured(tmp_path, ["early", "late"], warm=10)
    assert found["window"] == [8.0, 20.0]  # 5 steps after second 6, and 10 more for the warm-up
    assert [found["jobs"][job]["rate"] for job in jobs] == pytest.approx([10.0, 5.0])
    assert found["jobs"]["late"]["cpu_seconds_per_step"] == pytest.approx(0.1)
    # it was handed in at 0
    assert [found["jobs"]["late"][part] for part in ("startup", "elapsed")] == [6.0, 20.0]
    assert not found["disturbed"]
    assert found["nodes"]["nimbus"]["idle"][0] == pytest.approx(0.25)


@pytest.mark.parametrize(
    "tells", [lambda t: True, lambda t: t % 10 == 0, lambda t: t in (1, 2, 3, 17, 18, 30, 39, 40)]
)
def test_however_seldom_a_job_tells_its_steps_its_rate_is_that_of_steps(
    tmp_path: Path, tells: Callable[[int], bool]
) -> None:
    recording(tmp_path / "run.sqlite", {"job": MadeUp(ran=1.0, steps=1.0, tells=tells)})
    found = measured(tmp_path, ["job"], warm=10)["jobs"]["job"]
    assert (found["unit"], found["rate"], found["step_seconds"]) == (
        "steps",
        pytest.approx(1.0),
        pytest.approx(1.0),
    )
    assert found["cpu_seconds_per_step"] == pytest.approx(1.0)


def test_where_one_worker_coordinates_all_each_makes_its_part_of_the_steps_that_it_tells(
    tmp_path: Path,
) -> None:
    sends = {"tcp_out": 1000.0, "tcp_in": 500.0}
    recording(
        tmp_path / "run.sqlite", {"job": MadeUp(ran=1.0, spans={"step": 0.1}, readings=sends)}
    )
    asynchronous = Plan(
        strategy="ps", workers=2, servers=1, batch_per_worker=None, synchronous=False
    )
    with sqlite3.connect(tmp_path / "run.sqlite") as store:
        store.execute("CREATE TEMP TABLE another AS SELECT * FROM tasks")
        store.execute("UPDATE another SET id = 'job/worker-1'")
        store.execute("INSERT INTO tasks SELECT * FROM another")
        store.execute("UPDATE jobs SET plan = ?", [text_of(asynchronous)])
    workers = measured(tmp_path, ["job"], warm=0)["jobs"]["job"]["workers"]
    assert workers["worker-0"] == pytest.approx(
        {"step_seconds": 0.2, "sent": 200.0, "received": 100.0}
    )
    assert workers["worker-1"]["step_seconds"] == pytest.approx(0.2)


@pytest.mark.parametrize(("outside", "stolen"), [(0.3, 0.0), (0.0, 0.3)])
def test_foreign_and_stolen_cores_disturb_a_cell(
    tmp_path: Path, outside: float, stolen: float
) -> None:
    recording(tmp_path / "run.sqlite", {"job": MadeUp(ran=1.0)}, outside=outside, stolen=stolen)
    assert measured(tmp_path, ["job"], warm=0)["disturbed"]


def test_a_background_that_ends_before_what_it_is_to_slow_is_told(tmp_path: Path) -> None:
    recording(tmp_path / "run.sqlite", {"job": MadeUp(ran=1.0), "hog": MadeUp(ran=1.0, end=25)})
    with pytest.raises(
        NotMeasuredError, match=r"the background hog ended too early: 15\.0 s before"
    ):
        measured(tmp_path, ["job"], warm=0)


def test_a_background_that_is_late_is_told_with_when_the_others_have_to_start(
    tmp_path: Path,
) -> None:
    recording(
        tmp_path / "run.sqlite", {"job": MadeUp(ran=1.0, end=10), "hog": MadeUp(ran=1.0, start=19)}
    )
    with pytest.raises(NotTogetherError) as error:
        measured(tmp_path, ["job"], warm=0)
    # 1.3 times as late as the background, less the second that it takes
    assert error.value.at == {"job": 25.0}


def test_jobs_that_are_hardly_warm_at_once_are_told_with_when_each_has_to_start(
    tmp_path: Path,
) -> None:
    jobs = {
        "fast": MadeUp(ran=1.0, steps=10.0, end=14),
        "slow": MadeUp(ran=1.0, steps=10.0, start=12),
    }
    recording(tmp_path / "run.sqlite", jobs)
    with pytest.raises(
        NotTogetherError, match=r"warm together for 1\.0 s, while one was for 13\.0 s"
    ) as error:
        measured(tmp_path, ["fast", "slow"], warm=0)
    assert error.value.at == pytest.approx({"fast": 12.0, "slow": 0.0})


def test_a_job_without_enough_steps_is_told_with_what_to_do(tmp_path: Path) -> None:
    recording(tmp_path / "run.sqlite", {"job": MadeUp(ran=1.0, steps=1.0, end=8)})
    with pytest.raises(
        NotMeasuredError, match="told 8 steps, and 10 are for its warm-up: give it more steps"
    ):
        measured(tmp_path, ["job"], warm=10)


@pytest.mark.parametrize(
    ("steps", "cure"),
    [
        (0.0, "told no steps: have it print `step N`"),
        (lambda t: float(t == 4), "give it more steps"),
    ],
)
def test_a_job_is_not_told_to_lower_a_warm_up_that_it_has_not(
    tmp_path: Path, steps: Any, cure: str
) -> None:
    recording(tmp_path / "run.sqlite", {"job": MadeUp(ran=1.0, steps=steps, end=8)})
    with pytest.raises(NotMeasuredError) as error:
        measured(tmp_path, ["job"], warm=0)
    assert cure in str(error.value) and "lower" not in str(error.value)
