"""A job pauses and goes on: events in, exact actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.controller.driver import A_0, A_1, PLAN, A, B, Team, allreduce, job, ps
from tests.controller.test_queueing import GIB, Queueing, started, states, stopped, with_gpus

from headgate.model.actions import HoldJob, MarkIdle, MarkJob, SetShare, StartTask
from headgate.model.endings import Checkpoint, Exit
from headgate.model.events import (
    ChangeRequested,
    CheckpointDone,
    JobGivesBack,
    PauseRequested,
    StopRequested,
    TaskExited,
    TaskStarted,
    UnpauseRequested,
    Usage,
    Wake,
)
from headgate.model.identifiers import JobId
from headgate.model.limits import Limits
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.headgate import HeadgatePolicy

FROZEN = "by its user; it keeps its memory"
WELL = Exit(code=0)


def test_all_tasks_of_a_job_are_frozen_together_and_others_get_their_threads() -> None:
    team = Team(allreduce(workers=2), HeadgatePolicy())
    actions = team.step(5.0, PauseRequested(A))
    assert states(actions) == [("r/a", "paused", FROZEN)]
    assert [a for a in actions if isinstance(a, HoldJob)] == [HoldJob(A, True)]
    assert [a for a in actions if isinstance(a, MarkIdle)] == [
        MarkIdle(A_0, True),
        MarkIdle(A_1, True),
    ]
    assert team.step(6.0, PauseRequested(A)) == [], "it is paused already"
    assert team.step(6.0, Usage(A_0, 0.0, 1e6)) == []
    actions = team.step(65.0, UnpauseRequested(A))
    assert states(actions) == [("r/a", "running", "unpaused after 1 min 0 s")]
    assert HoldJob(A, False) in actions
    assert team.step(66.0, UnpauseRequested(A)) == []


def test_a_pause_counts_neither_for_a_timeout_nor_for_the_duration_of_a_step() -> None:
    team = Team(ps(workers=1), HeadgatePolicy(), timeout=100.0)
    team.step(0.0, TaskStarted(A_0, 1))
    for step in range(1, 11):
        team.step(float(step), Progress(A_0, step=step, loss=1.0 / step))
    team.step(10.5, PauseRequested(A))
    team.step(500.0, Wake())
    assert states(team.step(510.5, UnpauseRequested(A)))[0][1] == "running"
    for step in range(11, 21):
        team.step(500.0 + step, Progress(A_0, step=step, loss=1.0 / step))
    tracker = team.controller.tracker(A)
    assert tracker is not None
    assert tracker.steps.mean_seconds() == 1.0
    assert tracker.clock.longest == 1.0
    assert states(team.step(599.0, Wake())) == []
    assert states(team.step(601.0, Wake())) == [
        ("r/a", "stopping", "over its timeout of 1 min 40 s")
    ]


def test_a_released_job_ends_with_a_checkpoint_and_starts_again_from_it() -> None:
    team = Team(allreduce(workers=2), HeadgatePolicy())
    for frozen in (False, True):
        if frozen:
            team.step(7.0, PauseRequested(A))
        actions = team.step(8.0, PauseRequested(A, release=True))
        assert stopped(actions) == [A_0, A_1]
        assert states(actions) == [("r/a", "stopping", "to pause; it gives back its memory")]
        saved = Checkpoint("/c/step-9.pt", 9, 1, 9)
        team.step(9.0, CheckpointDone(A_0, saved))
        team.step(9.0, TaskExited(A_0, WELL))
        kept = "it gave back memory and GPUs, and goes on from step 9"
        assert states(team.step(9.0, TaskExited(A_1, WELL))) == [
            ("r/a", "paused", f"by its user; {kept}")
        ]
        assert team.step(100.0, Wake()) == []
        again = team.step(101.0, UnpauseRequested(A))
        assert [a.resume for a in again if isinstance(a, StartTask)] == [saved, saved]
        assert states(again)[-1][1] == "running"


def test_a_paused_job_that_is_stopped_ends() -> None:
    team = Team(allreduce(workers=2), HeadgatePolicy())
    team.step(5.0, PauseRequested(A))
    assert stopped(team.step(6.0, StopRequested(A))) == [A_0, A_1]
    assert team.step(6.0, PauseRequested(A)) == [], "it is being stopped"
    team.step(7.0, TaskExited(A_0, WELL))
    assert states(team.step(7.0, TaskExited(A_1, WELL)))[0][1] == "stopped"


def test_a_frozen_job_that_loses_a_task_stays_paused() -> None:
    team = Team(allreduce(workers=2), HeadgatePolicy())
    team.step(5.0, PauseRequested(A))
    team.step(6.0, TaskExited(A_0, Exit(code=None, signal=9, lost=True)))
    actions = team.step(7.0, TaskExited(A_1, WELL))
    assert [a for a in actions if isinstance(a, StartTask)] == []
    assert [a.state for a in actions if isinstance(a, MarkJob)] == ["paused"]


def test_a_waiting_job_is_held_back_and_keeps_its_place() -> None:
    queue = Queueing(None, with_gpus("a", 1))
    for name in "abc":
        queue.submit(0.0, job(name, limits=Limits(gpus=1)), replace(PLAN, worker_nodes=()))
    held = "by its user; it keeps its place in the queue"
    assert states(queue.step(1.0, PauseRequested(B))) == [("r/b", "paused", held)]
    assert started(queue.end(2.0, "a/worker-0")) == [("r/c/worker-0", "a", (0,))]
    assert states(queue.step(3.0, UnpauseRequested(B)))[-1][1:] == ("waiting", "for 1 GPU")
    queue.submit(4.0, job("d", limits=Limits(gpus=1)), replace(PLAN, worker_nodes=()))
    assert started(queue.end(5.0, "c/worker-0")) == [("r/b/worker-0", "a", (0,))]


def test_a_job_that_waits_is_ranked_anew_by_another_priority_or_memory() -> None:
    queue = Queueing(None, with_gpus("a", 1))
    first, second = job("b", limits=Limits(gpus=1)), job("c", limits=Limits(gpus=1))
    for spec in (job("a", limits=Limits(gpus=1)), first, second):
        queue.submit(0.0, spec, replace(PLAN, worker_nodes=()))
    queue.step(1.0, ChangeRequested(JobId("r/c"), replace(second, priority=3.0)))
    assert started(queue.end(2.0, "a/worker-0")) == [("r/c/worker-0", "a", (0,))]
    too_much = replace(first, limits=Limits(gpus=1, memory_bytes=64 * GIB))
    queue.step(3.0, ChangeRequested(B, too_much))
    assert started(queue.end(4.0, "c/worker-0")) == []
    assert started(queue.step(5.0, ChangeRequested(B, first))) == [("r/b/worker-0", "a", (0,))]


def test_a_running_job_gets_another_memory_limit_and_timeout() -> None:
    team = Team(allreduce(workers=2), HeadgatePolicy(), timeout=100.0)
    team.step(0.0, TaskStarted(A_0, 1))
    spec = replace(team.spec, timeout=300.0, limits=Limits(memory_bytes=GIB))
    actions = team.step(50.0, ChangeRequested(A, spec))
    shares = [a.share.memory_bytes for a in actions if isinstance(a, SetShare)]
    assert shares == [GIB, GIB]
    assert states(team.step(150.0, Wake())) == []
    assert states(team.step(301.0, Wake()))[0][1] == "stopping"


@pytest.mark.parametrize("ends", [False, True])
def test_a_job_that_is_giving_back_what_it_has_is_not_ended_for_good(ends: bool) -> None:
    team, why = (
        Team(allreduce(workers=1), HeadgatePolicy()),
        Reason.of(ReasonKind.GIVES_BACK, to="bob", waited=600.0),
    )
    team.step(0.0, TaskStarted(A_0, 1))
    if not ends:
        [(_, state, _), *_] = states(team.step(5.0, JobGivesBack(A, None, why)))
        assert state == "stopping"
    actions = team.step(185.0, JobGivesBack(A, None, why, ends=True))
    assert bool(states(actions)) is ends
    [(_, state, _), *_] = states(team.step(200.0, TaskExited(A_0, WELL)))
    assert state == ("stopped" if ends else "waiting")
