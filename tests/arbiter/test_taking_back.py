"""What is the part of a user who waits is taken back from users who have more than theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.arbiter.core_machine import NODE, Machine, job

from headgate.arbiter.core import Arbiter
from headgate.arbiter.events import Booked, Drained, HubLeft, RulesRead
from headgate.arbiter.records import Booking, Hub, JobDemand, Resumes, WaitKind
from headgate.arbiter.seen import ahead, seen_jobs
from headgate.model.sharing import Amounts, SharingRules, UserShare
from headgate.model.shortage_text import shortage_in_words

ADA_HAS_TWO = (UserShare(user="ada", guaranteed=Amounts(gpus=2)),)


def saves(id: str, gpus: int = 1, memory: int = 1) -> JobDemand:
    """A job that saves a checkpoint as it ends."""
    return replace(job(id, gpus, memory=memory), resumes=Resumes.FROM_NOW)


def shared(**rules: Any) -> Machine:
    """A machine where ada has two GPUs guaranteed, of four."""
    usual: dict[str, Any] = {
        "parts": ADA_HAS_TWO,
        "take_back_after": 600.0,
        "take_back_spares": 1_800.0,
    }
    return Machine(Arbiter(NODE, SharingRules(**(usual | rules))))


def asked(machine: Machine) -> list[str]:
    """The jobs that were told to give back, and are not yet asked for in the test."""
    ids = [act.job for act in machine.taken_back]
    machine.taken_back.clear()
    return ids


def pass_time(machine: Machine, until: float) -> None:
    """Hubs state their jobs and the arbiter looks, as both do every few seconds."""
    times = max(machine.now, until - 10.0), until
    for machine.now in times:
        for hub in {*machine.waiting, *machine.running}:
            machine.state(hub)
        machine.take()


def test_what_is_guaranteed_is_taken_back_after_the_wait_and_kept_for_who_waited() -> None:
    machine = shared()
    machine.submit("bob", *(saves(f"b{i}") for i in range(3)))
    machine.now = 100.0
    machine.submit("bob", saves("b3"))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0", 2))
    pass_time(machine, 5_590.0)
    assert asked(machine) == []
    pass_time(machine, 5_610.0)
    [first, second] = machine.taken_back
    assert {first.job, second.job} == {"b3", "b2"}  # the youngest lose least
    assert (first.by, first.user, first.waited, first.ends) == ("ada", "bob", 600.0, False)
    assert machine.waits["a0"].kind is WaitKind.TAKING_BACK
    assert machine.waits["a0"].at == pytest.approx(5_630.0, abs=10.0)
    [gives, *_] = [seen for seen in seen_jobs(machine.arbiter, machine.now, "eve") if seen.gives_to]
    assert (gives.user, gives.gives_to) == ("bob", "ada")
    machine.give_back("b3")
    machine.submit("eve", saves("e0"))  # fits into what is free, and has nothing yet
    assert machine.runs == {"b0", "b1", "b2"}
    [soon, *_] = ahead(machine.arbiter, machine.now)
    assert soon.job.id == "a0"
    assert soon.at is not None and soon.at <= 5_640.0
    machine.give_back("b2")
    assert machine.runs == {"b0", "b1", "a0"}
    pass_time(machine, 9_000.0)
    assert sorted(asked(machine)) == ["b2", "b3"]  # nobody else lacks the own part


@pytest.mark.parametrize(
    ("rules", "wanted", "taken"),
    [
        ({}, saves("a0", 3), 0),  # more than is guaranteed
        ({"take_back": "never"}, saves("a0"), 0),
        ({"take_back": "shares"}, saves("a0", 2), 2),  # half of the machine, also without a part
        ({"take_back": "shares", "parts": ()}, saves("a0", 2), 2),
        ({"take_back": "shares", "users": "together", "parts": ()}, saves("a0", 2), 0),
        ({"parts": ()}, saves("a0"), 0),
        ({"parts": (UserShare(user="ada", guaranteed=Amounts(jobs=1)),)}, saves("a0", 3), 3),
    ],
)
def test_the_rules_say_what_is_taken_back(
    rules: dict[str, Any], wanted: JobDemand, taken: int
) -> None:
    machine = shared(**rules)
    machine.submit("bob", *(saves(f"b{i}") for i in range(4)))
    machine.now = 5_000.0
    machine.submit("ada", wanted)
    pass_time(machine, 5_700.0)
    assert len(asked(machine)) == taken


def test_the_user_furthest_above_gives_back_first_and_nobody_gets_below_the_own_part() -> None:
    parts = (*ADA_HAS_TWO, UserShare(user="eve", guaranteed=Amounts(gpus=1)))
    machine = shared(parts=parts)
    machine.submit("bob", saves("b0"))
    machine.submit("eve", saves("e0"), saves("e1"), saves("e2"))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0"), saves("a1"))
    pass_time(machine, 5_610.0)
    assert asked(machine) == ["e2"]
    machine.give_back("e2")
    assert machine.runs == {"b0", "e0", "e1", "a0"}
    pass_time(machine, 5_620.0)
    assert asked(machine) == ["b0"]  # as far above its part as eve now
    machine.give_back("b0")
    machine.submit("ada", saves("a2"))
    pass_time(machine, 9_000.0)
    assert machine.runs == {"a0", "a1", "e0", "e1"}
    assert asked(machine) == []


def test_a_single_job_that_is_larger_than_its_users_part_is_taken_back_all_the_same() -> None:
    machine = shared(take_back="shares", parts=())
    machine.submit("bob", saves("b0", 4))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0"))
    pass_time(machine, 5_610.0)
    assert asked(machine) == ["b0"]
    machine.give_back("b0")
    assert machine.runs == {"a0"}


def test_jobs_larger_than_the_parts_of_their_users_take_turns() -> None:
    machine = shared(take_back="shares", parts=())
    machine.submit("bob", saves("b", 4))
    machine.submit("ada", saves("a", 4))
    ran: list[tuple[str, float]] = []
    while machine.now < 20_000.0:
        pass_time(machine, machine.now + 60.0)
        for id in asked(machine):
            ran.append((id[0], machine.now - machine.times[id][0]))
            machine.give_back(id)
    assert [user for user, _ in ran][:8] == ["b", "a"] * 4
    assert all(1_800.0 <= seconds <= 1_920.0 for _, seconds in ran)


@pytest.mark.parametrize(("guaranteed", "taken"), [(0, 2), (2, 0)])
def test_a_turn_is_taken_within_the_parts_of_others_and_not_of_what_is_guaranteed(
    guaranteed: int, taken: int
) -> None:
    parts = (UserShare(user="bob", guaranteed=Amounts(gpus=guaranteed)),)
    machine = shared(take_back="shares", parts=parts)
    machine.submit("bob", saves("b0"), saves("b1"))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0", 4))
    pass_time(machine, 5_610.0)
    assert len(asked(machine)) == taken


@pytest.mark.parametrize("ends", [False, True])
def test_a_job_that_cannot_be_resumed_is_only_ended_where_the_rules_say_so(ends: bool) -> None:
    machine = shared(take_back_ends=ends)
    lost, later = (replace(saves("b"), resumes=how) for how in (Resumes.NO, Resumes.FROM_EARLIER))
    machine.submit("bob", replace(lost, id="b0", gpus=2), replace(later, id="b1"))
    machine.submit("bob", replace(lost, id="b2"))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0"))
    pass_time(machine, 5_610.0)
    assert [(act.job, act.ends) for act in machine.taken_back] == [("b1", False)]
    machine.give_back("b1")
    machine.submit("ada", saves("a1"))
    pass_time(machine, 6_300.0)
    assert [act.ends for act in machine.taken_back[1:]] == [True] * ends


def test_a_hub_that_does_not_say_whether_jobs_resume_is_told_nothing_and_owes_nothing() -> None:
    machine = shared(take_back_ends=True)
    machine.submit("bob", job("b0", 4))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0"))
    pass_time(machine, 6_300.0)
    assert asked(machine) == []
    assert not machine.arbiter.taking.owes("bob")


def test_a_later_job_gets_the_part_of_its_user_where_the_first_cannot() -> None:
    machine = shared()
    machine.submit("bob", job("b0", 3), saves("b1"))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0", 2), saves("a1"))
    pass_time(machine, 5_610.0)
    assert asked(machine) == ["b1"]
    machine.give_back("b1")
    assert "a1" in machine.runs


def test_a_job_becomes_resumable_while_it_runs() -> None:
    machine = shared()
    machine.submit("bob", job("b0", 4))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0"))
    pass_time(machine, 6_000.0)
    assert asked(machine) == []
    machine.running[Hub("bob")]["b0"] = saves("b0", 4)
    pass_time(machine, 6_020.0)
    assert asked(machine) == ["b0"]


def test_a_job_that_was_taken_back_runs_for_a_while_before_it_is_again() -> None:
    machine = shared()
    machine.submit("bob", saves("b0", 4))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0", 2))
    pass_time(machine, 5_610.0)
    machine.give_back(*asked(machine))
    machine.end("a0", at=5_700.0)
    assert machine.runs == {"b0+"}
    machine.submit("ada", saves("a1", 2))
    pass_time(machine, 7_490.0)
    assert asked(machine) == []
    pass_time(machine, 7_510.0)
    assert asked(machine) == ["b0+"]


@pytest.mark.parametrize("ends", [False, True])
def test_a_hub_that_gives_nothing_back_is_told_twice_and_others_do_instead(ends: bool) -> None:
    machine = shared(take_back_ends=ends)
    machine.submit("bob", saves("b0"), saves("b1"), saves("b2"))
    machine.submit("eve", saves("e0"))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0"))
    machine.submit("bob", saves("b3"))
    pass_time(machine, 5_610.0)
    [act] = machine.taken_back
    pass_time(machine, 5_800.0)
    [_, again] = machine.taken_back
    assert (again.job, again.ends) == (act.job, ends)
    machine.taken_back.clear()
    pass_time(machine, 5_990.0)
    [instead] = asked(machine)
    assert instead != act.job
    machine.give_back(instead)
    assert "a0" in machine.runs
    machine.end("e0", at=6_000.0)
    assert "b3" not in machine.runs  # bob gets nothing more
    assert (why := machine.waits["b3"].kind) is WaitKind.OWES
    assert "has to give back" in shortage_in_words({"kind": "grant", "why": str(why)})
    machine.end(act.job, at=6_010.0)
    assert "b3" in machine.runs


def test_a_hub_that_was_away_has_its_time_from_when_it_hears_the_order() -> None:
    machine = shared(take_back_ends=True)
    machine.submit("bob", saves("b0", 4))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0"))
    machine.take(HubLeft(Hub("bob")))
    machine.now = 5_610.0
    machine.state(Hub("ada"))
    machine.take()
    assert len(machine.taken_back) == 1
    pass_time(machine, 5_700.0)
    assert [(act.job, act.ends) for act in machine.taken_back[1:]] == [("b0", False)]
    pass_time(machine, 5_860.0)
    assert not machine.arbiter.taking.owes("bob")
    machine.take(HubLeft(Hub("bob")))  # also when it is told for the second time
    machine.now = 5_890.0
    machine.state(Hub("ada"))
    machine.take()
    pass_time(machine, 5_900.0)
    assert [(act.job, act.ends) for act in machine.taken_back[2:]] == [("b0", False)] * 2
    pass_time(machine, 6_100.0)
    assert machine.arbiter.taking.owes("bob")


def test_two_users_who_wait_get_their_parts_one_after_the_other() -> None:
    parts = tuple(UserShare(user=user, guaranteed=Amounts(gpus=1)) for user in ("ada", "dan"))
    machine = shared(parts=parts)
    machine.submit("bob", *(saves(f"b{i}") for i in range(4)))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0"))
    machine.submit("dan", saves("d0"))
    machine.submit("eve", saves("e0"))
    pass_time(machine, 5_610.0)
    machine.give_back(*asked(machine))
    assert machine.runs & {"a0", "d0", "e0"} == {"a0"}
    pass_time(machine, 5_620.0)
    machine.give_back(*asked(machine))
    assert machine.runs & {"a0", "d0", "e0"} == {"a0", "d0"}
    pass_time(machine, 9_000.0)
    assert asked(machine) == []


def test_only_what_is_lacking_is_taken_back_and_no_more() -> None:
    parts = (UserShare(user="ada", guaranteed=Amounts(memory_bytes=8 << 30)),)
    machine = shared(parts=parts)
    machine.submit("bob", saves("b0", 4, memory=1))
    machine.submit("eve", saves("e0", 0, memory=20), saves("e1", 0, memory=2))
    machine.submit("eve", saves("e2", 0, memory=7))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0", 0, memory=8))
    pass_time(machine, 5_610.0)
    assert asked(machine) == ["e2"]


def test_a_reservation_is_part_of_what_its_user_may_have() -> None:
    machine = shared()
    reserved = JobDemand("", gpus=2, memory_bytes=1 << 30)
    machine.take(Booked(Booking(1, "bob", reserved, 0.0, 90_000.0)))
    machine.submit("bob", saves("b0", 2))
    machine.submit("eve", saves("e0", 2))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0", 2))
    pass_time(machine, 5_610.0)
    assert asked(machine) == ["e0"]


def test_nothing_is_taken_back_while_nothing_may_start_or_once_who_waited_is_gone() -> None:
    machine = shared()
    machine.submit("bob", saves("b0", 4))
    machine.now = 5_000.0
    machine.submit("ada", saves("a0"))
    machine.take(Drained(True))
    pass_time(machine, 6_000.0)
    assert asked(machine) == []
    machine.take(Drained(False))
    pass_time(machine, 6_010.0)
    assert asked(machine) == ["b0"]
    machine.waiting[Hub("ada")].clear()
    machine.state(Hub("ada"))
    machine.take(RulesRead(SharingRules(take_back="never")))
    machine.submit("eve", saves("e0"))
    machine.give_back("b0")
    assert machine.runs == {"e0"}
