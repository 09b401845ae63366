"""Jobs of a sweep that cannot become its best are ended, by each of the rules."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from headgate.forecast.stop_early import PastTrial, SweepStopper, Verdict, best_end
from headgate.model.records import read, text_of
from headgate.model.sweeps import StopEarly, StopRule

STEPS = 200
Curve = Callable[[int], float]


def to(floor: float) -> Curve:
    """A loss that falls to a floor."""
    return lambda step: floor + 5 / (step + 3)


def negated(curve: Curve) -> Curve:
    return lambda step: -curve(step)


def train(
    stopper: SweepStopper,
    job: str,
    curve: Curve,
    upto: int = STEPS,
    length: int | None = STEPS,
    past: list[PastTrial | None] | None = None,
) -> Verdict | None:
    """Report a job's values until it is ended, or comes to a step; its last one is its own end.
    `past` gets what the others are compared with.
    """
    for step in range(1, upto + 1):
        if stopper.report(job, step, curve(step), length=length) and step < STEPS:
            question = stopper.question(job)
            end = best_end(question) if question is not None else None
            if (verdict := stopper.judge(job, end)) is not None:
                stopper.forget(job)
                return verdict
    if upto == STEPS:
        ended = stopper.end(job)
        if past is not None:
            past.append(ended)
    return None


def after_three(rule: StopRule = "predicted", keep: int = 1, rising: bool = False) -> SweepStopper:
    """A sweep with three jobs that have ended at 0.1, 0.2 and 0.3, or their negatives."""
    stopper = SweepStopper(StopEarly(rule, keep=keep), rising=rising)
    for floor in (0.1, 0.2, 0.3):
        curve = negated(to(floor)) if rising else to(floor)
        assert train(stopper, f"ended-{floor}", curve) is None
    return stopper


def test_a_job_whose_band_does_not_reach_the_best_is_ended_soon() -> None:
    verdict = train(after_three(), "poor", to(3.0))
    assert verdict is not None
    assert verdict.step < 0.2 * STEPS
    assert verdict.value > verdict.best == pytest.approx(to(0.1)(STEPS - 2), rel=0.01)
    assert verdict.compared == 3


def test_a_job_that_may_become_the_best_goes_on() -> None:
    assert train(after_three(), "better", to(0.05)) is None


def test_as_many_as_are_to_be_kept_go_on() -> None:
    fair = to(0.25)
    assert train(after_three(), "fair", fair) is not None
    assert train(after_three(keep=3), "fair", fair) is None
    assert train(after_three(keep=3), "poor", to(3.0)) is not None


def test_of_metrics_that_rise_the_greatest_is_best() -> None:
    verdict = train(after_three(rising=True), "poor", negated(to(3.0)))
    assert verdict is not None
    assert verdict.value < verdict.best < 0
    assert train(after_three(rising=True), "better", negated(to(0.05))) is None


def test_a_drop_that_no_band_foresaw_is_allowed_for_in_others() -> None:
    def late(floor: float) -> Curve:
        """As of a learning rate that is divided by ten near the end."""
        return lambda step: to(floor)(step) - (0.0 if step < 0.9 * STEPS else 1.0)

    stopper = SweepStopper(StopEarly("predicted"))
    for floor in (1.4, 1.5, 1.6):
        assert train(stopper, f"ended-{floor}", late(floor)) is None
    assert train(stopper, "best", late(1.1)) is None
    assert train(stopper, "poor", late(4.0)) is not None


def test_nobody_is_ended_before_enough_others_have_ended_by_themselves() -> None:
    stopper = SweepStopper(StopEarly("predicted"))
    for job, floor in (("a", 0.1), ("b", 0.2), ("c", 3.0)):
        assert train(stopper, job, to(floor)) is None
    assert train(stopper, "failing", to(0.01), upto=STEPS - 1) is None
    stopper.forget("failing")
    verdict = train(stopper, "d", to(3.0))
    assert verdict is not None
    assert verdict.best > 0.1


def test_a_job_that_states_no_length_is_as_long_as_those_before() -> None:
    assert train(after_three(), "poor", to(3.0), length=None) is not None
    stopper = SweepStopper(StopEarly("asha"))
    assert train(stopper, "first", to(0.1), upto=STEPS - 1, length=None) is None


@pytest.mark.parametrize("rule", ["asha", "median", "predicted"])
def test_a_job_whose_values_are_no_numbers_is_ended(rule: StopRule) -> None:
    verdict = train(after_three(rule), "nan", lambda step: math.nan)
    assert verdict is not None
    assert math.isnan(verdict.value)
    assert verdict.step == 0
    alone = SweepStopper(StopEarly(rule))
    assert train(alone, "nan", lambda step: math.nan) is None


@pytest.mark.parametrize("rule", ["asha", "median", "predicted"])
def test_another_stopper_goes_on_with_what_one_knew(rule: StopRule) -> None:
    past = list[PastTrial | None]()
    first, second = (SweepStopper(StopEarly(rule)) for _ in range(2))
    for floor in (0.1, 0.2, 0.3):
        assert train(first, str(floor), to(floor), past=past) is None
    assert train(SweepStopper(StopEarly(rule)), "poor", to(3.0)) is None
    for trial in past:
        second.restore(read(PastTrial, text_of(trial)))
    verdict = train(first, "poor", to(3.0))
    assert verdict is not None
    assert train(second, "poor", to(3.0)) == verdict


def test_asha_lets_the_best_quarter_of_a_rung_go_on() -> None:
    stopper = SweepStopper(StopEarly("asha"))
    floors = (8, 7, 6, 5, 1, 2, 3, 4)
    quarter = STEPS // 4
    ended = [train(stopper, str(floor), to(floor), quarter) is not None for floor in floors]
    # three make no quarter; the next two are the best so far; of eight, two go on
    assert ended == [False] * 5 + [True] * 3


def test_asha_judges_each_rung_once() -> None:
    stopper = SweepStopper(StopEarly("asha"))
    for floor in (0.9, 0.8, 0.7):
        train(stopper, str(floor), to(floor), upto=6)
    assert train(stopper, "worse", to(1.0), upto=6) is not None
    assert train(stopper, "best", to(0.0), upto=6) is None
    for step in range(7, 13):  # it gets worse, still between two rungs
        assert stopper.report("best", step, 9.0) in (True, False)
        assert stopper.judge("best") is None


def test_the_median_rule_compares_the_best_value_with_means_up_to_its_step() -> None:
    stopper = after_three("median")
    assert train(stopper, "fair", to(0.15)) is None
    verdict = train(stopper, "poor", to(3.0))
    assert verdict is not None
    step = int(verdict.step)
    mean = sum(to(0.2)(at) for at in range(1, step + 1)) / step  # the third of four
    assert verdict.best == pytest.approx(mean)
    assert verdict.compared == 4


def test_what_is_unknown_is_not_judged() -> None:
    stopper = SweepStopper(StopEarly("predicted"))
    assert stopper.question("unknown") is None
    assert stopper.judge("unknown") is None
    stopper.end("unknown")
    stopper.forget("unknown")
