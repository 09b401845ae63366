"""What cores do to a job's steps, from what they wait for: cases with a known answer."""

from __future__ import annotations

import math

import pytest

from headgate.forecast.core_need import CoreNeed, InputPart, Need
from headgate.forecast.job_tracker import JobTracker
from headgate.model.events import StepPace


def need(cores: float, pace: StepPace, seconds: int = 10) -> Need:
    seen = CoreNeed()
    for _ in range(seconds):
        seen.used(1.0, cores, pace)
    known = seen.need
    assert known is not None
    return known


@pytest.mark.parametrize("granted", [0.3, 0.6, 1.1])
def test_a_loader_that_falls_behind_needs_what_keeps_its_gpu_busy_whatever_it_has(
    granted: float,
) -> None:
    # 24 ms of decoding in two workers for each 20 ms of GPU: 1.2 cores
    step = 24.0 / granted
    pace = StepPace(2.0 - granted, 0.0, 1.0 - 20.0 / step)
    known = need(granted, pace)
    assert known.cores == pytest.approx(1.2, rel=0.01)
    assert known.times == pytest.approx(1.2 / granted, rel=0.01)
    assert known.waits


def test_a_loader_that_keeps_up_needs_no_more_than_it_uses() -> None:
    known = need(0.2, StepPace(0.0, 0.05, 0.0))
    assert known.cores == pytest.approx(0.2)
    assert known.times == pytest.approx(1.0)
    assert known.waits


def test_input_that_comes_late_though_cores_are_free_needs_no_more_cores() -> None:
    # two workers that compute all the time, each on a core: only more workers would help
    assert need(2.0, StepPace(0.0, 0.0, 0.6)).cores == pytest.approx(2.0)
    # a disk: nobody is ready to run
    assert need(0.1, StepPace(0.0, 0.05, 0.9)).cores == pytest.approx(0.1)


def test_a_training_process_without_a_core_of_its_own_needs_one_and_is_not_said_to_wait() -> None:
    known = need(0.5, StepPace(0.5, 1.0, 0.0))
    assert known.cores == pytest.approx(1.0)
    assert known.times == pytest.approx(2.0)
    assert not known.waits


def test_a_gpu_that_computes_all_the_time_gains_nothing_by_cores() -> None:
    known = need(0.5, StepPace(0.5, 0.5, 0.0, gpu_busy=1.0))
    assert known.times == pytest.approx(1.0)
    assert known.cores == pytest.approx(0.5)


def test_nothing_is_said_before_five_seconds_or_of_a_job_that_uses_no_core() -> None:
    seen = CoreNeed()
    assert seen.need is None
    for _ in range(9):
        seen.used(1.0, 0.0, StepPace(0.0, 0.0, 0.0))
    assert seen.need is None
    for _ in range(4):
        seen.used(1.0, 0.5, StepPace(0.0, 0.1, 0.0))
        assert seen.need is None
    seen.used(1.0, 0.5, StepPace(0.0, 0.1, 0.0))
    assert seen.need is not None


@pytest.mark.parametrize(("factor", "counts"), [(1.0, True), (1.5, True), (4.0, False)])
def test_estimates_that_differ_widen_the_spread_until_they_say_nothing(
    factor: float, counts: bool
) -> None:
    seen = CoreNeed()
    for second in range(40):
        seen.used(1.0, 0.5 if second % 2 else 0.5 * factor, StepPace(0.0, 0.1, 0.0))
    assert (seen.need is not None) == counts
    if seen.need is not None:
        assert seen.need.spread == pytest.approx(math.log(factor) / 2, abs=0.01)


def test_a_need_changes_only_beyond_its_noise() -> None:
    seen = CoreNeed()
    needs = []
    for cores in (0.5, 0.55, 1.0):
        for _ in range(100):
            seen.used(1.0, cores, StepPace(0.0, 0.1, 0.0))
        assert seen.need is not None
        needs.append(seen.need.cores)
    assert needs[0] == needs[1] == pytest.approx(0.5)
    assert needs[2] == pytest.approx(1.0, rel=0.25)


def test_what_was_seen_of_other_tasks_of_a_job_says_nothing() -> None:
    tracker = JobTracker(0.0)
    for second in range(1, 8):
        tracker.use(float(second), 0.5, pace=StepPace(0.0, 0.1, 0.0))
    assert tracker.core_need.need is not None
    tracker.other_tasks()
    assert tracker.core_need.need is None


def test_the_part_of_input_is_of_steps_whose_parts_are_told() -> None:
    part = InputPart()
    part.add({"step": 0.1})
    assert part.value is None
    part.add({"compute": 0.1})
    assert part.value == 0.0
    for _ in range(100):
        part.add({"input": 0.3, "forward": 0.06, "backward": 0.04})
    assert part.value == pytest.approx(0.75, rel=0.01)
