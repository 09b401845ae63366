"""Jobs whose need of GPU memory is not known, on GPUs whose use is read: where they go, and what
they wait for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from tests.controller.driver import job
from tests.controller.test_gpu_memory import ON_N, TWO_ON_N, Sharing, _bytes, node, where
from tests.controller.test_queueing import GIB, states

from headgate.controller.shortage import Shortage
from headgate.model.endings import Exit
from headgate.model.events import GpuMemoryUsed, GpuUse, JobPlanned, JobSubmitted, Usage
from headgate.model.identifiers import JobId, TaskId
from headgate.model.limits import Limits


class Seen(Sharing):
    """The same, where it is read each second what is in use of the GPUs."""

    def plain(self, name: str, **fields: object) -> list[tuple[str, tuple[int, ...] | None]]:
        """A plain script of which nothing is known; the jobs that start then."""
        limits = fields.pop("limits", Limits())
        allowed, use = fields.pop("allowed", None), fields.pop("use", "yes")
        id, spec = JobId(f"r/{name}"), job(name, limits=limits, **fields)
        self.step(0.0, JobSubmitted(id, spec, gpus=allowed, uses_gpus=use))  # type: ignore[arg-type]
        return where(self.step(0.0, JobPlanned(id, 1, ON_N)))

    def reads(
        self,
        now: float,
        used: dict[int, float],
        single: Collection[int] = (),
        closed: Collection[int] = (),
        **held: dict[int, float],
    ) -> list[tuple[str, tuple[int, ...] | None]]:
        """So many GiB are in use on the GPUs, and by jobs; the jobs that start then."""
        tasks = {TaskId(f"r/{name}/worker-0"): _bytes(each) for name, each in held.items()}
        event = GpuMemoryUsed("n", _bytes(used), tasks, frozenset(single), frozenset(closed))
        return where(self.step(now, event))

    def lacks(self, name: str) -> Shortage:
        return next(
            each.lacks for each in self.controller.ahead(2.0, {}) if each.job == f"r/{name}"
        )


def test_of_five_plain_scripts_each_gpu_gets_one_and_the_next_goes_where_room_shows() -> None:
    hub = Seen(node(24, 24))
    hub.reads(0.0, {0: 1, 1: 1})
    started = [hub.plain(name) for name in "abcde"]
    assert started == [[("a", None)], [("b", (1, 0))], [], [], []]
    assert hub.lacks("c").plain() == {
        "kind": "gpu-unseen",
        "needs_bytes": 0,
        "count": 1,
        "node": "n",
        "is_known": False,
        "gpus": (0, 1),
    }
    assert (
        hub.waits_for("c")
        == "a GPU: what the jobs on GPU 0, 1 of node n hold of it is not seen yet"
    )
    assert hub.reads(1.0, {0: 3, 1: 5}, a={0: 2}, b={1: 4}) == []
    assert hub.reads(8.0, {0: 11, 1: 15}, a={0: 10}, b={1: 14}) == []  # they still grow
    assert hub.reads(17.0, {0: 11, 1: 15}, a={0: 10}, b={1: 14}) == []
    # On the first there are 13 GiB for one like it, on the second 9 for one that holds 14.
    assert hub.reads(18.0, {0: 11, 1: 15}, a={0: 10}, b={1: 14}) == [("c", None)]
    assert hub.lacks("d").kind == "gpu-unseen"
    assert hub.reads(30.0, {0: 21, 1: 15}, a={0: 10}, b={1: 14}, c={0: 10}) == []
    assert hub.reads(40.0, {0: 21, 1: 15}, a={0: 10}, b={1: 14}, c={0: 10}) == []
    assert hub.waits_for("d") == (
        "GPU memory: needs 14.7 GiB or so (it is not known), 9 GiB free on GPU 1 of node n, "
        "where programs that nothing is kept for use 1 GiB"
    )
    assert where(hub.end(41.0, "b/worker-0")) == [("d", (1, 0))]


def test_a_plain_script_goes_where_others_outside_hold_least() -> None:
    hub = Seen(node(24, 24, 24))
    hub.reads(0.0, {0: 20, 1: 9, 2: 3})
    assert hub.plain("a") == [("a", (2, 0, 1))]
    assert hub.plain("b", limits=Limits(gpus=1)) == [("b", (1,))]
    assert hub.plain("c", limits=Limits(gpus=1)) == []  # the first has 4 of 24 GiB left
    assert hub.lacks("c").gpus == (1, 2)
    assert hub.reads(1.0, {0: 12, 1: 9, 2: 3}) == [("c", (0,))]


def test_a_gpu_that_others_hold_most_of_is_waited_for_though_no_job_is_there() -> None:
    hub = Seen(node(24))
    hub.reads(0.0, {0: 20})
    assert hub.plain("a", limits=Limits(gpus=1)) == []
    assert hub.waits_for("a") == (
        "GPU memory: needs 6 GiB or so (it is not known), 4 GiB free on GPU 0 of node n, "
        "where programs that nothing is kept for use 20 GiB"
    )
    assert hub.reads(5.0, {0: 17}) == [("a", (0,))]


@pytest.mark.parametrize(("use", "patience"), [("maybe", 15.0), ("yes", 300.0)])
def test_a_job_that_holds_no_gpu_memory_is_waited_for_for_a_while(
    use: GpuUse, patience: float
) -> None:
    hub = Seen(node(24))
    hub.reads(0.0, {0: 1})
    assert hub.plain("a", use=use) == [("a", None)]
    assert hub.plain("b", use=use) == []
    assert hub.reads(patience - 1, {0: 1}) == []
    assert hub.reads(patience, {0: 1}) == [("b", None)]


def test_a_job_that_is_seen_to_use_no_gpu_keeps_none_from_an_exclusive_one() -> None:
    hub = Seen(node(24, 24))
    hub.reads(0.0, {0: 1, 1: 1})
    assert [hub.plain(name, use="maybe") for name in "ab"] == [[("a", None)], [("b", (1, 0))]]
    assert hub.plain("alone", limits=Limits(exclusive=True)) == []
    assert hub.reads(15.0, {0: 1, 1: 1}) == [("alone", (0,))]


def test_jobs_that_use_no_gpu_and_machines_without_one_are_as_before() -> None:
    hub = Seen(node(24))
    hub.reads(0.0, {0: 23})
    assert [hub.plain(name, use="no") for name in "abc"] == [[(name, None)] for name in "abc"]
    assert hub.plain("d", limits=Limits(gpus=0)) == [("d", ())]
    assert hub.plain("e", allowed=()) == [("e", ())]
    without = Seen(node())
    assert [without.plain(name) for name in "abc"] == [[(name, None)] for name in "abc"]


def test_where_no_use_of_gpus_is_read_nobody_waits_for_what_is_not_seen() -> None:
    hub = Seen(node(24))
    assert [hub.plain(name) for name in "abc"] == [[(name, None)] for name in "abc"]


def test_a_known_need_waits_for_what_is_not_seen_and_then_for_room() -> None:
    hub = Seen(node(24))
    hub.reads(0.0, {0: 0})
    hub.plain("a")
    assert where(hub.hands_in("b", stated=10)) == []
    assert hub.reads(3.0, {0: 9}, a={0: 9}) == []
    assert hub.reads(13.0, {0: 9}, a={0: 9}) == [("b", None)]


def test_in_a_container_what_a_gpu_has_more_in_use_is_what_its_job_holds() -> None:
    hub = Seen(node(24))
    hub.reads(0.0, {0: 2})
    hub.plain("a")
    hub.reads(3.0, {0: 12})
    hub.plain("b")
    assert hub.reads(13.0, {0: 12}) == [("b", None)]
    hub.reads(20.0, {0: 22})
    hub.reads(30.0, {0: 22})
    assert hub.plain("c") == []
    assert hub.waits_for("c").startswith(
        "GPU memory: needs 10.5 GiB or so (it is not known), 2 GiB free on GPU 0"
    )


def test_a_gpu_in_exclusive_process_mode_has_one_job_and_none_beside_a_program_outside() -> None:
    hub = Seen(node(24, 24))
    hub.reads(0.0, {0: 1, 1: 1}, single=(0, 1), closed=(1,))
    assert hub.plain("a") == [("a", None)]
    assert where(hub.hands_in("b", stated=2)) == []
    assert (
        hub.waits_for("b") == "a GPU that no other job uses: there are some on GPU 0, 1 of node n"
    )
    assert hub.reads(5.0, {0: 4, 1: 0}, single=(0, 1), closed=(0,), a={0: 3}) == [("b", (1, 0))]


def test_an_exclusive_job_has_its_gpu_for_itself() -> None:
    hub = Seen(node(24, 24))
    hub.reads(0.0, {0: 1, 1: 1})
    exclusive = Limits(exclusive=True)
    assert where(hub.hands_in("a", stated=2)) == [("a", None)]
    assert hub.plain("b", limits=exclusive) == [("b", (1,))]
    assert hub.plain("c", limits=exclusive) == []
    assert hub.lacks("c").kind == "gpu-alone"
    assert where(hub.end(1.0, "b/worker-0")) == [("c", (1,))]
    assert where(hub.hands_in("d", stated=2)) == [("d", (0,))]  # nor does it see the other
    assert where(hub.hands_in("e", stated=23)) == []
    assert where(hub.end(2.0, "c/worker-0")) == [("e", (1, 0))]


def test_several_workers_of_unknown_need_have_a_gpu_each_or_wait() -> None:
    hub = Seen(node(24, 24))
    hub.reads(0.0, {0: 1, 1: 1})
    spec = job("two", limits=Limits(gpus=1))
    hub.step(0.0, JobSubmitted(JobId("r/two"), spec))
    assert where(hub.step(0.0, JobPlanned(JobId("r/two"), 1, TWO_ON_N))) == [
        ("two", (0,)),
        ("two", (1,)),
    ]
    assert hub.plain("a") == []
    more = replace(TWO_ON_N, workers=3, worker_nodes=("n", "n", "n"))
    hub.end(1.0, "two/worker-0"), hub.end(1.0, "two/worker-1")
    hub.end(2.0, "a/worker-0")
    hub.step(3.0, JobSubmitted(JobId("r/three"), job("three", limits=Limits(gpus=1))))
    # more than there are GPUs
    assert len(where(hub.step(3.0, JobPlanned(JobId("r/three"), 1, more)))) == 3


def test_who_runs_out_of_memory_is_tried_once_where_there_is_room() -> None:
    hub = Seen(node(24, 24))
    hub.reads(0.0, {0: 1, 1: 2})
    assert hub.plain("a") == [("a", None)]
    exit = Exit(
        code=1,
        over_memory=True,
        on_gpu=True,
        reason="CUDA out of memory. Tried to allocate 4.00 GiB",
    )
    for gpu in (0, 1):
        hub.step(1.0, Usage(TaskId("r/a/worker-0"), 1.0, 1.0, gpu_memory_bytes=10.0 * GIB))
        hub.reads(1.0, {gpu: 24, 1 - gpu: 2}, a={gpu: 10})  # somebody came
        ended = hub.end(2.0, "a/worker-0", exit)
        why = next(reason for _, state, reason in states(ended) if state in ("waiting", "failed"))
        assert (
            "It held 10 GiB, and its need was "
            f"{'not known' if gpu == 0 else 'taken to be 14 GiB'}. On GPU {gpu} of"
        ) in why
        if gpu == 0:
            assert why.endswith("Next: GPU 1 of node n has 22 GiB free, and it is tried there once")
            assert where(ended) == [("a", (1,))]
    assert states(ended)[-1][1] == "failed"
    assert "Next: state more than 14 GiB" in why


def test_who_runs_out_of_memory_is_not_tried_where_there_is_too_little() -> None:
    hub = Seen(node(24, 24))
    hub.reads(0.0, {0: 1, 1: 13})
    assert hub.plain("a") == [("a", None)]
    hub.step(1.0, Usage(TaskId("r/a/worker-0"), 1.0, 1.0, gpu_memory_bytes=10.0 * GIB))
    exit = Exit(
        code=1,
        over_memory=True,
        on_gpu=True,
        reason="CUDA out of memory. Tried to allocate 4.00 GiB",
    )
    hub.reads(1.0, {0: 24, 1: 13}, a={0: 10})
    [(_, state, why)] = states(hub.end(2.0, "a/worker-0", exit))
    assert state == "failed"
    assert "programs outside Headgate had 14 GiB. Next: state at least 14 GiB" in why
