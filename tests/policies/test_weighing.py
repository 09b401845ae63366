"""Policies that divide the CPU by weights: each on a small case with a known answer, and what they
have in common.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policies.playing import Play, arrivals, loss, predicted, used

from headgate import policies
from headgate.forecast.job_tracker import JobTracker
from headgate.model.errors import UsageError
from headgate.model.events import StepPace
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies import Arrived, Change, Left, Predicted, Reported
from headgate.policies.running_job import TYPICAL_WORK, RunningJob
from headgate.policies.weighing import SteadyOrder

WEIGHING = ("flowcon", "slaq", "srpt", "las", "themis", "headgate")


# --- each on a small case

AHEAD = (0.05 + 1.9 * 7 / 8) / (0.05 + 1.9 / 8)
"""What the first of two jobs on two cores has over the second: their floors are 0.05, of the rest
it has 7/8.
"""


def test_srpt_serves_the_shortest_and_hands_on_an_eighth() -> None:
    play = Play("srpt")
    play.at(
        0, *arrivals("a", "b", "c"), predicted("a", 100), predicted("b", 10), predicted("c", 50)
    )
    floor = 0.05 * 2 / 3
    first, second, third = floor + 1.9 * 7 / 8, floor + 1.9 / 8 * 7 / 8, floor + 1.9 / 8 / 8
    assert play.over("b", "c") == pytest.approx(first / second, rel=0.01)
    assert play.over("c", "a") == pytest.approx(second / third, rel=0.01)
    assert play.reasons["b"] == "shortest: 10 core-seconds left (5 to 20)"


def test_srpt_gives_the_next_what_a_limit_of_cores_leaves() -> None:
    play = Play("srpt")
    play.at(
        0,
        Arrived(JobId("a"), 1.0),
        Arrived(JobId("b"), 1.0, cores_limit=0.5),
        predicted("a", 100),
        predicted("b", 10),
    )
    assert play.over("a", "b") == pytest.approx(3.0, rel=1e-3)


def test_srpt_turns_when_another_is_clearly_shorter_and_priority_counts() -> None:
    play = Play("srpt")
    play.at(0, *arrivals("a", "b"), predicted("a", 50), predicted("b", 60))
    assert play.over("a", "b") == pytest.approx(AHEAD, rel=1e-3)
    play.at(10, predicted("b", 47))
    # hardly shorter: not worth a change
    assert play.over("a", "b") == pytest.approx(AHEAD, rel=1e-3)
    play.at(20, predicted("b", 20))
    assert play.over("b", "a") == pytest.approx(AHEAD, rel=1e-3)
    urgent = Play("srpt")
    urgent.at(
        0,
        Arrived(JobId("a"), 4.0),
        Arrived(JobId("b"), 1.0),
        predicted("a", 100),
        predicted("b", 30),
    )
    assert urgent.over("a", "b") == pytest.approx(AHEAD, rel=1e-3)


def test_a_new_reason_for_the_same_weight_is_told_at_once_and_new_figures_each_minute() -> None:
    policy = policies.make("srpt")
    first = policy.decide(0.0, 2.0, [Arrived(JobId("a"), 1.0)])
    place = {"ahead": 0, "is_shortest": True}
    unknown = {**place, "has_curve": False, "used_core_seconds": 0.0}
    assert [why for _, why in first.shares.values()] == [Reason(ReasonKind.WORK_UNKNOWN, unknown)]

    def left(work: float) -> Reason:
        facts = {**place, "core_seconds": work, "low": work / 2, "high": 2 * work}
        return Reason(ReasonKind.WORK_LEFT, facts)

    changed = policy.decide(5.0, 2.0, [predicted("a", 100)])
    assert (changed.shares, changed.reasons) == ({}, {"a": left(100.0)})
    assert policy.decide(6.0, 2.0, [predicted("a", 40)]).reasons == {}
    assert policy.decide(65.0, 2.0, [predicted("a", 20)]).reasons == {"a": left(20.0)}


def test_news_of_one_of_very_many_jobs_waits_a_moment_for_more_of_it() -> None:
    policy = policies.make("srpt")
    policy.decide(0.0, 2.0, list(arrivals(*(f"j{number}" for number in range(100)))))
    early = policy.decide(0.05, 2.0, [predicted("j7", 1.0)])
    assert early.shares == {}
    assert early.wake_at == pytest.approx(0.2)
    assert "j7" in policy.decide(0.2, 2.0, []).shares
    assert "new" in policy.decide(0.25, 2.0, list(arrivals("new"))).shares


def test_las_serves_who_has_had_least_and_within_a_queue_who_came_first() -> None:
    play = Play("las:first=60")
    play.at(0, *arrivals("a", "b"))
    assert play.over("a", "b") == pytest.approx(AHEAD, rel=1e-3)
    for now in (10, 20):
        play.at(now, used("a", 2.0))  # 40 core-seconds: still in the first queue
    assert play.over("a", "b") == pytest.approx(AHEAD, rel=1e-3)
    play.at(40, used("a", 2.0))
    play.at(50)
    assert play.over("b", "a") == pytest.approx(AHEAD, rel=1e-3)
    assert play.reasons["b"] == "queue 1, 0 core-seconds used"


def test_themis_serves_who_is_furthest_behind() -> None:
    play = Play("themis:itval=50")
    play.at(0, *arrivals("b", "a"), predicted("a", 100), predicted("b", 100))
    assert play.over("b", "a") == pytest.approx(3.0)  # nobody is behind yet: who came first
    # After 50 s b has had all: ρ of a is (50 + 100)/100, of b (50 + 100)/200. One of five is
    # served.
    for now in (10, 50):
        play.at(now, used("a", 0.0), used("b", 2.0))
    play.at(50, predicted("b", 100))
    assert play.over("a", "b") == pytest.approx(3.0)
    assert play.reasons["a"] == "rho 1.50, served"


def test_themis_leaves_those_that_are_not_served_half_of_an_equal_share() -> None:
    play = Play("themis")
    play.at(0, *arrivals(*"abcde"), *(predicted(job, 100) for job in "abcde"))
    assert sorted(play.parts().values()) == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.6], abs=1e-3)


def test_themis_expects_no_more_of_a_job_than_its_limit_lets_it_do() -> None:
    play = Play("themis", cores=8.0)
    known = (predicted(job, 100) for job in ("limited", *"bcdef"))
    play.at(0, Arrived(JobId("limited"), 1.0, cores_limit=1.0), *arrivals(*"bcdef"), *known)
    # It would take 100 s alone on a sixth, and takes as long; the others 75.
    assert {reason.split(",")[0] for reason in play.reasons.values()} == {"rho 1.00"}


def test_themis_serves_somebody_however_fair_it_is_to_be() -> None:
    play = Play("themis:fairness=0.9999999999")
    play.at(0, *arrivals("a"))
    assert play.parts() == {"a": 1.0}


def test_las_counts_what_a_job_had_before_it_was_started_again() -> None:
    play = Play("las:first=10,factor=10")
    play.at(0, *arrivals("a"))
    for now in range(1, 13):
        play.at(now, used("a", 1.0))
    play.at(20, Left(JobId("a"), done=False))
    play.at(21, *arrivals("a", "b"))
    assert play.over("b", "a") == pytest.approx(AHEAD, rel=1e-3)
    assert play.reasons["a"].startswith("queue 2, 12 core-seconds used")


def test_las_moves_a_job_on_when_it_has_had_its_queue_however_long_nothing_changed() -> None:
    play, now = Play("las:first=100"), 0
    play.at(0, *arrivals("a", "b"))
    while play.over("a", "b") > 1:
        now += 1
        play.at(now, used("a", 1.8), used("b", 0.2))
        assert now <= 70  # 100 core-seconds are had after 56 s


def test_headgate_lifts_a_late_job_within_a_round_however_long_nothing_changed() -> None:
    play = Play("headgate:rho=1.2")
    play.at(0, *arrivals(*"abcd"))
    play.at(4, *(predicted(job, 300) for job in "abcd"))
    late = "would otherwise end later than 1.2 times its fair time"
    while late not in play.reasons.values():
        assert play.wake_at is not None
        play.at(play.wake_at)
    # Alone on a fourth each takes 600 s: who has had nothing by 0.2 of that is late with an equal
    # share from then on.
    assert 110 <= next(iter(play.changed["d"][::-1])) <= 134


def test_weights_do_not_grow_however_often_two_jobs_change_places() -> None:
    play = Play("srpt")
    play.at(0, *arrivals("a", "b"))
    for now in range(60, 1200, 60):
        play.at(now, predicted("a", 10 + now % 120), predicted("b", 70 - now % 120))
        assert sum(share.cpu_weight or 0.0 for share in play.shares.values()) < 4000


def test_slaq_serves_who_gains_most_over_its_largest_drop() -> None:
    play = Play("slaq")
    play.at(0, *arrivals("a", "b"))
    assert play.over("a", "b") == pytest.approx(1.0)
    play.at(5, loss("a", 1000.0), loss("b", 1.0))
    play.at(10)
    # b has made a drop of 0.2, a one of 100: of these b is to make another one, a a tenth.
    for step in range(2, 7):
        play.at(11, loss("a", 900.0, step), loss("b", 0.8, step))
    drops = {"a": ((20.0, 10.0), (1e6, 10.0)), "b": ((20.0, 0.2), (1e6, 0.2))}
    play.at(20)
    play.at(21, *(Predicted(JobId(job), 100, 50, 200, None, drops[job]) for job in drops))
    # Ten seconds of two cores: all to b, and its floor to a.
    assert play.parts()["a"] == pytest.approx(0.025, rel=0.2)
    assert play.reasons["b"] == "a drop of 1 of the largest drop expected of it"


def test_slaq_gives_a_capped_job_its_cap_and_one_that_gains_nothing_its_floor() -> None:
    play = Play("slaq", cores=64.0)
    play.at(0, Arrived(JobId("a"), 1.0, cores_limit=1.0), *arrivals("b", "c"))
    play.at(5, *(loss(job, 2.0) for job in "abc"))
    play.at(10)
    play.at(20, loss("a", 1.0), loss("b", 1.0), loss("c", 2.5))
    falls = {"a": 1.0, "b": 1.0, "c": -1.0}
    play.at(
        21,
        *(
            Predicted(JobId(job), 1e4, 5e3, 2e4, None, ((1e5, fall),))
            for job, fall in falls.items()
        ),
    )
    parts = play.parts()
    floor = 0.05 / 3
    # Nor is it measured by a drop that it never had where its loss is to come back later.
    play.at(22, Predicted(JobId("c"), 3e4, 2e4, 4e4, None, ((1.0, -2.0), (1e5, -1.0))))
    for now in range(23, 26):
        play.at(now, used("c", 2.0))
    play.at(26, Predicted(JobId("b"), 3e4, 2e4, 4e4, None, ((1e5, 1.0),)))
    assert play.parts() == pytest.approx(parts, rel=0.05)
    assert parts["c"] == pytest.approx(floor, rel=0.2)
    assert parts["a"] == pytest.approx(max(1.0 / 64.0, floor), rel=0.2)


def test_headgate_serves_the_shortest_until_another_would_end_too_late() -> None:
    play = Play("headgate:rho=1.5")
    play.at(0, *arrivals("a", "b"), predicted("a", 100), predicted("b", 50))
    # Alone on half of two cores a would take 100 s: it is to end by 150 s, and so to have its half
    # from 50 s on.
    for now in range(10, 51, 10):
        play.at(now, used("a", 0.0), used("b", 2.0), predicted("b", 50))
        assert play.over("b", "a") == pytest.approx(AHEAD, rel=1e-3)
    play.at(60, used("a", 0.0), used("b", 2.0), predicted("b", 50))
    # Its half of the two cores; of the other one b has its floor and 7/8 of the rest, a what that
    # leaves.
    assert play.over("a", "b") == pytest.approx((1 + 0.95 / 8) / (0.05 + 0.95 * 7 / 8), rel=1e-3)
    assert play.reasons["a"] == "would otherwise end later than 1.5 times its fair time"


@pytest.mark.parametrize(
    ("limit", "parts"), [(None, {"a": 0.5, "b": 0.5}), (0.5, {"a": 0.25, "b": 0.75})]
)
def test_who_would_end_too_late_has_no_more_than_it_may_or_puts_to_good_use(
    limit: float | None, parts: dict[str, float]
) -> None:
    play = Play("headgate:rho=1")
    play.at(0, Arrived(JobId("a"), 1.0, limit), *arrivals("b"))
    play.at(0, predicted("a", 20, cores=None), predicted("b", 1000, cores=None))
    play.at(10, used("a", 0.0), used("b", 2.0))
    assert play.reasons["a"] == "would otherwise end later than 1 times its fair time"
    assert play.parts() == pytest.approx(parts, rel=0.06)


@pytest.mark.parametrize("name", ["headgate", "srpt"])
def test_who_diverges_is_served_last(name: str) -> None:
    play = Play(name)
    play.at(0, *arrivals("a", "b"), predicted("a", 50), predicted("b", 30))
    assert play.over("b", "a") == pytest.approx(AHEAD, rel=1e-3)
    for step in range(4):
        play.at(step + 1, loss("b", math.nan, step))
    assert play.over("a", "b") == pytest.approx(AHEAD, rel=1e-3)
    assert play.changed["a"] == [0, 3]  # at the third loss that is no number, not at the next round
    assert play.reasons["b"] == "its loss diverges, so it comes last"


def test_slaq_leaves_who_diverges_its_floor_whatever_was_predicted_of_it() -> None:
    play = Play("slaq")
    play.at(0, *arrivals("a", "b"), loss("a", 1000.0), loss("b", 1.0))
    play.at(10)
    play.at(
        11,
        *(
            loss(job, value, step)
            for step in range(2, 7)
            for job, value in (("a", 900.0), ("b", 0.8))
        ),
    )
    play.at(
        20,
        *(
            Predicted(JobId(job), 100, 50, 200, None, ((20.0, drop), (1e6, drop)))
            for job, drop in (("a", 10), ("b", 1))
        ),
    )
    assert play.over("b", "a") > 5
    play.at(21, *(loss("b", math.nan, step) for step in range(7, 11)))
    assert play.parts()["b"] == pytest.approx(0.025, rel=0.2)
    assert play.reasons["b"] == "its loss diverges, so it comes last"


@pytest.mark.parametrize(("cores", "tried"), [(4.0, 2.0), (2.0, 1.0)])
def test_headgate_tries_a_job_on_two_cores_for_a_while_where_there_are_more(
    cores: float, tried: float
) -> None:
    play = Play("headgate:rho=100", cores)
    jobs = {"a": 60.0, "b": 100.0, "c": 200.0, "d": 300.0, "e": 400.0}
    play.at(0, *arrivals(*jobs), *(predicted(job, work, cores=None) for job, work in jobs.items()))
    had = []
    for now in range(1, 41):
        play.at(now, used("a", 1.0))
        had.append(play.parts()["a"] * cores)
    assert had[0] == had[38] == pytest.approx(1.0, rel=0.1)
    assert max(had) == pytest.approx(tried, rel=0.1)


def test_headgate_tries_a_job_only_once_there_are_two_cores_for_it() -> None:
    play = Play("headgate:rho=100", 4.0)
    play.at(0, *arrivals("a", *"bcdef"), predicted("a", 60.0, cores=math.inf))
    play.at(0, *(predicted(job, 100.0 + 50 * i, cores=None) for i, job in enumerate("bcdef")))
    for now in range(1, 41):
        play.at(now, used("b", 0.3))
        assert play.parts()["b"] * 4.0 < 0.5
    play.at(41, Left(JobId("a")))
    assert play.parts()["b"] * 4.0 == pytest.approx(2.0, rel=0.1)


def test_headgate_gives_no_job_more_cores_than_it_puts_to_good_use_while_others_want_them() -> None:
    play = Play("headgate:rho=100")
    jobs = {"a": 10, "b": 20, "c": 30}
    play.at(0, *arrivals(*jobs), *(predicted(job, work, cores=None) for job, work in jobs.items()))
    floor = 0.05 * 2 / 3
    second = floor + (1.9 - (1 - floor)) * 7 / 8  # of a core of its own, but for what is handed on
    assert play.over("a", "b") == pytest.approx(1 / second, rel=1e-3)
    assert play.over("b", "c") > 5
    play.at(1, predicted("a", 10, cores=2.0))
    assert play.over("a", "b") == pytest.approx(
        (floor + 1.9 * 7 / 8) / (floor + 1.9 / 8 * 7 / 8), rel=0.06
    )
    play.at(2, *(loss("a", 1 + 0.01 * (step % 3), step) for step in range(30)))
    play.at(2, *(loss("a", 9 + 0.01 * (step % 3), step) for step in range(30, 40)))
    # after a jump of its loss that made what was predicted void
    play.at(3, predicted("a", 10, cores=None))
    assert play.over("a", "b") == pytest.approx(
        (floor + 1.9 * 7 / 8) / (floor + 1.9 / 8 * 7 / 8), rel=0.06
    )
    alone = Play("headgate")
    alone.at(0, *arrivals("a"))
    assert alone.parts() == {"a": 1.0}


STARVED, KEEPS_UP = StepPace(1.5, 0.0, 0.75), StepPace(0.0, 0.05, 0.0)
"""Of a job on 0.5 cores whose GPU waits for 2, and of one whose loader keeps up."""


def test_headgate_gives_cores_to_a_job_whose_gpu_starves_and_few_to_one_that_keeps_up() -> None:
    play = Play("headgate:rho=100", 4.0)
    works = {"keeps": 10.0, "starves": 20.0, "computes": 300.0}
    play.at(0, *arrivals(*works), *(predicted(job, work) for job, work in works.items()))
    for now in range(1, 9):
        play.at(
            now,
            replace(used("keeps", 0.2), pace=KEEPS_UP),
            replace(used("starves", 0.5), pace=STARVED),
            used("computes", 3.3),
        )
    cores = {job: 4.0 * part for job, part in play.parts().items()}
    assert cores["keeps"] == pytest.approx(0.22, rel=0.1)
    assert cores["starves"] == pytest.approx(2.2, rel=0.1)
    assert cores["computes"] == pytest.approx(4.0 - 2.42, rel=0.1)
    assert play.reasons["keeps"].startswith("its steps are as fast as they can be on 0.2 cores; ")
    said = "2 cores would bring it 4 times as many steps as now; 1 before it: "
    assert play.reasons["starves"].startswith(said)


def test_a_job_that_keeps_up_on_few_cores_is_not_said_to_end_late_for_want_of_more() -> None:
    # It takes 100 s whatever it gets. Taken for a job that computes, it would take less of its own.
    late = {}
    for pace in (KEEPS_UP, None):
        play = Play("headgate:rho=1.2", 4.0)
        play.at(0, *arrivals("a", "b"), predicted("a", 20), predicted("b", 15))
        for now in range(1, 61):
            play.at(now, replace(used("a", 0.2), pace=pace), used("b", 3.8))
        late[pace] = "would otherwise end later" in play.reasons["a"]
    assert late == {KEEPS_UP: False, None: True}


def test_a_job_whose_steps_wait_for_a_gpu_is_not_tried_on_two_cores() -> None:
    play = Play("headgate:rho=100", 4.0)
    play.at(0, *arrivals("a", "b"), predicted("a", 60, cores=None), predicted("b", 90, cores=None))
    for now in range(1, 41):
        play.at(now, replace(used("a", 0.5), pace=KEEPS_UP), used("b", 0.1))
        if now > 10:
            assert play.parts()["a"] * 4.0 < 1.0


def test_headgate_gives_each_worker_a_core_until_it_knows_what_more_would_bring() -> None:
    parts = []
    for workers in (1, 3):
        play = Play("headgate:rho=100", cores=4.0)
        jobs = [Arrived(JobId("a"), 1.0, workers=workers), *arrivals("b", "c", "d")]
        play.at(
            0,
            *jobs,
            *(predicted(job.job, 10 + place, cores=None) for place, job in enumerate(jobs)),
        )
        parts.append(4.0 * play.parts()["a"])
    assert parts == pytest.approx([1.0, 3.0])


@pytest.mark.parametrize("name", ["srpt", "headgate"])
def test_of_jobs_of_which_nothing_is_known_the_first_goes_on_until_it_is(name: str) -> None:
    play = Play(name, cores=1.0)
    play.at(0, *arrivals("a"))
    play.at(3, used("a", 1.0), *arrivals("b"))
    play.at(6, used("a", 1.0), used("b", 0.1), *arrivals("c"))
    assert play.over("a", "b") > 5
    assert play.over("b", "c") > 3
    play.at(
        9, used("a", 1.0), used("b", 0.1), used("c", 0.1), predicted("a", 40), predicted("c", 10)
    )
    # b is taken for one like them: it will tell after some 4 core-seconds, and then may need
    # little.
    assert sorted(play.shares, key=lambda job: -play.parts()[job]) == ["c", "b", "a"]


def test_a_job_without_a_prediction_is_ranked_by_the_cost_of_finished_jobs_like_it() -> None:
    job = RunningJob(JobId("a"), JobTracker(0.0), 1.0, None, 0.0, 1)
    job.attained, job.needs, job.tells_after = 2.0, (10.0, 20.0, 40.0), 4.0
    # 2 more core-seconds tell what it needs. To give up on all but the shortest takes 3 * 2 + 6 for
    # one that is done; to give up on the longest 3 * 2 + 6 + 16 for two; on none 3 * 2 + 6 + 16 +
    # 36 for three.
    assert job.rank() == pytest.approx(min(12 / 1, 28 / 2, 64 / 3))
    # it should have told: as long again, for the only kind of job that it can be
    job.attained = 25.0
    assert job.rank() == pytest.approx(min(25.0, 25.0 + max(15.0 - 25.0, 0.0)))
    job.prediction = Predicted(JobId("a"), 7.0, 5.0, 9.0), 25.0
    assert job.rank() == 7.0


def test_how_long_a_job_was_alone_says_nothing_of_when_others_tell_what_they_need() -> None:
    play = Play("headgate", cores=1.0)
    play.at(0, *arrivals("a"))
    for now in range(1, 301):  # alone, nobody asks what is left of it
        play.at(now, used("a", 1.0), loss("a", 1.0 / now, now))
    play.at(301, *arrivals("b"))
    play.at(302, predicted("a", 500))
    # it may be short, and is taken to tell after some 4 core-seconds, not after 300
    assert play.over("b", "a") > 5


def test_jobs_keep_their_places_until_one_is_clearly_before_another() -> None:
    order = SteadyOrder()
    jobs = [
        RunningJob(JobId(id), JobTracker(0.0), 1.0, None, 0.0, number)
        for number, id in enumerate("abc")
    ]

    def sort(**measure: float) -> str:
        return "".join(
            job.id for job in order.sort(jobs, {job.id: (False, measure[job.id]) for job in jobs})
        )

    assert sort(a=3, b=2, c=1) == "cba"
    assert sort(a=1.9, b=2, c=2.05) == "cba"
    assert sort(a=1.5, b=2, c=1.6) == "cab"
    jobs.append(RunningJob(JobId("d"), JobTracker(0.0), 1.0, None, 0.0, 3))
    assert sort(a=1.5, b=2, c=1.6, d=1.55) == "cadb"  # one that has just come goes where it belongs
    assert (
        "".join(
            job.id
            for job in order.sort(jobs[:2], {JobId("a"): (True, 1.0), JobId("b"): (False, 9.0)})
        )
        == "ba"
    )


# --- what they have in common


def test_a_clock_that_jumps_by_an_hour_is_no_hour_of_work() -> None:
    play = Play("las:first=60", cores=1.0)
    play.at(0, *arrivals("a", "b"))
    for now in range(1, 4):
        play.at(now, used("a", 1.0))
    play.at(3603, used("a", 1.0))
    play.at(3614)
    # with 23 core-seconds, not 3,603, it is still in the first queue
    assert play.over("a", "b") > 5


def test_places_far_behind_the_first_use_up_no_changes_that_the_first_place_needs() -> None:
    play = Play("srpt:itval=1")
    play.at(0, *arrivals("a", "b", "c"), predicted("a", 5), predicted("b", 50), predicted("c", 60))
    for second in range(1, 7):  # b and c change places behind a, again and again
        b, c = (100, 50) if second % 2 else (50, 100)
        play.at(second, predicted("b", b), predicted("c", c))
    play.at(7, predicted("b", 1), predicted("c", 100))
    assert play.parts()["b"] > 0.8
    play.at(27, predicted("b", 100), predicted("c", 1))
    assert play.parts()["c"] > 0.8


@pytest.mark.parametrize("every", [1, 3, 7])
def test_a_wrong_order_stands_for_20_s_at_most_however_often_what_is_known_turned_before(
    every: int,
) -> None:
    for turns in range(2, 25):
        play = Play("headgate:itval=5,rho=1000", cores=1.0)
        play.at(0, *arrivals("a", "b"), predicted("a", 40), predicted("b", 50))
        for turn in range(turns):
            a, b = (10, 500) if turn % 2 else (500, 10)
            play.at(1 + every * turn, predicted("a", a), predicted("b", b))
        last = 1 + every * (turns - 1)
        play.wake_until(last + 20.5)
        first, second = ("a", "b") if a < b else ("b", "a")
        assert play.over(first, second) > 5, turns
        assert play.most_changes_in_a_minute() <= 6


def test_a_guess_that_a_job_ends_where_its_loss_rests_puts_nobody_first() -> None:
    play = Play("headgate:itval=5,rho=1000", cores=1.0)
    play.at(0, *arrivals("a"))
    for now in range(1, 11):
        play.at(now, used("a", 1.0), loss("a", 1 / now, now))
    play.at(11, *arrivals("b"), predicted("a", 20))
    assert play.over("b", "a") > 5  # soon it tells what it needs, and that may be little
    for now, guess in enumerate((0.11, 0.02, 5.0), start=12):
        play.at(now, replace(predicted("b", guess), ends=False))
        assert play.over("a", "b") > 5
    assert play.reasons["b"].endswith("it says no end, 0 core-seconds used")
    play.at(14, predicted("b", 0.5))  # its epochs say so
    assert play.over("b", "a") > 5


def test_what_others_of_a_script_took_stays_known_whatever_its_loss_looks_like() -> None:
    play = Play("headgate:itval=5,rho=1000", cores=1.0)
    play.at(0, *arrivals("a", "b"), predicted("a", 20), predicted("b", 60))
    play.at(5, replace(predicted("b", 0.1), ends=False))
    assert play.over("a", "b") > 5


def test_what_happens_is_acted_upon_at_once_and_rounds_back_off_when_nothing_does() -> None:
    play = Play("srpt:itval=10")
    play.at(0, *arrivals("a", "b"), predicted("a", 100), predicted("b", 50))
    waits = []
    for _ in range(5):
        assert play.wake_at is not None
        before = play.wake_at
        play.at(before)
        waits.append(play.wake_at - before)
    assert waits == [20, 40, 80, 80, 80]
    now = before + 1
    play.at(now, *arrivals("c"), predicted("c", 1))
    assert play.over("c", "b") > 6.0
    assert play.wake_at == now + 10
    play.at(now + 2, Left(JobId("c")))
    # what would change by 5 % may stay
    assert play.over("b", "a") == pytest.approx(AHEAD, rel=0.06)


def test_a_jump_of_the_loss_makes_what_was_predicted_void() -> None:
    play = Play("srpt")
    play.at(0, *arrivals("a", "b"), predicted("a", 5), predicted("b", 50))
    assert play.over("a", "b") == pytest.approx(AHEAD, rel=1e-3)
    wiggle = random.Random(0)
    for step in range(30):
        play.at(
            1 + step, loss("a", 1 + 0.01 * wiggle.random(), step), used("a", 2.0), used("b", 0.0)
        )
    for step in range(30, 40):
        play.at(
            1 + step, loss("a", 9 + 0.01 * wiggle.random(), step), used("a", 2.0), used("b", 0.0)
        )
    # Nothing is known of it but that it has had 80 core-seconds.
    assert play.over("b", "a") == pytest.approx(AHEAD, rel=0.1)


def test_a_jump_of_the_loss_leaves_what_is_predicted_by_epochs_unless_they_begin_again() -> None:
    play = Play("srpt")
    play.at(0, *arrivals("a", "b"), predicted("a", 5), predicted("b", 50))
    wiggle = random.Random(0)
    for step in range(40):
        value = (1 if step < 30 else 9) + 0.01 * wiggle.random()
        play.at(
            1 + step, Reported(JobId("a"), value, step, 1, 10, 1), used("a", 2.0), used("b", 0.0)
        )
    play.at(70)
    assert play.over("a", "b") == pytest.approx(AHEAD, rel=1e-3)
    play.at(71, Reported(JobId("a"), 9.0, 1, 1, 10, 1))
    assert "nothing predicted yet" in play.reasons["a"]


@pytest.mark.parametrize("name", ["headgate:itval=1000,rho=100", "srpt:itval=1000"])
def test_a_stall_is_noticed_without_a_report(name: str) -> None:
    play = Play(name, cores=1.0)
    play.at(0, *arrivals("a", "b"))
    for now in range(1, 11):
        play.at(now, loss("a", 1 / now, now))
    play.wake_until(40)
    assert play.wake_at == 10 + 30  # six times its interval, and 30 s at least
    play.at(40)
    assert play.wake_at == 1040  # a round was held
    assert play.over("b", "a") > 5
    play.at(41, loss("a", 0.05, 41), predicted("a", 5))
    assert play.over("a", "b") > 5


def test_who_has_too_little_of_the_cpu_to_report_does_not_stall() -> None:
    play = Play("headgate:itval=1000", cores=1.0)
    play.at(0, *arrivals("a", "b"))
    for now in range(1, 11):
        play.at(now, used("a", 1.0), loss("a", 1 / now, now))
    for now in range(11, 41):
        play.at(now, used("a", 0.1))
    # 3 core-seconds without a report, which come one a core-second
    assert play.wake_at == 70
    assert play.over("a", "b") > 5
    for now in range(41, 71):
        play.at(now, used("a", 0.2))
    assert play.over("b", "a") > 5


def test_who_stood_still_with_the_clock_is_not_taken_for_stalled() -> None:
    play = Play("headgate:itval=1000", cores=1.0)
    play.at(0, *arrivals("a", "b"))
    for now in range(1, 11):
        play.at(now, used("a", 1.0), loss("a", 1 / now, now))
    play.at(100, used("a", 1.0))
    assert play.over("a", "b") > 5
    play.at(101, used("a", 1.0), loss("a", 0.05, 11))
    assert play.over("a", "b") > 5


def test_who_seldom_reports_is_looked_at_as_seldom() -> None:
    play = Play("headgate:itval=1000000,rho=100", cores=1.0)
    play.at(0, *arrivals("a", "b"))
    for now in range(600, 6001, 600):
        play.at(now, used("a", 1.0), loss("a", 1 / now, now))
    # six times its interval later, with too little of the CPU to report
    play.at(9600, used("a", 0.1))
    assert play.wake_at == 9600 + 600


BAD = {
    "rising": [1.0 + 0.1 * k for k in range(40)],
    "no number": [math.nan] * 40,
    "infinite": [math.inf, -math.inf] * 20,
    "constant": [0.5] * 40,
    "spikes": [1e30 if k % 7 == 0 else 1 / (k + 1) for k in range(40)],
    "jump": [1 / (k % 20 + 1) for k in range(40)],
    "negative": [-5.0 - k for k in range(40)],
    "huge": [1e300 / (k + 1) for k in range(40)],
}


@pytest.mark.parametrize("name", [*WEIGHING, "flowcon:faithful"])
@pytest.mark.parametrize("kind", BAD)
def test_bad_losses_cost_nobody_its_floor(name: str, kind: str) -> None:
    play = Play(name)
    play.at(0, *arrivals("bad", "good"))
    for step, value in enumerate(BAD[kind]):
        good = loss("good", 1 + 1 / (step + 1), step)
        play.at(3 * step + 1, loss("bad", value, step), good, used("bad", 1.0), used("good", 1.0))
        if name in WEIGHING:
            assert min(play.parts().values()) >= 0.05 / 2
    assert play.most_changes_in_a_minute() <= 6


def test_ten_thousand_losses_a_second_and_one_an_hour_are_taken() -> None:
    play = Play("headgate")
    play.at(0, *arrivals("dense", "sparse"))
    play.at(1, *(loss("dense", 1.0 + 1 / (step + 1), step) for step in range(10_000)))
    for hour in range(1, 6):
        play.at(
            3600 * hour,
            loss("sparse", 1 / hour, 1000 * hour),
            used("sparse", 1.0),
            used("dense", 1.0),
        )
    assert min(play.parts().values()) >= 0.025


@pytest.mark.parametrize("name", [*WEIGHING, "flowcon:faithful"])
def test_where_others_are_pinned_to_all_cores_jobs_still_have_their_weights(name: str) -> None:
    play = Play(name, cores=0.0)
    play.at(0, *arrivals("a", "b"))
    for now in range(1, 100):
        learned = [loss(job, 1 / now, now) for job in "ab"]
        play.at(now, *learned, *(used(job, 0.1) for job in "ab"), predicted("a", 100 - now))
    play.at(100, *arrivals("c"))
    if name in WEIGHING:
        assert min(play.parts().values()) >= 0.05 / 3


@pytest.mark.parametrize("name", WEIGHING)
def test_fifty_jobs_on_two_cores_keep_their_floors_and_change_seldom(name: str) -> None:
    play, chance = Play(name), random.Random(7)
    play.at(0, *(Arrived(JobId(f"j{i}"), 1.0) for i in range(50)))
    for now in range(5, 300, 5):
        job = chance.choice(list(play.shares))
        play.at(
            now,
            predicted(job, chance.uniform(1, 1000)),
            used(job, 0.1),
            loss(job, chance.random(), now),
        )
        assert min(play.parts().values()) >= 0.05 / 50
    for job in list(play.shares)[:40]:
        play.at(300, Left(JobId(job)))
        assert min(play.parts().values()) >= 0.05 / len(play.shares)
    assert play.most_changes_in_a_minute() <= 6


def test_a_round_costs_no_more_where_half_of_many_jobs_are_predicted() -> None:
    def seconds(known: int) -> float:
        play = Play("srpt")
        play.at(
            0,
            *arrivals(*(f"j{i}" for i in range(2000))),
            *(predicted(f"j{i}", 10 + i) for i in range(known)),
        )
        rounds = []
        for now in range(1, 4):
            begun = time.process_time()
            play.at(now, predicted("j0", 10 * 2**now))
            rounds.append(time.process_time() - begun)
        return min(rounds)

    assert seconds(1000) < 5 * seconds(2000)


def test_a_job_that_failed_tells_nothing_of_what_others_need() -> None:
    play = Play("srpt")
    for number, job in enumerate("abcdef"):
        play.at(10 * number, *arrivals(job))
        play.at(10 * number + 1, used(job, 1.0))
        play.at(10 * number + 2, used(job, 1.0), Left(JobId(job), done=False))
    play.at(90, *arrivals("g"))
    assert median(play.policy._jobs["g"].needs) == TYPICAL_WORK  # type: ignore[attr-defined]
    play.at(95, Left(JobId("g")), *arrivals("h"))
    assert median(play.policy._jobs["h"].needs) < TYPICAL_WORK  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [5, 20, 21, 1000])
def test_what_many_jobs_need_tells_of_another_what_is_typical(count: int) -> None:
    play = Play("srpt")
    play.at(
        0,
        *arrivals(*(f"j{i}" for i in range(count)), "new"),
        *(predicted(f"j{i}", 100 + i) for i in range(count)),
    )
    new = play.policy._jobs["new"]  # type: ignore[attr-defined]
    assert new.remaining() == pytest.approx(100 + (count - 1) / 2, rel=0.01)
    assert len(new.needs) <= 20


_JOBS = st.sampled_from("abcde")
_CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(Arrived, _JOBS, st.sampled_from([0.1, 1.0, 10.0]), st.none() | st.floats(0.1, 8.0)),
    st.builds(Left, _JOBS),
    st.builds(predicted, _JOBS, st.floats(0.0, 1e6), st.none() | st.floats(0.0, 1.0)),
    st.builds(used, _JOBS, st.floats(0.0, 4.0)),
    st.builds(
        Reported,
        _JOBS,
        st.floats(allow_nan=True),
        st.integers(0, 1000),
        st.none(),
        st.none(),
        st.just(1),
    ),
)


@pytest.mark.parametrize("name", WEIGHING)
def test_whatever_happens_nobody_is_below_its_floor_or_changed_too_often(name: str) -> None:
    @settings(derandomize=True, database=None, deadline=None, max_examples=12)
    @given(st.lists(st.tuples(st.floats(0.0, 40.0), st.lists(_CHANGES, max_size=4)), max_size=25))
    def hold(calls: list[tuple[float, list[Change]]]) -> None:
        play, now = Play(name), 0.0
        for seconds, changes in calls:
            now += seconds
            known = set(play.shares)
            happening: list[Change] = []
            for change in changes:  # a job comes once and leaves once
                if isinstance(change, Arrived) != (change.job in known):
                    happening.append(change)
                    known = (
                        known - {change.job} if isinstance(change, Left) else known | {change.job}
                    )
            changed = play.at(now, *happening)
            assert set(changed) <= set(play.shares) == known
            if known:
                assert min(play.parts().values()) >= 0.05 / len(known) * (1 - 1e-9)
        assert play.most_changes_in_a_minute() <= 6

    hold()


# --- names and options


def test_options_are_part_of_the_name() -> None:
    play = Play("srpt:itval=3,floor=0.5")
    play.at(0, *arrivals("a", "b"), predicted("a", 100), predicted("b", 10))
    assert play.wake_at == 3
    assert play.parts()["a"] >= 0.25


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("srpt:alpha=1", "policy 'srpt' has no option 'alpha'; its options: itval, floor"),
        ("none:floor=1", "policy 'none' has no option 'floor'; its options: none"),
        (
            "flowcon:alpha=much",
            "policy 'flowcon': `alpha` is much; expected a number, such as alpha=0.03",
        ),
        (
            "flowcon:alpha",
            "policy 'flowcon': `alpha` is empty; expected a number, such as alpha=0.03",
        ),
        (
            "flowcon:faithful=1",
            "policy 'flowcon': `faithful` is '1'; expected nothing, true or false",
        ),
        (
            "flowcon:faithful,disk=5",
            "policy 'flowcon': `disk` is 5.0; expected nothing: `faithful` knows CPU alone",
        ),
        ("headgate:rho=0.5", "policy 'headgate': `rho` is 0.5; expected 1 or more"),
        ("headgate:trial=2", "policy 'headgate': `trial` is 2.0; expected 0, or 4 to 60 seconds"),
        ("headgate:floor=0", "policy 'headgate': `floor` is 0.0; expected above 0, at most 1"),
        ("las:itval=nan", "policy 'las': `itval` is nan; expected a positive number of seconds"),
        ("themis:fairness=1", "policy 'themis': `fairness` is 1.0; expected 0 or more, below 1"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        policies.make(name)
    assert str(refused.value).startswith(says)
