"""A job on one of two cores has both for some seconds, once, where nothing tells what they bring
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.policies.playing import Play, predicted, used
from tests.simulation.places import FREE, cores, ends

from headgate.controller.core import Controller
from headgate.model.actions import Action, SetShare, TryJob
from headgate.model.events import Event
from headgate.model.identifiers import JobId
from headgate.policies import Arrived, Predicted
from headgate.policies.base import Trial
from headgate.simulation import TraceJob, figures, simulate
from headgate.simulation.speeds import Speeds
from headgate.simulation.traces import made

A, B = JobId("r/a"), JobId("r/b")
SCALES, FLAT = ((1.0, 10.0), (2.0, 18.0), (4.0, 32.0)), ((1.0, 10.0), (4.0, 10.5))


def played(
    seconds: int,
    known: Mapping[str, float | None] = {},
    follows: bool = True,
    limit: float | None = None,
    machine: float = 2.0,
    rho: float = 100.0,
    trial: float = 5.0,
    of_a: float = 1.0,
    of_b: float = 1.0,
) -> tuple[Play, list[tuple[int, Trial]], list[float]]:
    """Two jobs of which each uses a core: the trials, and the cores of `a` in each second."""
    play, trials, had = Play(f"headgate:rho={rho},trial={trial}", machine), [], []
    play.at(0, Arrived(A, 1.0, limit), Arrived(B, 1.0))
    play.at(
        0,
        *(
            Predicted(job, 900.0, 800.0, 1000.0, follows=follows, cores=known.get(job))
            for job in (A, B)
        ),
    )
    for now in range(1, seconds + 1):
        # a policy is asked when its time has come, and when anything is told
        for at in (now - 0.5, now):
            decision = play.tracked.decide(
                at, machine, [used(A, of_a), used(B, of_b)] if at == now else []
            )
            play.shares |= {
                job: play.shares[job].merged(share) for job, (share, _) in decision.shares.items()
            }
            if decision.trial is not None:
                trials.append((now, decision.trial))
        had.append(play.parts()[A] * machine)
    return play, trials, had


def test_each_job_is_tried_once_for_seconds_and_all_trials_take_no_more_than_3_percent() -> None:
    _, trials, had = played(300)
    assert [trial for _, trial in trials] == [Trial(A, 2.0, 5.0, (B,)), Trial(B, 2.0, 5.0, (A,))]
    for count, (at, _) in enumerate(trials, 1):
        assert 5.0 * count <= 0.03 * 2 * at
    first, second = (at for at, _ in trials)
    assert max(had[: first - 1]) < 1.2
    assert had[first] > 1.9  # enough for two threads
    assert had[first + 6] < 1.2
    assert had[second] < 0.1
    assert sum(cores > 1.9 for cores in had) <= 6


@pytest.mark.parametrize(
    "given",
    [
        {"seconds": 59},
        {"trial": 0.0},
        {"follows": False},
        {"known": {A: 1.0, B: math.inf}},
        {"limit": 1.0, "known": {B: 1.0}},
        {"machine": 1.0},
        {"of_a": 0.3, "known": {B: 1.0}},
    ],
    ids=[
        "too short",
        "turned off",
        "fixed threads",
        "known",
        "its limit",
        "one core",
        "its core is not full",
    ],
)
def test_a_trial_that_would_tell_nothing_or_must_not_be_never_begins(
    given: Mapping[str, object],
) -> None:
    _, trials, _ = played(**{"seconds": 130, **given})  # type: ignore[arg-type]
    assert trials == []


def test_nothing_is_taken_from_a_job_that_would_end_too_late() -> None:
    _, trials, _ = played(200, rho=1.0, of_b=0.75)
    assert [trial.job for _, trial in trials] == [B]


def test_a_trial_ends_as_soon_as_it_is_known_what_it_brings() -> None:
    play, [(at, _)], _ = played(90)
    play.at(at + 2, predicted(A, 800.0, cores=1.0), predicted(B, 800.0, cores=None))
    assert play.parts()[A] * 2.0 < 1.2


def simulated(
    monkeypatch: pytest.MonkeyPatch, machine: float, jobs: list[TraceJob], policy: str = "headgate"
) -> tuple[dict[str, float], float, list[tuple[float, Action]]]:
    """When jobs end, their mean, and what was done, under the controller that the hub has."""
    done: list[tuple[float, Action]] = []

    class Listening(Controller):
        def step(self, now: float, event: Event) -> tuple[list[Action], float | None]:
            actions, wake_at = super().step(now, event)
            done.extend((now, action) for action in actions)
            return actions, wake_at

    monkeypatch.setattr("headgate.simulation.simulator.Controller", Listening)
    given = replace(
        FREE, report_seconds=1.0, speeds=Speeds(tables={"scales": SCALES, "flat": FLAT})
    )
    outcome = simulate(made("t", jobs), cores(machine), policy, given)
    return ends(outcome), figures(outcome).mean, done


def test_two_jobs_on_two_cores_are_found_out_and_cost_each_other_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None gains so much by a second core as the other loses: each stays on one."""
    jobs = [
        TraceJob("a", 0.0, 120.0, cores=2.0, model="scales"),
        TraceJob("b", 0.0, 200.0, cores=2.0, model="flat"),
    ]
    found, _, done = simulated(monkeypatch, 2.0, jobs)
    equal, _, _ = simulated(monkeypatch, 2.0, jobs, "equal")
    assert [action.job.run for _, action in done if isinstance(action, TryJob)] == ["b", "a"]
    assert all(found[name] < 1.03 * equal[name] for name in equal)
    two = [
        (now, action.task.job.run)
        for now, action in done
        if isinstance(action, SetShare) and action.threads == 2
    ]
    assert [job for _, job in two[:2]] == ["b", "a"]  # only to be tried


@pytest.mark.parametrize("flat_is_shorter", [False, True])
def test_the_core_that_is_over_goes_to_who_gains_by_it(
    monkeypatch: pytest.MonkeyPatch, flat_is_shorter: bool
) -> None:
    """Of three cores the job that scales has two, whichever is the first in order."""
    seconds = (400.0, 300.0) if flat_is_shorter else (300.0, 400.0)
    jobs = [
        TraceJob(name, 0.0, length, cores=4.0, model=name)
        for name, length in zip(("scales", "flat"), seconds, strict=True)
    ]
    _, _, done = simulated(monkeypatch, 3.0, jobs)
    had = dict.fromkeys(("scales", "flat"), 0)
    for now, action in done:
        if isinstance(action, SetShare) and now < 200.0:
            had[action.task.job.run] = action.threads
    assert had == {"scales": 2, "flat": 1}


def test_of_three_cores_an_unknown_job_goes_before_one_that_gains_little() -> None:
    play = Play("headgate:rho=100", 3.0)
    play.at(0, Arrived(A, 1.0), Arrived(B, 1.0))
    play.at(0, predicted(A, 100.0, cores=1.0), predicted(B, 900.0, cores=None))
    assert 3.0 * play.parts()[B] > 1.7
