"""Urgent jobs go first, and those in their way pause: events in, exact actions out."""

from __future__ import annotations

from dataclasses import replace

from tests.controller.driver import PLAN, job
from tests.controller.test_gpu_memory import Sharing, node
from tests.controller.test_queueing import GIB, Queueing, started, states, stopped, with_gpus

from headgate.controller.core import Controller, live_controller
from headgate.model.actions import Action, HoldJob
from headgate.model.endings import Checkpoint, Exit
from headgate.model.events import (
    CheckpointDone,
    JobSubmitted,
    NodeJoined,
    PauseRequested,
    StopRequested,
    TakenUp,
    TaskConnected,
    UnpauseRequested,
    Wake,
)
from headgate.model.identifiers import FIRST_WORKER, JobId
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.policies.headgate import HeadgatePolicy

OLD, NEW = JobId("r/old"), JobId("r/new")
ON_A = replace(PLAN, worker_nodes=("a",))
ANYWHERE = replace(PLAN, worker_nodes=())


class Live(Queueing):
    """A hub's controller with one node of four cores and 8 GiB."""

    def __init__(self, gpus: int = 0) -> None:
        self.controller: Controller = live_controller(HeadgatePolicy())
        self.step(0.0, NodeJoined(with_gpus("a", gpus)))

    def has(self, now: float, spec: Job) -> list[Action]:
        return self.submit(now, spec, ON_A)


def holds(actions: list[Action]) -> list[tuple[str, bool]]:
    return [(a.job, a.held) for a in actions if isinstance(a, HoldJob)]


def marked(actions: list[Action]) -> list[tuple[str, str]]:
    return [(name, state) for name, state, _ in states(actions)]


def urgent(name: str = "new", **limits: object) -> Job:
    return job(name, urgent=True, limits=Limits(**limits))  # type: ignore[arg-type]


def test_a_job_without_room_on_the_cores_stands_still_while_an_urgent_one_runs() -> None:
    for end in (Exit(code=0), Exit(code=1), None):
        hub = Live()
        hub.has(0.0, job("old"))
        actions = hub.has(1.0, urgent())
        assert ("r/old", "paused", "for urgent job r/new; it keeps its memory") in states(actions)
        assert ("r/new", "running", "started as an urgent job") in states(actions)
        assert holds(actions) == [("r/old", True)]
        assert holds(hub.step(2.0, Wake())) == []
        if end is None:
            hub.step(3.0, StopRequested(NEW))
        actions = hub.end(60.0, "new/worker-0", end)
        assert holds(actions) == [("r/old", False)]
        assert ("r/old", "running", "unpaused after 59 s") in states(actions)


def test_jobs_whose_limits_leave_enough_cores_run_on_beside_it() -> None:
    hub = Live()
    for name in ("old", "more", "last"):
        hub.has(0.0, job(name, limits=Limits(cores=1.0)))
    assert holds(hub.has(1.0, urgent(cores=2.0))) == [("r/last", True)]
    assert holds(hub.end(2.0, "more/worker-0")) == []
    assert holds(hub.end(3.0, "new/worker-0")) == [("r/last", False)]


def test_a_job_that_would_hinder_it_does_not_start_before_its_end() -> None:
    hub = Live()
    hub.has(0.0, urgent(cores=3.0))
    actions = hub.has(1.0, job("old"))
    held = "for urgent job r/new; it keeps its place in the queue"
    assert (started(actions), states(actions)) == ([], [("r/old", "paused", held)])
    assert started(hub.has(2.0, job("slim", limits=Limits(cores=1.0)))) != []
    assert started(hub.end(3.0, "new/worker-0")) == [("r/old/worker-0", "a", None)]


def test_an_unpausable_job_and_one_that_its_user_unpaused_run_beside_it() -> None:
    hub = Live()
    hub.has(0.0, job("fixed", pausable=False))
    hub.has(0.0, job("old"))
    assert holds(hub.has(1.0, urgent())) == [("r/old", True)]
    assert holds(hub.step(2.0, UnpauseRequested(OLD))) == [("r/old", False)]
    assert holds(hub.step(3.0, Wake())) == []
    assert holds(hub.has(4.0, urgent("newer"))) == [("r/old", True)], "it is for another one"


def test_an_urgent_job_on_a_gpu_pauses_those_of_this_gpu_alone() -> None:
    hub = Sharing(node(80, 80))
    for name in ("old", "more"):
        hub.hands_in(name, stated=30, gpus=1, resumes=True)
    actions = hub.hands_in("new", stated=30, gpus=1, urgent=True)
    assert [start[0] for start in started(actions)] == ["r/new/worker-0"]
    assert len(holds(actions)) == 1
    assert stopped(actions) == []
    held = holds(actions)[0][0]
    assert holds(hub.end(2.0, "new/worker-0")) == [(held, False)]


def test_frozen_gpu_memory_stays_so_that_a_job_with_too_much_of_it_is_released() -> None:
    hub = Sharing(node(80))
    hub.hands_in("old", stated=30, gpus=1, resumes=True)
    hub.hands_in("more", stated=30, gpus=1, resumes=True)
    assert stopped(hub.hands_in("new", stated=40, gpus=1, urgent=True)) == ["r/more/worker-0"]
    actions = hub.end(1.0, "more/worker-0")
    assert [start[0] for start in started(actions)] == ["r/new/worker-0"]
    assert holds(actions) == [("r/old", True)]
    actions = hub.end(2.0, "new/worker-0")
    assert holds(actions) == [("r/old", False)]
    assert [start[0] for start in started(actions)] == ["r/more/worker-0"]


def test_a_job_with_the_only_gpu_is_released_and_goes_on_from_its_checkpoint() -> None:
    queue = Queueing(None, with_gpus("a", 1))
    queue.submit(0.0, job("old", limits=Limits(gpus=1)), ANYWHERE)
    queue.submit(0.0, job("waits", limits=Limits(gpus=1)), ANYWHERE)
    assert stopped(queue.submit(1.0, urgent(gpus=1), ANYWHERE)) == [], "it would begin anew"
    connected = queue.step(2.0, TaskConnected(OLD.task(FIRST_WORKER), "torch"))
    assert stopped(connected) == ["r/old/worker-0"]
    assert stopped(queue.submit(2.0, urgent("newer", gpus=1), ANYWHERE)) == []
    saved = Checkpoint("/c/step-9.pt", 9, 1, 9)
    queue.step(3.0, CheckpointDone(OLD.task(FIRST_WORKER), saved))
    actions = queue.end(4.0, "old/worker-0")
    assert started(actions) == [("r/new/worker-0", "a", (0,))]
    kept = "it gave back memory and GPUs, and goes on from step 9"
    assert ("r/old", "paused", f"for urgent job r/new; {kept}") in states(actions)
    assert started(queue.end(5.0, "new/worker-0")) == [("r/newer/worker-0", "a", (0,))]
    assert started(queue.end(6.0, "newer/worker-0")) == [("r/old/worker-0", "a", (0,))]
    assert started(queue.end(7.0, "old/worker-0")) == [("r/waits/worker-0", "a", (0,))]


def test_only_the_jobs_whose_memory_it_needs_are_released() -> None:
    hub = Live()
    for name, size in (("old", 3), ("more", 1), ("last", 3)):
        hub.has(0.0, job(name, resumes=True, limits=Limits(memory_bytes=size * GIB, cores=1.0)))
    assert stopped(hub.has(1.0, urgent(memory_bytes=4 * GIB, cores=1.0))) == ["r/last/worker-0"]
    actions = hub.end(2.0, "last/worker-0")
    assert started(actions) == [("r/new/worker-0", "a", None)]
    assert marked(actions)[-1] == ("r/new", "running")
    assert started(hub.end(3.0, "new/worker-0")) == [("r/last/worker-0", "a", None)]


def test_it_waits_for_what_may_not_be_paused_and_says_why() -> None:
    hub = Live()
    hub.has(0.0, job("old", pausable=False, resumes=True, limits=Limits(memory_bytes=3 * GIB)))
    hub.has(0.0, job("more", limits=Limits(memory_bytes=3 * GIB)))
    assert started(hub.has(1.0, urgent(memory_bytes=6 * GIB))) == []
    (start,) = hub.controller.ahead(2.0, {})
    assert dict(start.kept) == {OLD: "not-pausable", JobId("r/more"): "no-checkpoint"}


def test_an_urgent_job_needs_no_free_slot_and_no_probe() -> None:
    hub = Live()
    for name in map(str, range(40)):
        actions = hub.has(0.0, job(name, resumes=True, limits=Limits(cores=0.01)))
    assert started(actions) == []
    assert started(hub.has(1.0, urgent(cores=1.0))) == [("r/new/worker-0", "a", None)]


def test_jobs_go_on_once_the_urgent_one_is_paused_itself() -> None:
    hub = Live()
    hub.has(0.0, job("old"))
    hub.has(1.0, urgent())
    assert holds(hub.step(2.0, PauseRequested(NEW))) == [("r/new", True), ("r/old", False)]


def test_the_next_hub_pauses_the_jobs_again_and_ends_that_with_the_urgent_one() -> None:
    hub = Live()
    for name, spec in ((OLD, job("old")), (NEW, urgent())):
        goes_on = TakenUp("running", 1, ON_A, (), goes_on=True, ran=5.0)
        actions = hub.step(0.0, JobSubmitted(name, spec, taken_up=goes_on))
    assert holds(actions) == [("r/old", True)]
    hub.step(1.0, PauseRequested(OLD, urgent=NEW))
    assert holds(hub.end(2.0, "new/worker-0")) == [("r/old", False)]
    gone = hub.step(3.0, PauseRequested(OLD, urgent="gone/new"))
    assert holds(gone) == [("r/old", True), ("r/old", False)]


def test_a_job_that_its_user_paused_stays_paused_after_it_was_released() -> None:
    hub = Live()
    hub.has(0.0, job("old", resumes=True, limits=Limits(memory_bytes=4 * GIB)))
    hub.step(1.0, PauseRequested(OLD))
    assert stopped(hub.has(2.0, urgent(memory_bytes=5 * GIB))) == ["r/old/worker-0"]
    hub.end(3.0, "old/worker-0")
    assert marked(hub.end(4.0, "new/worker-0")) == [("r/new", "done")]
    assert marked(hub.step(5.0, UnpauseRequested(OLD)))[-1] == ("r/old", "running")
