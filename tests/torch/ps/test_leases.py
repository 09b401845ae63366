"""Who trains on which batch, and how far ahead: leases and clocks, without any process."""

from __future__ import annotations

import random

import pytest

from headgate.torch.ps.asynchronous.leases import LATER, OVER, Leases
from headgate.torch.ps.asynchronous.staleness import Staleness


def lease(leases: Leases, worker: str, epoch: int = 0) -> int | str | None:
    """The answer to a worker that asks for a batch; None: it waits."""
    leases.ask(worker, epoch)
    return dict(leases.answers()).get(worker)


def test_every_batch_of_an_epoch_is_leased_once() -> None:
    leases = Leases()
    assert [lease(leases, "a"), lease(leases, "b"), lease(leases, "a")] == [0, 1, 2]


def test_an_epoch_is_over_for_a_worker_only_once_nobody_may_give_anything_back() -> None:
    leases = Leases()
    assert [lease(leases, "a"), lease(leases, "b"), lease(leases, "a")] == [0, 1, 2]
    leases.ends(0, 2)
    leases.done("a", 0, [0])
    assert lease(leases, "a") is None
    leases.done("b", 0, [1])
    assert leases.answers() == [("a", OVER)]
    assert lease(leases, "b") == OVER


def test_what_a_lost_worker_held_is_given_to_one_that_waits() -> None:
    leases = Leases()
    assert [lease(leases, "a"), lease(leases, "b")] == [0, 1]
    leases.ends(0, 2)
    leases.done("a", 0, [0])
    leases.ask("a", 0)
    assert leases.gone("b") == {0: [1]}
    assert leases.answers() == [("a", 1)]
    leases.done("a", 0, [1])
    assert lease(leases, "a") == OVER


def test_a_worker_that_holds_batches_itself_is_not_kept_waiting_for_the_others() -> None:
    leases = Leases()
    assert [lease(leases, "a"), lease(leases, "b")] == [0, 1]
    leases.ends(0, 2)
    assert lease(leases, "a") == LATER


def test_what_a_worker_says_to_have_done_after_it_was_given_up_does_not_count() -> None:
    leases = Leases()
    lease(leases, "a")
    leases.gone("a")
    assert lease(leases, "b") == 0
    leases.done("a", 0, [0])
    assert leases.positions() == [(0, 0, [])]
    leases.done("b", 0, [0])
    assert leases.positions() == [(0, 1, [])]


def test_an_epoch_that_is_resumed_begins_behind_what_was_done() -> None:
    leases = Leases()
    leases.begin(0, 5, [6])
    assert [lease(leases, "a"), lease(leases, "b")] == [5, 7]
    leases.begin(0, 0, [])
    assert lease(leases, "a") == 8


def test_an_epoch_that_all_have_left_is_over_for_one_that_comes_late() -> None:
    leases = Leases()
    lease(leases, "a")
    lease(leases, "a", epoch=1)
    assert lease(leases, "b") == OVER


def test_a_server_that_was_started_again_leases_nothing_twice() -> None:
    leases = Leases()
    numbers = [lease(leases, worker) for worker in "abab"]
    assert numbers == [0, 1, 2, 3]
    leases.done("a", 0, [0])
    again = Leases.restored(leases.state())
    again.retell("a", 0, done=[0, 2], held=[])  # more than the snapshot knew of
    again.retell("b", 0, done=[], held=[1, 3])
    assert [lease(again, "a"), lease(again, "b")] == [4, 5]
    again.gone("b")
    assert [lease(again, "a"), lease(again, "a"), lease(again, "a"), lease(again, "a")] == [
        1,
        3,
        5,
        6,
    ]


def test_what_a_worker_left_behind_is_over_for_a_server_that_was_started_again_too() -> None:
    leases = Leases()
    for number, worker in enumerate("ab"):
        assert lease(leases, worker) == number
        leases.done(worker, 0, [number])
    before = leases.state()
    leases.ends(0, 2)
    assert lease(leases, "a") == OVER
    again = Leases.restored(before)
    again.retell("b", 0, done=[1], held=[])
    again.over(0)  # as a says, which no longer knows what it did there
    assert lease(again, "b") == OVER


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_batch_is_done_exactly_once(seed: int) -> None:
    luck = random.Random(seed)
    leases, total = Leases(), 30
    holds: dict[str, list[int]] = {name: [] for name in "abcd"}
    done: list[int] = []
    over: set[str] = set()
    asking: set[str] = set()
    while over != holds.keys():
        worker = luck.choice([name for name in holds if name not in over])
        if luck.random() < 0.02 and len(holds) > 1:
            leases.gone(worker)
            del holds[worker]
            asking.discard(worker)
        elif holds[worker] and luck.random() < 0.6:
            number = holds[worker].pop()
            leases.done(worker, 0, [number])
            done.append(number)
        elif worker not in asking:
            leases.ask(worker, 0)
            asking.add(worker)
        for name, answer in leases.answers():
            asking.discard(name)
            if isinstance(answer, int) and answer >= total:
                leases.ends(0, total)
            elif isinstance(answer, int):
                holds[name].append(answer)
            elif answer == OVER:
                over.add(name)
    assert sorted(done) == list(range(total))


# --- clocks ---------------------------------------------------------------------------------------


def step(clocks: Staleness, worker: str) -> bool:
    """Whether a worker that wants to step may."""
    clocks.ask(worker)
    if worker not in clocks.allowed():
        return False
    clocks.stepped(worker)
    return True


def test_a_fast_worker_is_held_before_it_would_be_too_far_ahead() -> None:
    clocks = Staleness(2)
    clocks.enter("fast")
    clocks.enter("slow")
    assert [step(clocks, "fast") for _ in range(3)] == [True, True, False]
    assert step(clocks, "slow")
    assert clocks.allowed() == ["fast"]
    assert clocks.largest == 2


def test_without_a_bound_nobody_is_held_and_the_lead_is_recorded() -> None:
    clocks = Staleness(None)
    clocks.enter("fast")
    clocks.enter("slow")
    assert all(step(clocks, "fast") for _ in range(5))
    assert clocks.largest == 5


@pytest.mark.parametrize("leave", ["gone", "rest"])
def test_who_is_gone_or_has_nothing_to_do_holds_nobody(leave: str) -> None:
    clocks = Staleness(1)
    clocks.enter("fast")
    clocks.enter("slow")
    assert [step(clocks, "fast") for _ in range(2)] == [True, False]
    getattr(clocks, leave)("slow")
    assert clocks.allowed() == ["fast"]


def test_a_worker_that_was_idle_goes_on_with_new_values_beside_the_slowest() -> None:
    clocks = Staleness(1)
    clocks.enter("a")
    clocks.enter("b")
    clocks.rest("b")
    assert all(step(clocks, "a") for _ in range(3))
    assert clocks.resume("b")
    assert clocks.read() == {"a": 3, "b": 3}
    assert not clocks.resume("b")


def test_one_that_comes_later_begins_beside_the_slowest() -> None:
    clocks = Staleness(1)
    clocks.enter("a")
    assert all(step(clocks, "a") for _ in range(3))
    clocks.enter("b")
    assert clocks.read()["b"] == 3


def test_who_saves_lets_steps_end_and_none_begin_until_it_steps_itself() -> None:
    clocks = Staleness(None)
    clocks.enter("a")
    clocks.enter("b")
    clocks.ask("b")
    assert clocks.allowed() == ["b"]
    clocks.freeze("a")
    assert not clocks.still("a")
    clocks.stepped("b")
    assert clocks.still("a")
    assert not step(clocks, "b")
    clocks.ask("a")
    assert sorted(clocks.allowed()) == ["a", "b"]
