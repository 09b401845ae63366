"""The one record of a live job: what it used, how its loss goes, and when it made its steps."""

from __future__ import annotations

import math

import pytest

from headgate.forecast.job_tracker import JobTracker, StepClock, StepTimes
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress


@pytest.mark.parametrize("tasks", [2, 4, 64])
def test_a_job_of_several_tasks_is_served_what_all_of_them_use(tasks: int) -> None:
    job = JobTracker(0.0)
    for second in range(60):
        # each reading tells what all use; the readings of a round come at once
        for task in range(tasks):
            job.use(second + 0.01 + 0.0003 * task, 0.5 * tasks)
    assert job.used.cpu == pytest.approx(59 * 0.5 * tasks, rel=0.05)
    job.use(3659, 0.5 * tasks)
    assert job.used.cpu < 100 * 0.5 * tasks, "an hour in which the clock jumped"


def test_neither_the_time_before_a_task_runs_nor_a_jump_of_the_clock_counts_much() -> None:
    job = JobTracker(0.0)
    for now in range(120, 150):  # a container that took two minutes to start
        job.use(now, 0.9)
    before = job.used.cpu
    assert before <= (10 + 29) * 0.9
    job.use(3749, 0.9)
    assert job.used.cpu - before < 150, "an hour in which the clock jumped"


def test_a_reading_over_a_time_that_is_known_counts_whole_and_no_more() -> None:
    job = JobTracker(0.0)
    job.use(3600.0, 0.5, seconds=3500.0)  # it started 100 s late
    assert job.used.cpu == 1750.0
    job.use(3600.0, 1.0, seconds=3500.0)  # another task of it, told at once
    job.use(7200.0, 1.0, seconds=3600.0)
    assert job.used.cpu == 1750.0 + 3600.0


def test_what_is_read_less_often_from_now_on_is_no_clock_that_jumps() -> None:
    job = JobTracker(0.0)
    for now in (*range(60), *range(60, 36_000, 60)):
        job.use(now, 1.0)
    assert job.used.cpu == pytest.approx(36_000, rel=0.05)


def test_losses_that_are_trained_against_each_other_diverge_only_as_no_numbers() -> None:
    job = JobTracker(0.0)
    for step in range(60):
        told = Progress(TaskId("a"), step)
        job.report(float(step), 1.0 + 0.1 * step, told, adversarial=True)
    assert not job.diverging
    assert job.question(60.0).points == ()
    for step in range(60, 64):
        job.report(float(step), math.nan, Progress(TaskId("a"), step), adversarial=True)
    assert job.diverging


def test_an_attempt_that_resumes_keeps_the_losses_and_one_that_does_not_drops_them() -> None:
    job = JobTracker(0.0)
    for step in range(1, 31):
        job.use(float(step), 2.0)
        job.report(float(step), 1.0 / step, Progress(TaskId("a"), step))
    job.begin_attempt(40.0, resumes=True)
    assert (len(job.losses.points()), job.reports, job.used.cpu) == (30, False, 60.0)
    assert job.step_seconds() is None, "the steps of another attempt"
    job.begin_attempt(50.0, resumes=False)
    assert (len(job.losses.points()), job.used.cpu) == (0, 60.0)


def clock(*times: float) -> StepClock:
    """One whose steps came at these seconds."""
    made = StepClock(0.0)
    for step, at in enumerate(times):
        made.reported(at, step)
    return made


def test_what_is_usual_is_the_longest_time_between_two_steps_so_far() -> None:
    slow = clock(100.0, 110.0, 120.0, 150.0, 160.0)  # the first one has its start in it
    assert not slow.is_late(160.0 + 10 * 30.0, 60.0)
    assert slow.is_late(160.0 + 10 * 30.0 + 1.0, 60.0)


def test_a_short_silence_is_not_late() -> None:
    fast = clock(1.0, 1.1, 1.2, 1.3, 1.4)
    assert not fast.is_late(1.4 + 60.0, 60.0)
    assert fast.is_late(1.4 + 61.0, 60.0)


def test_before_a_job_has_made_some_steps_it_is_late_only_where_it_is_seen_to_do_nothing() -> None:
    begun = clock(1.0, 2.0)
    assert not begun.is_late(1e6, 60.0), "what it does is not read"
    for second in range(3, 100):
        begun.worked(float(second), busy=second < 30)
    assert not begun.is_late(29.0 + 60.0, 60.0)
    assert begun.is_late(29.0 + 61.0, 60.0)
    begun.worked(91.0, busy=True)
    assert not begun.is_late(91.0, 60.0)


def test_steps_that_come_again_are_no_steps() -> None:
    made = clock(1.0, 2.0, 3.0, 4.0, 5.0)
    made.reported(400.0, 4)
    assert made.is_late(401.0, 60.0)


def test_while_the_machine_stood_still_nobody_made_a_step() -> None:
    made = clock(1.0, 2.0, 3.0, 4.0, 5.0)
    made.stood_still(1000.0)
    assert not made.is_late(1005.0 + 60.0, 60.0)


def test_the_latest_steps_are_kept_and_begin_anew_where_they_go_back() -> None:
    steps = StepTimes()
    for step in range(20_000):
        steps.add(0.1 * step, step)
        steps.add(0.1 * step, step)
    assert 4096 <= len(steps.steps) <= 8192
    assert steps.mean_seconds() == pytest.approx(0.1)
    assert [step for _, step in steps.since(1999.0, 256)] == list(range(19_990, 20_000))
    assert len(steps.since(0.0, 256)) == 256
    steps.add(2001.0, 5)
    assert (list(steps.times), list(steps.steps)) == ([2001.0], [5.0])


def test_the_course_of_a_loss_is_kept_over_attempts_in_few_means() -> None:
    job = JobTracker(0.0)
    for step in range(1000):
        loss = math.inf if step % 10 == 9 else float(step)
        job.report(float(step), loss, Progress(TaskId("a"), step, loss=loss))
    job.begin_attempt(1000.0, resumes=False)
    means = job.course.means
    assert 64 <= len(means) < 128
    assert means == sorted(means)
    assert sum(means) / len(means) == pytest.approx(500, rel=0.05)
