"""Tasks that are killed, stopped, started again or added while others add up: the sums stay right for those who are
left. The workers check every sum themselves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

WORKERS = ("worker-0", "worker-1", "worker-2")


def test_the_rest_go_on_without_a_worker_that_was_killed(adding: Callable[..., Any]) -> None:
    run = adding(3, 2)
    run.reach(10, *WORKERS)
    run.allow(20)
    run.gang.kill("worker-0")  # the lowest, whose values all began with
    run.reach(25, "worker-1", "worker-2")
    run.finish(30)
    assert run.seen("worker-1") == run.seen("worker-2")
    assert run.seen("worker-1")[0][1:] == [[0, 1, 2], [0, 1, 2]]
    assert run.seen("worker-1")[-1][1:] == [[1, 2], [1, 2]]


def test_a_round_that_a_lost_worker_was_part_of_is_done_again(adding: Callable[..., Any]) -> None:
    run = adding(3, 2)
    run.reach(10, *WORKERS)
    os.kill(run.gang.pid("worker-2"), signal.SIGSTOP)
    run.allow(20)
    run.await_push(10, "worker-0", "worker-1")
    run.gang.kill("worker-2")
    run.reach(20, "worker-0", "worker-1")
    run.finish(21)
    for worker in ("worker-0", "worker-1"):
        assert run.seen(worker) == [[0, [0, 1, 2], [0, 1, 2]], [10, [0, 1], [0, 1]]]
        (fault,) = run.gang.of(worker, "fault")
        assert "worker-2 lost; all others pushed again" in fault["text"]
        assert fault["steps"] == 1


def test_a_server_that_was_killed_is_replaced_and_no_sum_is_lost(adding: Callable[..., Any]) -> None:
    run = adding(3, 2)
    run.reach(10, *WORKERS)
    run.allow(40)
    run.gang.kill("server-1")
    run.gang.start("server-1")
    run.reach(40, *WORKERS)
    run.finish(41)
    for worker in WORKERS:
        assert run.seen(worker) == [[0, [0, 1, 2], [0, 1, 2]]]
        (fault,) = run.gang.of(worker, "fault")
        assert "server-1" in fault["text"]
        assert fault["seconds"] > 0


def test_a_server_and_a_worker_may_be_lost_at_once(adding: Callable[..., Any]) -> None:
    run = adding(3, 2, apart=False)
    run.reach(10, *WORKERS)
    run.allow(40)
    run.gang.kill("worker-1")
    run.gang.kill("server-0")
    run.gang.start("server-0")
    run.reach(40, "worker-0", "worker-2")
    run.finish(41)
    assert run.seen("worker-0") == run.seen("worker-2")
    assert run.seen("worker-0")[-1][1:] == [[0, 2], [0, 2]]


def test_a_worker_may_join_and_first_takes_part_without_weight(adding: Callable[..., Any]) -> None:
    run = adding(3, 2)
    run.reach(10, *WORKERS)
    run.gang.kill("worker-0")
    run.reach(20, "worker-1", "worker-2")
    run.gang.start("worker-0", joins=True)
    run.gang.wait_for("worker-0", "joining")
    run.reach(30, *WORKERS)
    run.finish(31)
    joined = run.seen("worker-0")[0][0]
    assert run.seen("worker-0") == [[joined, [0, 1, 2], [1, 2]], [joined + 1, [0, 1, 2], [0, 1, 2]]]
    assert run.seen("worker-1") == run.seen("worker-2")
    assert run.seen("worker-1")[-2:] == run.seen("worker-0")


def test_others_do_not_wait_for_a_stopped_worker_where_some_may_be_left_out(adding: Callable[..., Any]) -> None:
    run = adding(3, 2, backups=1)
    run.reach(10, *WORKERS)
    os.kill(run.gang.pid("worker-2"), signal.SIGSTOP)
    run.reach(18, "worker-0", "worker-1")
    os.kill(run.gang.pid("worker-2"), signal.SIGCONT)
    run.reach(18, "worker-2")  # by the sums that were kept for it
    run.finish(25)
    assert run.seen("worker-0") == run.seen("worker-1") == run.seen("worker-2")
    (note,) = run.gang.of("worker-2", "note")
    assert "too late" in note["text"]
    assert "trained on" in note["text"]


def test_a_worker_that_is_too_far_behind_ends_and_says_so(adding: Callable[..., Any]) -> None:
    run = adding(3, 1, backups=1)
    run.reach(10, *WORKERS)
    os.kill(run.gang.pid("worker-2"), signal.SIGSTOP)
    run.reach(40, "worker-0", "worker-1")
    os.kill(run.gang.pid("worker-2"), signal.SIGCONT)
    assert run.gang.left("worker-2") == 0
    (fault,) = run.gang.of("worker-2", "fault")
    assert "too far behind" in fault["text"]
    run.finish(45)
    assert run.seen("worker-0")[-1][1] == [0, 1]
