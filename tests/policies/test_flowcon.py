"""FlowCon, the published implementation and the paper's, against rounds that were worked out by hand.

Everywhere alpha is 0.02 and itval 10 s, on 4 cores: β = 1.5 and 1/(βn) = 1/3 for two jobs, 4/3 and 1/4 for three.
"""

from __future__ import annotations

import math

import pytest
from tests.policies.playing import Play, arrivals, loss, predicted, used

from headgate.policies import Left
from headgate.shares import UNLIMITED, Share

FAITHFUL = "flowcon:faithful,alpha=0.02,itval=10"
PAPER = "flowcon:alpha=0.02,itval=10"


def limits(changed: dict[str, Share]) -> dict[str, object]:
    return {job: share.cpu_cap_cores for job, share in changed.items()}


def tell(play: Play, now: float, **values: tuple[float, float]) -> None:
    """A loss and a use of cores of each job, between two rounds."""
    changes = [change for job, (value, cores) in values.items() for change in (loss(job, value), used(job, cores))]
    assert play.at(now, *changes) == {}


def learned_out(play: Play) -> None:
    """Two jobs, of which one learns until it is 30 s old, up to the first round of the back-off."""
    play.at(0, *arrivals("a", "b"))
    assert (play.shares, play.wake_at) == ({"a": Share(), "b": Share()}, 10)
    tell(play, 5, a=(10, 2), b=(2, 2))
    assert play.at(10) == {}  # a first round: G = 0, both are Watching
    tell(play, 15, a=(6, 2), b=(1.9, 2))
    # a: |0.6 - 1|/10 / 0.5 = 0.08, New: 0.08/0.09 of 4 cores = 3.56. b: |0.95 - 1|/10 / 0.5 = 0.01, Completing: 1.33.
    assert limits(play.at(20)) == {"a": 3.0, "b": 1.0}
    tell(play, 25, a=(4, 3), b=(1.9, 1))
    # a: 0.2/10 / 0.75 = 0.0267, New, all of ΣG. b: 0, Completing: 1/3.
    assert limits(play.at(30)) == {"a": 4.0}
    tell(play, 35, a=(4, 3), b=(1.9, 1))
    assert play.at(40) == {}  # a: 0, Watching; ΣG = 0
    tell(play, 45, a=(4, 3), b=(1.9, 1))
    assert play.at(50) == {}  # a is Completing, but was not in the round before
    assert play.wake_at == 60
    tell(play, 55, a=(4, 3), b=(1.9, 1))
    assert limits(play.at(60)) == {"a": UNLIMITED, "b": UNLIMITED}
    assert play.wake_at == 80


def test_faithful_limits_are_whole_cpus_and_rounds_back_off_without_an_end() -> None:
    play = Play(FAITHFUL, cores=4.0)
    learned_out(play)
    at, apart = 80.0, 40.0
    for _ in range(5):
        assert play.at(at) == {}
        assert play.wake_at == at + apart
        at, apart = at + apart, 2 * apart


def test_faithful_a_job_that_comes_ends_the_back_off_and_waits_for_two_rounds() -> None:
    play = Play(FAITHFUL, cores=4.0)
    learned_out(play)
    assert play.at(80) == {}
    assert play.at(93, *arrivals("c")) == {}  # a round at once: c has G = 0 and is Watching
    assert play.wake_at == 103
    tell(play, 95, a=(4, 1), b=(1.9, 1), c=(8, 1))
    assert play.at(103) == {}  # c has no losses in the interval before: G = 0, Completing
    tell(play, 105, a=(4, 1), b=(1.9, 1), c=(4, 1))
    # c: 0.5/10 / 0.25 = 0.2, New again. But all were Completing in the round before, so the back-off begins anew.
    assert play.at(113) == {}
    assert play.wake_at == 133
    tell(play, 125, a=(4, 1), b=(1.9, 1), c=(4, 1))
    # P of c is still 0.05: all of ΣG. a and b are Completing: 1/4.
    assert limits(play.at(133)) == {"a": 1.0, "b": 1.0, "c": 4.0}
    assert play.wake_at == 153
    # c leaves, which ends the back-off with a round at once, of two jobs that are Completing.
    assert limits(play.at(135, Left("c"))) == {"a": UNLIMITED, "b": UNLIMITED}
    assert play.wake_at == 155


def test_faithful_without_a_back_off_nobody_looks_before_the_next_round() -> None:
    play = Play(FAITHFUL, cores=4.0)
    play.at(0, *arrivals("a"))
    tell(play, 5, a=(10, 2))
    play.at(10)
    assert play.at(12, *arrivals("b")) == {}
    assert play.wake_at == 20
    assert play.at(15, Left("b")) == {}
    assert play.wake_at == 20


def test_faithful_rounds_of_the_back_off_join_old_losses_with_new_cpu() -> None:
    play = Play(FAITHFUL, cores=4.0)
    play.at(0, *arrivals("a", "b"))
    tell(play, 5, a=(1.0, 2), b=(1.0, 2))
    assert play.at(10) == {}
    tell(play, 15, a=(0.95, 2), b=(1.0, 2))
    # Both are Completing with G = 0.01 and 0: all of ΣG for a, 1/3 for b.
    assert limits(play.at(20)) == {"a": 4.0, "b": 1.0}
    tell(play, 25, a=(0.90, 2), b=(1.0, 2))
    assert limits(play.at(30)) == {"a": UNLIMITED, "b": UNLIMITED}
    assert play.wake_at == 50
    tell(play, 45, a=(0.90, 0.4), b=(1.0, 2))
    # Losses are not looked at: P of a is still 0.005, over 0.1 of the CPU 0.05, so a is New. But all were Completing.
    assert play.at(50) == {}
    assert play.wake_at == 90
    tell(play, 60, a=(0.90, 0.4), b=(1.0, 2))
    # c comes, 15 s after the last round: again P of a is old. All of ΣG for a, 1/4 for b; c is Watching.
    assert limits(play.at(65, *arrivals("c"))) == {"a": 4.0, "b": 1.0}
    assert play.wake_at == 75


def test_faithful_a_limit_below_one_cpu_changes_nothing_and_divergence_is_progress() -> None:
    play = Play(FAITHFUL, cores=2.0)
    play.at(0, *arrivals("a", "b"))
    tell(play, 5, a=(1, 1), b=(4, 1))
    play.at(10)
    tell(play, 15, a=(4, 1), b=(4, 1))
    # a rises from 1/4 to 1: 0.075 / 0.5 = 0.15, New with both CPUs. b: 1/3 of 2 is cut to 0.
    assert limits(play.at(20)) == {"a": 2.0}


def test_faithful_losses_that_are_no_numbers_count_as_missing() -> None:
    play = Play(FAITHFUL, cores=4.0)
    play.at(0, *arrivals("a"))
    tell(play, 5, a=(1.0, 2))
    play.at(10)
    tell(play, 15, a=(math.nan, 2))
    assert play.at(20) == {}
    tell(play, 25, a=(math.inf, 2))
    assert play.at(30) == {}
    assert play.wake_at == 50  # it was Completing in the round before, at 20 s


def round_of_paper(play: Play, now: float, **values: tuple[float, float]) -> dict[str, Share]:
    tell(play, now - 5, **values)
    return play.at(now)


def test_paper_limits_are_weights_by_growth_over_what_is_left_to_learn() -> None:
    play = Play(PAPER, cores=4.0)
    play.at(0, *arrivals("a", "b"), predicted("a", 100, 2.0), predicted("b", 100, 0.0))
    assert play.parts() == {"a": 0.5, "b": 0.5}
    assert round_of_paper(play, 10, a=(10, 2), b=(2, 2)) == {}  # nothing to compare with: both stay New
    round_of_paper(play, 20, a=(6, 2), b=(1.9, 2))
    # a: 4/8/10 / 0.5 = 0.1, New: 0.1/0.11. b: 0.1/2/10 / 0.5 = 0.01, Watching: as it was, 1.
    assert play.over("a", "b") == pytest.approx(10 / 11, rel=1e-3)
    round_of_paper(play, 30, a=(4, 2), b=(1.9, 2))
    assert play.over("a", "b") == pytest.approx(3.0, rel=1e-3)  # all of ΣG against 1/3
    assert round_of_paper(play, 40, a=(4, 2), b=(1.9, 2)) == {}  # a is Watching, ΣG = 0
    assert play.wake_at == 50
    round_of_paper(play, 50, a=(4, 2), b=(1.9, 2))
    assert play.over("a", "b") == pytest.approx(1.0)  # all are Completing
    assert round_of_paper(play, 60, a=(4, 2), b=(1.9, 2)) == {}
    assert play.at(70) == {}  # the back-off: no round before 80
    play.at(73, *arrivals("c"))
    assert play.parts() == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    play.wake_until(83)
    assert play.wake_at == 83


def test_paper_a_diverging_job_does_not_progress() -> None:
    play = Play(PAPER, cores=4.0)
    play.at(0, *arrivals("a", "b"), predicted("a", 100, 0.0), predicted("b", 100, 0.0))
    round_of_paper(play, 10, a=(1, 2), b=(4, 2))
    for now, up, down in ((20, 2, 3), (30, 4, 2)):
        round_of_paper(play, now, a=(up, 2), b=(down, 2))
    assert play.over("b", "a") == pytest.approx(3.0, rel=1e-3)  # a is Completing, b has all of ΣG


def test_paper_a_job_without_news_keeps_its_list() -> None:
    play = Play(PAPER, cores=4.0)
    play.at(0, *arrivals("a", "b"), predicted("a", 100, 0.0), predicted("b", 100, 0.0))
    round_of_paper(play, 10, a=(4, 2), b=(4, 2))
    for now, value in ((20, 3.0), (30, 2.0)):
        round_of_paper(play, now, b=(value, 2))
    assert play.over("a", "b") == pytest.approx(1.0)


def test_paper_holds_disk_and_memory_of_who_learns_little_by_them_and_lets_go_of_them() -> None:
    play = Play("flowcon:alpha=0.02,itval=10,memory=8e9,disk=1e8", cores=4.0)
    play.at(0, *arrivals("a", "b"), predicted("a", 100, 0.0), predicted("b", 100, 0.0))
    values = {"a": [4.0, 4.0, 4.0, 4.0, 1.0], "b": [4.0, 3.0, 2.0, 1.0, 0.5]}
    for index in range(5):
        now = 10 * index + 5
        for job in ("a", "b"):
            play.at(now, loss(job, values[job][index]), used(job, 2.0, 4e9, 5e7))
        play.at(now + 5)
        if index == 3:
            # Completing: 1/3 of the disk; of memory 1/3 would be less than it uses, and a quarter more.
            assert play.shares["a"].disk_bytes_per_second == pytest.approx(1e8 / 3)
            assert play.shares["a"].memory_bytes == 5e9
            assert play.shares["b"].disk_bytes_per_second is None
    assert play.shares["a"].disk_bytes_per_second is UNLIMITED
    assert play.shares["a"].memory_bytes is UNLIMITED
