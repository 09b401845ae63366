"""Who starts when on a shared machine."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.arbiter.core_machine import BEGIN, GIB, NODE, Machine, grants, job

from headgate.arbiter.core import Arbiter
from headgate.arbiter.events import (
    Booked,
    BookingAnswered,
    Drained,
    GpuBytes,
    HubJoined,
    HubLeft,
    JobIdles,
    JobOrdered,
    JobReleased,
    MachineUsed,
    StoreWritable,
    UserUsed,
)
from headgate.arbiter.records import (
    Booking,
    Demand,
    Hub,
    JobDemand,
    JobWaits,
    MachineJob,
    ResourceGrant,
    Span,
    WaitKind,
)
from headgate.arbiter.seen import ahead, seen_jobs
from headgate.arbiter.usage import DayUse
from headgate.model.sharing import Amounts, SharingRules, UserShare

# --- between users


def test_a_user_without_jobs_goes_before_one_who_has_many() -> None:
    machine = Machine()
    machine.submit("ada", *(job(f"a{i}") for i in range(6)))
    machine.submit("bob", job("b0"))
    machine.end("a0", at=10.0)
    assert machine.runs == {"a1", "a2", "a3", "b0"}


def test_past_use_counts_in_the_order_of_users() -> None:
    machine = Machine()
    machine.submit("ada", *(job(f"a{i}") for i in range(4)))
    machine.end("a0", "a1", "a2", "a3", at=86_400.0)
    machine.submit("eve", job("e0", 4))
    machine.submit("ada", job("a4", 4))
    machine.submit("bob", job("b0", 4))
    machine.end("e0", at=86_500.0)
    assert machine.runs == {"b0"}


def test_a_user_who_got_nothing_for_long_goes_first() -> None:
    machine = Machine(Arbiter(NODE, SharingRules(patience=100.0)))
    machine.submit("ada", job("a0", 4))
    machine.end("a0", at=86_400.0)
    machine.submit("eve", *(job(f"e{i}", 4) for i in range(9)))
    machine.submit("ada", job("a1", 4))
    machine.end("e0", at=86_490.0)
    assert machine.runs == {"e1"}
    machine.end("e1", at=86_501.0)
    assert machine.runs == {"a1"}


def test_more_shares_let_a_user_hold_more() -> None:
    rules = SharingRules(parts=(UserShare(user="ada", shares=3.0),))
    machine = Machine(Arbiter(NODE, rules))
    machine.submit("eve", job("e0", 4))
    machine.submit("ada", *(job(f"a{i}") for i in range(4)))
    machine.submit("bob", *(job(f"b{i}") for i in range(4)))
    machine.end("e0", at=1.0)
    assert Counter(id[0] for id in machine.runs) == {"a": 3, "b": 1}


def test_users_who_always_want_more_get_gpu_time_by_their_shares_also_for_gangs() -> None:
    rules = SharingRules(half_life=3_600.0, parts=(UserShare(user="ada", shares=2.0),))
    machine, number = Machine(Arbiter(NODE, rules)), count()
    gpus, time = {"ada": 1, "bob": 1, "eve": 4}, Counter[str]()
    while machine.now < 4_000.0:
        for user, wanted in gpus.items():
            while len(machine.waiting.get(Hub(user), ())) < 3:
                machine.submit(user, job(f"{user}{next(number)}", wanted, lasts=20.0))
        [id, *_] = sorted(machine.runs, key=lambda id: machine.times[id][BEGIN])
        machine.end(id, at=machine.times[id][BEGIN] + 20.0)
        time[id[:3]] += 20 * gpus[id[:3]]
    parts = {user: seconds / time.total() for user, seconds in time.items()}
    assert parts == pytest.approx({"ada": 0.5, "bob": 0.25, "eve": 0.25}, abs=0.05)
    assert time.total() > 0.9 * 4 * 4_000


def test_jobs_within_the_guaranteed_part_go_first() -> None:
    rules = SharingRules(parts=(UserShare(group="staff", guaranteed=Amounts(gpus=2)),))
    machine = Machine(Arbiter(NODE, rules))
    machine.take(HubJoined(Hub("ada"), frozenset({"staff"})))
    machine.submit("ada", job("a0"), job("a1", gpus=0))
    machine.submit("bob", *(job(f"b{i}") for i in range(3)))
    machine.submit("eve", *(job(f"e{i}") for i in range(2)))
    machine.submit("ada", job("a2"), job("a3"))
    machine.end("b0", at=1.0)
    machine.end("b1", at=2.0)
    assert machine.runs - {"a1"} == {"a0", "a2", "b2", "e0"}


def test_a_user_has_at_most_the_largest_part_and_others_go_on() -> None:
    rules = SharingRules(parts=(UserShare(user="ada", largest=Amounts(gpus=1, jobs=2)),))
    machine = Machine(Arbiter(NODE, rules))
    machine.submit("ada", job("a0"), job("a1"), job("a2", gpus=0), job("a3", gpus=0))
    machine.submit("bob", job("b0", 3))
    assert machine.runs == {"a0", "a2", "b0"}
    assert {machine.waits[id].kind for id in ("a1", "a3")} == {WaitKind.OWN_LIMIT}


def test_hubs_of_one_user_take_turns() -> None:
    machine = Machine()
    machine.submit("eve", job("e0", 4))
    machine.submit("ada", *(job(f"a{i}", 2) for i in range(3)), name="1")
    machine.submit("ada", *(job(f"b{i}", 2) for i in range(3)), name="2")
    machine.end("e0", at=1.0)
    assert machine.runs == {"a0", "b0"}


def test_one_policy_for_all_puts_short_jobs_first_whoever_they_are_of() -> None:
    for rules, runs in (
        (SharingRules(users="together"), {"e1"}),
        (SharingRules(), {"a0"}),
    ):
        machine = Machine(Arbiter(NODE, rules))
        machine.submit("eve", job("e0", 4, lasts=10.0), job("e1", 4, lasts=10.0))
        machine.submit("ada", job("a0", 4, lasts=500.0))
        machine.end("e0", at=10.0)
        assert machine.runs == runs


def test_one_policy_for_all_gives_short_jobs_more_cores() -> None:
    machine = Machine(Arbiter(NODE, SharingRules(users="together")))
    machine.submit("ada", replace(job("a0", lasts=1_000.0), cores=8.0))
    machine.submit("bob", replace(job("b0", lasts=10.0), cores=8.0))
    machine.submit("bob", replace(job("b1", lasts=1_100.0), cores=8.0))
    ada, bob = machine.parts["ada"], machine.parts["bob"]
    assert bob.cores > 2.5 * ada.cores
    assert ada.cores > 0.05 * NODE.cores / 3
    assert bob.weight / ada.weight == pytest.approx(bob.cores / ada.cores)


# --- room


def test_a_job_starts_only_when_all_it_needs_is_free() -> None:
    machine = Machine()
    machine.submit("ada", job("a0", 3, memory=20))
    machine.submit("bob", job("b0", 2))
    machine.submit("eve", job("e0", 0, memory=13))
    assert machine.runs == {"a0"}
    machine.submit("eve", job("e1", 5))
    assert machine.waits["e1"].kind is WaitKind.TOO_LARGE
    machine.end("a0", at=1.0)
    assert machine.runs == {"b0", "e0"}


def test_jobs_that_state_gpu_memory_share_a_gpu_but_not_a_whole_one() -> None:
    machine = Machine()
    machine.submit("ada", job("a0", 3))
    machine.submit("bob", *(job(f"b{i}", on_gpu=7) for i in range(3)))
    on_gpus = {grant.job.id: grant.slots[0].gpus for grant in grants(machine.arbiter)}
    assert machine.runs == {"a0", "b0", "b1"}
    assert on_gpus["b0"] == on_gpus["b1"] == (3,)


def test_workers_of_a_job_start_all_at_once() -> None:
    machine = Machine()
    machine.submit("eve", job("e0", 1))
    machine.submit("ada", replace(job("a0", 2), workers=2))
    machine.submit("bob", replace(job("b0", 1, on_gpu=9), workers=4))
    assert machine.runs == {"e0"}
    machine.end("e0", at=1.0)
    assert machine.runs == {"a0"}
    machine.end("a0", at=2.0)
    [grant] = grants(machine.arbiter)
    assert sorted(slot.gpus for slot in grant.slots) == [(0,), (1,), (2,), (3,)]


def test_gpus_of_outside_programs_are_left_alone_or_shared_last() -> None:
    rules = SharingRules(outside_gpus="leave"), SharingRules(outside_gpus="last")
    for rule, gpus in zip(rules, ({0, 1}, {0, 1, 2}), strict=True):
        machine = Machine(Arbiter(NODE, rule))
        used = {gpu: GpuBytes(4.0 * GIB, 0.0) for gpu in (2, 3)}
        machine.take(MachineUsed(30.0 * GIB, 0.0, used, frozenset(used)))
        machine.submit("ada", *(job(f"a{i}", on_gpu=10) for i in range(3)), job("whole"))
        assert {grant.slots[0].gpus[0] for grant in grants(machine.arbiter)} == gpus
        assert "whole" not in machine.runs


def test_a_large_job_gets_its_turn_before_endless_small_ones() -> None:
    machine = Machine()
    machine.submit("ada", *(job(f"a{i}", lasts=10.0) for i in range(4)))
    machine.submit("bob", job("b0", 4, lasts=10.0))
    for i in range(4, 30):
        machine.submit("eve", job(f"e{i}", lasts=10.0))
    for i in range(4):
        machine.end(f"a{i}", at=7.0 + i)
    assert machine.runs == {"b0"}


def test_jobs_of_unknown_length_do_not_put_off_a_large_one_for_long() -> None:
    machine = Machine()
    machine.submit("dan", job("d0", 0))
    machine.submit("ada", *(job(f"a{i}") for i in range(4)))
    machine.submit("bob", job("b0", 4))
    machine.end("d0", at=2_500.0)
    machine.submit("eve", *(job(f"e{i}", lasts=0.1) for i in range(4)))
    for i in range(4):
        assert machine.runs == {f"a{left}" for left in range(i, 4)}
        machine.end(f"a{i}", at=i + 2_501.0)
    assert machine.runs == {"b0"}


def test_for_a_while_jobs_go_before_a_large_one_that_likely_end_before_it_starts() -> None:
    machine = Machine()
    machine.submit("ada", *(job(f"a{i}") for i in range(4)))
    machine.submit("bob", job("b0", 4))
    machine.submit("eve", job("e0"), job("e1"))
    machine.end("a0", at=1_000.0)
    assert machine.runs == {"a1", "a2", "a3", "e0"}
    machine.end("a1", at=5_000.0)
    assert machine.runs == {"a2", "a3", "e0"}


def test_small_jobs_go_before_a_large_one_that_they_do_not_delay() -> None:
    machine = Machine()
    machine.submit("ada", job("a0", 3, lasts=100.0))
    machine.submit("bob", job("b0", 4))
    machine.submit("eve", job("ends", lasts=90.0), job("cpu", 0))
    assert machine.runs == {"a0", "ends", "cpu"}
    machine.end("ends", at=50.0)
    machine.submit("eve", job("late", lasts=60.0))
    assert machine.waits["late"].kind is WaitKind.OTHERS_FIRST
    assert machine.waits["late"].delays == MachineJob(Hub("bob"), "b0")
    machine.end("a0", at=70.0)
    assert machine.runs == {"cpu", "b0"}


def test_expected_starts_are_told_with_how_late_they_may_be() -> None:
    machine = Machine()
    machine.submit("ada", replace(job("a0", 4), left=Span(50.0, 40.0, 90.0)))
    machine.submit("bob", job("b0", 2), job("b1", 3))
    soon, after = ahead(machine.arbiter, 0.0)
    assert (soon.job.id, soon.at, soon.latest) == ("b0", 50.0, 90.0)
    assert (after.job.id, after.at) == ("b1", None)
    assert after.unknown == (MachineJob(Hub("bob"), "b0"),)


def test_a_user_whose_jobs_overrun_does_not_go_before_others_by_backfill() -> None:
    machine = Machine()
    for i in range(8):
        machine.submit("eve", job(f"e{i}", lasts=1.0))
        machine.end(f"e{i}", at=10.0 * i + 9.0)
    machine.submit("ada", job("a0", 3, lasts=1_000.0))
    machine.submit("bob", job("b0", 4))
    machine.submit("eve", job("e8", lasts=1.0))
    assert machine.waits["e8"].kind is WaitKind.OTHERS_FIRST
    machine.submit("ada", job("a1", lasts=1.0))
    assert machine.runs == {"a0", "a1"}


# --- reservations


def test_a_start_is_expected_when_the_reservation_in_its_way_has_ended() -> None:
    machine = Machine()
    machine.take(Booked(Booking(1, "ada", JobDemand("", gpus=3), 50.0, 200.0)))
    machine.submit("bob", job("b0", 3), job("b1", lasts=40.0))
    assert machine.runs == {"b1"}
    starts = {start.job.id: (start.at, start.latest) for start in ahead(machine.arbiter, 0.0)}
    assert starts == {"b0": (200.0, 200.0)}


def test_a_reservation_is_kept_free_and_used_by_its_user() -> None:
    machine = Machine()
    reserved = JobDemand("", gpus=2)
    machine.take(Booked(Booking(1, "ada", reserved, 100.0, 200.0)))
    machine.submit("bob", *(job(f"b{i}") for i in range(2)), job("short", lasts=50.0), job("b2"))
    assert machine.runs == {"b0", "b1", "short"}
    machine.end("short", at=50.0)
    assert machine.waits["b2"].kind is WaitKind.OTHERS_FIRST
    machine.now = 100.0
    machine.submit("ada", job("a0", 2))
    assert machine.runs == {"b0", "b1", "a0"}


def test_what_a_reservation_leaves_is_free_when_it_ends() -> None:
    machine = Machine()
    machine.take(Booked(Booking(1, "ada", JobDemand("", gpus=4), 0.0, 200.0)))
    machine.submit("bob", job("b0"))
    machine.submit("eve", job("e0", 4))
    assert machine.runs == set()
    assert machine.arbiter.wake_at == 10.0
    machine.now = 200.0
    machine.take()
    assert machine.runs == {"b0"}


def test_a_reservation_that_does_not_fit_beside_others_is_refused() -> None:
    arbiter = Arbiter(NODE, SharingRules())
    fits = {}
    for id, (gpus, begin, end) in enumerate([(3, 0, 10), (2, 5, 20), (1, 5, 20), (4, 20, 30)]):
        wanted = Booking(id, "ada", JobDemand("", gpus=gpus), begin, end)
        [answer, *_] = arbiter.step(0.0, Booked(wanted))
        fits[id] = answer == BookingAnswered(wanted, fits=True)
    assert fits == {0: True, 1: False, 2: True, 3: True}


# --- what is seen and accounted


def test_others_see_whose_a_private_job_is_and_no_name() -> None:
    machine = Machine()
    machine.submit("ada", replace(job("a0", 4), name="cnn", private=True))
    machine.submit("bob", replace(job("b0"), name="vae"))
    runs, waits = seen_jobs(machine.arbiter, 1.0, "bob")
    assert (runs.user, runs.name, runs.gpus, runs.demand.id) == ("ada", None, (0, 1, 2, 3), "")
    assert runs.job is None
    assert (waits.name, waits.waits, waits.at) == ("vae", WaitKind.NO_ROOM, None)
    assert waits.job == MachineJob(Hub("bob"), "b0")
    for_root = seen_jobs(machine.arbiter, 1.0, "root", as_administrator=True)
    assert [seen.name for seen in for_root] == ["cnn", "vae"]


def test_use_is_summed_by_user_and_day() -> None:
    machine = Machine(now=86_300.0)
    machine.submit("ada", job("a0", 2))
    for machine.now in (86_300.0, 86_600.0):
        used = {"ada": UserUsed(1.5, frozenset({1}))}
        machine.take(MachineUsed(30.0 * GIB, 1.0 * GIB, {}, users=used))
    rows = machine.arbiter.metering.usage.changed()
    assert rows["ada", 0] == DayUse(150.0, 200.0, 100.0, 100.0 * GIB)
    assert rows["ada", 1] == DayUse(300.0, 400.0, 200.0, 200.0 * GIB)
    assert machine.arbiter.metering.usage.changed() == {}


def test_a_job_whose_gpus_idle_is_warned_and_later_ended() -> None:
    arbiter = Arbiter(NODE, SharingRules(idle_after=60.0, idle_ends=True))
    arbiter.step(0.0, Demand(Hub("ada"), (job("a0", 2), job("a1"))))

    def idles(now: float, busy: int) -> list[JobIdles]:
        used = {"ada": UserUsed(1.0, frozenset({busy}))}
        actions = arbiter.step(now, MachineUsed(30.0 * GIB, 0.0, {}, users=used))
        return [action for action in actions if isinstance(action, JobIdles)]

    idle = MachineJob(Hub("ada"), "a1")
    assert [*idles(0.0, 0), *idles(59.0, 0)] == []
    assert idles(60.0, 0) == [JobIdles(idle, 0.0)]
    assert idles(100.0, 0) == []
    assert idles(120.0, 0) == [JobIdles(idle, 0.0, ends=True)]
    assert [*idles(130.0, 0), *idles(140.0, 2), *idles(190.0, 0)] == []


def test_a_job_that_holds_memory_while_its_user_computes_nothing_is_warned_and_ended() -> None:
    arbiter = Arbiter(NODE, SharingRules(idle_after=60.0, idle_ends=True))
    arbiter.step(0.0, Demand(Hub("ada"), (JobDemand("a1", memory_bytes=GIB),)))

    def idles(now: float, cores: float) -> list[JobIdles]:
        used = MachineUsed(GIB, GIB, {}, users={"ada": UserUsed(cores)})
        return [action for action in arbiter.step(now, used) if isinstance(action, JobIdles)]

    holds = JobIdles(MachineJob(Hub("ada"), "a1"), 30.0, memory=True)
    assert [*idles(0.0, 0.02), *idles(20.0, 1.0), *idles(30.0, 0.02)] == []
    assert [*idles(80.0, 0.02), *idles(90.0, 0.02)] == [holds]
    assert idles(150.0, 0.02) == [replace(holds, ends=True)]


def test_a_users_memory_leaves_what_others_were_granted() -> None:
    machine = Machine()
    machine.submit("ada", job("a0", memory=10))
    machine.submit("bob", job("b0", memory=4))
    part = machine.parts["ada"]
    assert (part.memory_bytes, part.most_memory_bytes) == (10 * GIB, 28 * GIB)
    machine.running[Hub("bob")]["b0"] = job("b0", memory=30)
    machine.state(Hub("bob"))
    assert machine.parts["bob"].memory_bytes == 4 * GIB
    machine.running[Hub("bob")]["b0"] = job("b0", memory=20)
    machine.state(Hub("bob"))
    assert machine.parts["bob"].memory_bytes == 20 * GIB


def test_a_user_whose_jobs_have_ended_weighs_nothing_and_no_memory_is_kept() -> None:
    machine = Machine()
    machine.submit("ada", job("a0"))
    machine.submit("bob", job("b0"))
    alone = machine.parts["ada"].weight
    machine.end("b0", at=10.0)
    assert sum(part.weight for part in machine.parts.values()) == alone > 0.0
    assert machine.parts["bob"].memory_bytes == 0


# --- administrators, hubs, and crashes


def test_administrators_hold_jobs_and_let_others_go_first() -> None:
    machine = Machine()
    machine.take(Drained(True))
    machine.submit("ada", job("a0", 4))
    machine.submit("bob", job("b0", 4))
    machine.submit("eve", job("e0", 4))
    machine.take(JobOrdered(MachineJob(Hub("ada"), "a0"), held=True))
    machine.take(JobOrdered(MachineJob(Hub("eve"), "e0"), first=True))
    assert machine.runs == set()
    machine.take(Drained(False))
    assert machine.runs == {"e0"}
    machine.end("e0", at=1.0)
    machine.end("b0", at=2.0)
    assert machine.runs == set()


def test_jobs_keep_what_they_hold_until_their_hub_is_empty() -> None:
    machine = Machine()
    machine.submit("ada", job("a0", 4))
    machine.submit("bob", job("b0"))
    machine.take(HubLeft(Hub("ada")))
    assert machine.runs == {"a0"}
    [release, *_] = machine.arbiter.step(1.0, HubLeft(Hub("ada"), emptied=True))
    assert release == JobReleased(MachineJob(Hub("ada"), "a0"))
    assert [grant.job.id for grant in grants(machine.arbiter)] == ["b0"]


def test_a_new_arbiter_goes_on_with_what_was_granted() -> None:
    machine = Machine()
    machine.submit("ada", job("a0", 3))
    machine.take(Booked(Booking(1, "zoe", JobDemand("", gpus=1), 50.0, 60.0)))
    machine.take(JobOrdered(MachineJob(Hub("bob"), "b1"), held=True))
    machine.restart()
    machine.submit("bob", job("b0", 2), job("b1", 0))
    assert machine.runs == {"a0"}
    machine.end("a0", at=1.0)
    assert machine.runs == {"b0"}


def test_nothing_starts_while_grants_cannot_be_kept() -> None:
    arbiter = Arbiter(NODE, SharingRules())
    [unkept, *_] = arbiter.step(0.0, Demand(Hub("ada"), (job("a0", 4),)))
    assert isinstance(unkept, ResourceGrant)
    arbiter.step(0.0, StoreWritable(False, (unkept.job,)))
    arbiter.step(1.0, Demand(Hub("ada"), (job("a0", 4), job("a1", 0))))
    assert not grants(arbiter)
    arbiter.step(2.0, StoreWritable(True))
    assert [grant.job.id for grant in grants(arbiter)] == ["a0", "a1"]


def test_a_hub_that_missed_a_grant_hears_it_again_and_no_other() -> None:
    arbiter = Arbiter(NODE, SharingRules())
    demand = Demand(Hub("ada"), (job("a0", 4),))
    first, again = arbiter.step(0.0, demand), arbiter.step(1.0, demand)
    assert first[0] == again[0] == next(iter(grants(arbiter)))


def test_a_job_that_runs_without_a_grant_holds_nothing() -> None:
    arbiter = Arbiter(NODE, SharingRules())
    arbiter.step(0.0, Demand(Hub("ada"), (job("a0", 4),)))
    actions = arbiter.step(0.0, Demand(Hub("eve"), (), (job("e0", 4),)))
    assert [type(action) for action in actions[:1]] == [JobWaits]
    assert [grant.job.id for grant in grants(arbiter)] == ["a0"]


# --- whatever comes


JOBS = st.lists(
    st.tuples(
        st.sampled_from(("ada", "bob", "eve")),
        st.integers(0, 4),  # GPUs
        st.sampled_from((0, 0, 5, 16)),  # GiB on a GPU
        st.integers(1, 32),  # GiB
        st.integers(1, 30),  # seconds that it takes
        st.one_of(st.none(), st.integers(0, 20)),  # more that are expected at most
        st.integers(0, 60),  # arrival
    ),
    min_size=1,
    max_size=25,
)


def play(
    jobs: list[tuple[str, int, int, int, int, int | None, int]],
    booking: Booking | None = None,
    killed: bool = False,
) -> Machine:
    """Run jobs of users, and one that uses a reservation; after each event the arbiter may be
    killed. Check that nothing is held twice.
    """
    machine = Machine()
    arrivals: dict[str, tuple[float, str, JobDemand]] = {}
    lasts: dict[str, float] = {}
    if booking is not None:
        machine.take(Booked(booking))
        reserved = replace(booking.demand, id="reserved")
        arrivals["reserved"] = booking.begin, booking.user, reserved
        lasts["reserved"] = booking.end - booking.begin
    for i, (user, gpus, on_gpu, memory, seconds, more, at) in enumerate(jobs):
        surely = None if more is None else float(seconds + more)
        wanted = job(str(i), gpus, lasts=surely, memory=memory, on_gpu=on_gpu)
        arrivals[str(i)], lasts[str(i)] = (float(at), user, wanted), float(seconds)
    while arrivals or machine.runs:
        ends = {id: machine.times[id][BEGIN] + lasts[id] for id in machine.runs}
        comes = min(arrivals, key=lambda id: arrivals[id][0]) if arrivals else None
        first = min(ends, key=lambda id: ends[id]) if ends else None
        if first is not None and (comes is None or ends[first] <= arrivals[comes][0]):
            machine.end(first, at=ends[first])
        elif comes is not None:
            machine.now, user, wanted = arrivals.pop(comes)
            machine.submit(user, wanted)
        if killed:
            machine.restart()
        _keeps_its_promise(machine)
        _holds_nothing_twice(machine)
    return machine


def _keeps_its_promise(machine: Machine) -> None:
    """What has started since the promise does not delay the promised job."""
    promised = machine.arbiter.promised
    if promised is not None:
        [demand] = (job for job in machine.waiting[promised.job.hub] if job.id == promised.job.id)
        again = machine.arbiter.room.promise(machine.now, promised.job, demand)
        assert again is not None and again.at <= promised.at


def _holds_nothing_twice(machine: Machine) -> None:
    memory, on_gpu, whole = 0, Counter[int](), Counter[int]()
    for grant in grants(machine.arbiter):
        memory += grant.demand.all_memory_bytes
        gpus = [gpu for slot in grant.slots for gpu in slot.gpus]
        assert len(set(gpus)) == len(gpus) == grant.demand.gpus
        for gpu in gpus:
            whole[gpu] += grant.demand.gpu_memory_bytes is None
            on_gpu[gpu] += grant.demand.gpu_memory_bytes or 0
    assert memory <= NODE.memory_bytes
    assert all(size <= 16 * GIB for size in on_gpu.values())
    assert all(count <= 1 and not (count and on_gpu[gpu]) for gpu, count in whole.items())
    assert {grant.job.id for grant in grants(machine.arbiter)} == machine.runs


@settings(max_examples=60, deadline=None)
@given(JOBS, st.booleans())
def test_every_job_gets_its_turn_and_promises_are_kept(
    jobs: list[tuple[str, int, int, int, int, int | None, int]], killed: bool
) -> None:
    machine = play(jobs, killed=killed)
    assert machine.times.keys() == {str(i) for i in range(len(jobs))}


@settings(max_examples=60, deadline=None)
@given(JOBS)
def test_a_reservation_is_there_when_it_begins(
    jobs: list[tuple[str, int, int, int, int, int | None, int]],
) -> None:
    reserved = JobDemand("", gpus=2, memory_bytes=8 * GIB)
    machine = play(jobs, Booking(1, "zoe", reserved, 20.0, 40.0))
    assert machine.times["reserved"][BEGIN] == 20.0


@settings(max_examples=60, deadline=None)
@given(JOBS)
def test_nothing_waits_while_the_first_job_could_start(
    jobs: list[tuple[str, int, int, int, int, int | None, int]],
) -> None:
    machine = Machine()
    for i, (user, gpus, on_gpu, memory, *_) in enumerate(jobs):
        machine.submit(user, job(str(i), gpus, memory=memory, on_gpu=on_gpu))
        waits = {wanted.id for of_hub in machine.waiting.values() for wanted in of_hub}
        assert bool(waits) == (machine.arbiter.promised is not None)
    assert machine.runs
    assert math.isfinite(sum(part.cores for part in machine.parts.values()))
