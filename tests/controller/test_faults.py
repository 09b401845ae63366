"""Tasks of a job are lost: which of the others go on, and what is started again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.controller.driver import (
    A_0,
    A_1,
    NODES,
    PLAN,
    A,
    Driver,
    Team,
    allreduce,
    job,
    job_marked,
    ps,
    task_lost,
    task_stopped,
)

from headgate.controller.faults import BACK_SECONDS
from headgate.model.actions import (
    Action,
    Fault,
    MarkJob,
    PlanJob,
    Resize,
    SetShare,
    StartTask,
    StopTask,
)
from headgate.model.cluster import Gpu, Node
from headgate.model.endings import Checkpoint, Exit
from headgate.model.events import (
    CONNECTED_GRACE_SECONDS,
    GRACE_SECONDS,
    CheckpointDone,
    CheckpointLost,
    Event,
    JobPlanned,
    JobSubmitted,
    NodeJoined,
    NodeLeft,
    StopRequested,
    TaskExited,
    TaskJoined,
    TaskLeaves,
    Wake,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.progress import Progress
from headgate.model.reason_text import in_words
from headgate.model.shares import Share
from headgate.policies import EqualPolicy

KILLED = Exit(code=None, signal=9)
NO_NODE = Exit(code=None, reason="node a is gone: its agent died", lost=True)
REMOVED = Exit(code=None, signal=9, reason="its container was removed by somebody else", lost=True)
WELL = Exit(code=0)
FAILED = Exit(code=3)
NEVER_BACK = (
    "worker-0 was lost: its node a is gone; the job cannot go on: none of its nodes "
    "is there: a, b, c"
)
REPORT = Progress(A_0, step=1, loss=1.0)
SAVED = Checkpoint("/c/step-40.pt", 40, 2, 8)
ALONE = Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=("a",))


def exits(team: Team, name: str, exit: Exit, now: float = 10.0) -> list[Action]:
    """What follows the end of a task, other than changed shares."""
    return [
        a
        for a in team.step(now, TaskExited(TaskId(f"r/a/{name}"), exit))
        if not isinstance(a, SetShare)
    ]


def starts(actions: list[Action]) -> list[tuple[str, str, bool]]:
    """Task, node and whether it joins, of what is started."""
    return [
        (a.task.removeprefix("r/a/"), a.node, a.joins) for a in actions if isinstance(a, StartTask)
    ]


def stops(actions: list[Action]) -> list[tuple[str, float]]:
    return [(a.task.removeprefix("r/a/"), a.grace) for a in actions if isinstance(a, StopTask)]


def marks(actions: list[Action]) -> list[tuple[str, str]]:
    return [(a.state, in_words(a.reason)) for a in actions if isinstance(a, MarkJob)]


def test_servers_and_workers_start_together_each_where_the_plan_has_it() -> None:
    team = Team(ps(workers=3, servers=2), EqualPolicy(), limits=Limits(cores=2.5))
    assert starts(team.begun) == [
        ("server-0", "c", False),
        ("server-1", "c", False),
        ("worker-0", "a", False),
        ("worker-1", "b", False),
        ("worker-2", "a", False),
    ]
    # The weight of the job is divided where its tasks are side by side, its limit among all of
    # them.
    assert [(a.share, a.entitled_cores) for a in team.begun if isinstance(a, StartTask)] == [
        (Share(cpu_weight=50.0, cpu_cap_cores=0.5), 0.5),
        (Share(cpu_weight=50.0, cpu_cap_cores=0.5), 0.5),
        (Share(cpu_weight=50.0, cpu_cap_cores=0.5), 0.5),
        (Share(cpu_weight=100.0, cpu_cap_cores=0.5), 0.5),
        (Share(cpu_weight=50.0, cpu_cap_cores=0.5), 0.5),
    ]
    assert marks(team.begun) == [("running", "started")]


def test_a_plan_s_cores_are_caps_and_give_the_threads() -> None:
    team = Team(ps(workers=2, cores_per_worker=0.5, cores_per_server=1.5))
    assert [
        (a.share.cpu_cap_cores, a.threads, a.gpus) for a in team.begun if isinstance(a, StartTask)
    ] == [
        (1.5, 2, ()),
        (0.5, 1, None),
        (0.5, 1, None),
    ]


def test_when_all_workers_have_ended_the_servers_are_stopped_and_the_job_is_done() -> None:
    team = Team(ps(workers=2, servers=1))
    assert exits(team, "worker-1", WELL) == []
    assert exits(team, "worker-0", WELL) == [
        task_stopped(TaskId("r/a/server-0"), CONNECTED_GRACE_SECONDS, "its workers have ended")
    ]
    assert exits(team, "server-0", Exit(code=None, signal=15)) == [
        job_marked(A, "done", "finished", 0)
    ]


def test_the_servers_of_a_stopped_job_are_asked_after_its_workers() -> None:
    team = Team(ps(workers=2, servers=1))
    assert team.step(1.0, StopRequested(A)) == [
        job_marked(A, "stopping", "as its user asked"),
        task_stopped(A_0, CONNECTED_GRACE_SECONDS, "stopped by its user"),
        task_stopped(A_1, CONNECTED_GRACE_SECONDS, "stopped by its user"),
    ]
    assert exits(team, "worker-0", WELL) == []
    assert stops(exits(team, "worker-1", WELL)) == [("server-0", CONNECTED_GRACE_SECONDS)]
    assert marks(exits(team, "server-0", WELL)) == [
        ("stopped", "stopped by its user; last checkpoint: none")
    ]


def test_a_killed_job_s_tasks_are_all_killed_at_once() -> None:
    team = Team(ps(workers=1, servers=1))
    assert stops(team.step(1.0, StopRequested(A, kill=True))) == [
        ("server-0", 0.0),
        ("worker-0", 0.0),
    ]


@pytest.mark.parametrize("plan", [ps(), allreduce()], ids=["ps", "allreduce"])
def test_a_worker_that_fails_by_its_script_fails_the_job_which_is_tried_again(plan: object) -> None:
    team = Team(plan, retries=1)  # type: ignore[arg-type]
    team.step(5.0, REPORT)
    actions = exits(team, "worker-1", FAILED)
    assert marks(actions) == [("stopping", "worker-1: exit code 3")]
    assert stops(actions) == [("worker-0", CONNECTED_GRACE_SECONDS)]
    actions = exits(team, "worker-0", FAILED)
    if stops(actions):
        actions = exits(team, "server-0", WELL)
    assert marks(actions) == [("waiting", "worker-1: exit code 3; tried again in 1 s")]
    assert [name for name, _, joins in starts(team.step(11.0, Wake())) if not joins][-2:] == [
        "worker-0",
        "worker-1",
    ]


def test_a_chosen_plan_that_fails_before_its_first_report_gives_way_to_one_task() -> None:
    team = Team(allreduce(), resume=SAVED)
    team.step(1.0, CheckpointDone(A_0, SAVED))  # it has come no further than where it began
    exits(team, "worker-1", FAILED)
    told = exits(team, "worker-0", WELL)
    assert marks(told) == [
        ("waiting", "worker-1: exit code 3; before its first report, so tried again as one task")
    ]
    [asked] = [a for a in told if isinstance(a, PlanJob)]
    assert (asked.spec.plan, asked.revision) == (replace(ALONE, worker_nodes=()), 2)
    begun = team.step(11.0, JobPlanned(A, 2, replace(ALONE, worker_nodes=("c",))))
    assert starts(begun) == [("worker-0", "c", False)]
    assert marks(begun) == [("running", "going on from step 40 (attempt 2)")]
    assert marks(exits(team, "worker-0", FAILED, 12.0)) == [("failed", "exit code 3")]


@pytest.mark.parametrize(
    "fields", [{"plan": allreduce()}, {"limits": Limits(workers=(2, 4))}], ids=["plan", "few"]
)
def test_one_task_is_not_tried_where_its_user_wants_more(fields: Any) -> None:
    team = Team(allreduce(), **fields)
    exits(team, "worker-1", FAILED)
    assert marks(exits(team, "worker-0", WELL)) == [("failed", "worker-1: exit code 3")]


def test_a_lost_worker_of_ps_leaves_the_others_at_work_and_is_started_again_to_join_them() -> None:
    team = Team(ps(workers=3))
    actions = exits(team, "worker-0", KILLED)
    assert actions[0] == task_lost(
        A,
        A_0,
        (
            "worker-0 was lost: killed by SIGKILL; the others go on, and it is started again "
            "to join them"
        ),
    )
    assert starts(actions) == [("worker-0", "a", True)]
    [again] = [a for a in actions if isinstance(a, StartTask)]
    assert again.resume is None
    assert marks(actions) == []
    assert stops(actions) == []


def test_a_worker_that_is_lost_again_and_again_is_done_without() -> None:
    team = Team(ps(workers=2))
    for _ in range(3):
        assert starts(exits(team, "worker-1", KILLED)) == [("worker-1", "b", True)]
    assert exits(team, "worker-1", KILLED) == [
        task_lost(A, A_1, "worker-1 was lost: killed by SIGKILL; the others go on without it")
    ]
    assert stops(exits(team, "worker-0", WELL)) == [("server-0", CONNECTED_GRACE_SECONDS)]


def test_a_worker_whose_node_is_gone_is_done_without() -> None:
    team = Team(ps(workers=2))
    team.step(5.0, NodeLeft("b"))
    assert exits(team, "worker-1", Exit(code=1)) == [
        task_lost(A, A_1, "worker-1 was lost: its node b is gone; the others go on without it")
    ]


def test_one_that_still_waits_to_join_is_stopped_when_the_others_have_finished() -> None:
    team = Team(ps(workers=2))
    exits(team, "worker-1", KILLED)
    assert exits(team, "worker-0", WELL) == [task_stopped(A_1, 10.0, "the training is over")]
    assert stops(exits(team, "worker-1", Exit(code=None, signal=15))) == [
        ("server-0", CONNECTED_GRACE_SECONDS)
    ]
    assert marks(exits(team, "server-0", WELL)) == [("done", "finished")]


def test_the_last_worker_at_work_takes_the_whole_job_back_to_its_checkpoint() -> None:
    team = Team(ps(workers=2))
    team.step(4.0, CheckpointDone(A_0, SAVED))
    exits(team, "worker-1", KILLED)  # comes back, and waits for what worker-0 had
    what = "worker-0 was lost: killed by SIGKILL"
    assert exits(team, "worker-0", KILLED) == [
        task_lost(A, A_0, f"{what}; all tasks are started again from step 40", restarts=True),
        job_marked(A, "stopping", what),
        task_stopped(TaskId("r/a/server-0"), 0.0, what),
        task_stopped(A_1, 0.0, what),
    ]
    exits(team, "server-0", KILLED)
    actions = exits(team, "worker-1", KILLED)
    assert marks(actions) == [
        ("waiting", f"{what}; started again"),
        ("running", "going on from step 40 (attempt 2)"),
    ]
    assert [name for name, _, _ in starts(actions)] == ["server-0", "worker-0", "worker-1"]
    assert {a.resume for a in actions if isinstance(a, StartTask)} == {SAVED}


def test_one_that_has_joined_is_at_work_like_any_other() -> None:
    team = Team(ps(workers=2))
    exits(team, "worker-1", KILLED)
    team.step(11.0, TaskJoined(A_1))
    assert starts(exits(team, "worker-0", KILLED)) == [("worker-0", "a", True)]


def test_a_worker_of_tensorflow_s_servers_comes_back_and_serves_at_once() -> None:
    team = Team(ps(workers=2), framework="keras")
    actions = exits(team, "worker-1", KILLED)
    assert [a.restarts for a in actions if isinstance(a, Fault)] == [False]
    assert starts(actions) == [("worker-1", "b", False)]
    assert marks(actions) == []
    # The one that coordinates ends the training; those that serve end by themselves then.
    assert exits(team, "worker-0", WELL) == []
    assert stops(exits(team, "worker-1", WELL)) == [("server-0", CONNECTED_GRACE_SECONDS)]
    assert marks(exits(team, "server-0", WELL)) == [("done", "finished")]


@pytest.mark.parametrize("exit", [WELL, KILLED])
def test_in_whatever_order_tasks_of_tensorflow_end_after_who_coordinates_none_is_missed(
    exit: Exit,
) -> None:
    team = Team(ps(workers=2), framework="keras")
    assert exits(team, "worker-0", WELL) == []
    assert not [a for a in exits(team, "server-0", exit) if isinstance(a, Fault) and a.restarts]
    assert marks(exits(team, "worker-1", exit)) == [("done", "finished")]


@pytest.mark.parametrize("name", ["worker-0", "server-0"])
def test_without_who_coordinates_or_a_server_a_job_of_tensorflow_goes_back_to_its_checkpoint(
    name: str,
) -> None:
    team = Team(ps(workers=2), framework="keras")
    team.step(4.0, CheckpointDone(A_0, SAVED))
    actions = exits(team, name, KILLED)
    assert [in_words(a.reason).partition("; ")[2] for a in actions if isinstance(a, Fault)] == [
        "all tasks are started again from step 40"
    ]
    others = {"server-0", "worker-0", "worker-1"} - {name}
    assert dict(stops(actions)) == dict.fromkeys(others, 0.0)
    followed = [action for other in sorted(others) for action in exits(team, other, WELL)]
    assert {task for task, _, _ in starts(followed)} == {"server-0", "worker-0", "worker-1"}


def test_workers_that_lose_touch_with_each_other_go_back_to_the_checkpoint() -> None:
    team = Team(allreduce(workers=2))
    actions = exits(team, "worker-0", Exit(code=75))
    what = "worker-0 could not go on: it lost touch with another task"
    assert actions[0] == task_lost(
        A,
        A_0,
        f"{what}; all tasks are started again from the beginning, because there is no checkpoint",
        restarts=True,
    )
    assert marks(exits(team, "worker-1", KILLED))[-1] == ("running", "started (attempt 2)")


def test_one_that_leaves_for_being_behind_is_started_again_to_join_the_others() -> None:
    team = Team(ps(workers=2, backup_workers=1))
    team.step(5.0, TaskLeaves(A_1))
    actions = exits(team, "worker-1", WELL)
    what = (
        "worker-1 fell too far behind the others; the others go on, and it is started again "
        "to join them"
    )
    assert actions[0] == task_lost(A, A_1, what)
    assert starts(actions) == [("worker-1", "b", True)]
    assert marks(actions) == []
    assert stops(actions) == []
    [again] = [action for action in exits(team, "worker-0", KILLED) if isinstance(action, Fault)]
    assert again.restarts


def test_one_that_leaves_when_no_other_is_at_work_has_all_started_again() -> None:
    team = Team(ps(workers=2, backup_workers=1))
    exits(team, "worker-0", KILLED)
    team.step(11.0, TaskLeaves(A_1))
    [again] = [action for action in exits(team, "worker-1", WELL) if isinstance(action, Fault)]
    assert again.restarts


def test_a_lost_server_is_started_again_at_once() -> None:
    team = Team(ps(workers=2, servers=2))
    actions = exits(team, "server-1", KILLED)
    assert actions[0] == task_lost(
        A, TaskId("r/a/server-1"), "server-1 was lost: killed by SIGKILL; it is started again"
    )
    assert starts(actions) == [("server-1", "c", False)]


def test_a_server_whose_node_is_gone_goes_where_the_fewest_workers_are() -> None:
    team = Team(ps(workers=3, servers=1))
    team.step(5.0, NodeLeft("c"))
    actions = exits(team, "server-0", KILLED)
    assert starts(actions) == [("server-0", "b", False)]
    assert actions[0] == task_lost(
        A, TaskId("r/a/server-0"), "server-0 was lost: its node c is gone; it is started again on b"
    )


def test_a_server_that_ends_by_itself_is_lost_and_one_that_fails_fails_the_job() -> None:
    team = Team(ps())
    assert starts(exits(team, "server-0", WELL)) == [("server-0", "c", False)]
    assert marks(exits(team, "server-0", FAILED)) == [("stopping", "server-0: exit code 3")]


def test_a_server_that_ends_while_a_worker_needs_it_is_started_again() -> None:
    team = Team(ps(workers=2, synchronous=False))
    assert exits(team, "worker-1", WELL) == []
    assert starts(exits(team, "server-0", WELL)) == [("server-0", "c", False)]


def test_what_could_be_started_once_and_not_again_is_lost_with_its_node() -> None:
    team = Team(ps(workers=2))
    exits(team, "worker-1", KILLED)
    not_there = Exit(code=None, reason="could not be started: no such network namespace")
    assert starts(exits(team, "worker-1", not_there)) == [("worker-1", "b", True)]
    other = Team(ps(workers=2))
    assert marks(exits(other, "worker-1", not_there)) == [
        ("stopping", f"worker-1: {not_there.reason}")
    ]


def test_a_lost_worker_of_allreduce_takes_all_back_to_their_checkpoint() -> None:
    team = Team(allreduce(workers=3))
    what = "worker-2 was lost: killed by SIGSEGV"
    assert exits(team, "worker-2", Exit(code=None, signal=11)) == [
        task_lost(
            A,
            TaskId("r/a/worker-2"),
            (
                f"{what}; all tasks are started again from the beginning, because there is no "
                "checkpoint"
            ),
            restarts=True,
        ),
        job_marked(A, "stopping", what),
        task_stopped(A_0, 0.0, what),
        task_stopped(A_1, 0.0, what),
    ]
    # The others may have failed by themselves, for the loss of the one.
    assert exits(team, "worker-1", FAILED) == []
    assert marks(exits(team, "worker-0", KILLED))[-1] == ("running", "started (attempt 2)")


def test_a_job_without_a_checkpoint_in_between_is_taken_back_three_times() -> None:
    team = Team(allreduce(workers=2), retries=5)
    for attempt in (2, 3, 4):
        exits(team, "worker-0", KILLED)
        assert marks(exits(team, "worker-1", KILLED))[-1] == (
            "running",
            f"started (attempt {attempt})",
        )
    why = (
        "worker-0 was lost: killed by SIGKILL; the job cannot go on: 4 times since its last "
        "checkpoint"
    )
    assert marks(exits(team, "worker-0", KILLED)) == [("stopping", why)]
    assert marks(exits(team, "worker-1", KILLED)) == [("failed", why)]


@pytest.mark.parametrize(
    ("limits", "launch", "cure"),
    [
        (
            Limits(),
            None,
            "leave out a, which has 1 GiB of memory (`--nodes c`), or make its batch smaller",
        ),
        (Limits(memory_bytes=2**28), None, "make its batch smaller, or raise its limit of memory"),
        (
            Limits(),
            "torchrun",
            "leave out a, which has 1 GiB of memory (`--nodes c`), or make its batch smaller, or ",
        ),
    ],
)
def test_a_job_whose_task_ran_out_of_its_node_s_memory_is_told_to_leave_the_node_out(
    limits: Limits, launch: str | None, cure: str
) -> None:
    plan = allreduce(workers=2)
    stated = replace(plan, worker_nodes=())
    team = Team(plan, connected=launch is None, limits=limits, launch=launch, plan=stated)
    team.step(1.0, NodeJoined(replace(NODES[2], memory_bytes=2**31)))
    over = Exit(code=None, signal=9, over_memory=True, reason="killed: node a ran out of memory")
    for _ in range(1 if launch else 4):
        exits(team, "worker-0", over)
        last = exits(team, "worker-1", KILLED)
    [(state, why)] = marks(last)[-1:]
    assert (state, why.partition(". Next: ")[2][: len(cure)]) == ("failed", cure)


def test_a_checkpoint_gives_the_job_its_three_times_anew() -> None:
    team = Team(allreduce(workers=2))
    for _ in range(6):
        team.step(5.0, CheckpointDone(A_0, SAVED))
        exits(team, "worker-0", KILLED)
        assert marks(exits(team, "worker-1", KILLED))[-1][0] == "running"


def test_a_job_that_is_taken_back_leaves_out_a_node_that_is_gone() -> None:
    team = Team(allreduce(workers=2))
    team.step(5.0, NodeLeft("b"))
    exits(team, "worker-1", KILLED)
    actions = exits(team, "worker-0", KILLED)
    assert starts(actions) == [("worker-0", "c", False), ("worker-1", "a", False)]
    assert [a.plan.worker_nodes for a in actions if isinstance(a, Resize)] == [("c", "a")]


def test_a_job_fails_when_none_of_its_nodes_is_left() -> None:
    team = Team(allreduce(workers=1))
    for node in "abc":
        team.step(5.0, NodeLeft(node, for_good=True))
    what = "worker-0 was lost: its node a is gone; the job cannot go on: none of its nodes is left"
    assert marks(exits(team, "worker-0", KILLED)) == [("failed", what)]


@pytest.mark.parametrize(
    "plan", [ALONE, allreduce(), ps(worker_nodes=("a", "b"))], ids=["single", "allreduce", "ps"]
)
def test_a_job_of_which_no_node_is_left_waits_for_the_first_that_comes_back(plan: Plan) -> None:
    team = Team(plan)
    for node in "abc":
        team.step(5.0, NodeLeft(node))
    for task in [action.task for action in team.begun if isinstance(action, StartTask)]:
        told = exits(team, task.removeprefix("r/a/"), NO_NODE, 6.0)
    assert marks(told)[-1] == ("waiting", "for node a or b or c to come back")
    assert starts(told) == []
    assert team.wake_at == 5.0 + BACK_SECONDS
    assert marks(team.step(7.0, Wake())) == []
    back = team.step(8.0, NodeJoined(NODES[1], ("r",)))
    assert {node for _, node, _ in starts(back)} == {"b"}
    assert marks(back) == [("running", "started (attempt 2)")]


def test_a_node_that_does_not_come_back_is_waited_for_for_a_while() -> None:
    team = Team(ALONE)
    for when, node in enumerate("abc"):
        team.step(float(when), NodeLeft(node))
    exits(team, "worker-0", NO_NODE, 6.0)
    assert marks(team.step(1.0 + BACK_SECONDS, Wake())) == []
    assert marks(team.step(2.0 + BACK_SECONDS, Wake())) == [("failed", NEVER_BACK)]


def test_a_node_of_which_is_told_that_it_cannot_come_back_is_waited_for_no_longer() -> None:
    team = Team(ALONE)
    for node in "abc":
        team.step(5.0, NodeLeft(node))
    exits(team, "worker-0", NO_NODE, 6.0)
    for node in "ab":
        assert [state for state, _ in marks(team.step(7.0, NodeLeft(node, for_good=True)))] == [
            "waiting"
        ]
    assert marks(team.step(7.0, NodeLeft("c", for_good=True))) == [("failed", NEVER_BACK)]


def test_a_node_that_is_gone_for_the_jobs_of_one_run_is_there_for_those_of_others() -> None:
    team = Driver()
    for run, nodes in (("far", ("here", "other")), ("near", ("here",))):
        team.step(0.0, JobSubmitted(JobId(f"{run}/a"), job(), nodes=nodes))
        team.step(0.0, JobPlanned(JobId(f"{run}/a"), 1, PLAN))
    team.step(0.0, NodeJoined(Node("other", cores=1.0, memory_bytes=2**30)))
    team.step(5.0, NodeLeft("here", ("far",)))
    lost = team.step(5.0, TaskExited(TaskId("far/a/worker-0"), NO_NODE))
    assert [(a.task, a.node) for a in lost if isinstance(a, StartTask)] == [
        ("far/a/worker-0", "other")
    ]
    team.step(6.0, NodeLeft("other"))
    lost = team.step(6.0, TaskExited(TaskId("far/a/worker-0"), NO_NODE))
    assert marks(lost)[-1] == ("waiting", "for node here or other to come back")
    lost = team.step(7.0, TaskExited(TaskId("near/a/worker-0"), NO_NODE))
    assert [(a.task, a.node) for a in lost if isinstance(a, StartTask)] == [
        ("near/a/worker-0", "here")
    ]
    back = team.step(8.0, NodeJoined(Node("here", cores=2.0, memory_bytes=2**30), ("far",)))
    assert [(a.task, a.node) for a in back if isinstance(a, StartTask)] == [
        ("far/a/worker-0", "here")
    ]


@pytest.mark.parametrize(
    ("left", "exit", "how", "where"),
    [
        ("a", NO_NODE, "its node a is gone", "c"),
        ("a", KILLED, "its node a is gone", "c"),
        ("b", NO_NODE, "node a is gone: its agent died", "a"),
        ("b", REMOVED, "its container was removed by somebody else", "a"),
    ],
    ids=["told by its engine", "killed with its node", "back before its end was told", "container"],
)
def test_a_job_of_one_task_that_went_with_what_it_ran_in_goes_on_from_its_checkpoint(
    left: str, exit: Exit, how: str, where: str
) -> None:
    team = Team(ALONE)
    team.step(4.0, CheckpointDone(A_0, SAVED))
    team.step(5.0, NodeLeft(left))
    what = f"worker-0 was lost: {how}"
    actions = exits(team, "worker-0", exit)
    assert actions[0] == task_lost(
        A, A_0, f"{what}; it is started again from step 40", restarts=True
    )
    assert marks(actions) == [
        ("waiting", f"{what}; started again"),
        ("running", "going on from step 40 (attempt 2)"),
    ]
    assert starts(actions) == [("worker-0", where, False)]


def test_a_job_of_one_task_that_is_lost_again_and_again_is_started_three_times_more() -> None:
    team = Team(ALONE, retries=5)
    for attempt in (2, 3, 4):
        assert marks(exits(team, "worker-0", REMOVED))[-1] == (
            "running",
            f"started (attempt {attempt})",
        )
    why = (
        f"worker-0 was lost: {REMOVED.reason}; the job cannot go on: 4 times since its last "
        "checkpoint"
    )
    assert marks(exits(team, "worker-0", REMOVED)) == [("failed", why)]


def test_a_stop_while_the_tasks_are_ended_to_be_started_again_ends_the_job() -> None:
    team = Team(allreduce(workers=2))
    exits(team, "worker-0", KILLED)
    team.step(10.5, StopRequested(A))
    assert marks(exits(team, "worker-1", KILLED)) == [
        ("stopped", "stopped by its user; last checkpoint: none")
    ]


def test_what_a_lost_task_leaves_goes_to_the_others_of_its_job_and_node() -> None:
    team = Team(ps(workers=3), EqualPolicy(), limits=Limits(cores=2.0))
    team.step(5.0, NodeLeft("b"))
    changed = [a for a in team.step(6.0, TaskExited(A_1, KILLED)) if isinstance(a, SetShare)]
    assert {a.task: a.share.cpu_cap_cores for a in changed} == {
        "r/a/server-0": 2 / 3,
        "r/a/worker-0": 2 / 3,
        "r/a/worker-2": 2 / 3,
    }


@pytest.mark.parametrize(
    ("met", "reason"),
    [
        (("r/a/server-0", "r/a/worker-1"), "finished"),
        (
            ("r/a/server-0",),
            (
                "finished, 2 times over: its workers shared nothing, because none uses "
                "headgate.torch, .keras or .jax"
            ),
        ),
    ],
)
def test_workers_of_whom_none_ever_connected_each_did_the_whole_job(
    met: tuple[str, ...], reason: str
) -> None:
    team = Team(ps(workers=2), connected=False)
    team.connect(*met)
    exits(team, "worker-0", WELL)
    exits(team, "worker-1", WELL)
    assert marks(exits(team, "server-0", WELL)) == [("done", reason)]


@pytest.mark.parametrize(
    "event", [REPORT, CheckpointDone(A_0, SAVED)], ids=["report", "checkpoint"]
)
def test_a_chosen_plan_that_has_worked_is_not_given_up_for_a_start_that_fails(event: Event) -> None:
    team = Team(allreduce(), retries=1)
    team.step(1.0, event)
    exits(team, "worker-1", KILLED)
    exits(team, "worker-0", WELL)  # all are started again
    exits(team, "worker-1", FAILED)
    assert marks(exits(team, "worker-0", WELL)) == [
        ("waiting", "worker-1: exit code 3; tried again in 1 s")
    ]


def test_a_chosen_plan_that_comes_to_its_end_without_a_report_is_not_given_up() -> None:
    team = Team(allreduce(), retries=1)
    exits(team, "worker-0", WELL)
    assert marks(exits(team, "worker-1", FAILED)) == [
        ("waiting", "worker-1: exit code 3; tried again in 1 s")
    ]


# --- the checkpoint that it was to go on from is not whole


@pytest.mark.parametrize("plan", [ALONE, allreduce(), ps()], ids=["single", "allreduce", "ps"])
def test_it_is_started_again_from_the_checkpoint_before(plan: Plan) -> None:
    team = Team(plan, resume=SAVED)
    tasks = [action.task for action in team.begun if isinstance(action, StartTask)]
    before = replace(SAVED, path="/c/step-20.pt", step=20)
    cut = "checkpoint step-40.pt is cut short"
    actions = team.step(10.0, CheckpointLost(tasks[-1], cut, before))
    assert [
        (in_words(action.reason), action.restarts)
        for action in actions
        if isinstance(action, Fault)
    ] == [
        (
            f"{cut}; {'all tasks are' if len(tasks) > 1 else 'it is'} started again from step 20",
            True,
        )
    ]
    assert [action.task for action in actions if isinstance(action, StopTask)] == tasks
    assert team.step(10.1, CheckpointLost(tasks[0], cut, before)) == []  # each worker reads it
    begun: list[Action] = []
    for task in tasks:
        begun += team.step(11.0, TaskExited(task, FAILED))
    assert [action.resume for action in begun if isinstance(action, StartTask)] == [before] * len(
        tasks
    )
    assert "going on from step 20 (attempt 2)" in [
        in_words(action.reason) for action in begun if isinstance(action, MarkJob)
    ]


def test_without_one_before_the_job_fails_and_does_not_start_over() -> None:
    team = Team(ALONE, resume=SAVED, retries=3)
    cut = "checkpoint step-40.pt is cut short"
    actions = team.step(10.0, CheckpointLost(A_0, cut, None))
    assert [type(action) for action in actions] == [MarkJob, StopTask]
    [mark] = [a for a in team.step(11.0, TaskExited(A_0, FAILED)) if isinstance(a, MarkJob)]
    assert (mark.state, in_words(mark.reason)) == (
        "failed",
        f"{cut}, and its run has none before it to go on from",
    )
    assert team.wake_at is None


# --- workers that find each other by another launcher's contract


def launched(**more: Any) -> Team:
    return Team(
        allreduce(2), EqualPolicy(), connected=False, launch="torchrun", plan=allreduce(2), **more
    )


def test_workers_of_another_launcher_end_with_one_that_is_killed_and_retries_apply() -> None:
    team = launched(retries=1, resumes=True)
    # it cannot save by itself
    assert stops(exits(team, "worker-1", KILLED)) == [("worker-0", GRACE_SECONDS)]
    assert marks(exits(team, "worker-0", KILLED))[-1] == (
        "waiting",
        "worker-1: killed by SIGKILL; tried again in 1 s",
    )
    assert [name for name, *_ in starts(team.step(20.0, Wake()))] == ["worker-0", "worker-1"]
    exits(team, "worker-0", KILLED, 30.0)
    assert marks(exits(team, "worker-1", KILLED, 30.0))[-1] == (
        "failed",
        "worker-0: killed by SIGKILL",
    )


def test_another_launcher_s_workers_restart_three_times_where_their_port_was_taken() -> None:
    team = launched()
    taken = Exit(code=1, reason="EADDRINUSE", port_taken=True)
    for again in range(4):
        actions = exits(team, "worker-0", taken, 10.0 + again)
        assert [action.restarts for action in actions if isinstance(action, Fault)] == [again < 3]
        begun = exits(team, "worker-1", KILLED, 10.0 + again)
        assert [name for name, *_ in starts(begun)] == (
            ["worker-0", "worker-1"] if again < 3 else []
        )
    assert marks(begun)[-1][0] == "failed"


def test_a_script_that_saves_by_itself_gets_the_time_to_do_so() -> None:
    for resumes, grace in ((True, CONNECTED_GRACE_SECONDS), (False, GRACE_SECONDS)):
        team = launched(resumes=resumes)
        assert stops(team.step(10.0, StopRequested(A))) == [
            ("worker-0", grace),
            ("worker-1", grace),
        ]


def test_ends_of_workers_one_by_one_are_no_fault_of_another_launcher_s() -> None:
    team = launched()
    exits(team, "worker-1", WELL)
    assert marks(exits(team, "worker-0", WELL))[-1] == ("done", "finished")


def test_another_launcher_s_workers_have_adjacent_ranks_and_see_their_node_s_gpus() -> None:
    driver = Driver()
    gpus = tuple(Gpu(index, "H200", 2**37) for index in range(4))
    for name in ("a", "b"):
        driver.step(0.0, NodeJoined(Node(name, cores=4.0, memory_bytes=2**30, gpus=gpus)))
    spec = job("a", launch="torchrun", limits=Limits(gpus=1))
    driver.step(0.0, JobSubmitted(A, spec, nodes=("a", "b")))
    actions = driver.step(
        0.0, JobPlanned(A, 1, Plan(strategy="allreduce", workers=4, batch_per_worker=None))
    )
    begun = [(action.node, action.gpus) for action in actions if isinstance(action, StartTask)]
    assert begun == [("a", (0, 1)), ("a", (0, 1)), ("b", (0, 1)), ("b", (0, 1))]


def test_tensorflow_s_own_parameter_servers_end_with_their_chief_and_outlive_a_worker() -> None:
    team = Team(
        ps(workers=3),
        EqualPolicy(),
        connected=False,
        launch="tensorflow",
        allow=frozenset({"async"}),
    )
    assert starts(exits(team, "worker-1", KILLED)) == [("worker-1", "a", False)]
    assert stops(exits(team, "worker-0", WELL)) == [
        ("worker-1", GRACE_SECONDS),
        ("worker-2", GRACE_SECONDS),
    ]
    exits(team, "worker-2", KILLED)
    assert stops(exits(team, "worker-1", KILLED)) == [("server-0", GRACE_SECONDS)]
    assert marks(exits(team, "server-0", KILLED))[-1] == ("done", "finished")


def evaluated() -> Team:
    fields: dict[str, Any] = {
        "launch": "tensorflow",
        "evaluator": True,
        "grace": 30.0,
        "plan": allreduce(2),
    }
    return Team(allreduce(2), EqualPolicy(), connected=False, **fields)


def test_an_evaluator_may_look_at_what_the_workers_saved_last_until_it_ends() -> None:
    team = evaluated()
    assert [name for name, *_ in starts(team.begun)] == ["worker-0", "worker-1", "evaluator-0"]
    assert exits(team, "worker-0", WELL) == []
    assert exits(team, "worker-1", WELL) == [
        job_marked(A, "running", "its evaluator has 30 s to end")
    ]
    assert exits(team, "evaluator-0", WELL, 35.0) == [job_marked(A, "done", "finished", 0)]


@pytest.mark.parametrize("exit", [FAILED, KILLED])
def test_a_job_that_trained_to_its_end_is_done_whatever_becomes_of_its_evaluator(
    exit: Exit,
) -> None:
    team = evaluated()
    exits(team, "worker-0", WELL)
    exits(team, "worker-1", WELL)
    fault, done = exits(team, "evaluator-0", exit, 20.0)
    assert isinstance(fault, Fault) and in_words(fault.reason).endswith("; the training was over")
    assert done == job_marked(A, "done", "finished", 0)


def test_an_evaluator_that_does_not_end_is_ended_after_the_job_s_grace() -> None:
    team = evaluated()
    exits(team, "worker-0", WELL)
    exits(team, "worker-1", WELL)
    assert stops(team.step(39.0, Wake())) == []
    assert stops(team.step(40.0, Wake())) == [("evaluator-0", GRACE_SECONDS)]
    assert exits(team, "evaluator-0", KILLED, 41.0) == [job_marked(A, "done", "finished", 0)]


def test_an_evaluator_ends_at_once_with_workers_that_fail() -> None:
    team = evaluated()
    assert stops(exits(team, "worker-0", FAILED)) == [("worker-1", GRACE_SECONDS)]
    assert stops(exits(team, "worker-1", KILLED)) == [("evaluator-0", GRACE_SECONDS)]
    assert marks(exits(team, "evaluator-0", KILLED))[-1] == ("failed", "worker-0: exit code 3")


@pytest.mark.parametrize(
    ("env", "divides", "on_gpu", "told"),
    [
        ({}, True, False, True),
        ({"MALLOC_MMAP_THRESHOLD_": "1048576"}, True, False, False),
        ({}, False, False, False),
        ({}, True, True, False),
    ],
)
def test_workers_that_divide_a_model_are_told_how_freed_tensors_are_given_back_if_that_is_not_set(
    env: dict[str, str], divides: bool, on_gpu: bool, told: bool
) -> None:
    driver = Driver()
    spec = job(launch="torchrun", env=env, limits=Limits(memory_bytes=1 << 30, workers=(1, 1)))
    driver.step(0.0, JobSubmitted(A, spec, divides=divides))
    driver.step(0.0, JobPlanned(A, 1, PLAN))
    over = Exit(code=1, over_memory=True, on_gpu=on_gpu, reason="std::bad_alloc")
    ended = driver.step(1.0, TaskExited(A_0, over))
    [why] = [
        in_words(action.reason)
        for action in ended
        if isinstance(action, MarkJob) and action.state == "failed"
    ]
    assert "make its batch smaller" in why
    assert ('`env: {MALLOC_MMAP_THRESHOLD_: "1048576"}`' in why) == told, why
