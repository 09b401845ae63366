"""A running job gets more or fewer workers."""

from __future__ import annotations

from tests.controller.driver import (
    A_0,
    A_1,
    A,
    Team,
    allreduce,
    job_marked,
    plain_words,
    ps,
    task_stopped,
)

from headgate.model.actions import PlanJob, Resize, SetShare, StartTask
from headgate.model.cluster import Gpu, Node
from headgate.model.endings import Checkpoint, Exit
from headgate.model.events import (
    CONNECTED_GRACE_SECONDS,
    CheckpointDone,
    MoveRequested,
    NodeJoined,
    ResizeRequested,
    StopRequested,
    TaskExited,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.progress import Progress

WELL = Exit(code=0)


def test_workers_join_a_ps_job_where_they_have_the_most_cores() -> None:
    team = Team(ps(workers=2))
    actions = [a for a in team.step(5.0, ResizeRequested(A, 4)) if not isinstance(a, SetShare)]
    grown = ps(workers=4, worker_nodes=("a", "b", "c", "c"))
    assert actions[:2] == [
        Resize(A, grown),
        job_marked(A, "running", "resized from 2 to 4 workers: worker-2, worker-3 join"),
    ]
    started = [
        (a.task, a.node, a.joins, a.plan.workers) for a in actions[2:] if isinstance(a, StartTask)
    ]
    assert started == [("r/a/worker-2", "c", True, 4), ("r/a/worker-3", "c", True, 4)]


def test_the_last_workers_leave_a_ps_job_and_the_others_go_on() -> None:
    team = Team(ps(workers=3))
    text = "resized from 3 to 1 worker"
    assert team.step(5.0, ResizeRequested(A, 1)) == [
        Resize(A, ps(workers=1)),
        job_marked(A, "running", f"{text}: worker-1, worker-2 leave"),
        task_stopped(A_1, CONNECTED_GRACE_SECONDS, text, leaves=True),
        task_stopped(TaskId("r/a/worker-2"), CONNECTED_GRACE_SECONDS, text, leaves=True),
    ]
    # However they end: they were not lost, and the job is not done.
    assert team.step(6.0, TaskExited(A_1, WELL)) == []
    assert team.step(6.0, TaskExited(TaskId("r/a/worker-2"), Exit(code=None, signal=9))) == []
    [stop] = team.step(9.0, TaskExited(A_0, WELL))
    assert stop == task_stopped(
        TaskId("r/a/server-0"), CONNECTED_GRACE_SECONDS, "its workers have ended"
    )


def test_a_place_that_was_left_is_taken_first() -> None:
    team = Team(ps(workers=3))
    team.step(5.0, ResizeRequested(A, 1))
    team.step(6.0, TaskExited(A_1, WELL))
    # Worker 2 has not left yet.
    actions = team.step(7.0, ResizeRequested(A, 3))
    assert [a.task for a in actions if isinstance(a, StartTask)] == ["r/a/worker-1", "r/a/worker-3"]


def test_allreduce_is_stopped_with_a_checkpoint_and_started_again_with_as_many() -> None:
    team, text = Team(allreduce(workers=2)), "resized from 2 to 3 workers"
    assert team.step(5.0, ResizeRequested(A, 3)) == [
        Resize(A, allreduce(workers=3, worker_nodes=("a", "b", "c"))),
        job_marked(A, "stopping", text),
        task_stopped(A_0, CONNECTED_GRACE_SECONDS, text),
        task_stopped(A_1, CONNECTED_GRACE_SECONDS, text),
    ]
    saved = Checkpoint("/c/step-9.pt", 9, 1, 9)
    team.step(6.0, CheckpointDone(A_0, saved))
    team.step(6.0, TaskExited(A_0, WELL))
    actions = team.step(6.0, TaskExited(A_1, WELL))
    assert [(a.task, a.node, a.resume) for a in actions if isinstance(a, StartTask)] == [
        ("r/a/worker-0", "a", saved),
        ("r/a/worker-1", "b", saved),
        ("r/a/worker-2", "c", saved),
    ]
    assert actions[-1] == job_marked(A, "running", "going on from step 9 (attempt 2)")


def test_what_has_as_many_or_does_not_run_is_left_as_it_is() -> None:
    team = Team(ps(workers=2))
    assert team.step(5.0, ResizeRequested(A, 2)) == []
    team.step(6.0, StopRequested(A))
    assert team.step(6.0, ResizeRequested(A, 3)) == []
    assert team.step(6.0, ResizeRequested(JobId("r/unknown"), 3)) == []


def test_workers_beside_each_other_have_gpus_of_their_own() -> None:
    gpus = tuple(Gpu(index, "H200", 2**37) for index in range(4))
    team = Team(ps(workers=2))
    team.step(1.0, NodeJoined(Node("c", cores=64.0, memory_bytes=2**37, gpus=gpus)))
    actions = team.step(5.0, ResizeRequested(A, 4))
    assert [(a.node, a.gpus) for a in actions if isinstance(a, StartTask)] == [
        ("c", (0, 1)),
        ("c", (2, 3)),
    ]


def test_a_job_of_which_nothing_has_begun_is_moved_without_a_checkpoint() -> None:
    team, other = Team(ps(workers=2), connected=False), ps(workers=2, worker_nodes=("c", "c"))
    actions = team.step(4.0, MoveRequested(A, other, plain_words("c has come"), waits=True))
    assert actions[0] == Resize(A, other, restarts=True)


def test_a_job_is_moved_to_another_plan_from_the_checkpoint_that_it_has() -> None:
    team, why = Team(ps(workers=2)), "moved to a better plan"
    saved, other = Checkpoint("/c/step-9.pt", 9, 1, 9), allreduce(workers=1, worker_nodes=("c",))
    assert team.step(4.0, MoveRequested(A, other, plain_words(why))) == []  # it would begin again
    assert (
        team.step(
            4.0,
            MoveRequested(JobId("r/unknown"), other, plain_words(why), waits=True),
        )
        == []
    )
    team.step(5.0, CheckpointDone(A_0, saved))
    assert team.step(5.0, MoveRequested(A, other, plain_words(why))) == [
        Resize(A, other, restarts=True),
        job_marked(A, "stopping", why),
        task_stopped(A_0, CONNECTED_GRACE_SECONDS, why),
        task_stopped(A_1, CONNECTED_GRACE_SECONDS, why),
    ]
    assert team.step(5.5, MoveRequested(A, ps(workers=1), plain_words(why))) == []
    later = Checkpoint("/c/step-11.pt", 11, 1, 11)
    team.step(6.0, CheckpointDone(A_0, later))
    team.step(6.0, TaskExited(A_0, WELL))
    [stop] = team.step(6.0, TaskExited(A_1, WELL))
    assert stop == task_stopped(
        TaskId("r/a/server-0"), CONNECTED_GRACE_SECONDS, "its workers have ended"
    )
    actions = team.step(7.0, TaskExited(TaskId("r/a/server-0"), WELL))
    [start] = [action for action in actions if isinstance(action, StartTask)]
    assert (start.task, start.node, start.plan, start.resume) == ("r/a/worker-0", "c", other, later)
    assert actions[-1] == job_marked(A, "running", "going on from step 11 (attempt 2)")


def test_reports_of_ending_tasks_do_not_count_for_the_plan_that_a_job_moves_to() -> None:
    team, other = Team(allreduce(workers=2)), allreduce(workers=2, worker_nodes=("c", "c"))
    team.step(4.0, Progress(A_0, step=8, loss=1.0))
    team.step(5.0, CheckpointDone(A_0, Checkpoint("/c/step-9.pt", 9, 1, 9)))
    team.step(5.0, MoveRequested(A, other, plain_words("moved to a better plan")))
    team.step(6.0, Progress(A_0, step=11, loss=1.0))
    team.step(6.0, CheckpointDone(A_0, Checkpoint("/c/step-11.pt", 11, 1, 11)))
    for exit in (WELL, Exit(code=3)):
        for name in ("worker-0", "worker-1"):
            actions = team.step(7.0, TaskExited(TaskId(f"r/a/{name}"), exit))
    [asked] = [action for action in actions if isinstance(action, PlanJob)]
    assert asked.spec.plan is not None
    assert asked.spec.plan.strategy == "single"
