"""What is left of a job while it runs."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from headgate.forecast.curves import fit
from headgate.forecast.expected import expect
from headgate.forecast.job_tracker import JobTracker
from headgate.forecast.remaining import (
    Question,
    answer,
    first_end,
    step_seconds,
)
from headgate.model.events import Predicted
from headgate.model.identifiers import JobId, TaskId
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.output.patterns import ProgressReader

A = JobId("a")


def feed(
    tracker: JobTracker, now: float, loss: float | None, progress: Progress, asks: bool = True
) -> Question | None:
    tracker.report(now, loss, progress)
    return tracker.due() if asks else None


def run(
    tracker: JobTracker,
    seconds: int,
    *,
    epochs: int | None = None,
    start: int = 1,
    asks_from: int = 0,
    first: float = 2.1,
    last: float = 0.1,
) -> list[tuple[int, Question]]:
    """Ten steps a second on two cores, 100 steps an epoch, a loss (or another metric) whose
    distance from its last halves in 250 steps; told each second.
    """
    asked = []
    for now in range(start, seconds + 1):
        step = 10 * now
        tracker.use(now, 2.0)
        epoch = 1 + (step - 1) // 100
        loss, asks = last + (first - last) * 0.5 ** (step / 250), now >= asks_from
        question = feed(
            tracker,
            now,
            loss,
            Progress(TaskId("a"), step, epoch=epoch, epochs=epochs, count=10),
            asks,
        )
        if question is not None:
            asked.append((now, question))
    return asked


def last(asked: list[tuple[int, Question]]) -> Predicted:
    left = answer(A, asked[-1][1])
    assert left is not None
    return left


def test_epochs_say_what_is_left_in_core_seconds() -> None:
    asked = run(JobTracker(0.0), 60, epochs=10)
    now, question = asked[-1]
    assert question.cost == pytest.approx(0.2, rel=0.01)
    left = last(asked)
    assert left.work == pytest.approx((1000 - 10 * now) * 0.2, rel=0.05)
    assert left.low <= left.work <= left.high


def test_who_tells_epochs_and_no_steps_is_counted_in_reports() -> None:
    tracker, asked = JobTracker(0.0), list[tuple[int, Question]]()
    for epoch in range(1, 13):
        tracker.use(3 * epoch, 0.5)
        question = feed(
            tracker, 3 * epoch, 1 / epoch, Progress(TaskId("a"), None, epoch=epoch, epochs=60)
        )
        if question is not None:
            asked.append((epoch, question))
    assert asked[-1][1].cost == pytest.approx(1.5)
    assert last(asked).work == pytest.approx((60 - asked[-1][0]) * 1.5, rel=0.03)


@pytest.mark.parametrize("count", [1, 5])
def test_a_resumed_script_that_tells_epochs_and_no_steps_has_an_epoch_as_long_as_it_was_seen(
    count: int,
) -> None:
    tracker, asked = JobTracker(0.0), list[tuple[int, Question]]()
    for report in range(count, 25, count):  # ten an epoch, from the sixth on
        tracker.use(report, 1.0)
        epoch = 6 + (report - 1) // 10
        question = feed(
            tracker,
            report,
            1 / (50 + report),
            Progress(TaskId("a"), None, epoch=epoch, epochs=10, count=count),
        )
        if question is not None:
            asked.append((report, question))
    done, question = next((at, each) for at, each in asked if each.epochs is not None)
    assert 10 < done <= 20
    assert question.epochs is not None
    assert question.epochs.steps == pytest.approx(50 - done, abs=count / 2)


STEP, SUMMARY, HEADER = (
    "epoch {epoch}/20 step {step} loss {loss}",
    "epoch {epoch}/20 loss {loss}",
    "Epoch {epoch}/20",
)
BAR = "{within}/1000 - 2s - loss: {loss}"


@pytest.mark.parametrize(
    ("before", "each", "after"), [("", STEP, SUMMARY), (HEADER, BAR, ""), (HEADER, BAR, SUMMARY)]
)
def test_lines_of_an_epoch_among_those_of_steps_leave_its_length_and_what_is_known_as_they_are(
    before: str, each: str, after: str
) -> None:
    reader, tracker, question = ProgressReader(ProgressRule()), JobTracker(0.0), None
    reports = list[tuple[float, float | None, Progress]]()
    lines = list[tuple[float, str]]()
    # ten epochs of twenty, and the first lines of the eleventh
    for step in range(100, 10_101, 100):
        epoch, within = 1 + (step - 1) // 1000, 1 + (step - 1) % 1000
        values = {
            "epoch": epoch,
            "step": step,
            "within": within,
            "loss": f"{1 / (1 + step / 1000):.6f}",
        }
        first, last = within == 100, within == 1000
        lines += [
            (step / 10, line.format(**values))
            for line in [before] * first + [each] + [after] * last
        ]
    for now, line in lines:
        for reading in reader.feed([line]):
            told = Progress(TaskId("a"), reading.step, epoch=reading.epoch, epochs=reading.epochs)
            reports.append((now, reading.loss, told))
            tracker.use(now, 1.0)
            question = feed(tracker, now, reading.loss, told) or question
    assert tracker.losses.phase == 0
    assert len(tracker.losses.points()) >= 100
    assert question is not None
    assert question.epochs is not None
    assert question.epochs.steps == pytest.approx(20_000 - question.step, rel=0.02)
    assert question.cost == pytest.approx(0.1, rel=0.02)
    expected = expect(reports)
    assert expected is not None
    assert (expected.until, expected.step) == ("epochs", 10_100)
    assert expected.left is not None
    assert expected.left.steps == pytest.approx(9_900, rel=0.02)
    assert expected.seconds_per_step == pytest.approx(0.1)


def test_a_goal_that_is_reached_earlier_counts_instead() -> None:
    asked = run(JobTracker(0.0, goal=0.35), 60, epochs=1000)  # 0.35 is reached at step 750
    assert last(asked).work == pytest.approx((750 - asked[-1][1].step) * 0.2, rel=0.4)


@pytest.mark.parametrize(
    ("rising", "first", "end", "goal"),
    [(False, 400.0, 60.0, 100.0), (True, -200.0, 5.0, -20.0), (True, 0.1, 0.9, 0.8)],
    ids=["perplexity", "reward", "accuracy"],
)
def test_a_goal_of_any_metric_tells_what_is_left(
    rising: bool, first: float, end: float, goal: float
) -> None:
    asked = run(JobTracker(0.0, goal=goal, rising=rising), 60, first=first, last=end)
    reached = 250 * math.log2((first - end) / (goal - end))
    left = last(asked)
    assert left.work == pytest.approx((reached - asked[-1][1].step) * 0.2, rel=0.4)
    assert all(drop > 0 for _, drop in left.drops)


def test_a_goal_that_is_hardly_reached_ends_no_job_before_its_last_epoch() -> None:
    asked = run(JobTracker(0.0, goal=0.05), 60, epochs=100)  # its loss comes to rest at 0.1
    assert last(asked).work == pytest.approx((10_000 - asked[-1][1].step) * 0.2, rel=0.05)


def test_remaining_work_counts_from_the_last_reported_step_though_losses_are_rare() -> None:
    fitted = fit([(float(step), 0.1 + 2 * 0.5 ** (step / 250), 1.0) for step in range(0, 1001, 50)])
    assert fitted is not None
    for goal, rest in ((0.14, None), (None, (100.0, 0.01))):
        at_once, later = (
            first_end(fitted, Question((), step, 0.2, None, goal, rest))[0]
            for step in (1000.0, 1040.0)
        )
        assert at_once is not None and later is not None
        assert [
            now - then for now, then in zip(at_once[:3], later[:3], strict=True)
        ] == pytest.approx([40.0] * 3)


@pytest.mark.parametrize(
    ("epochs", "patience", "earlier"), [(1000, 3, True), (6, 3, False), (None, 3, True)]
)
def test_early_stopping_counts_where_it_comes_before_the_last_epoch(
    epochs: int | None, patience: int, earlier: bool
) -> None:
    """It falls by 2 * 0.5 ** (step / 250) * (1 - 0.5 ** (300 / 250)) in three epochs: by 0.05 from
    step 1190 on.
    """
    tracker = JobTracker(0.0)
    tracker.stopping = (patience, 0.05)
    asked = run(tracker, 50, epochs=epochs)
    now, question = asked[-1]
    assert question.rest is not None and question.rest[0] == pytest.approx(patience * 100, rel=0.02)
    ends = 1190 + patience * 100 if earlier else 600
    assert last(asked).work == pytest.approx((ends - 10 * now) * 0.2, rel=0.25)


def test_patience_is_counted_in_steps_where_no_epochs_are_told() -> None:
    tracker = JobTracker(0.0)
    tracker.stopping = (70, 0.0)
    tracker.use(5.0, 2.0)
    feed(tracker, 5.0, 1.0, Progress(TaskId("a"), 50))
    tracker.use(10.0, 2.0)
    assert feed(tracker, 10.0, 0.5, Progress(TaskId("a"), 100)) is None  # two tell too little
    tracker.use(15.0, 2.0)
    question = feed(tracker, 15.0, 0.4, Progress(TaskId("a"), 150))
    assert question is not None and question.rest == (70.0, 0.0)


def test_only_what_a_job_or_its_user_says_is_an_end() -> None:
    for says, told in (({}, False), ({"epochs": 10}, True)):
        tracker = JobTracker(0.0)
        asked = run(tracker, 30, **says)
        left = answer(A, asked[-1][1])
        assert left is not None and left.ends == told
    tracker = JobTracker(0.0, goal=0.1)
    left = answer(A, run(tracker, 30)[-1][1])
    assert left is None or left.ends


def test_patience_in_epochs_waits_for_the_first_that_is_told() -> None:
    tracker = JobTracker(0.0)
    tracker.stopping = (2, 0.0)
    asked = run(tracker, 30, epochs=10)
    assert asked[0][1].rest is None
    rest = asked[-1][1].rest
    assert rest is not None and rest[0] == pytest.approx(200, rel=0.1)


def test_what_is_left_is_told_in_core_seconds_and_in_seconds() -> None:
    left = last(run(JobTracker(0.0), 60, epochs=10))  # on two cores
    assert left.seconds == pytest.approx(left.work / 2, rel=0.01)


@pytest.mark.parametrize("apart", [0.5, 30.0])
def test_reports_that_come_seldom_tell_all_the_time_between_them(apart: float) -> None:
    """Ten steps a second on half a core, which is read each second."""
    tracker, question = JobTracker(0.0), None
    for number in range(1, 21):
        told_at = number * apart
        for second in range(math.ceil(told_at - apart), math.floor(told_at) + 1):
            tracker.use(float(second), 0.5)
        told = Progress(TaskId("a"), round(10 * told_at), steps=round(400 * apart))
        question = feed(tracker, told_at, 1.0 / number, told) or question
    assert question is not None
    left = answer(A, question)
    assert left is not None and left.seconds is not None
    assert left.seconds == pytest.approx((400 * apart - question.step) / 10, rel=0.01)
    assert left.work == pytest.approx(left.seconds / 2, rel=0.05)


def test_a_pause_between_two_epochs_slows_no_step() -> None:
    tracker, question = JobTracker(0.0), None
    for step in range(1, 401):
        # after every hundred steps of a second it saves for a minute
        now = step + 60.0 * (step // 100)
        tracker.use(now, 1.0)
        question = (
            feed(tracker, now, 1.0 / step, Progress(TaskId("a"), step, steps=1000)) or question
        )
    assert question is not None
    assert question.step_seconds == pytest.approx(1.0)


def test_with_another_number_of_tasks_steps_are_measured_anew_and_losses_stay() -> None:
    tracker = JobTracker(0.0)
    run(tracker, 300)
    points = len(tracker.losses.points())
    tracker.other_tasks()
    question = None
    for now in range(301, 320):  # forty steps a second on four cores
        tracker.use(now, 4.0)
        step = 3000 + 40 * (now - 300)
        question = (
            feed(tracker, now, 0.1 + 2 * 0.5 ** (step / 250), Progress(TaskId("a"), step))
            or question
        )
    assert question is not None
    assert question.cost == pytest.approx(0.1, rel=0.01)
    assert question.step_seconds == pytest.approx(0.025)
    assert len(question.points) > points


def test_steps_that_are_told_without_a_loss_tell_what_is_left() -> None:
    tracker, question = JobTracker(0.0), None
    for now in range(1, 30):
        tracker.use(now, 2.0)
        question = feed(tracker, now, None, Progress(TaskId("a"), 10 * now, steps=1000)) or question
    assert feed(tracker, 30, None, Progress(TaskId("a"), None, epoch=1)) is None
    assert question is not None and question.points == ()
    left = answer(A, question)
    assert left is not None and left.seconds is not None
    assert (left.work, left.seconds) == pytest.approx(
        ((1000 - question.step) / 5, (1000 - question.step) / 10)
    )


def test_without_totals_the_remaining_time_is_what_the_script_prints() -> None:
    reports = [
        (0.5 * step, 1 / step, Progress(TaskId("a"), step, remaining=0.5 * (100 - step)))
        for step in range(1, 41)
    ]
    expected = expect(reports)
    assert expected is not None and expected.left is not None
    assert expected.until == "epochs"
    assert expected.left.steps == pytest.approx(60.0)
    assert expected.left.low < 50.0 < 70.0 < expected.left.high
    told = [
        (at, loss, Progress(TaskId("a"), said.step, steps=80, remaining=7.0))
        for at, loss, said in reports
    ]
    expected = expect(told)
    assert expected is not None and expected.left is not None
    assert expected.left.steps == 40


def test_pauses_and_the_first_reports_do_not_count() -> None:
    steady = [(0.1 * i, 2 * i) for i in range(100)]
    assert step_seconds(steady) == pytest.approx(0.05)
    slow_start = [(5.0 - 1.0 / (i + 1), 2 * i) for i in range(5)]
    paused = [(5.0 + 0.1 * i + (30.0 if i > 60 else 0.0), 2 * (i + 5)) for i in range(100)]
    assert step_seconds([*slow_start, *paused]) == pytest.approx(0.05)
    begun_again = [(20.0 + 0.1 * i, 50 + 2 * i) for i in range(100)]
    assert step_seconds([*steady[:40], *begun_again]) == pytest.approx(0.05)


def test_too_few_reports_do_not_tell_how_long_a_step_takes() -> None:
    assert step_seconds([]) is None
    four = [(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)]
    assert step_seconds(four) == pytest.approx(1.0)
    assert step_seconds(four, fewest=10) is None
    assert step_seconds([(1.0, 7)] * 50) is None


@pytest.mark.parametrize("heard_first", ["use", "report"])
def test_a_clock_that_jumps_by_an_hour_is_no_hour_of_work(heard_first: str) -> None:
    tracker = JobTracker(0.0)
    run(tracker, 30, epochs=10)
    back = 3630.0
    if heard_first == "use":
        tracker.use(back, 2.0)
    question = feed(tracker, back, 0.5, Progress(TaskId("a"), 400, epoch=4, epochs=10, count=10))
    assert question is not None
    # 30 s and the longest that is believed, 10 s, of two cores.
    assert question.cost == pytest.approx(0.2, rel=0.01)


def test_drops_are_told_by_work() -> None:
    asked = run(JobTracker(0.0), 60, epochs=100)
    step = asked[-1][1].step
    drops = dict(last(asked).drops)
    work = min(drops, key=lambda each: abs(each - 0.2 * 0.5 * step))
    assert drops[work] == pytest.approx(
        2 * (0.5 ** (step / 250) - 0.5 ** ((step + work / 0.2) / 250)), rel=0.2
    )


def test_questions_come_further_and_further_apart() -> None:
    times = [now for now, _ in run(JobTracker(0.0), 300)]
    assert len(times) <= 40
    assert all(later >= 1.09 * earlier for earlier, later in pairwise(times[10:]))


def test_the_first_epoch_that_ends_is_asked_about_at_once() -> None:
    asked = run(JobTracker(0.0), 30, epochs=10)
    assert next(now for now, question in asked if question.epochs is not None) in (11, 12)


def test_nobody_is_asked_for_whom_there_is_no_use_and_whoever_comes_later_is_told_at_once() -> None:
    asked = run(JobTracker(0.0), 60, epochs=10, asks_from=45)
    assert asked[0][0] == 45
    assert last(asked[:1]).work == pytest.approx((1000 - 10 * 45) * 0.2, rel=0.05)


def test_nothing_is_asked_before_anything_is_known_and_nothing_said_of_too_little() -> None:
    tracker = JobTracker(0.0)
    assert feed(tracker, 5.0, 1.0, Progress(TaskId("a"), 10)) is None
    assert answer(A, Question(((1.0, 1.0, 1.0),), 1.0, 0.1, None, None)) is None


def test_what_the_first_steps_cost_is_not_what_those_to_come_do() -> None:
    tracker = JobTracker(0.0)
    asked = None
    for now in range(1, 40):  # twenty seconds of two cores for the first steps, as compiling takes
        tracker.use(now, 2.0)
        step = 1 + max(now - 20, 0) * 10
        question = feed(
            tracker,
            now,
            1.0 + 1 / step,
            Progress(TaskId("a"), step, epoch=1 + step // 50, epochs=10),
        )
        asked = question or asked
    assert asked is not None
    assert asked.cost == pytest.approx(0.2, rel=0.02)


def test_a_part_of_an_epoch_tells_what_is_left_before_it_has_ended() -> None:
    tracker = JobTracker(0.0)
    asked = []
    for now in range(1, 20):
        tracker.use(now, 2.0)
        part = now / 100
        asked += [
            feed(
                tracker,
                now,
                1.0 / now,
                Progress(TaskId("a"), 10 * now, epoch=1, epochs=2, count=10, within=part),
            )
        ]
    first = next(
        question for question in asked if question is not None and question.epochs is not None
    )
    assert first.epochs is not None
    assert first.step <= 50
    assert first.epochs.steps == pytest.approx(2000 - first.step, rel=0.01)
