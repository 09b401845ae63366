"""Main memory that others hold, and what is known of nobody's need: events in, exact actions
out.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.controller.driver import PLAN, job
from tests.controller.test_queueing import GIB, Queueing, started, states

from headgate.controller.core import Controller
from headgate.controller.queue_orders import FifoOrder
from headgate.controller.queueing import Queue
from headgate.model.actions import Action
from headgate.model.cluster import Gpu, Node
from headgate.model.events import JobPlanned, JobSubmitted, MemoryUsed, NodeJoined, Usage
from headgate.model.identifiers import JobId, TaskId
from headgate.model.limits import Limits
from headgate.policies import NoPolicy

ON_N = replace(PLAN, worker_nodes=("n",))
MIB = 1 << 20


class Hub(Queueing):
    """A controller as a hub has it, on a node of so many GiB."""

    def __init__(self, gib: float, gpus: tuple[Gpu, ...] = ()) -> None:
        self.controller = Controller(NoPolicy(), Queue(FifoOrder(), gpus_are_shared=True))
        self.wake_at = None
        self.step(0.0, NodeJoined(Node("n", 4.0, int(gib * GIB), gpus=gpus)))

    def has_left(self, mib: float, now: float = 1.0, **held: float) -> list[str]:
        """So many MiB can still be had, and jobs hold so many; the jobs that start then."""
        tasks = {TaskId(f"r/{name}/worker-0"): size * MIB for name, size in held.items()}
        return names(self.step(now, MemoryUsed("n", mib * MIB, tasks)))

    def hands_in(
        self, name: str, *, stated: float | None = None, known: float | None = None
    ) -> list[str]:
        """A job that needs so many MiB: as its user states, or as is known of it; the jobs that
        start then.
        """
        limits = Limits(gpus=0, memory_bytes=int(stated * MIB) if stated else None)
        needs = int(known * MIB) if known else None
        self.step(
            1.0, JobSubmitted(JobId(f"r/{name}"), job(name, limits=limits), memory_bytes=needs)
        )
        self.told = self.step(1.0, JobPlanned(JobId(f"r/{name}"), 1, ON_N))
        return names(self.told)

    def uses(self, now: float, name: str, mib: float) -> list[str]:
        """A job is seen to use so much; the jobs that start then."""
        return names(self.step(now, Usage(TaskId(f"r/{name}/worker-0"), 1.0, mib * MIB)))

    def ends(self, name: str) -> list[str]:
        return names(self.end(2.0, f"{name}/worker-0"))


def names(actions: list[Action]) -> list[str]:
    return [task.split("/")[1] for task, _, _ in started(actions)]


@pytest.mark.parametrize("need", ["stated", "known"])
def test_what_others_hold_is_not_there_for_jobs(need: str) -> None:
    hub = Hub(1.5)
    hub.has_left(600)
    assert hub.hands_in("a", **{need: 450}) == ["a"]
    assert hub.hands_in("b", **{need: 450}) == []
    [(_, state, why)] = states(hub.told)
    assert (state, why) == (
        "waiting",
        (
            "for 450 MiB of memory: 73.2 MiB free on node n, where other programs and Headgate "
            "hold 936 MiB"
        ),
    )
    assert hub.has_left(150, a=450) == []
    [ahead] = hub.controller.ahead(2.0, {})
    assert ahead.lacks.plain() == {
        "kind": "memory",
        "needs_bytes": 450 * MIB,
        "count": 1,
        "node": "n",
        "free_bytes": int(0.95 * 600 * MIB - 0.05 * 936 * MIB) - 450 * MIB,
        "others_bytes": 936 * MIB,
        "is_known": True,
    }
    assert hub.has_left(950, a=450) == ["b"]  # a program outside has ended


def test_what_jobs_hold_counts_once_and_what_they_do_not_hold_yet_is_kept() -> None:
    hub = Hub(2)
    hub.has_left(1900)
    hub.hands_in("a", stated=1000)
    hub.has_left(1800, a=100)
    assert hub.hands_in("b", stated=900) == []
    assert hub.has_left(900, a=1000) == []
    assert hub.hands_in("c", stated=900) == []
    assert hub.ends("a") == ["b"]


def test_room_is_not_given_away_to_the_last_byte() -> None:
    hub = Hub(1.5)
    hub.has_left(1420)  # what a hub and its command leave
    assert [hub.hands_in(f"j{i}", known=302.9) != [] for i in range(12)] == [True] * 4 + [False] * 8


def test_what_is_always_there_keeps_nobody_waiting_who_has_the_node_for_itself() -> None:
    hub = Hub(16)
    hub.has_left(14.5 * 1024)
    assert hub.hands_in("all", stated=16 * 1024) == ["all"]
    assert hub.hands_in("b", stated=100) == []
    assert hub.ends("all") == ["b"]
    assert hub.hands_in("most", known=15 * 1024) == []
    assert hub.ends("b") == ["most"]


def test_a_job_that_has_the_node_for_itself_waits_for_a_large_program_and_no_margin() -> None:
    hub = Hub(16)
    hub.has_left(6 * 1024)
    assert hub.hands_in("a", stated=8 * 1024) == []
    assert hub.has_left(7 * 1024) == []
    assert hub.has_left(8 * 1024) == ["a"]


def test_workers_on_one_node_are_alone_there_as_long_as_no_other_job_is() -> None:
    hub = Hub(2)
    hub.has_left(1700)
    spec = job("two", limits=Limits(gpus=0, memory_bytes=GIB))
    plan = replace(PLAN, strategy="allreduce", workers=2, worker_nodes=("n", "n"))
    assert names(hub.submit(1.0, spec, plan)) == ["two", "two"]
    assert hub.hands_in("b", stated=10) == []


def test_jobs_of_unknown_need_start_by_a_framework_s_room_and_then_by_their_use() -> None:
    hub = Hub(1.5)
    hub.has_left(600)
    assert hub.hands_in("a") == ["a"]
    assert hub.hands_in("b") == []
    assert "for 300 MiB of memory until its need is seen: 223.2 MiB free" in states(hub.told)[0][2]
    assert hub.uses(2.0, "a", 40) == []
    assert hub.uses(4.0, "a", 40) == []  # it may still load
    assert hub.uses(8.0, "a", 40) == ["b"]
    assert hub.uses(9.0, "b", 450) == []
    assert hub.hands_in("c") == []
    assert hub.ends("b") == ["c"]


def test_a_job_of_unknown_need_that_is_alone_starts_however_little_is_left() -> None:
    hub = Hub(1.5)
    hub.has_left(20)
    assert hub.hands_in("a") == ["a"]


def test_where_nothing_is_read_all_is_as_if_nobody_else_were_there() -> None:
    hub = Hub(1)
    assert [hub.hands_in(name) for name in "abcd"] == [["a"], ["b"], ["c"], ["d"]]
    assert hub.hands_in("all", stated=1024) == ["all"]


def test_a_need_grows_with_what_is_seen_while_it_loads() -> None:
    hub = Hub(4)
    hub.has_left(3900)
    assert hub.hands_in("a") == ["a"]
    for now in range(2, 12):  # it grows all the time
        hub.uses(float(now), "a", 150.0 * now)
    assert hub.hands_in("b", stated=2200) == []  # 1650 of 3700
    assert hub.ends("a") == ["b"]


def test_a_job_of_unknown_need_goes_by_one_that_waits_for_more_than_there_is() -> None:
    hub = Hub(4)
    hub.has_left(3900)
    hub.hands_in("a", stated=2000)
    assert hub.hands_in("large", stated=3000) == []
    assert hub.hands_in("says-nothing") == ["says-nothing"]
    assert hub.hands_in("small", stated=10) == []
