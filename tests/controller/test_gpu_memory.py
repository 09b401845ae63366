"""Memory of GPUs that jobs share: who waits for it, where jobs go, and what is said when one runs
out of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.controller.driver import PLAN, job
from tests.controller.test_queueing import GANG, GIB, Queueing, started, states

from headgate.controller.core import Controller
from headgate.controller.queue_orders import FifoOrder
from headgate.controller.queueing import Queue
from headgate.model.actions import Action
from headgate.model.cluster import Gpu, Node
from headgate.model.endings import Exit
from headgate.model.events import (
    GpuMemoryUsed,
    GpusUsed,
    JobPlanned,
    JobSubmitted,
    NodeJoined,
    Usage,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.shortage_text import shortage_in_words
from headgate.policies import NoPolicy

ON_N = replace(PLAN, worker_nodes=("n",))
TWO_ON_N = replace(GANG, worker_nodes=("n", "n"))


def node(*sizes: int, name: str = "n") -> Node:
    """A node whose GPUs have so many GiB."""
    gpus = tuple(Gpu(index, "g", size * GIB) for index, size in enumerate(sizes))
    return Node(name, cores=4.0, memory_bytes=64 * GIB, gpus=gpus)


class Sharing(Queueing):
    """A controller as a hub has it, where jobs take turns on GPUs."""

    def __init__(self, *nodes: Node) -> None:
        self.queue = Queue(FifoOrder(), gpus_are_shared=True)
        self.controller = Controller(NoPolicy(), self.queue)
        self.wake_at = None
        for each in nodes:
            self.step(0.0, NodeJoined(each))

    def hands_in(
        self,
        name: str,
        *,
        stated: int | None = None,
        known: int | None = None,
        gpus: int | None = None,
        allowed: tuple[int, ...] | None = None,
        plan: Plan = ON_N,
        script: str = "",
        **fields: object,
    ) -> list[Action]:
        """A job that needs so many GiB of its GPUs: as its user states, or as is known of it."""
        limits = Limits(gpus=gpus, gpu_memory_bytes=stated * GIB if stated else None)
        spec: Job = job(name, limits=limits, **fields)
        needs = known * GIB if known else None
        id = JobId(f"r/{name}")
        handed_in = JobSubmitted(id, spec, gpus=allowed, gpu_memory_bytes=needs, script=script)
        self.step(0.0, handed_in)
        return self.step(0.0, JobPlanned(id, 1, plan))

    def uses(
        self, used: dict[int, float], later: float = 0.0, **held: dict[int, float]
    ) -> list[Action]:
        """So many GiB are in use on the GPUs; and by jobs."""
        by_task = {TaskId(f"r/{name}/worker-0"): _bytes(each) for name, each in held.items()}
        return self.step(1.0 + later, GpuMemoryUsed("n", _bytes(used), by_task))

    def waits_for(self, name: str) -> str:
        """What a job that waits is told."""
        return next(
            shortage_in_words(each.lacks.plain())
            for each in self.controller.ahead(2.0, {})
            if each.job == f"r/{name}"
        )


def _bytes(gib: dict[int, float]) -> dict[int, float]:
    return {gpu: size * GIB for gpu, size in gib.items()}


def where(actions: list[Action]) -> list[tuple[str, tuple[int, ...] | None]]:
    return [(task.split("/")[1], gpus) for task, _, gpus in started(actions)]


@pytest.mark.parametrize("need", ["stated", "known"])
def test_who_needs_more_than_admitted_jobs_leave_waits_until_one_ends(need: str) -> None:
    hub = Sharing(node(80))
    stated, known = (50, None) if need == "stated" else (None, 50)
    assert where(hub.hands_in("a", stated=stated, known=known)) == [("a", None)]
    waits = hub.hands_in("b", stated=stated, known=known)
    assert states(waits) == [
        ("r/b", "waiting", "for GPU memory: needs 50 GiB, 30 GiB free on GPU 0 of node n")
    ]
    [ahead] = hub.controller.ahead(1.0, {})
    assert (ahead.holders, ahead.lacks.on_gpu) == ((JobId("r/a"),), True)
    assert where(hub.end(2.0, "a/worker-0")) == [("b", None)]


def test_who_fit_together_start_together() -> None:
    hub = Sharing(node(80))
    assert where(hub.hands_in("a", stated=20)) == [("a", None)]
    assert where(hub.hands_in("b", known=20)) == [("b", None)]


def test_the_first_job_of_a_script_shows_what_the_others_hold_of_a_gpu() -> None:
    sharing = Sharing(node(24))
    sharing.queue = Queue(FifoOrder(), gpus_are_shared=True, alike=True)
    sharing.controller = Controller(NoPolicy(), sharing.queue)
    sharing.step(0.0, NodeJoined(node(24)))
    sharing.uses({0: 0.0})
    for name in "abcd":
        sharing.hands_in(name, gpus=1, script="s")
    assert (
        sharing.waits_for("b")
        == "a GPU: what the jobs on GPU 0 of node n hold of it is not seen yet"
    )
    sharing.uses({0: 8.0}, a={0: 8.0})
    began = sharing.uses({0: 8.0}, later=11.0, a={0: 8.0})
    assert where(began) == [("b", (0,))], "each is expected to hold 8.8 GiB"
    sharing.uses({0: 16.0}, later=12.0, a={0: 8.0}, b={0: 8.0})
    assert "needs 8.8 GiB" in sharing.waits_for("c")


def test_what_is_stated_counts_and_not_what_is_known() -> None:
    hub = Sharing(node(80))
    hub.hands_in("a", stated=20, known=70)
    assert where(hub.hands_in("b", stated=60, known=1)) == [("b", None)]
    assert where(hub.hands_in("c", stated=1)) == []


def test_what_nothing_is_known_of_starts_and_what_it_is_seen_to_hold_is_waited_for() -> None:
    hub = Sharing(node(80))
    hub.hands_in("a")
    hub.uses({0: 45}, a={0: 45})
    assert where(hub.hands_in("b")) == [("b", None)]
    assert where(hub.hands_in("c", known=40)) == []
    assert (
        "35 GiB free on GPU 0 of node n, where programs that nothing is kept for use 45 GiB"
        in hub.waits_for("c")
    )
    hub.end(2.0, "a/worker-0")
    assert where(hub.uses({0: 1})) == [("c", None)]


def test_memory_that_programs_outside_hold_is_not_there() -> None:
    hub = Sharing(node(80))
    hub.uses({0: 60})
    assert where(hub.hands_in("a", stated=30)) == []
    assert hub.waits_for("a") == (
        "GPU memory: needs 30 GiB, 20 GiB free on GPU 0 of node n, where programs that "
        "nothing is kept for use 60 GiB"
    )
    assert where(hub.uses({0: 51})) == []
    assert where(hub.uses({0: 5})) == [("a", None)]


def test_what_a_job_does_not_hold_yet_is_kept_and_what_it_holds_counts_once() -> None:
    hub = Sharing(node(80))
    hub.uses({0: 10})
    hub.hands_in("a", stated=50)
    hub.uses({0: 12}, a={0: 2})
    assert where(hub.hands_in("b", stated=21)) == []  # 10 outside, 50 kept
    assert where(hub.uses({0: 59}, a={0: 50})) == [("b", None)]


def test_what_a_job_holds_beyond_its_need_counts_too() -> None:
    hub = Sharing(node(80))
    hub.hands_in("a", stated=20)
    hub.uses({0: 65}, a={0: 65})
    assert where(hub.hands_in("b", stated=20)) == []


def test_memory_that_a_job_holds_on_a_gpu_beside_its_reserved_one_is_not_free() -> None:
    hub = Sharing(node(80, 80))
    assert where(hub.hands_in("a", stated=50)) == [("a", None)]
    assert where(hub.hands_in("b", stated=20)) == [("b", (1, 0))]
    hub.uses({0: 0, 1: 60}, a={1: 50}, b={1: 10})
    assert where(hub.hands_in("c", stated=20, allowed=(1,))) == []  # 50 are a's, 20 are kept for b
    assert where(hub.hands_in("d", stated=10, allowed=(1,))) == []  # behind c
    assert where(hub.uses({0: 0, 1: 50}, a={1: 40}, b={1: 10})) == [("c", (1,))]


def test_a_gpu_without_a_reading_has_no_more_memory_free_than_before() -> None:
    hub = Sharing(node(80, 80))
    hub.uses({0: 60, 1: 60})
    hub.uses({1: 60})
    assert where(hub.hands_in("a", stated=30)) == []
    assert where(hub.uses({0: 10, 1: 60})) == [("a", None)]


def test_where_it_cannot_be_told_whose_memory_it_is_a_job_s_own_is_not_counted_twice() -> None:
    """As in a container, where NVML tells of no processes."""
    hub = Sharing(node(80))
    hub.uses({0: 5})
    hub.hands_in("a", stated=30)
    hub.uses({0: 35})
    assert where(hub.hands_in("b", stated=40)) == [("b", None)]
    hub.uses({0: 75})
    assert where(hub.hands_in("c", stated=6)) == []
    hub.end(2.0, "b/worker-0")
    assert [name for name, _ in where(hub.uses({0: 35}))] in ([], ["c"])


def test_of_several_gpus_a_job_gets_the_one_where_it_fits() -> None:
    hub = Sharing(node(80, 80, 24))
    assert where(hub.hands_in("a", gpus=1, stated=50)) == [("a", (0,))]
    assert where(hub.hands_in("b", gpus=1, stated=50)) == [("b", (1,))]
    # the last is free, and too small
    assert where(hub.hands_in("c", gpus=1, stated=25)) == [("c", (0,))]
    assert where(hub.hands_in("d", gpus=1, stated=25)) == [("d", (1,))]
    assert where(hub.hands_in("e", gpus=1, stated=20)) == [("e", (2,))]
    assert where(hub.hands_in("f", gpus=1, stated=20)) == []


def test_a_job_that_sees_all_gpus_sees_the_one_where_it_fits_first() -> None:
    hub = Sharing(node(24, 80))
    assert where(hub.hands_in("a", stated=50)) == [("a", (1, 0))]
    assert where(hub.hands_in("b", stated=20)) == [("b", None)]  # which is the first as it is
    assert where(hub.hands_in("c", stated=20, allowed=(1, 0))) == [("c", (1, 0))]


def test_an_idle_gpu_is_preferred_to_one_that_others_use() -> None:
    hub = Sharing(node(80, 80))
    assert where(hub.hands_in("unknown", gpus=1)) == [("unknown", (0,))]
    assert where(hub.hands_in("a", gpus=1, stated=20)) == [("a", (1,))]
    assert where(hub.hands_in("next", gpus=1)) == [("next", (0,))]


def test_one_without_a_known_need_that_starts_with_another_leaves_it_its_gpu() -> None:
    hub = Sharing(node(80, 80))
    for name, needs in (("unknown", None), ("a", 20 * GIB)):
        spec = job(name, limits=Limits(gpus=1))
        hub.step(0.0, JobSubmitted(JobId(f"r/{name}"), spec, gpu_memory_bytes=needs))
    hub.step(0.0, JobPlanned(JobId("r/unknown"), 1, ON_N))
    assert where(hub.step(0.0, JobPlanned(JobId("r/a"), 1, ON_N))) == [
        ("unknown", (1,)),
        ("a", (0,)),
    ]


def test_only_gpus_that_the_environment_allows_are_waited_for() -> None:
    hub = Sharing(node(80, 80))
    hub.hands_in("a", stated=50, allowed=(1,))
    assert where(hub.hands_in("b", stated=50, allowed=(1,))) == []
    assert "free on GPU 1 of node n" in hub.waits_for("b")
    hub.end(1.0, "a/worker-0")
    assert where(hub.hands_in("c", stated=80, allowed=(0,))) == [("c", (0,))]


def test_workers_of_a_job_have_room_for_all_of_them_or_none_starts() -> None:
    hub = Sharing(node(80, 80))
    hub.hands_in("a", gpus=1, stated=50)
    assert where(hub.hands_in("two", gpus=1, stated=60, plan=TWO_ON_N)) == []
    assert where(hub.end(1.0, "a/worker-0")) == [("two", (0,)), ("two", (1,))]


def test_workers_of_another_launcher_get_a_gpu_each() -> None:
    hub = Sharing(node(80, 24))
    hub.hands_in("two", stated=20, plan=TWO_ON_N, launch="torchrun")
    assert where(hub.hands_in("big", stated=61)) == []
    assert "60 GiB free on GPU 0" in hub.waits_for("big")


def test_a_job_on_several_gpus_needs_the_memory_of_each() -> None:
    hub = Sharing(node(80, 80, 80))
    hub.hands_in("a", gpus=1, stated=50)
    assert where(hub.hands_in("b", gpus=2, stated=50)) == [("b", (1, 2))]
    assert where(hub.hands_in("c", gpus=2, stated=50)) == []
    assert hub.waits_for("c").startswith(
        "GPU memory: needs 50 GiB for each of 2 tasks and GPUs, 30 GiB free on GPU"
    )


def test_a_known_need_beyond_a_gpu_waits_for_a_whole_one_and_no_longer() -> None:
    hub = Sharing(node(24))
    hub.hands_in("a", known=2)
    assert where(hub.hands_in("b", known=60)) == []
    assert where(hub.end(1.0, "a/worker-0")) == [("b", None)]


def test_where_there_is_no_gpu_what_was_known_of_one_is_not_waited_for() -> None:
    hub = Sharing(node())
    assert where(hub.hands_in("a", known=60)) == [("a", None)]


def test_jobs_that_want_no_gpu_do_not_wait_behind_one_that_does_but_leave_it_its_memory() -> None:
    hub = Sharing(node(80))
    hub.hands_in("a", stated=50)

    def asks(name: str, memory: int, on_gpu: int | None = None) -> list[Action]:
        on = on_gpu * GIB if on_gpu else None
        limits = Limits(memory_bytes=memory * GIB, gpus=None if on else 0, gpu_memory_bytes=on)
        return hub.submit(0.0, job(name, limits=limits), ON_N)

    assert where(asks("b", 40, on_gpu=50)) == []
    # first come, first served among those that want it
    assert where(asks("small", 1, on_gpu=1)) == []
    assert where(asks("cpu", 20)) == [("cpu", ())]
    assert where(asks("more", 20)) == []
    assert where(hub.end(1.0, "a/worker-0")) == [("b", None), ("small", None)]
    assert where(hub.end(2.0, "cpu/worker-0")) == [("more", ())]


def test_a_task_that_runs_out_of_gpu_memory_is_told_who_else_had_it_and_what_to_do() -> None:
    hub = Sharing(node(80))
    hub.uses({0: 6})
    hub.hands_in("a", stated=20)
    hub.hands_in("b")
    hub.step(1.0, Usage(TaskId("r/a/worker-0"), 1.0, 1.0, gpu_memory_bytes=60.0 * GIB))
    hub.step(1.0, Usage(TaskId("r/b/worker-0"), 1.0, 1.0, gpu_memory_bytes=10.0 * GIB))
    hub.uses({0: 76}, a={0: 60}, b={0: 10})
    exit = Exit(
        code=1,
        over_memory=True,
        on_gpu=True,
        reason="CUDA out of memory. Tried to allocate 10.00 GiB",
    )
    [(_, state, why)] = states(hub.end(2.0, "b/worker-0", exit))
    assert state == "failed"
    assert why == (
        "CUDA out of memory. Tried to allocate 10.00 GiB. It held 10 GiB, and its need was not "
        "known. On GPU 0 of node n, a had 60 GiB and programs outside Headgate had 6 GiB. Next: "
        "state at least 20 GiB (`limits: {gpu_memory: …}` or --gpu-memory), and it waits until "
        "that is free"
    )


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("CUDA out of memory. Tried to allocate 10.00 GiB", "state at least 40 GiB"),
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.00GiB",
            "state at least 34 GiB",
        ),
        ("CUDA error: out of memory", "state more than 30 GiB"),
        # no GPU has 90
        ("CUDA out of memory. Tried to allocate 60.00 GiB", "make its batch smaller"),
        # a script may print anything
        ("CUDA out of memory. Tried to allocate ... GiB", "state more than 30 GiB"),
        ("CUDA out of memory. Tried to allocate 1.2.3 GiB", "state more than 30 GiB"),
        ("CUDA out of memory. Tried to allocate 5 iB", "state more than 30 GiB"),
        (f"CUDA out of memory. Tried to allocate {'9' * 400} GiB", "state more than 30 GiB"),
    ],
)
def test_what_it_could_not_have_is_part_of_what_it_needs(words: str, cure: str) -> None:
    hub = Sharing(node(80))
    hub.hands_in("a", stated=20)
    hub.hands_in("b", stated=5)
    hub.step(1.0, Usage(TaskId("r/a/worker-0"), 1.0, 1.0, gpu_memory_bytes=50.0 * GIB))
    hub.step(1.0, Usage(TaskId("r/b/worker-0"), 1.0, 1.0, gpu_memory_bytes=30.0 * GIB))
    hub.uses({0: 80}, a={0: 50}, b={0: 30})
    [(_, _, why)] = states(
        hub.end(2.0, "b/worker-0", Exit(code=1, over_memory=True, on_gpu=True, reason=words))
    )
    assert f"Next: {cure}" in why


def test_a_task_that_runs_out_of_gpu_memory_alone_is_told_what_it_needed() -> None:
    hub = Sharing(node(80))
    hub.hands_in("a", gpus=1, stated=20)
    hub.step(1.0, Usage(TaskId("r/a/worker-0"), 1.0, 1.0, gpu_memory_bytes=78.0 * GIB))
    exit = Exit(code=1, over_memory=True, on_gpu=True, reason="CUDA out of memory")
    [(_, _, why)] = states(hub.end(2.0, "a/worker-0", exit))
    assert why == (
        "CUDA out of memory. It held 78 GiB, and its need was taken to be 20 GiB. On GPU 0 of node "
        "n, no other job had memory. Next: make its batch smaller, compute in bfloat16, or keep "
        "fewer activations (checkpointing)"
    )


def test_what_a_task_on_several_gpus_held_is_told_of_each() -> None:
    hub = Sharing(node(80, 80))
    hub.hands_in("a", stated=20, gpus=2)
    hub.hands_in("b", stated=30, gpus=2)
    for name, held in (("a", 100.0), ("b", 60.0)):
        hub.step(1.0, GpusUsed(TaskId(f"r/{name}/worker-0"), (0, 1)))
        hub.step(1.0, Usage(TaskId(f"r/{name}/worker-0"), 1.0, 1.0, gpu_memory_bytes=held * GIB))
    hub.uses({0: 80, 1: 80}, a={0: 50, 1: 50}, b={0: 30, 1: 30})
    exit = Exit(code=1, over_memory=True, on_gpu=True, reason="CUDA out of memory")
    [(_, _, why), *_] = states(hub.end(2.0, "b/worker-0", exit))
    assert (
        "It held 30 GiB on each of 2 GPUs, and its need was taken to be 30 GiB. On GPU 0, 1 "
        "of node n, a had"
    ) in why
    assert "Next: state more than 30 GiB " in why
