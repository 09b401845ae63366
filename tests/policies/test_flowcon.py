"""FlowCon, the published implementation and the paper's, against rounds that were worked out by
hand.

But for the recorded series alpha is 0.02 and itval 10 s, on 4 cores: β = 1.5 and 1/(βn) = 1/3 for
two jobs, 4/3 and 1/4 for three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from tests.policies.playing import Play, arrivals, loss, predicted, used

from headgate.controller.safeguards import of_policy
from headgate.model.identifiers import JobId
from headgate.model.reason_text import in_words
from headgate.model.shares import UNLIMITED, Share, Unlimited
from headgate.policies import Change, Left, Used, make

FAITHFUL = "flowcon:faithful,alpha=0.02,itval=10"
PAPER = "flowcon:alpha=0.02,itval=10"


def limits(changed: dict[str, Share]) -> dict[str, object]:
    return {job: share.cpu_cap_cores for job, share in changed.items()}


def tell(play: Play, now: float, **values: tuple[float, float]) -> None:
    """A loss and a use of cores of each job, between two rounds."""
    changes = [
        change
        for job, (value, cores) in values.items()
        for change in (loss(job, value), used(job, cores))
    ]
    assert play.at(now, *changes) == {}


def learned_out(play: Play) -> None:
    """Two jobs, of which one learns until it is 30 s old, up to the first round of the back-off."""
    play.at(0, *arrivals("a", "b"))
    assert (play.shares, play.wake_at) == ({"a": Share(), "b": Share()}, 10)
    tell(play, 5, a=(10, 2), b=(2, 2))
    assert play.at(10) == {}  # a first round: G = 0, both are Watching
    tell(play, 15, a=(6, 2), b=(1.9, 2))
    # a: |0.6 - 1|/10 / 0.5 = 0.08, New: 0.08/0.09 of 4 cores = 3.56.
    # b: |0.95 - 1|/10 / 0.5 = 0.01, Completing: 1.33.
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
    # c: 0.5/10 / 0.25 = 0.2, New again. But all were Completing in the round before, so the
    # back-off begins anew.
    assert play.at(113) == {}
    assert play.wake_at == 133
    tell(play, 125, a=(4, 1), b=(1.9, 1), c=(4, 1))
    # P of c is still 0.05: all of ΣG. a and b are Completing: 1/4.
    assert limits(play.at(133)) == {"a": 1.0, "b": 1.0, "c": 4.0}
    assert play.wake_at == 153
    # c leaves, which ends the back-off with a round at once, of two jobs that are Completing.
    assert limits(play.at(135, Left(JobId("c")))) == {"a": UNLIMITED, "b": UNLIMITED}
    assert play.wake_at == 155


def test_faithful_without_a_back_off_nobody_looks_before_the_next_round() -> None:
    play = Play(FAITHFUL, cores=4.0)
    play.at(0, *arrivals("a"))
    tell(play, 5, a=(10, 2))
    play.at(10)
    assert play.at(12, *arrivals("b")) == {}
    assert play.wake_at == 20
    assert play.at(15, Left(JobId("b"))) == {}
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
    # Losses are not looked at: P of a is still 0.005, over 0.1 of the CPU 0.05, so a is New. But
    # all were Completing.
    assert play.at(50) == {}
    assert play.wake_at == 90
    tell(play, 60, a=(0.90, 0.4), b=(1.0, 2))
    # c comes, 15 s after the last round: again P of a is old. All of ΣG for a, 1/4 for b; c is
    # Watching.
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
    # nothing to compare with: both stay New
    assert round_of_paper(play, 10, a=(10, 2), b=(2, 2)) == {}
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


@pytest.mark.parametrize("end", ["diverges", "stalls"])
def test_paper_who_diverges_or_ceases_to_report_is_completing_at_once(end: str) -> None:
    play = Play(PAPER, cores=4.0)
    play.at(0, *arrivals("a", "b"), predicted("a", 100, -4.0), predicted("b", 100, -4.0))
    for now in (10, 20, 30):
        round_of_paper(play, now, a=(8 - 0.2 * now, 1), b=(8 - 0.1 * now, 1))
    # it learns twice as fast, and has less to learn
    assert play.over("a", "b") == pytest.approx(2 * 11 / 10, rel=0.01)
    if end == "diverges":
        play.at(31, *(loss("a", math.nan) for _ in range(3)))
    else:
        for now in range(31, 101, 3):
            play.at(now, used("a", 1.0), used("b", 1.0), loss("b", 8 - 0.1 * now))
    assert play.reasons["a"].startswith("completing, growth efficiency 0")
    assert play.over("b", "a") == pytest.approx(3.0, rel=0.06)


def test_paper_a_resource_that_a_job_hardly_ever_uses_says_nothing_of_what_it_learns() -> None:
    play = Play("flowcon:alpha=0.02,itval=10,disk=1e8", cores=4.0)
    play.at(0, *arrivals("a", "b", "c"), *(predicted(job, 100, 0.0) for job in "abc"))
    for index, value in enumerate((4.0, 3.0, 2.0, 1.0)):
        now = 10 * index
        reads = used("b", 1.0, disk=5e7), used("c", 1.0, disk=5e7)
        play.at(now + 5, loss("a", value), loss("b", 4.0), loss("c", value), used("a", 1.0), *reads)
        play.at(now + 10)
    assert play.shares["a"].disk_bytes_per_second is None  # it learns, and reads nothing
    assert play.shares["b"].disk_bytes_per_second == pytest.approx(1e8 / 4)
    # In one second of ten b reads as fast as the disk can: a tenth of it on average, by which it
    # learns well.
    for second in range(1, 11):
        change = used("b", 1.0, disk=1e8 if second == 10 else 0.0)
        play.at(39.5 + second, used("a", 1.0), change, loss("b", 4.0 - 0.05 * second))
    play.at(50)
    assert play.shares["b"].disk_bytes_per_second is UNLIMITED


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
            # Completing: 1/3 of the disk; of memory 1/3 would be less than it uses, and a quarter
            # more.
            assert play.shares["a"].disk_bytes_per_second == pytest.approx(1e8 / 3)
            assert play.shares["a"].memory_bytes == 5e9
            assert play.shares["b"].disk_bytes_per_second is None
    assert play.shares["a"].disk_bytes_per_second is UNLIMITED
    assert play.shares["a"].memory_bytes is UNLIMITED


def test_paper_leaves_a_job_a_quarter_more_memory_than_the_most_it_ever_used() -> None:
    play = Play("flowcon:alpha=0.02,itval=10,memory=8e9", cores=4.0)
    play.at(0, *arrivals("a", "b"), predicted("a", 100, 0.0), predicted("b", 100, 0.0))
    for index, memory in enumerate((6e9, 1e9, 1e9, 1e9)):
        for job, value in (("a", 4.0), ("b", 4.0 - index)):
            play.at(10 * index + 5, loss(job, value), used(job, 2.0, memory))
        play.at(10 * index + 10)
    # What a use of 1e9 comes to is 8e9/3, 1/3 of the machine; but it used 6e9 once, and may again.
    assert play.shares["a"].memory_bytes == 7.5e9


def test_paper_tells_growth_efficiency_by_each_resource_whose_size_it_was_told() -> None:
    play = Play("flowcon:alpha=0.02,itval=10,memory=8e9,disk=1e8,network=1e9", cores=4.0)
    play.at(0, *arrivals("a", "b"), predicted("a", 100, 0.0), predicted("b", 100, 0.0))
    for now, value in ((5, 4.0), (15, 2.0)):
        play.at(
            now,
            loss("a", value),
            loss("b", 4.0),
            Used(JobId("a"), 2.0, 4e9, 2e7, 1e8),
            used("b", 2.0),
        )
        decided = play.tracked.decide(now + 5, 4.0, [])
    # 2/4/10 = .05, over half of the CPU, half of the memory, a fifth of the disk, a tenth of the
    # network.
    assert in_words(of_policy(decided.reasons[JobId("a")])) == (
        "new, growth efficiency 0.1 (memory 0.1, disk 0.25, network 0.5)"
    )


@pytest.mark.parametrize(
    ("name", "limits_disk"), [("flowcon", False), ("flowcon:disk=1e8", True), (FAITHFUL, False)]
)
def test_it_says_whether_it_limits_disk_rates(name: str, limits_disk: bool) -> None:
    assert make(name).limits_disk is limits_disk


# --- recorded series in both modes: every limit of every round ------------------------------------

SERIES = "alpha=0.01,itval=20"
"""Rounds every 20 s with a reading in the middle of each, on 4 cores."""
TOLERANCE = 0.026
"""Of the CPU, for the paper's mode: a weight that would change by no more than a twentieth
stays.
"""
FREE = UNLIMITED


@dataclass(frozen=True)
class Row:
    """A moment at which either mode may have a round.

    Args:
        told: When, and then of each job loss and cores, since the row before.
        caps: The limit of each job as published, CPUs; None: it never had one.
        limits: The limit of each job by the paper, a part of the machine: weights in that
            proportion.
        comes: Jobs that start at that moment, each with the loss that it is predicted to come to.
        goes: The job that ends then.
    """

    at: float
    told: Mapping[float, Mapping[str, tuple[float, float]]]
    caps: Mapping[str, float | Unlimited | None]
    limits: Mapping[str, float]
    comes: Mapping[str, float] = field(default_factory=dict)
    goes: str | None = None


# One learns on beside one that is near its end. n = 2: β = 1.5, 1/(βn) = 1/3. R: cores / 4. N, W,
# C: New, Watching, Completing.
#
# Published: E = loss over the largest, 10 and 2; G = |ΔE|/20/R.
# at   G of a                    G of b                    limits of 4 CPUs, cut to whole ones
#  20  no round before: 0, W     no round before: 0, W     ΣG = 0: none
#  40  .4/20/.5   = .04,   N     .05/20/.5   = .005, C     a .04/.045 = .889: 3.56.     b 1/3: 1.33
#  60  .2/20/.75  = .0133, N     .02/20/.25  = .004, C     a .0133/.0173 = .769: 3.08.  b 1/3
#  80  .1/20/.75  = .0067, W     .005/20/.25 = .001, C     a as it was.                 b 1/3
# 100  .05/20/.75 = .0033, C     0,                  C     a all of ΣG: 4.              b 1/3
#      (all are Completing now, but a was not in the round before)
#
# Paper: W = what is to be learned, 10 - 2 = 8 and 2 - 0 = 2; G = -Δloss/W/20/R.
# at   G of a                    G of b                    limits
#  20  no loss before: N         no loss before: N         1, 1
#  40  4/8/20/.5    = .05,   N   .1/2/20/.5   = .005, W    a .05/.055 = 10/11.        b as it was, 1
#  60  2/8/20/.75   = .0167, N   .04/2/20/.25 = .004, C    a .0167/.0207 = 25/31.       b 1/3
#  80  1/8/20/.75   = .0083, W   .01/2/20/.25 = .001, C    a as it was.                 b 1/3
# 100  .5/8/20/.75  = .0042, C   0,                   C    all are Completing: 1, 1
BESIDE_A_LATE_ONE = (
    Row(0, {}, {"a": None, "b": None}, {"a": 1, "b": 1}, comes={"a": 2.0, "b": 0.0}),
    Row(20, {10: {"a": (10, 2), "b": (2, 2)}}, {"a": None, "b": None}, {"a": 1, "b": 1}),
    Row(40, {30: {"a": (6, 2), "b": (1.9, 2)}}, {"a": 3, "b": 1}, {"a": 10 / 11, "b": 1}),
    Row(60, {50: {"a": (4, 3), "b": (1.86, 1)}}, {"a": 3, "b": 1}, {"a": 25 / 31, "b": 1 / 3}),
    Row(80, {70: {"a": (3, 3), "b": (1.85, 1)}}, {"a": 3, "b": 1}, {"a": 25 / 31, "b": 1 / 3}),
    Row(100, {90: {"a": (2.5, 3), "b": (1.85, 1)}}, {"a": 4, "b": 1}, {"a": 1, "b": 1}),
)

# Three jobs that come at 0, 40 and 80 s, as in the paper's fixed schedule. Largest losses 8, 4, 1,
# all of which are to be learned: so both modes have the same G, but for whom the published one
# knows nothing of yet: 0. n = 1, 2, 3: 1/(βn) = 1/2, 1/3, 1/4.
#
# at   G of a               G of b              G of c            published, CPUs      paper
#  20  nothing before                                             a Wat, ΣG = 0: none  New: 1
#  40  (8-4)/8/20/1=.025 N  nothing: b Wat                        a 1 (4)              1, 1
#  60  2/8/20/.5=.025 N     nothing before: b Cmp                 a 1 (4), b 1/3 (1)   1, 1
#  80  .4/8/20/.5=.005 Wat  1/4/20/.5=.025 N    nothing: c Wat    a as was,            a as was (1),
#                                                                 b .025/.03 (3.33)    b .8333, c 1
# 100  .1/8/20/.25=.0025 C  1/4/20/.25=.05 N    nothing before: C a 1/4,               a 1/4,
#                                                                 b .952 (3.8), c 1/4  b .9524, c 1
# 120  0 C                  .4/4/20/.25=.02 N   .5/1/20/.5=.05 N  a 1/4, b 2/7 (1.14), a 1/4, b 2/7,
#                                                                 c 5/7 (2.86)         c 5/7
ONE_AFTER_ANOTHER = (
    Row(0, {}, {"a": None}, {"a": 1}, comes={"a": 0.0}),
    Row(20, {10: {"a": (8, 4)}}, {"a": None}, {"a": 1}),
    Row(40, {30: {"a": (4, 4)}}, {"a": 4, "b": None}, {"a": 1, "b": 1}, comes={"b": 0.0}),
    Row(60, {50: {"a": (2, 2), "b": (4, 2)}}, {"a": 4, "b": 1}, {"a": 1, "b": 1}),
    Row(
        80,
        {70: {"a": (1.6, 2), "b": (3, 2)}},
        {"a": 4, "b": 3, "c": None},
        {"a": 1, "b": 5 / 6, "c": 1},
        comes={"c": 0.0},
    ),
    Row(
        100,
        {90: {"a": (1.5, 1), "b": (2, 1), "c": (1, 2)}},
        {"a": 1, "b": 3, "c": 1},
        {"a": 1 / 4, "b": 20 / 21, "c": 1},
    ),
    Row(
        120,
        {110: {"a": (1.5, 1), "b": (1.6, 1), "c": (0.5, 2)}},
        {"a": 1, "b": 1, "c": 2},
        {"a": 1 / 4, "b": 2 / 7, "c": 5 / 7},
    ),
)

# Back-off and two wake-ups. Largest losses 4, 2, 1, all of which are to be learned.
#
# at   published                                          paper
#  20  nothing before: both Wat                           New: 1, 1
#  40  a 2/4/20/.5=.05 New: 1 (4). b 0 Cmp: 1/3 (1)       a .05 New: 1. b 0 Wat: as was
#  60  a 0 Wat, ΣG = 0: nothing changes                   a 0 Wat, b Cmp, ΣG = 0: nothing changes
#  80  a 0 Cmp, but was not in the round before           all Cmp: 1, 1; the next round in 40 s
# 100  all were Cmp: lifted; the next round in 40 s       no round
# 120  no round                                           all Cmp; the next in 80 s, at 200
# 140  all were Cmp; the next in 80 s, at 220             no round
# 150  c comes, a round at once, 10 s after the last:    c comes, a round at once: c New, 1.
#      losses as they were, G = 0. c Wat, ΣG = 0         ΣG = 0: as was
# 170  c: nothing before, Cmp. ΣG = 0                     c: nothing before. ΣG = 0
# 190  all were Cmp: the next round in 40 s, although     c .2/20/.5=.02 New: 1. a, b 0 Cmp: 1/4
#      c .2/20/.5=.02 New
# 210  no round                                           c .02/20/.5=.002 Wat: as was. a, b 1/4
# 230  40 s after the last: P of c still .01, R now      c 0 Cmp: all are, 1, 1, 1
#      2.4/4: .01/.6=.0167 New: 1 (4). a, b 0 Cmp: 1/4 (1)
# 240  c goes, a round at once: all were Cmp: lifted      c goes, a round at once: all are Cmp: 1, 1
BACK_OFF_AND_WAKE_UP = (
    Row(0, {}, {"a": None, "b": None}, {"a": 1, "b": 1}, comes={"a": 0.0, "b": 0.0}),
    Row(20, {10: {"a": (4, 2), "b": (2, 2)}}, {"a": None, "b": None}, {"a": 1, "b": 1}),
    Row(40, {30: {"a": (2, 2), "b": (2, 2)}}, {"a": 4, "b": 1}, {"a": 1, "b": 1}),
    Row(60, {50: {"a": (2, 3), "b": (2, 1)}}, {"a": 4, "b": 1}, {"a": 1, "b": 1}),
    Row(80, {70: {"a": (2, 3), "b": (2, 1)}}, {"a": 4, "b": 1}, {"a": 1, "b": 1}),
    Row(100, {90: {"a": (2, 3), "b": (2, 1)}}, {"a": FREE, "b": FREE}, {"a": 1, "b": 1}),
    Row(120, {110: {"a": (2, 3), "b": (2, 1)}}, {"a": FREE, "b": FREE}, {"a": 1, "b": 1}),
    Row(140, {130: {"a": (2, 3), "b": (2, 1)}}, {"a": FREE, "b": FREE}, {"a": 1, "b": 1}),
    Row(150, {}, {"a": FREE, "b": FREE, "c": None}, {"a": 1, "b": 1, "c": 1}, comes={"c": 0.0}),
    Row(
        170,
        {160: {"a": (2, 1), "b": (2, 1), "c": (1, 2)}},
        {"a": FREE, "b": FREE, "c": None},
        {"a": 1, "b": 1, "c": 1},
    ),
    Row(
        190,
        {180: {"a": (2, 1), "b": (2, 1), "c": (0.8, 2)}},
        {"a": FREE, "b": FREE, "c": None},
        {"a": 1 / 4, "b": 1 / 4, "c": 1},
    ),
    Row(
        210,
        {200: {"a": (2, 1), "b": (2, 1), "c": (0.78, 2)}},
        {"a": FREE, "b": FREE, "c": None},
        {"a": 1 / 4, "b": 1 / 4, "c": 1},
    ),
    Row(
        230,
        {220: {"a": (2, 0.8), "b": (2, 0.8), "c": (0.78, 2.4)}},
        {"a": 1, "b": 1, "c": 4},
        {"a": 1, "b": 1, "c": 1},
    ),
    Row(240, {235: {"a": (2, 2), "b": (2, 1)}}, {"a": FREE, "b": FREE}, {"a": 1, "b": 1}, goes="c"),
)


@pytest.mark.parametrize("mode", ["faithful", "paper"])
@pytest.mark.parametrize(
    "series",
    [BESIDE_A_LATE_ONE, ONE_AFTER_ANOTHER, BACK_OFF_AND_WAKE_UP],
    ids=["beside a late one", "one after another", "back-off and wake-up"],
)
def test_a_recorded_series_has_the_limits_that_were_worked_out_by_hand(
    series: Sequence[Row], mode: str
) -> None:
    faithful = mode == "faithful"
    play = Play(f"flowcon:{'faithful,' if faithful else ''}{SERIES}", cores=4.0)
    for row in series:
        for at, values in row.told.items():
            tell(play, at, **values)
        changes: list[Change] = [
            *arrivals(*row.comes),
            *(predicted(job, 100, end) for job, end in row.comes.items()),
        ]
        if row.goes is not None:
            changes.append(Left(JobId(row.goes)))
        play.at(row.at, *changes)
        if faithful:
            assert limits(play.shares) == row.caps, f"at {row.at} s"
        else:
            total = sum(row.limits.values())
            wanted = {job: limit / total for job, limit in row.limits.items()}
            assert play.parts() == pytest.approx(wanted, abs=TOLERANCE), f"at {row.at} s"
