"""Jobs that wait for room: events in, exact actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.controller.driver import A_0, PLAN, B, job, task_stopped, worded

from headgate.controller.core import Controller
from headgate.controller.jobs import Jobs
from headgate.controller.preemption import Ranking
from headgate.controller.queue_orders import Claim, FifoOrder, LasOrder, Order, SrptOrder
from headgate.controller.queueing import Queue
from headgate.model.actions import Action, MarkJob, Resize, StartTask, StopTask
from headgate.model.cluster import Gpu, Node
from headgate.model.endings import Exit
from headgate.model.events import (
    GRACE_SECONDS,
    Event,
    JobPlanned,
    JobSubmitted,
    NodeJoined,
    NodeLeft,
    StopRequested,
    TaskExited,
    Usage,
    Wake,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.reason_text import in_words
from headgate.policies import NoPolicy

ANYWHERE = replace(PLAN, worker_nodes=())
GANG = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
ON_B = replace(PLAN, worker_nodes=("b",))
GIB = 2**30


class Queueing:
    """A controller with a queue, and two nodes of two GPUs unless others are named."""

    def __init__(self, order: Order | None = None, *nodes: Node) -> None:
        self.controller = Controller(NoPolicy(), Queue(order or FifoOrder()))
        self.wake_at: float | None = None
        for node in nodes or (with_gpus("a", 2), with_gpus("b", 2)):
            self.step(0.0, NodeJoined(node))

    def step(self, now: float, event: Event) -> list[Action]:
        actions, self.wake_at = self.controller.step(now, event)
        return [worded(action) for action in actions]

    def submit(self, now: float, spec: Job, plan: Plan = ANYWHERE) -> list[Action]:
        """What follows its plan: the states that it comes to, the nodes and GPUs of its tasks, and
        who is stopped.
        """
        self.step(now, JobSubmitted(JobId(f"r/{spec.name}"), spec))
        return self.step(now, JobPlanned(JobId(f"r/{spec.name}"), 1, plan))

    def end(self, now: float, task: str, exit: Exit | None = None) -> list[Action]:
        return self.step(now, TaskExited(TaskId(f"r/{task}"), exit or Exit(code=0)))


def with_gpus(name: str, count: int) -> Node:
    return Node(
        name, cores=4.0, memory_bytes=8 * GIB, gpus=tuple(Gpu(i, "g", 1) for i in range(count))
    )


def asks(name: str, gpus: int = 1, **fields: object) -> Job:
    return job(name, limits=Limits(gpus=gpus), **fields)


def started(actions: list[Action]) -> list[tuple[str, str, tuple[int, ...] | None]]:
    return [(each.task, each.node, each.gpus) for each in actions if isinstance(each, StartTask)]


def states(actions: list[Action]) -> list[tuple[str, str, str]]:
    return [
        (each.job, each.state, in_words(each.reason))
        for each in actions
        if isinstance(each, MarkJob)
    ]


def stopped(actions: list[Action]) -> list[str]:
    return [each.task for each in actions if isinstance(each, StopTask)]


def test_jobs_get_gpus_to_themselves_and_wait_for_those_that_others_have() -> None:
    queue = Queueing()
    assert started(queue.submit(0.0, asks("a", 2))) == [("r/a/worker-0", "a", (0, 1))]
    assert started(queue.submit(1.0, asks("b", 1))) == [("r/b/worker-0", "b", (0,))]
    waits = queue.submit(2.0, asks("c", 2))
    assert (started(waits), states(waits)) == ([], [("r/c", "waiting", "for 2 GPUs")])
    # it would fit: c came first
    assert states(queue.submit(3.0, asks("d", 1))) == [("r/d", "waiting", "for 1 GPU")]
    freed = queue.end(4.0, "a/worker-0")
    assert started(freed) == [("r/c/worker-0", "a", (0, 1)), ("r/d/worker-0", "b", (1,))]
    assert states(freed)[0] == ("r/a", "done", "finished")


def test_a_gang_starts_when_there_is_room_for_all_of_it() -> None:
    queue = Queueing()
    queue.submit(0.0, asks("a", 1))
    assert started(queue.submit(0.0, asks("gang", 2), GANG)) == []
    assert started(queue.end(1.0, "a/worker-0")) == [
        ("r/gang/worker-0", "b", (0, 1)),  # which has been free for longer
        ("r/gang/worker-1", "a", (0, 1)),
    ]


def test_for_whom_there_was_no_room_it_is_made_as_soon_as_there_may_be() -> None:
    left = {"r/whole": 20.0, "r/other": 30.0, "r/short": 2.0, "r/first": 5.0, "r/last": 100.0}

    def full() -> Queueing:
        queue = Queueing(SrptOrder(lambda id, now: left[id]), with_gpus("a", 2))
        for now, name, gpus in (
            (0.0, "first", 1),
            (0.0, "last", 1),
            (1.0, "whole", 2),
            (2.0, "other", 2),
        ):
            # `last` would have to stop, but `first` stays
            assert stopped(queue.submit(now, asks(name, gpus))) == []
        return queue

    assert stopped(full().end(3.0, "first/worker-0")) == ["r/last/worker-0"]
    assert sorted(stopped(full().submit(3.0, asks("short", 2)))) == [
        "r/first/worker-0",
        "r/last/worker-0",
    ]
    joined = full().step(3.0, NodeJoined(with_gpus("b", 2)))
    assert started(joined) == [("r/whole/worker-0", "b", (0, 1))]


def test_a_higher_priority_goes_first() -> None:
    queue = Queueing(None, with_gpus("a", 1))
    queue.submit(0.0, asks("a"))
    queue.submit(1.0, asks("low"))
    queue.submit(2.0, asks("high", priority=2.0))
    assert started(queue.end(3.0, "a/worker-0"))[0][0] == "r/high/worker-0"


def test_a_job_that_asks_for_nothing_does_not_wait() -> None:
    queue = Queueing(None, with_gpus("a", 1))
    queue.submit(0.0, asks("a"))
    queue.submit(0.0, asks("b"))
    plan = replace(PLAN, worker_nodes=("a",))
    assert started(queue.submit(1.0, asks("c", 0), plan)) == [("r/c/worker-0", "a", ())]


def test_memory_that_is_asked_for_is_waited_for_on_the_node_of_the_plan() -> None:
    queue = Queueing()
    plan = replace(PLAN, worker_nodes=("b",))
    for name in ("a", "b", "c"):
        last = queue.submit(0.0, job(name, limits=Limits(memory_bytes=3 * GIB, gpus=0)), plan)
    assert states(last) == [("r/c", "waiting", "for 3 GiB of memory")]
    assert started(queue.end(1.0, "a/worker-0")) == [("r/c/worker-0", "b", ())]


def test_jobs_that_wait_go_to_a_node_that_comes_as_far_as_it_has_room_for_them() -> None:
    queue = Queueing()
    plan = replace(PLAN, worker_nodes=("b",))
    limits = Limits(memory_bytes=5 * GIB, gpus=0)
    for name in ("runs", "first", "second"):
        queue.submit(0.0, job(name, limits=limits), plan)
    queue.submit(0.0, job("stays", limits=limits, plan=plan), plan)
    came = Node("c", cores=4.0, memory_bytes=8 * GIB)
    assert started(queue.step(1.0, NodeJoined(came))) == []  # another engine's
    assert started(queue.step(2.0, NodeJoined(came, ("r",)))) == [("r/first/worker-0", "c", ())]
    assert started(queue.end(3.0, "first/worker-0")) == []
    assert started(queue.end(4.0, "runs/worker-0")) == [("r/second/worker-0", "b", ())]


@pytest.mark.parametrize("shared", [False, True])
def test_what_needs_more_than_a_node_that_comes_starts_there_and_on_others_with_room(
    shared: bool,
) -> None:
    queue = Queueing()
    queue.controller = Controller(NoPolicy(), Queue(FifoOrder(), gpus_are_shared=shared))
    for name in ("a", "b"):
        queue.step(0.0, NodeJoined(Node(name, cores=4.0, memory_bytes=8 * GIB)))
    for name, memory in (("a", 4), ("b", 5)):
        limits = Limits(memory_bytes=memory * GIB, gpus=0)
        queue.submit(0.0, job(f"on-{name}", limits=limits), replace(PLAN, worker_nodes=(name,)))
    limits = Limits(memory_bytes=4 * GIB, gpus=0)
    assert (
        started(
            queue.submit(0.0, job("gang", limits=limits), replace(GANG, worker_nodes=("a", "b")))
        )
        == []
    )
    small = Node("small", cores=4.0, memory_bytes=3 * GIB)
    assert started(queue.step(1.0, NodeJoined(small, ("r",)))) == []
    came = Node("c", cores=4.0, memory_bytes=6 * GIB)
    actions = queue.step(2.0, NodeJoined(came, ("r",)))
    assert started(actions) == [("r/gang/worker-0", "c", ()), ("r/gang/worker-1", "a", ())]
    # What it waited for is nobody's now.
    assert started(
        queue.submit(3.0, job("next", limits=Limits(memory_bytes=3 * GIB, gpus=0)), ON_B)
    ) == [("r/next/worker-0", "b", ())]


def test_where_gpus_are_shared_no_job_waits_for_one_and_memory_is_at_most_a_node_s() -> None:
    queue = Queueing(None, with_gpus("here", 1))
    queue.controller = Controller(NoPolicy(), Queue(FifoOrder(), gpus_are_shared=True))
    queue.step(0.0, NodeJoined(with_gpus("here", 1)))
    assert started(queue.submit(0.0, asks("a"))) == [("r/a/worker-0", "here", (0,))]
    assert started(queue.submit(0.0, asks("b"))) == [("r/b/worker-0", "here", (0,))]
    large = job("large", limits=Limits(memory_bytes=100 * GIB))
    assert started(queue.submit(1.0, large, PLAN)) == [("r/large/worker-0", "here", None)]
    assert states(queue.submit(2.0, job("next", limits=Limits(memory_bytes=GIB)))) == [
        ("r/next", "waiting", "for 1 GiB of memory")
    ]
    queue.step(3.0, JobSubmitted(JobId("r/known"), job("known"), memory_bytes=3 * GIB))
    assert states(queue.step(3.0, JobPlanned(JobId("r/known"), 1, PLAN))) == [
        ("r/known", "waiting", "for 3 GiB of memory")
    ]
    assert [task for task, *_ in started(queue.end(4.0, "large/worker-0"))] == [
        "r/next/worker-0",
        "r/known/worker-0",
    ]


def test_a_reading_that_changes_no_claim_has_nobody_look_for_victims_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = list[float]()

    def victims(_: Ranking, now: float, *rest: object) -> list[Claim]:
        looks.append(now)
        return []

    monkeypatch.setattr(Ranking, "victims", victims)
    queue = Queueing(None, with_gpus("here", 1))
    order = SrptOrder(lambda job, now: {"old": 100.0, "more": 50.0}.get(job.name, 10.0))
    queue.controller = Controller(NoPolicy(), Queue(order, gpus_are_shared=True))
    queue.step(0.0, NodeJoined(with_gpus("here", 1)))
    queue.submit(0.0, job("old", limits=Limits(memory_bytes=6 * GIB)), PLAN)
    queue.submit(1.0, job("new", limits=Limits(memory_bytes=6 * GIB)), PLAN)
    queue.submit(2.0, job("more", limits=Limits(memory_bytes=5 * GIB)), PLAN)
    before = len(looks)
    queue.step(3.0, Usage(TaskId("r/old/worker-0"), 1.0, GIB))
    queue.submit(3.0, job("small", limits=Limits(memory_bytes=6 * GIB)), PLAN)
    assert before and 3.0 not in looks


def test_a_job_that_holds_no_claim_moves_to_a_node_that_joins() -> None:
    queue, node = Queue(FifoOrder()), with_gpus("here", 1)
    queue.join(node)
    record = Jobs().add(JobId("r/a"), asks("a"), 0.0, None, ())
    record.plan = PLAN
    [resize] = queue.move(0.0, [record], node, {"here": node})
    assert isinstance(resize, Resize)
    assert resize.plan.worker_nodes == ("here",)


def test_what_a_job_that_asked_for_nothing_uses_others_wait_for() -> None:
    queue = Queueing(None, with_gpus("here", 1))
    queue.controller = Controller(NoPolicy(), Queue(FifoOrder(), gpus_are_shared=True))
    queue.step(0.0, NodeJoined(with_gpus("here", 1)))
    for name in ("large", "small"):
        queue.submit(0.0, job(name), PLAN)
    for used in (1, 5, 4):  # the most counts
        queue.step(1.0, Usage(TaskId("r/large/worker-0"), 1.0, used * GIB))
    queue.step(1.0, Usage(TaskId("r/small/worker-0"), 1.0, GIB // 10))
    assert states(queue.submit(2.0, job("waits", limits=Limits(memory_bytes=3 * GIB)), PLAN)) == [
        ("r/waits", "waiting", "for 3 GiB of memory")
    ]
    [ahead] = queue.controller.ahead(2.0, {JobId("r/large"): 30.0})
    assert (ahead.holders, ahead.at) == (("r/large",), 30.0)
    [ahead] = queue.controller.ahead(2.0, {})
    assert ahead.unknown == ("r/large",)
    assert started(
        queue.submit(2.0, job("fits", limits=Limits(memory_bytes=2 * GIB), priority=2.0), PLAN)
    )
    again = queue.end(3.0, "large/worker-0", Exit(code=1))
    assert [task for task, *_ in started(again)] == ["r/waits/worker-0"]


def test_a_job_that_needs_more_than_such_jobs_did_before_has_what_it_uses() -> None:
    queue = Queueing(None, with_gpus("here", 1))
    queue.controller = Controller(NoPolicy(), Queue(FifoOrder(), gpus_are_shared=True))
    queue.step(0.0, NodeJoined(with_gpus("here", 1)))
    queue.step(0.0, JobSubmitted(JobId("r/known"), job("known"), memory_bytes=GIB))
    assert started(queue.step(0.0, JobPlanned(JobId("r/known"), 1, PLAN)))
    queue.submit(0.0, job("limited", limits=Limits(memory_bytes=GIB)), PLAN)
    for used in (6 * GIB, GIB // 2):
        queue.step(1.0, Usage(TaskId("r/known/worker-0"), 1.0, used))
    queue.step(1.0, Usage(TaskId("r/limited/worker-0"), 1.0, GIB // 2))
    assert started(queue.submit(2.0, job("waits", limits=Limits(memory_bytes=2 * GIB)), PLAN)) == []
    assert [task for task, *_ in started(queue.end(3.0, "known/worker-0"))] == ["r/waits/worker-0"]


def test_who_waits_is_told_who_has_what_it_waits_for_and_when_that_is_expected_to_be_free() -> None:
    queue = Queueing()
    plan = replace(PLAN, worker_nodes=("b",))
    for name, memory, priority in (
        ("a", 5, 1.0),
        ("b", 3, 1.0),
        ("c", 4, 1.0),
        ("d", 2, 1.0),
        ("e", 1, 2.0),
    ):
        queue.submit(
            0.0,
            job(name, priority=priority, limits=Limits(memory_bytes=memory * GIB, gpus=0)),
            plan,
        )
    have = ("r/a", "r/b")

    def ahead(now: float = 0.0, **ends: float) -> list[tuple[str, float | None]]:
        found = queue.controller.ahead(now, {JobId(f"r/{job}"): at for job, at in ends.items()})
        assert {each.holders for each in found} == {have}
        return [(each.job, each.at) for each in found]

    assert queue.controller.waits
    assert ahead() == [("r/e", None), ("r/c", None), ("r/d", None)]
    assert ahead(b=50.0) == [("r/e", 50.0), ("r/c", None), ("r/d", None)]
    assert ahead(a=90.0, b=50.0) == [("r/e", 50.0), ("r/c", 90.0), ("r/d", 90.0)]
    assert ahead(a=10.0) == [("r/e", 10.0), ("r/c", 10.0), ("r/d", None)]
    assert ahead(now=12.0, a=10.0)[0] == ("r/e", 12.0)  # which should have ended by now
    # it was only asked
    assert started(queue.end(60.0, "b/worker-0")) == [("r/e/worker-0", "b", ())]


def test_a_job_behind_waiting_jobs_is_told_when_it_starts_if_their_times_are_known() -> None:
    lasts = {"r/b": 20.0, "r/c": 5.0, "r/d": 30.0}
    queue = Queueing()
    queue.controller = Controller(NoPolicy(), Queue(FifoOrder(), seconds=lasts.get))
    queue.step(0.0, NodeJoined(with_gpus("a", 2)))
    for name, gpus in (("a", 2), ("b", 1), ("c", 1), ("d", 2), ("e", 1), ("f", 2), ("g", 1)):
        queue.submit(0.0, asks(name, gpus))

    def ahead(**ends: float) -> dict[str, tuple[float | None, tuple[str, ...]]]:
        found = queue.controller.ahead(0.0, {JobId(f"r/{job}"): at for job, at in ends.items()})
        return {each.job[2:]: (each.at, each.unknown) for each in found}

    # b and c run side by side, and d when both have ended; e takes nobody knows how long, so that
    # nothing is said of f, or of g, which does not start before it.
    assert ahead(a=10.0) == {
        "b": (10.0, ()),
        "c": (10.0, ()),
        "d": (30.0, ()),
        "e": (60.0, ()),
        "f": (None, ("r/e",)),
        "g": (None, ("r/e",)),
    }
    assert set(ahead().values()) == {(None, ("r/a",))}
    lasts["r/e"] = 1.0
    lasts["r/f"] = 2.0
    assert list(ahead(a=10.0).values())[-2:] == [(61.0, ()), (63.0, ())]
    assert [task for task, *_ in started(queue.end(11.0, "a/worker-0"))] == [
        "r/b/worker-0",
        "r/c/worker-0",
    ]
    assert ahead(b=31.0) == {
        "d": (None, ("r/c",)),
        "e": (None, ("r/c",)),
        "f": (None, ("r/c",)),
        "g": (None, ("r/c",)),
    }


def test_what_is_started_again_elsewhere_for_want_of_its_node_asks_for_room_there() -> None:
    queue = Queueing()

    def submit(name: str, memory: int, node: str) -> list[tuple[str, str, tuple[int, ...] | None]]:
        spec, plan = (
            job(name, limits=Limits(memory_bytes=memory * GIB, gpus=0)),
            replace(PLAN, worker_nodes=(node,)),
        )
        queue.step(0.0, JobSubmitted(JobId(f"r/{name}"), spec, nodes=("a", "b")))
        return started(queue.step(0.0, JobPlanned(JobId(f"r/{name}"), 1, plan)))

    assert submit("lost", 8, "b") == [("r/lost/worker-0", "b", ())]
    assert submit("large", 6, "a") == [("r/large/worker-0", "a", ())]
    assert submit("waits", 2, "b") == []
    # One that waits for room on a node that is gone asks for it elsewhere too.
    assert started(queue.step(1.0, NodeLeft("b"))) == [("r/waits/worker-0", "a", ())]
    gone = queue.end(1.0, "lost/worker-0", Exit(code=None, lost=True))
    assert (started(gone), states(gone)[-1]) == ([], ("r/lost", "waiting", "for 8 GiB of memory"))
    assert started(queue.end(2.0, "waits/worker-0")) == []
    assert started(queue.end(3.0, "large/worker-0")) == [("r/lost/worker-0", "a", ())]
    # All of the other node is free when it is back.
    queue.step(4.0, NodeJoined(with_gpus("b", 2)))
    assert submit("next", 8, "b") == [("r/next/worker-0", "b", ())]


def test_what_comes_after_a_job_that_finds_no_node_is_skipped_in_the_same_step() -> None:
    queue = Queueing()
    queue.step(0.0, JobSubmitted(JobId("r/first"), job("first"), nodes=("far",)))
    queue.step(0.0, JobSubmitted(JobId("r/second"), job("second", after="first")))
    queue.step(0.0, JobPlanned(JobId("r/second"), 1, ANYWHERE))
    assert states(
        queue.step(0.0, JobPlanned(JobId("r/first"), 1, replace(PLAN, worker_nodes=("far",))))
    ) == [
        ("r/first", "failed", "none of its nodes is there: far"),
        ("r/second", "skipped", "first, which it comes after, ended as failed"),
    ]


def test_what_no_node_has_waits_for_one_that_does_and_holds_up_nobody() -> None:
    queue = Queueing()
    waits = queue.submit(0.0, asks("large", 4))
    assert states(waits) == [("r/large", "waiting", "for 4 GPUs, more than the nodes have now")]
    assert started(queue.submit(1.0, asks("small", 1))) == [("r/small/worker-0", "a", (0,))]
    assert started(queue.step(2.0, NodeJoined(with_gpus("c", 4)))) == [
        ("r/large/worker-0", "c", (0, 1, 2, 3))
    ]


def test_what_is_behind_a_waiting_job_that_is_stopped_starts_at_once_where_it_fits() -> None:
    queue = Queueing(None, with_gpus("a", 4))
    for name, gpus in (("runs", 3), ("head", 2), ("behind", 1), ("last", 2)):
        queue.submit(0.0, asks(name, gpus))
    stopped = queue.step(1.0, StopRequested(JobId("r/head")))
    assert states(stopped)[0] == ("r/head", "stopped", "stopped before it started")
    assert [task for task, *_ in started(stopped)] == ["r/behind/worker-0"]
    queue.submit(2.0, asks("large", 9))
    queue.step(3.0, StopRequested(JobId("r/large")))
    queue.step(3.0, StopRequested(JobId("r/last")))
    assert not queue.controller.waits
    assert started(queue.step(4.0, NodeJoined(with_gpus("b", 9)))) == []


def test_a_waiting_job_that_is_stopped_gives_way() -> None:
    queue = Queueing(None, with_gpus("a", 1))
    for name in ("a", "b", "c"):
        queue.submit(0.0, asks(name))
    assert states(queue.step(1.0, StopRequested(B))) == [
        ("r/b", "stopped", "stopped before it started")
    ]
    assert started(queue.end(2.0, "a/worker-0"))[0][0] == "r/c/worker-0"


def test_the_worst_of_those_that_run_make_room_and_go_on_later() -> None:
    left = {"r/a": 50.0, "r/b": 40.0, "r/c": 10.0}
    queue = Queueing(SrptOrder(lambda job, now: left[job]))
    queue.submit(0.0, asks("a", 2))
    queue.submit(0.0, asks("b", 2))
    stops = queue.submit(1.0, asks("c", 2))
    assert task_stopped(A_0, GRACE_SECONDS, "makes room for c") in stops
    assert states(stops) == [
        ("r/c", "waiting", "for 2 GPUs"),
        ("r/a", "stopping", "makes room for c"),
    ]
    moved = queue.end(2.0, "a/worker-0", Exit(code=None, signal=15))
    assert started(moved) == [("r/c/worker-0", "a", (0, 1))]
    assert states(moved)[-2:] == [("r/a", "waiting", "for 2 GPUs"), ("r/c", "running", "started")]
    again = queue.end(9.0, "c/worker-0")
    assert started(again) == [("r/a/worker-0", "a", (0, 1))]
    assert states(again)[-1] == ("r/a", "running", "started (attempt 2)")


def test_only_those_are_stopped_that_have_to_be() -> None:
    left = {"r/a": 90.0, "r/b": 80.0, "r/c": 30.0, "r/d": 10.0}
    queue = Queueing(SrptOrder(lambda job, now: left[job]))
    # a and c are on one node, b has the other for itself: a alone is worst, but only b makes room
    # for two.
    queue.submit(0.0, asks("a", 1))
    queue.submit(0.0, asks("c", 1))
    queue.submit(0.0, asks("b", 2))
    assert stopped(queue.submit(1.0, asks("d", 2))) == ["r/b/worker-0"]


def test_room_that_is_being_made_is_kept_for_whom_it_is_made() -> None:
    left = {"r/a": 90.0, "r/b": 80.0, "r/c": 1.0, "r/d": 2.0}
    queue = Queueing(SrptOrder(lambda job, now: left[job]), with_gpus("a", 2))
    queue.submit(0.0, asks("a", 1))
    queue.submit(0.0, asks("b", 1))
    assert sorted(stopped(queue.submit(1.0, asks("c", 2)))) == ["r/a/worker-0", "r/b/worker-0"]
    assert started(queue.end(2.0, "a/worker-0", Exit(code=None, signal=15))) == []
    assert started(queue.submit(2.5, asks("d", 1))) == []  # 2 GPU-seconds, as c has: c came first
    assert started(queue.end(3.0, "b/worker-0", Exit(code=None, signal=15))) == [
        ("r/c/worker-0", "a", (0, 1))
    ]


def test_who_had_enough_service_is_looked_at_when_it_has() -> None:
    queue = Queueing(LasOrder((100.0,)), with_gpus("a", 1))
    queue.submit(0.0, asks("a"))
    assert queue.wake_at is None  # nobody waits
    queue.submit(10.0, asks("b"))
    assert queue.wake_at == 100.0
    assert task_stopped(A_0, GRACE_SECONDS, "makes room for b") in queue.step(100.0, Wake())


def test_for_whom_there_was_no_room_it_is_made_once_others_have_had_enough() -> None:
    queue = Queueing(LasOrder((100.0,)), with_gpus("a", 2))
    for name, gpus in (("a", 1), ("b", 1), ("whole", 2), ("other", 2)):
        assert stopped(queue.submit(0.0, asks(name, gpus))) == []
    assert sorted(stopped(queue.step(100.0, Wake()))) == ["r/a/worker-0", "r/b/worker-0"]


def test_a_node_that_is_gone_is_given_to_nobody() -> None:
    queue = Queueing()
    queue.submit(0.0, asks("a", 2))
    queue.step(1.0, NodeLeft("b"))
    assert started(queue.submit(2.0, asks("b", 1))) == []
    assert started(queue.step(3.0, NodeJoined(with_gpus("b", 2)))) == [("r/b/worker-0", "b", (0,))]
    # What is taken of a node stays so when it goes and comes again.
    queue.step(4.0, NodeLeft("a"))
    queue.step(5.0, NodeJoined(with_gpus("a", 2)))
    assert started(queue.submit(6.0, asks("c", 2))) == []
    assert started(queue.end(7.0, "a/worker-0")) == [("r/c/worker-0", "a", (0, 1))]
