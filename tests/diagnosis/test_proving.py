"""Proof by pause on planted effects: how often it errs, what it sees, and what it makes of an
account.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headgate.diagnosis import proving
from headgate.diagnosis.attribution import LostTime, TimeEstimate
from headgate.diagnosis.proving import Window
from headgate.recorded.proofs import Gain, Outcome, Proof
from headgate.recorded.usage import Array

WINDOW = 0.4


def clock(
    rng: np.random.Generator, seconds: float, held: list[Window], gain: float, noise: float = 0.1
) -> list[Array]:
    """Reports of a job ten times a second, and the steps they tell: of 10 ms, noisy, and drifting
    by a third.
    """
    at, times, steps, told = 0.0, [0.0], [0], 0.0
    jitter = np.maximum(1.0 + noise * rng.standard_normal(int(seconds * 200)), 0.2).tolist()
    while at < seconds:
        fast = gain > 0.0 and any(window.begin <= at < window.end for window in held)
        at += 0.01 * (1.0 + 0.3 * at / seconds) * jitter[steps[-1]] / (1.0 + gain * fast)
        steps[-1] += 1
        if at - told >= 0.1:
            told = at
            times.append(at)
            steps.append(steps[-1])
    return [np.array(times), np.array([0, *steps[:-1]], dtype=float)]


def pauses(rng: np.random.Generator, count: int) -> tuple[list[Window], list[Window]]:
    """Windows of a trial, held and free, in random order."""
    held, free = [], []
    for index in range(count):
        begin = 2.0 * index + 0.5 + 0.3 * rng.random()
        pair = [Window(begin, begin + WINDOW), Window(begin + WINDOW, begin + 2 * WINDOW)]
        first = int(rng.integers(2))
        held.append(pair[first])
        free.append(pair[1 - first])
    return held, free


def trial(seed: int, gain: float, count: int = 16, noise: float = 0.1) -> Outcome:
    """The outcome of one trial, ended by the rule."""
    rng = np.random.default_rng(seed)
    held, free = pauses(rng, count)
    times, steps = clock(rng, 2.0 * count + 1.0, held, gain, noise)
    found = [proving.difference(times, steps, *pair) for pair in zip(held, free, strict=True)]
    values = [each for each in found if each is not None]
    assert len(values) == count
    for pauses_so_far, error in proving.looks(count).items():
        gained, outcome = proving.judged(values[:pauses_so_far], error)
        if outcome != "open":
            return "seen" if gained.low > 0 else outcome
    return "open"


def test_of_jobs_without_effect_at_most_8_in_100_are_accused() -> None:
    assert sum(trial(seed, 0.0) == "seen" for seed in range(100)) <= 8


@pytest.mark.long
def test_so_it_is_by_the_rule_alone_with_heavy_tails() -> None:
    rng = np.random.default_rng(5)
    planned = proving.looks(64)
    errors = 0
    for _ in range(100):
        values = np.clip(rng.standard_t(2, 64) * 0.05, -1.0, 1.0).tolist()
        errors += any(
            proving.judged(values[:count], error)[1] == "seen" for count, error in planned.items()
        )
    assert errors <= 8


def test_an_effect_of_ten_percent_is_seen_in_most_trials() -> None:
    assert sum(trial(seed, 0.10) == "seen" for seed in range(40)) >= 32


def test_the_gain_is_told_without_bias() -> None:
    rng = np.random.default_rng(3)
    held, free = pauses(rng, 60)
    times, steps = clock(rng, 121.0, held, 0.5, noise=0.02)
    values = [proving.difference(times, steps, *pair) for pair in zip(held, free, strict=True)]
    gained, outcome = proving.judged([each for each in values if each is not None], 0.05)
    assert outcome == "seen"
    assert gained.low < 0.5 < gained.high
    assert gained.part == pytest.approx(0.5, abs=0.05)


def test_the_planned_pauses_show_what_they_are_planned_for() -> None:
    rng = np.random.default_rng(0)
    times, steps = clock(rng, 60.0, [], 0.0)
    deviation = proving.noise(times, steps, WINDOW)
    assert deviation is not None
    needed = proving.pauses_needed(deviation)
    assert needed < proving.MOST_PAUSES
    assert sum(trial(seed, 0.05, needed) == "seen" for seed in range(20)) >= 13
    assert proving.pauses_needed(0.2) > 2 * proving.pauses_needed(0.1)


def test_looks_are_fixed_and_spend_five_percent() -> None:
    assert proving.looks(8) == {8: 0.05}
    for planned in (9, 20, 100, 512):
        spent = proving.looks(planned)
        assert list(spent) == sorted(spent)
        assert max(spent) == planned
        assert min(spent) >= proving.LEAST_PAUSES
        assert sum(spent.values()) == pytest.approx(proving.ERROR)


def test_no_interval_of_a_few_pauses_is_sure() -> None:
    low, high = proving.interval([0.1, 0.2, 0.3], 0.05)
    assert (low, high) == (0.1, 0.3)


def test_windows_without_reports_tell_nothing() -> None:
    times, steps = np.array([0.0, 0.5, 10.0]), np.array([0.0, 5.0, 100.0])
    assert proving.difference(times, steps, Window(3.0, 3.4), Window(3.4, 3.8)) is None
    assert proving.difference(times, steps, Window(12.0, 12.4), Window(12.4, 12.8)) is None
    assert proving.report_seconds(times, steps) is None


def test_a_job_that_went_back_a_step_tells_nothing_of_that_pair() -> None:
    times = np.arange(0.0, 4.0, 0.1)
    steps = np.where(times < 2.0, times * 100, (times - 2.0) * 100)
    assert proving.difference(times, steps, Window(1.8, 2.2), Window(2.2, 2.6)) is None


def test_windows_are_as_long_as_the_steps_need_and_no_longer_than_allowed() -> None:
    assert proving.window_seconds(0.1, 0.01, 0.4, 1.0) == 0.4
    assert proving.window_seconds(0.2, 0.1, 0.4, 1.0) == pytest.approx(0.8)
    assert proving.window_seconds(0.5, 0.5, 0.4, 1.0) == 1.0
    assert proving.window_seconds(2.0, 2.0, 0.4, 1.0) is None


def beside(seconds: int, of: int = 120) -> Array:
    """A bucket of a second each, so many of them beside the culprit."""
    return (np.arange(of) < seconds).astype(float)


def loss(seconds: float, low: float, high: float, resource: str = "cores") -> LostTime:
    return LostTime("b", resource, TimeEstimate(seconds, low, high), "counted")  # type: ignore[arg-type]


def proof(part: float, low: float, high: float, outcome: Outcome) -> Proof:
    return Proof("b", "a", 16, 0.4, Gain(part, low, high), outcome)


def test_a_proved_loss_takes_the_place_of_what_was_counted() -> None:
    known = [loss(30.0, 10.0, 60.0), loss(10.0, 5.0, 15.0, "memory")]
    found = proving.replaced(known, [proof(0.25, 0.2, 0.3, "seen")], {"b": beside(100)})
    assert [(each.resource, each.evidence) for each in found] == [
        ("cores", "proved"),
        ("memory", "proved"),
    ]
    assert sum(each.lost.seconds for each in found) == pytest.approx(20.0)
    assert found[0].lost.seconds == pytest.approx(15.0)
    assert found[0].lost.low < found[0].lost.seconds < found[0].lost.high


def test_where_no_effect_was_found_nobody_is_blamed() -> None:
    other = LostTime("c", "cores", TimeEstimate(5.0, 4.0, 6.0), "counted")
    assert proving.replaced(
        [loss(9.0, 8.0, 10.0), other], [proof(0.0, -0.02, 0.02, "none")], {"b": beside(50)}
    ) == [other]


def test_what_could_not_be_told_changes_nothing() -> None:
    known = [loss(9.0, 8.0, 10.0)]
    assert proving.replaced(known, [proof(0.1, -0.2, 0.5, "open")], {"b": beside(50)}) == known
    assert proving.replaced([], [proof(0.1, -0.2, 0.5, "open")], {"b": beside(50)}) == []


@pytest.mark.parametrize("known", [[], [loss(0.2, 0.1, 0.3)], [loss(30.0, 20.0, 40.0)]])
def test_of_two_on_one_gpu_what_nobody_counted_was_lost_there(known: list[LostTime]) -> None:
    found = proving.replaced(
        known, [proof(0.25, 0.2, 0.3, "seen")], {"b": beside(100)}, on_gpu=["b"]
    )
    assert sum(each.lost.seconds for each in found) == pytest.approx(20.0)
    through = {each.resource: each.lost.seconds for each in found}
    assert through.get("gpu", 0.0) == pytest.approx(
        max(20.0 - sum(each.lost.seconds for each in known), 0.0)
    )


def test_a_loss_that_only_pauses_saw_is_of_memory() -> None:
    (found,) = proving.replaced([], [proof(1.0, 0.9, 1.1, "seen")], {"b": beside(10)})
    assert (found.resource, found.evidence) == ("memory", "proved")
    assert found.lost.seconds == pytest.approx(5.0)


def test_a_proof_takes_what_exceeds_its_cause_s_count_from_other_causes() -> None:
    """Four jobs of one thread on two cores: each waits for half of its time, a sixth for each of
    the others. Without one of them each is faster by a third.
    """
    losses = [LostTime(to, "cores", TimeEstimate(20.0, 15.0, 25.0), "counted") for to in "bcd"]
    proofs = [replace(proof(1 / 3, 0.3, 0.4, "seen"), culprit=to) for to in "bcd"]
    there = dict.fromkeys("bcd", beside(120))
    for count, each in ((1, [30.0, 15.0, 15.0]), (2, [30.0, 30.0, 0.0]), (3, [23.125] * 3)):
        found = proving.replaced(losses, proofs[:count], there)
        assert sorted((one.lost.seconds for one in found), reverse=True) == pytest.approx(each)
        assert all(one.lost.low <= one.lost.seconds <= one.lost.high for one in found)


def test_what_was_proved_of_neighbours_that_never_met_adds_up() -> None:
    proofs = [replace(proof(1.0, 0.9, 1.1, "seen"), culprit=to) for to in "bc"]
    found = proving.replaced([], proofs, {"b": beside(60), "c": 1.0 - beside(60)})
    assert [one.lost.seconds for one in found] == pytest.approx([30.0, 30.0])
    together = proving.replaced([], proofs, dict.fromkeys("bc", beside(60)))
    assert sum(one.lost.seconds for one in together) == pytest.approx(45.0)
