"""What neighbours cost jobs that change by themselves, against what is known of it."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
from tests.diagnosis.courses import COURSES, KINDS, drawn, presences, recorded
from tests.diagnosis.scheduled import Machine, Neighbour, Training

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.verdicts import verdict

PRESENCES = list(presences(50.0, random.Random(0)))


def told(path: Path, kind: str, course: str, presence: str, seed: int = 1) -> tuple[Account, float]:
    """The account of such a job, and the seconds that it really lost."""
    run, lost = drawn(path / "run.sqlite", kind, course, presence, seed)
    return accounts(run.jobs, run.nodes, run.seconds)[0], lost


def test_a_scheduler_leaves_no_core_idle_while_a_thread_waits() -> None:
    trace = Machine(
        Training(threads=2), 60, COURSES["steady"], Neighbour(threads=3), (1.0,), 1
    ).run()
    for second in trace.seconds[2:-1]:
        assert second.ran + second.others == pytest.approx(2.0, abs=0.01)
        assert 0.0 < second.ready <= 1.0 and second.waited > 0.5
    assert trace.reports[-1] == (trace.end, 60)


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("presence", ["half way on", "in the middle"])
def test_a_neighbour_that_does_nothing_is_not_blamed_whatever_the_job_does(
    tmp_path: Path, course: str, presence: str
) -> None:
    account, _ = told(tmp_path, "nothing", course, presence)
    assert not verdict(account).kind.startswith("neighbour"), verdict(account)
    assert account.parts["neighbours"].low == 0.0


@pytest.mark.parametrize("course", ["dearer half way", "layers thaw", "a curriculum", "jumps"])
def test_a_neighbour_is_not_blamed_that_comes_and_goes_each_time_that_the_job_changes_most(
    tmp_path: Path, course: str
) -> None:
    """It starts or ends at just those moments, on the core that the job leaves."""
    job, cost = Training(), COURSES[course]
    alone = Machine(job, 400, cost, Neighbour(), (), 1).run()
    levels = [cost(step / 400.0) for step in range(400)]
    changes = sorted(range(1, 400), key=lambda step: -abs(levels[step] - levels[step - 1]))[:4]
    switches = sorted(
        alone.reports[step][0] for step in changes if levels[step] != levels[step - 1]
    )
    trace = Machine(job, 400, cost, Neighbour(), switches, 1).run()
    run = recorded(tmp_path / "run.sqlite", trace, random.Random(1))
    [account] = accounts(run.jobs, run.nodes, run.seconds)
    assert not verdict(account).kind.startswith("neighbour"), verdict(account)


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 4])
@pytest.mark.parametrize("course", COURSES)
def test_no_neighbour_that_does_nothing_is_blamed_whenever_it_comes(
    tmp_path: Path, course: str, seed: int
) -> None:
    for presence in PRESENCES:
        folder = tmp_path / presence
        folder.mkdir()
        account, _ = told(folder, "nothing", course, presence, seed)
        assert not verdict(account).kind.startswith("neighbour"), (presence, verdict(account))


@pytest.mark.parametrize("presence", ["twice", "bursts"])
def test_memory_is_named_where_the_neighbour_came_and_went(tmp_path: Path, presence: str) -> None:
    account, lost = told(tmp_path, "memory", "ever longer sequences", presence)
    assert verdict(account).kind == "neighbour-memory"
    assert account.parts["neighbours"].seconds == pytest.approx(lost, rel=0.25)


def test_memory_is_a_doubt_where_the_neighbour_came_and_went_once(tmp_path: Path) -> None:
    account, lost = told(tmp_path, "memory", "steady", "in the middle")
    assert verdict(account).kind == "not-known"
    assert account.parts["neighbours"].low == 0.0
    assert account.parts["neighbours"].high >= lost


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("core")])
def test_threads_that_meet_lose_what_the_one_loses_that_waits(tmp_path: Path, kind: str) -> None:
    account, lost = told(tmp_path, kind, "steady", "late")
    part = account.parts["neighbours"]
    assert part.low <= lost <= part.high
    assert {loss.resource for loss in account.losses if loss.sure} == {"cores"}
    assert verdict(account).kind == "neighbour-cores"


@pytest.mark.long
def test_bands_of_90_percent_hold_what_was_lost(tmp_path: Path) -> None:
    """Whatever the job's course, whatever the neighbour takes, whenever it comes and goes: 200
    draws.
    """
    draw, held, errors = random.Random(5), 0, []
    for seed in range(200):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        kind, course, presence = (draw.choice(list(names)) for names in (KINDS, COURSES, PRESENCES))
        account, lost = told(folder, kind, course, presence, seed)
        part = account.parts["neighbours"]
        held += part.low - 0.3 <= lost <= part.high + 0.3
        if lost >= 0.1 * account.elapsed:
            errors.append(abs(part.seconds - lost) / lost)
    assert held >= 0.85 * 200
    assert statistics.median(errors) <= 0.15
