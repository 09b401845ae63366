"""What jobs took is remembered by script and by job."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.profiling.lengths import EarlierRuns, Took, remember


def test_the_same_job_is_expected_to_take_what_it_took_and_others_of_its_script_about_that(
    tmp_path: Path,
) -> None:
    assert EarlierRuns.read(tmp_path, "script", "job").work() is None
    assert EarlierRuns.read(tmp_path, "script", "job").seconds() is None
    for work in (10.0, 12.0, 50.0):
        remember(tmp_path, "script", Took("job", work, work / 2))
    same = EarlierRuns.read(tmp_path, "script", "job").work()
    assert same is not None
    assert same.likely == 12.0
    assert same.low < 10.0 < 50.0 < same.high
    other = EarlierRuns.read(tmp_path, "script", "other").work()
    assert other is not None
    assert other.likely == 12.0
    assert other.low < same.low < same.high < other.high
    assert EarlierRuns.read(tmp_path, "another", "job").work() is None
    remember(tmp_path, "script", Took("other", 1.0, 1.5))
    durations = [
        EarlierRuns.read(tmp_path, "script", job).seconds() for job in ("job", "other", "third")
    ]
    assert [estimate and estimate.likely for estimate in durations] == [6.0, 1.5, 5.5]


def test_the_latest_of_a_script_are_kept(tmp_path: Path) -> None:
    for work in range(1, 101):
        remember(tmp_path, "script", Took("job", float(work), 1.0))
    known = EarlierRuns.read(tmp_path, "script", "job").work()
    assert known is not None
    assert known.likely == pytest.approx(90.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[[1]]",
        '{"a": 1}',
        '[["job", "long", 1]]',
        '[["job", NaN, 1], ["job", -1, 1], ["job", 1, NaN], ["job", 1, 1, NaN]]',
        '[["job", 1, 1, 1, NaN], ["job", 1, 1, 1, 1, 1]]',
    ],
)
def test_a_file_that_makes_no_sense_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "script.json").write_text(text)
    assert EarlierRuns.read(tmp_path, "script", "job").work() is None
    remember(tmp_path, "script", Took("job", 3.0, 2.0))
    assert EarlierRuns.read(tmp_path, "script", "job").work() is not None


def test_the_most_memory_that_the_same_job_used_is_what_it_needs(tmp_path: Path) -> None:
    remember(tmp_path, "script", Took("job", 10.0, 5.0))
    assert EarlierRuns.read(tmp_path, "script", "job").memory_bytes() is None
    for used in (3e9, 1e9):
        remember(tmp_path, "script", Took("job", 10.0, 5.0, used))
    assert EarlierRuns.read(tmp_path, "script", "job").memory_bytes() == 3_000_000_000
    assert EarlierRuns.read(tmp_path, "script", "with other arguments").memory_bytes() is None


def test_what_was_noted_before_memory_was_is_still_known(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('[["job", 10.0, 5.0]]')
    earlier = EarlierRuns.read(tmp_path, "script", "job")
    assert earlier.seconds() == (5.0, 2.5, 10.0)
    assert earlier.memory_bytes() is None
