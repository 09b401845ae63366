"""What neighbours cost jobs that change by themselves, against what is known of it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.analysis.courses import COURSES, KINDS, drawn, presences

from headgate.analysis.accounts import Account, accounts
from headgate.analysis.verdicts import verdict

INNOCENT = [kind for kind in KINDS if kind.startswith("nothing")]
PRESENCES = list(presences(50.0, random.Random(0)))


def told(path: Path, kind: str, course: str, presence: str, seed: int = 1) -> tuple[Account, float]:
    """The account of such a job, and the seconds that it really lost."""
    present = presences(50.0, random.Random(seed))[presence]
    run, lost = drawn(path / "run.sqlite", replace(KINDS[kind], course=course, present=present, seed=seed))
    return accounts(run.jobs, run.nodes, run.seconds)[0], lost


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("presence", ["half way on", "in the middle", "once"])
def test_a_neighbour_that_does_nothing_is_not_blamed_whatever_the_job_does(
    tmp_path: Path, course: str, presence: str
) -> None:
    account, _ = told(tmp_path, "nothing", course, presence)
    assert not verdict(account).name.startswith("neighbour"), verdict(account).why
    assert account.parts["neighbours"].low == 0.0


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 4])
@pytest.mark.parametrize("course", COURSES)
def test_no_neighbour_that_does_nothing_is_blamed_whenever_it_comes(tmp_path: Path, course: str, seed: int) -> None:
    for presence in PRESENCES:
        for kind in INNOCENT:
            folder = tmp_path / f"{presence}-{kind}"
            folder.mkdir()
            account, _ = told(folder, kind, course, presence, seed)
            assert not verdict(account).name.startswith("neighbour"), (presence, kind, verdict(account).why)


@pytest.mark.parametrize("presence", ["twice", "bursts"])
def test_memory_is_named_where_the_neighbour_came_and_went(tmp_path: Path, presence: str) -> None:
    account, lost = told(tmp_path, "memory", "ever longer sequences", presence)
    assert verdict(account).name == "neighbour-memory"
    assert account.parts["neighbours"].seconds == pytest.approx(lost, rel=0.25)


@pytest.mark.parametrize("kind", ["cores of threads that spin", "a core of threads that spin"])
@pytest.mark.parametrize("presence", ["late", "always"])
def test_threads_that_spin_lose_what_the_one_loses_that_waits(tmp_path: Path, kind: str, presence: str) -> None:
    account, lost = told(tmp_path, kind, "steady", presence)
    part = account.parts["neighbours"]
    assert part.seconds == pytest.approx(lost, rel=0.15)
    assert {loss.resource for loss in account.losses} == {"cores"}
    assert verdict(account).name == "neighbour-cores"


@pytest.mark.long
def test_bands_of_90_percent_hold_what_was_lost(tmp_path: Path) -> None:
    """Whatever the job's course, whatever the neighbour takes, whenever it comes and goes."""
    held, count = 0, 0
    for course in COURSES:
        for presence in ("late", "once", "twice", "bursts"):
            for kind in KINDS:
                folder = tmp_path / f"{count}"
                folder.mkdir()
                account, lost = told(folder, kind, course, presence, 5)
                part = account.parts["neighbours"]
                held += part.low - 0.3 <= lost <= part.high + 0.3
                count += 1
    assert held >= 0.85 * count
