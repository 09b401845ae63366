"""The rounds of one server, a call for each message."""

from __future__ import annotations

import pytest
import torch

from headgate.torch.ps.rounds.aggregation import (
    HISTORY,
    HISTORY_BYTES,
    LONGEST_HISTORY,
    Contribution,
    Reply,
    Rounds,
)

VIEW = 5


def of(
    value: float, weight: float = 1.0, at: float = 0.0, place: int | None = None
) -> Contribution:
    return Contribution(torch.full((2,), value), 0, 8, weight, at, place)


def made(workers: int = 3, needed: int | None = None) -> Rounds:
    """The rounds of workers that count, and that are in step where they need not be: round 0 was in
    a view before.
    """
    rounds, workers_there = Rounds(), frozenset(range(workers))
    if needed is not None:
        rounds.enter(VIEW - 1, workers_there, needed)
        for worker in workers_there:
            push(rounds, worker, view=VIEW - 1)
    rounds.enter(VIEW, workers_there, needed)
    return rounds


def push(
    rounds: Rounds, worker: int, number: int = 0, chunk: int = 0, view: int = VIEW, count: int = 1
) -> list[Reply]:
    return rounds.push(worker, number, view, chunk, count, of(10.0**worker, 2.0**worker))


def total(reply: Reply) -> float:
    assert reply.slot.total is not None
    return float(reply.slot.total[0])


def test_a_sum_is_sent_to_all_once_the_last_has_pushed() -> None:
    rounds = made()
    assert push(rounds, 0) == push(rounds, 2) == []
    replies = push(rounds, 1)
    assert [(reply.worker, total(reply), reply.slot.weight) for reply in replies] == [
        (0, 111.0, 7.0),
        (2, 111.0, 7.0),
        (1, 111.0, 7.0),
    ]
    assert all(reply.complete and not reply.late for reply in replies)


def test_chunks_are_summed_apart() -> None:
    rounds = made(2)
    push(rounds, 0, chunk=0, count=2)
    push(rounds, 0, chunk=1, count=2)
    first = push(rounds, 1, chunk=1, count=2)
    assert [reply.chunk for reply in first] == [1, 1]
    assert not first[0].complete
    assert push(rounds, 1, chunk=0, count=2)[0].complete


def test_what_is_pushed_twice_counts_once() -> None:
    rounds = made(2)
    push(rounds, 0)
    assert push(rounds, 0) == []
    assert total(push(rounds, 1)[0]) == 11.0
    assert [total(reply) for reply in push(rounds, 1)] == [11.0]


def test_zeros_need_no_values() -> None:
    rounds = made(2)
    empty = Contribution(None, 0, 8, 0.0, 0.0)
    assert rounds.push(0, 0, VIEW, 0, 1, empty) == []
    assert total(push(rounds, 1)[0]) == 10.0
    rounds.push(0, 1, VIEW, 0, 1, empty)
    assert rounds.push(1, 1, VIEW, 0, 1, empty)[0].slot.total is None


def test_values_in_shared_memory_are_not_kept() -> None:
    rounds = made(2)
    lent = of(1.0, place=64)
    rounds.push(0, 0, VIEW, 0, 1, lent)
    assert lent.values is not None
    lent.values.fill_(99.0)
    replies = push(rounds, 1)
    assert total(replies[0]) == 11.0
    assert replies[0].slot.places == {0: 64}


def test_models_that_differ_are_an_error() -> None:
    rounds = made(2)
    push(rounds, 0)
    with pytest.raises(ValueError, match="their models differ"):
        rounds.push(1, 0, VIEW, 0, 1, Contribution(torch.ones(3), 0, 12, 1.0, 0.0))


def test_who_does_not_count_changes_nothing() -> None:
    rounds = made(2)
    push(rounds, 0)
    assert push(rounds, 7) == []
    assert push(rounds, 1, view=VIEW - 1) == []
    assert total(push(rounds, 1)[0]) == 11.0


def test_a_change_of_the_view_keeps_what_is_complete_and_drops_the_rest() -> None:
    rounds = made(2)
    push(rounds, 0, number=0)
    push(rounds, 1, number=0)
    push(rounds, 0, number=1)
    rounds.enter(VIEW + 1, frozenset({0, 1}))
    assert rounds.complete(0) == [VIEW]
    assert rounds.complete(1) == []
    push(rounds, 1, number=1, view=VIEW + 1)
    assert total(push(rounds, 0, number=1, view=VIEW + 1)[0]) == 11.0
    assert rounds.complete(1) == [VIEW + 1]


def test_an_attempt_of_which_a_chunk_is_missing_is_never_complete() -> None:
    rounds = made(2)
    for worker in (0, 1):
        push(rounds, worker, chunk=0, count=2)
    rounds.enter(VIEW + 1, frozenset({0}))
    assert rounds.complete(0) == []
    assert push(rounds, 0, chunk=0, view=VIEW + 1, count=2)[0].slot.weight == 1.0


def test_the_sums_of_a_complete_attempt_can_be_pulled_later() -> None:
    rounds = made(2)
    push(rounds, 0)
    push(rounds, 1)
    rounds.enter(VIEW + 1, frozenset({0, 1}))
    replies, needed, waited = rounds.pull(1, 0, VIEW, [0])
    assert [(reply.worker, total(reply), reply.late) for reply in replies] == [(1, 11.0, False)]
    assert (needed, waited) == ([], frozenset())


def test_a_worker_learns_what_it_has_yet_to_push_and_who_is_waited_for() -> None:
    rounds = made(3)
    push(rounds, 0, chunk=0, count=2)
    assert rounds.pull(0, 0, VIEW, [0, 1]) == ([], [1], frozenset({1, 2}))


def test_enough_are_enough_and_who_is_late_gets_the_sum_all_the_same() -> None:
    rounds = made(3, needed=2)
    push(rounds, 0)
    assert [reply.worker for reply in push(rounds, 2)] == [0, 2]
    (late,) = push(rounds, 1)
    assert (late.late, total(late), late.slot.weight) == (True, 101.0, 5.0)
    assert rounds.late == 1


def test_some_sums_need_all_whatever_the_plan_says() -> None:
    rounds = made(3, needed=2)
    for worker in (0, 1):
        assert rounds.push(worker, 0, VIEW, 0, 1, of(1.0)._replace(of_all=True)) == []
    assert len(rounds.push(2, 0, VIEW, 0, 1, of(1.0)._replace(of_all=True))) == 3


def test_those_who_are_left_are_enough() -> None:
    rounds = made(1, needed=3)
    assert len(push(rounds, 0)) == 1


@pytest.mark.parametrize(
    ("size", "kept"), [(8, LONGEST_HISTORY), (HISTORY_BYTES // 20, 20), (HISTORY_BYTES, HISTORY)]
)
def test_a_worker_may_be_behind_by_as_many_rounds_as_are_kept(size: int, kept: int) -> None:
    rounds = made(3, needed=2)
    for number in range(kept + 1):
        assert not rounds.gone(0)
        for worker in (0, 1):
            rounds.push(worker, number, VIEW, 0, 1, of(1.0)._replace(size=size))
    assert rounds.gone(0)
    assert push(rounds, 2, number=0) == []
    assert push(rounds, 2, number=1)[0].late


def test_what_all_have_is_not_kept() -> None:
    rounds = made(2, needed=1)
    for worker in (0, 1):
        push(rounds, worker, number=0)
        push(rounds, worker, number=1)
    assert rounds.gone(0)
    assert not rounds.gone(1)


def test_a_worker_that_joins_finds_the_round_that_it_starts_with() -> None:
    rounds = made(3, needed=2)
    push(rounds, 0, number=1)
    push(rounds, 1, number=1)
    rounds.enter(VIEW + 1, frozenset({0, 1, 2, 3}), 2)
    for worker in (0, 1, 2):
        rounds.tell(worker, 3)
    assert rounds.complete(1) == [VIEW]


def test_a_worker_that_joins_is_waited_for_until_it_is_in_step() -> None:
    rounds = made(3, needed=2)
    rounds.enter(VIEW + 1, frozenset({0, 1, 2, 3}), 3)
    for chunk in (0, 1):
        for worker in (0, 1, 2):
            assert push(rounds, worker, chunk=chunk, view=VIEW + 1, count=2) == []
        assert len(push(rounds, 3, chunk=chunk, view=VIEW + 1, count=2)) == 4
    assert [len(push(rounds, worker, number=1, view=VIEW + 1)) for worker in (0, 1, 2)] == [0, 0, 3]


def test_a_worker_that_pauses_is_waited_for_until_it_is_in_step() -> None:
    rounds = made(3, needed=2)
    for worker in (1, 2):
        push(rounds, worker, number=0)
    rounds.pause(0)
    for worker in (1, 2):
        assert push(rounds, worker, number=1) == []
    assert push(rounds, 0, number=0)[0].late
    assert push(rounds, 1, number=1) == []
    assert len(push(rounds, 0, number=1)) == 3
    push(rounds, 1, number=2)
    assert len(push(rounds, 2, number=2)) == 2


def test_nobody_is_waited_for_who_paused_and_left() -> None:
    rounds = made(4, needed=2)
    rounds.pause(3)
    rounds.enter(VIEW + 1, frozenset({0, 1, 2}), 2)
    rounds.pause(3)
    push(rounds, 0, view=VIEW + 1)
    assert len(push(rounds, 1, view=VIEW + 1)) == 2


def test_sums_can_be_handed_back() -> None:
    rounds = made(2)
    assert not rounds.supply(4, 3, 0, 2, of(1.0, 3.0))
    assert rounds.supply(4, 3, 1, 2, of(2.0, 3.0))
    assert rounds.complete(4) == [3]
    replies, _, _ = rounds.pull(1, 4, 3, [0, 1])
    assert [total(reply) for reply in replies] == [1.0, 2.0]
