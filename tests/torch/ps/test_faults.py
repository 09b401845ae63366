"""Real tasks that are killed, stopped, started again or added while others add up: the sums stay
right for who is left. The workers check every sum themselves. A gang goes through several faults,
since it takes seconds to start.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

WORKERS = ("worker-0", "worker-1", "worker-2")


@pytest.mark.long
def test_a_worker_and_a_server_may_be_killed_and_a_worker_join(adding: Callable[..., Any]) -> None:
    run = adding(3, 2, encrypt=True)
    run.reach(10, *WORKERS)

    os.kill(run.gang.pid("worker-0"), signal.SIGSTOP)
    run.allow(20)
    run.await_push(10, "worker-1", "worker-2")
    # in the middle of a round, and the lowest, whose values all began with
    run.gang.kill("worker-0")
    run.reach(20, "worker-1", "worker-2")
    for worker in ("worker-1", "worker-2"):
        (fault,) = run.gang.wait_for(worker, "fault")
        assert "worker-0 lost in a step; all others pushed again" in fault["text"]
        assert fault["steps"] == 1

    run.gang.kill("server-1")
    run.allow(40)
    run.gang.start("server-1")
    run.reach(40, "worker-1", "worker-2")
    for worker in ("worker-1", "worker-2"):
        _, fault = run.gang.wait_for(worker, "fault", 2)
        assert "server-1" in fault["text"]
        assert fault["seconds"] > 0

    run.gang.start("worker-0", joins=True)
    run.gang.wait_for("worker-0", "joining")
    run.reach(50, *WORKERS)
    run.finish(55)
    (joined, *_), *_ = run.seen("worker-0")
    # at first without weight
    ending = [[joined, [0, 1, 2], [1, 2]], [joined + 1, [0, 1, 2], [0, 1, 2]]]
    assert run.seen("worker-0") == ending
    for worker in ("worker-1", "worker-2"):
        assert run.seen(worker) == [[0, [0, 1, 2], [0, 1, 2]], [10, [1, 2], [1, 2]], *ending]


@pytest.mark.long
def test_who_joins_goes_on_from_the_state_that_it_was_given_though_the_others_are_ahead(
    adding: Callable[..., Any],
) -> None:
    run = adding(3, 1, backups=1)
    run.reach(10, *WORKERS)
    run.allow(10, 0)
    run.reach(22, "worker-1", "worker-2")
    run.gang.start("worker-3", joins=True)
    run.gang.wait_for("worker-3", "joining")
    os.kill(run.gang.pid("worker-3"), signal.SIGSTOP)
    run.gang.wait_for("worker-0", "checkpoint")
    run.allow(-65, 0)
    run.reach(22, "worker-0")
    run.allow(34)
    os.kill(run.gang.pid("worker-3"), signal.SIGCONT)
    for rounds in (34, 46, 58):
        run.reach(rounds, *WORKERS, "worker-3")
    run.finish(65)
    first, *later = run.seen("worker-3")
    assert first[:2] == [10, [0, 1, 2]]
    assert later == [each for each in run.seen("worker-1") if each[0] > 10]
    assert later[-1][1] == [0, 1, 2, 3]


@pytest.mark.long
def test_others_do_not_wait_for_a_stopped_worker_where_some_may_be_left_out(
    adding: Callable[..., Any],
) -> None:
    run = adding(3, 1, backups=1)
    run.reach(10, *WORKERS)
    os.kill(run.gang.pid("worker-2"), signal.SIGSTOP)
    run.reach(18, "worker-0", "worker-1")
    os.kill(run.gang.pid("worker-2"), signal.SIGCONT)
    run.reach(18, "worker-2")  # by the sums that were kept for it
    run.reach(20, *WORKERS)

    os.kill(run.gang.pid("worker-2"), signal.SIGSTOP)
    run.reach(50, "worker-0", "worker-1")
    os.kill(run.gang.pid("worker-2"), signal.SIGCONT)
    assert run.gang.left("worker-2") == 0
    (fault,) = run.gang.wait_for("worker-2", "fault")
    assert "too far behind" in fault["text"]
    run.finish(55)
    assert run.seen("worker-0") == run.seen("worker-1")
    assert run.seen("worker-0")[-1][1] == [0, 1]
    assert "came too late to count" in run.gang.wait_for("server-0", "note")[-1]["text"]
