"""Events in, exact actions out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
from tests.controller.driver import (
    A_0,
    A_1,
    B_0,
    PLAN,
    A,
    B,
    Driver,
    Recording,
    Team,
    allreduce,
    ended,
    job,
    job_marked,
    ps,
    running,
    share_set,
    start,
    task_stopped,
    user_warned,
)

from headgate.model.actions import Action, MarkIdle, MarkJob, PlanJob, SetShare, StartTask, Warn
from headgate.model.cluster import Gpu, Node
from headgate.model.ending_text import ending_in_words
from headgate.model.endings import Checkpoint, Doubt, Ending, Exit, Saved, StopAnswer
from headgate.model.events import (
    CONNECTED_GRACE_SECONDS,
    GRACE_SECONDS,
    CheckpointDone,
    GpusUsed,
    JobPlanned,
    JobSubmitted,
    NodeJoined,
    ResizeRequested,
    StepPace,
    StopRequested,
    TaskConnected,
    TaskExited,
    TaskStarted,
    Usage,
    Wake,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.limits import Limits
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import UNLIMITED, Share
from headgate.policies import BUILT_IN, EqualPolicy, NoPolicy, Policy, make
from headgate.policies.base import (
    Arrived,
    Change,
    Decision,
    Left,
    Placed,
    Predicted,
    Reported,
    Stalled,
    Used,
)


def test_a_job_is_planned_first_and_then_started() -> None:
    driver, spec = Driver(), job()
    assert driver.step(1.0, JobSubmitted(A, spec)) == [
        job_marked(A, "waiting", "being planned"),
        PlanJob(A, spec, 1),
    ]
    assert driver.step(1.1, JobPlanned(A, 1, PLAN)) == [
        start(spec, Share(), 2, 2.0, "no policy"),
        job_marked(A, "running", "started"),
    ]
    assert driver.step(2.0, TaskExited(A_0, Exit(code=0))) == [job_marked(A, "done", "finished", 0)]
    assert driver.wake_at is None


def test_jobs_handed_in_together_start_with_shares_that_know_of_each_other() -> None:
    driver, first, second = Driver(EqualPolicy()), job("a"), job("b")
    driver.step(0.0, JobSubmitted(A, first))
    driver.step(0.0, JobSubmitted(B, second))
    assert driver.step(0.1, JobPlanned(A, 1, PLAN)) == []
    assert driver.step(0.2, JobPlanned(B, 1, PLAN)) == [
        start(first, Share(cpu_weight=100.0), 1, 1.0, "equal share, priority 1"),
        start(second, Share(cpu_weight=100.0), 1, 1.0, "equal share, priority 1"),
        job_marked(A, "running", "started"),
        job_marked(B, "running", "started"),
    ]


def test_a_stale_plan_is_dropped() -> None:
    driver = Driver()
    driver.step(0.0, JobSubmitted(A, job()))
    assert driver.step(0.1, JobPlanned(A, 7, PLAN)) == []
    assert driver.step(0.1, JobPlanned(JobId("r/unknown"), 1, PLAN)) == []


def test_a_job_waits_for_its_time() -> None:
    driver, spec = Driver(), job(at=5.0)
    assert driver.submit(1.0, spec) == [job_marked(A, "waiting", "starts in 5 s")]
    assert driver.wake_at == 6.0
    assert driver.step(5.9, Wake()) == []
    assert driver.step(6.0, Wake()) == [
        start(spec, Share(), 2, 2.0, "no policy"),
        job_marked(A, "running", "started"),
    ]


def test_a_job_waits_for_the_one_it_comes_after_and_then_for_its_delay() -> None:
    driver, first, second = Driver(), job("a"), job("b", after="a", at=3.0)
    driver.submit(0.0, first)
    assert driver.submit(0.0, second) == [job_marked(B, "waiting", "for a to finish")]
    assert driver.wake_at is None
    assert driver.step(10.0, TaskExited(A_0, Exit(code=0))) == [
        job_marked(A, "done", "finished", 0),
        job_marked(B, "waiting", "starts in 3 s"),
    ]
    assert driver.wake_at == 13.0
    assert driver.step(13.0, Wake())[-1] == job_marked(B, "running", "started")


def test_a_job_that_comes_after_several_waits_for_the_last_and_is_skipped_where_one_fails() -> None:
    for end, told in (
        (Exit(code=0), job_marked(JobId("r/c"), "running", "started")),
        (
            Exit(code=3),
            job_marked(JobId("r/c"), "skipped", "b, which it comes after, ended as failed"),
        ),
    ):
        driver = Driver()
        running(driver, 0.0, job("a"), job("b"), job("c", after=("a", "b")))
        assert told not in driver.step(1.0, TaskExited(A_0, Exit(code=0)))
        assert told in driver.step(2.0, TaskExited(B_0, end))


def test_what_comes_after_a_sweep_does_not_wait_for_jobs_that_its_rule_ends() -> None:
    early = Reason.of(ReasonKind.STOPPED_EARLY, metric="loss", rule="asha")
    for reason, follower in ((early, "running"), (None, "skipped")):
        driver = Driver()
        running(driver, 0.0, job("a"), job("b", after="a"))
        driver.step(1.0, StopRequested(A, reason=reason))
        ended, *_, last = driver.step(2.0, TaskExited(A_0, Exit(code=0)))
        assert isinstance(ended, MarkJob) and ended.state == "stopped"
        assert isinstance(last, MarkJob) and (last.job, last.state) == (B, follower)


def test_what_comes_after_a_failed_job_is_skipped_down_the_chain() -> None:
    driver = Driver()
    running(driver, 0.0, job("a"), job("c", after="b"), job("b", after="a"))
    assert driver.step(1.0, TaskExited(A_0, Exit(code=3))) == [
        job_marked(A, "failed", "exit code 3", 3),
        job_marked(B, "skipped", "a, which it comes after, ended as failed"),
        job_marked(JobId("r/c"), "skipped", "b, which it comes after, ended as skipped"),
    ]


@pytest.mark.parametrize(
    ("end", "reason", "code"),
    [
        (Exit(code=3), "exit code 3", 3),
        (Exit(code=None, signal=11), "killed by SIGSEGV", 139),
        (
            Exit(
                code=None,
                signal=9,
                over_memory=True,
                reason="killed: over its memory limit of 2 GiB",
            ),
            None,
            137,
        ),
        (Exit(code=None, reason="could not be started: no program 'x'"), None, 127),
    ],
)
def test_a_failure_says_what_happened(end: Exit, reason: str | None, code: int) -> None:
    driver = Driver()
    running(driver, 0.0, job())
    assert driver.step(1.0, TaskExited(A_0, end)) == [
        job_marked(A, "failed", reason or end.reason or "", code)
    ]


def test_a_job_that_its_own_limit_of_memory_ended_is_told_to_raise_it() -> None:
    reason = "killed: over its memory limit of 2 GiB"
    over = Exit(code=None, signal=9, over_memory=True, reason=reason, limit_bytes=2 << 30)
    elsewhere = replace(over, reason="killed: this machine ran out of memory", limit_bytes=None)
    for end, told in (
        (over, ". Next: make its batch smaller, or raise its limit of memory"),
        (elsewhere, ""),
    ):
        driver = Driver()
        running(driver, 0.0, job(limits=Limits(memory_bytes=2 << 30)))
        [marked] = driver.step(1.0, TaskExited(A_0, end))
        assert isinstance(marked, MarkJob)
        assert in_words(marked.reason).partition(" (`")[0] == f"{end.reason}{told}"


def test_a_failed_attempt_is_tried_again_from_the_last_checkpoint() -> None:
    driver, spec = Driver(), job(retries=2)
    driver.submit(0.0, spec)
    saved = Checkpoint("/c/step-40.pt", 40, 2, 8)
    driver.step(5.0, CheckpointDone(A_0, saved))
    assert driver.step(6.0, TaskExited(A_0, Exit(code=1))) == [
        job_marked(A, "waiting", "exit code 1; tried again in 1 s (2 retries left)", 1)
    ]
    assert driver.wake_at == 7.0
    assert driver.step(7.0, Wake()) == [
        start(spec, Share(), 2, 2.0, "no policy", attempt=2, resume=saved),
        job_marked(A, "running", "going on from step 40 (attempt 2)"),
    ]
    driver.step(8.0, TaskExited(A_0, Exit(code=1)))
    assert driver.wake_at == 10.0
    driver.step(10.0, Wake())
    assert driver.step(11.0, TaskExited(A_0, Exit(code=1))) == [
        job_marked(A, "failed", "exit code 1", 1)
    ]


def test_what_could_not_be_started_is_not_tried_again() -> None:
    driver = Driver()
    running(driver, 0.0, job(retries=5))
    [mark] = driver.step(0.1, TaskExited(A_0, Exit(code=None, reason="could not be started: no x")))
    assert mark == job_marked(A, "failed", "could not be started: no x", 127)


def test_a_resumed_job_goes_on_from_its_checkpoint() -> None:
    driver, spec, saved = Driver(), job(), Checkpoint("/c/step-40.pt", 40, 2, 8)
    assert driver.submit(0.0, spec, saved) == [
        start(spec, Share(), 2, 2.0, "no policy", resume=saved),
        job_marked(A, "running", "going on from step 40"),
    ]


def test_stopping_gives_a_task_on_the_channel_time_to_save() -> None:
    driver = Driver()
    running(driver, 0.0, job("a"), job("b"))
    driver.step(1.0, TaskConnected(A_0, "torch"))
    assert driver.step(2.0, StopRequested(A)) == [
        job_marked(A, "stopping", "as its user asked"),
        task_stopped(A_0, CONNECTED_GRACE_SECONDS, "stopped by its user"),
    ]
    assert driver.step(2.0, StopRequested(B))[1] == task_stopped(
        B_0, GRACE_SECONDS, "stopped by its user"
    )
    assert driver.step(2.5, StopRequested(A)) == []
    assert driver.step(3.0, StopRequested(A, kill=True)) == [
        job_marked(A, "stopping", "as its user asked"),
        task_stopped(A_0, 0.0, "killed by its user"),
    ]
    assert driver.step(3.1, TaskExited(A_0, Exit(code=None, signal=9))) == [
        ended("a", "killed", "killed by its user", 137, StopAnswer.KILLED)
    ]
    assert driver.step(3.2, TaskExited(B_0, Exit(code=0))) == [
        ended("b", "stopped", "stopped by its user", 0)
    ]
    assert driver.step(4.0, StopRequested(B)) == []


def test_a_waiting_job_is_stopped_at_once_and_a_stopped_one_is_not_tried_again() -> None:
    driver = Driver()
    running(driver, 0.0, job("a", at=60.0), job("b", retries=3))
    assert driver.step(1.0, StopRequested(A)) == [
        job_marked(A, "stopped", "stopped before it started")
    ]
    driver.step(1.0, StopRequested(B))
    assert driver.step(2.0, TaskExited(B_0, Exit(code=None, signal=15))) == [
        ended("b", "stopped", "stopped by its user", 143)
    ]
    assert driver.wake_at is None


def test_a_job_is_stopped_between_two_attempts() -> None:
    driver = Driver()
    driver.submit(0.0, job(retries=3))
    driver.step(1.0, TaskExited(A_0, Exit(code=1)))
    assert driver.step(1.5, StopRequested(A)) == [
        job_marked(A, "stopped", "stopped before it was tried again")
    ]
    assert driver.wake_at is None


def test_a_job_over_its_timeout_is_ended_as_failed() -> None:
    driver = Driver()
    running(driver, 0.0, job(timeout=90.0))
    driver.step(0.0, TaskStarted(A_0, 1))
    assert driver.wake_at == 90.0
    assert driver.step(90.0, Wake()) == [
        job_marked(A, "stopping", "over its timeout of 1 min 30 s"),
        task_stopped(A_0, GRACE_SECONDS, "over its timeout of 1 min 30 s"),
    ]
    assert driver.wake_at is None
    assert driver.step(91.0, TaskExited(A_0, Exit(code=0))) == [
        ended("a", "failed", "over its timeout of 1 min 30 s", 0)
    ]


def test_an_attempt_s_time_begins_with_its_first_task_not_while_it_waits_for_room() -> None:
    team = Team(allreduce(), timeout=90.0, retries=1)
    assert team.step(500.0, Wake()) == [] and team.wake_at is None
    team.step(600.0, TaskStarted(A_1, 1))
    team.step(630.0, TaskStarted(A_0, 2))
    assert team.wake_at == 690.0
    team.step(640.0, Progress(A_0, step=1, loss=1.0))
    for name in ("worker-0", "worker-1"):
        team.step(640.0, TaskExited(TaskId(f"r/a/{name}"), Exit(code=3)))
    assert team.wake_at == 641.0
    team.step(641.0, Wake())
    assert team.wake_at is None
    team.step(700.0, TaskStarted(A_1, 3))
    assert team.wake_at == 790.0


def test_a_goal_is_held_against_the_mean_of_an_epoch_as_it_was_told() -> None:
    driver = Driver()
    running(driver, 0.0, job(progress=ProgressRule("loss", None, 0.5)))
    assert driver.step(1.0, Progress(A_0, step=9, loss=0.3, covers="part", mean=0.4)) == []
    assert driver.step(2.0, Progress(A_0, step=10, loss=0.3, covers="epoch", mean=0.6)) == []
    reason = "reached its goal: loss 0.45, asked for 0.5"
    assert driver.step(3.0, Progress(A_0, step=20, loss=None, covers="epoch", mean=0.45))[
        0
    ] == job_marked(A, "stopping", reason)


def test_a_job_that_reaches_its_goal_is_done() -> None:
    driver = Driver()
    running(driver, 0.0, job(progress=ProgressRule("accuracy", None, 0.97)))
    assert driver.step(1.0, Progress(A_0, step=1, metrics={"accuracy": 0.96})) == []
    assert driver.step(1.5, Progress(A_0, step=2, metrics={"accuracy": 1.0}, covers="part")) == []
    reason = "reached its goal: accuracy 0.98, asked for 0.97"
    assert driver.step(2.0, Progress(A_0, step=2, metrics={"accuracy": 0.98})) == [
        job_marked(A, "stopping", reason),
        task_stopped(A_0, GRACE_SECONDS, reason),
    ]
    assert driver.step(3.0, TaskExited(A_0, Exit(code=0))) == [ended("a", "done", reason, 0)]


OVERDUE = Exit(code=None, signal=9, overdue_seconds=60.0)
SAVED = Checkpoint("/c/step-40.pt", 40, 2, 8)


def test_a_job_that_does_not_answer_is_killed_and_says_what_is_saved() -> None:
    driver = Driver()
    running(driver, 0.0, job("a"), job("b"))
    driver.step(1.0, CheckpointDone(B_0, SAVED))
    driver.step(2.0, StopRequested(A))
    assert driver.step(62.0, TaskExited(A_0, OVERDUE)) == [
        job_marked(
            A,
            "killed",
            "killed: it did not answer within 1 min 0 s; last checkpoint: none",
            137,
            Ending(StopAnswer.NONE, 60.0, Saved.NOTHING),
        )
    ]
    driver.step(63.0, StopRequested(B))
    [mark] = driver.step(123.0, TaskExited(B_0, OVERDUE))
    assert mark == job_marked(
        B,
        "killed",
        (
            "killed: it did not answer within 1 min 0 s; last checkpoint: step 40, saved before "
            "it was asked to end"
        ),
        137,
        Ending(StopAnswer.NONE, 60.0, Saved.BEFORE, SAVED),
    )


def test_what_a_stopped_job_saved_then_is_told_from_what_it_had() -> None:
    driver = Driver()
    running(driver, 0.0, job("a"), job("b", resumes=True))
    driver.step(1.0, StopRequested(A))
    driver.step(1.5, CheckpointDone(A_0, SAVED))
    [mark] = driver.step(2.0, TaskExited(A_0, Exit(code=0)))
    assert isinstance(mark, MarkJob)
    assert mark.ending == Ending(StopAnswer.ENDED, None, Saved.THEN, SAVED)
    assert (
        in_words(mark.reason) == "stopped by its user; last checkpoint: step 40, saved as it ended"
    )
    driver.step(3.0, StopRequested(B))
    [mark] = driver.step(4.0, TaskExited(B_0, Exit(code=0)))
    assert isinstance(mark, MarkJob)
    assert in_words(mark.reason) == "stopped by its user; last checkpoint: its script's own"


def test_a_job_that_reached_its_goal_and_does_not_answer_is_in_doubt() -> None:
    driver = Driver()
    running(driver, 0.0, job("a", progress=ProgressRule("loss", None, 0.5)), job("b", after="a"))
    driver.step(1.0, Progress(A_0, step=1, loss=0.9))
    driver.step(2.0, Progress(A_0, step=2, loss=0.4))
    done, warning, skipped = driver.step(62.0, TaskExited(A_0, OVERDUE))
    assert isinstance(done, MarkJob) and done.state == "done" and done.ending is not None
    assert done.ending.doubt is Doubt.NO_ANSWER
    assert isinstance(warning, Warn) and warning.job == A
    assert isinstance(skipped, MarkJob) and (skipped.job, skipped.state) == (B, "skipped")


@pytest.mark.parametrize(
    ("exit", "doubt"),
    [
        (Exit(code=0, left=("python slow.py",)), Doubt.LEFT_PROCESSES),
        (Exit(code=0, last_failure="ValueError: x"), Doubt.FAILURE_IN_OUTPUT),
    ],
)
def test_a_job_that_follows_one_whose_end_is_in_doubt_is_skipped_and_says_how_to_go_on(
    exit: Exit, doubt: Doubt
) -> None:
    driver = Driver()
    running(driver, 0.0, job("a"), job("b", after="a"))
    done, warning, skipped = driver.step(1.0, TaskExited(A_0, exit))
    assert isinstance(done, MarkJob) and (done.state, done.exit_code) == ("done", 0)
    assert done.ending is not None and done.ending.doubt is doubt
    assert isinstance(warning, Warn) and ending_in_words(asdict(done.ending)) in in_words(
        warning.reason
    )
    assert isinstance(skipped, MarkJob) and skipped.state == "skipped"
    assert "a, which it comes after, ended in doubt" in in_words(skipped.reason)
    assert "headgate resume r" in in_words(skipped.reason)


def test_a_doubt_about_an_attempt_that_is_tried_again_holds_up_nobody() -> None:
    team = Team(allreduce(workers=2), retries=1)
    team.step(1.0, Progress(A_0, step=1, loss=1.0))
    team.step(2.0, TaskExited(A_0, Exit(code=0, last_failure="ValueError: x")))
    team.step(2.5, TaskExited(A_1, Exit(code=3)))
    team.step(5.0, Wake())
    team.step(6.0, TaskExited(A_0, Exit(code=0)))
    [mark] = team.step(6.0, TaskExited(A_1, Exit(code=0)))
    assert isinstance(mark, MarkJob)
    assert (mark.state, mark.ending) == ("done", None)


def test_a_goal_that_the_first_report_meets_is_asked_about_and_ends_nothing() -> None:
    driver = Driver()
    running(driver, 0.0, job(progress=ProgressRule("wer", goal=0.1)))
    (asked,) = driver.step(1.0, Progress(A_0, step=1, metrics={"wer": 0.05}))
    assert isinstance(asked, Warn)
    assert asked.job == "r/a"
    assert "wer is 0.05 in its first report, which meets its goal of 0.1" in in_words(asked.reason)
    assert driver.step(2.0, Progress(A_0, step=2, metrics={"wer": 0.04})) == []
    assert driver.step(3.0, Progress(A_0, step=3, metrics={"wer": 0.2})) == []
    stops = driver.step(4.0, Progress(A_0, step=4, metrics={"wer": 0.09}))
    assert stops[0] == job_marked(A, "stopping", "reached its goal: wer 0.09, asked for 0.1")


def test_under_equal_a_newcomer_takes_threads_from_those_that_run_and_gives_them_back() -> None:
    driver, first, second = Driver(EqualPolicy()), job("a"), job("b")
    assert driver.submit(0.0, first) == [
        start(first, Share(cpu_weight=100.0), 2, 2.0, "equal share, priority 1"),
        job_marked(A, "running", "started"),
    ]
    assert driver.submit(1.0, second) == [
        share_set(A_0, Share(), 1, 1.0, "what others leave"),
        start(second, Share(cpu_weight=100.0), 1, 1.0, "equal share, priority 1"),
        job_marked(B, "running", "started"),
    ]
    assert driver.step(2.0, TaskExited(B_0, Exit(code=0))) == [
        job_marked(B, "done", "finished", 0),
        share_set(A_0, Share(), 2, 2.0, "what others leave"),
    ]


def test_what_an_idle_neighbour_leaves_others_have_threads_for_until_it_is_busy_again() -> None:
    driver = Driver(EqualPolicy())
    driver.submit(0.0, job("a"))
    driver.submit(1.0, job("b"))

    def uses(seconds: range, cores: float) -> list[tuple[float, Action]]:
        return [
            (second, action)
            for second in seconds
            for name, used in (("a", 1.0), ("b", cores))
            for action in driver.step(float(second), Usage(TaskId(f"r/{name}/worker-0"), used, 1e6))
        ]

    assert uses(range(2, 32), 0.9) == []
    more = share_set(A_0, Share(), 2, 1.0, "what others leave")
    assert uses(range(32, 72), 0.01) == [
        (51, MarkIdle(B_0, True)),
        (51, more),
    ]  # 20 s after it was last seen busy
    fewer = share_set(A_0, Share(), 1, 1.0, "what others leave")
    assert uses(range(72, 92), 0.5) == [(72, MarkIdle(B_0, False)), (72, fewer)]
    uses(range(92, 132), 0.01)
    driver.submit(132.0, job("c"))
    assert [driver.task(name).threads for name in "abc"] == [1, 1, 1]  # two want the cores
    driver.step(133.0, TaskExited(B_0, Exit(code=0)))
    assert [driver.task(name).threads for name in "ac"] == [1, 1]


def test_nobody_is_idle_without_weights_nor_where_nothing_was_heard() -> None:
    for policy, seconds in ((NoPolicy(), range(2, 62)), (EqualPolicy(), range(2, 302, 60))):
        driver = Driver(policy)
        driver.submit(0.0, job("a"))
        driver.submit(1.0, job("b"))
        for second in seconds:
            assert driver.step(float(second), Usage(B_0, 0.01, 1e6)) == []


def test_jobs_with_a_limit_of_gpus_see_the_least_used_ones() -> None:
    driver = Driver()
    gpus = tuple(Gpu(index, "H200", 2**37) for index in range(3))
    driver.step(0.0, NodeJoined(Node("here", cores=8.0, memory_bytes=2**30, gpus=gpus)))
    seen = []
    for name, count in (("a", 2), ("b", 1), ("c", 1), ("d", 0), ("e", None)):
        actions = driver.submit(1.0, job(name, limits=Limits(gpus=count)))
        seen += [action.gpus for action in actions if isinstance(action, StartTask)]
    assert seen == [(0, 1), (2,), (0,), (), None]


def test_jobs_that_compute_on_one_gpu_divide_its_time_by_their_weights() -> None:
    driver = Driver(EqualPolicy(), cores=4.0)
    running(driver, 0.0, job("a", priority=3.0), job("b"), job("c"))
    assert driver.step(1.0, GpusUsed(A_0, (0, 1))) == []
    assert driver.step(2.0, GpusUsed(TaskId("r/c/worker-0"), (2,))) == []
    left = "what others leave"
    assert driver.step(3.0, GpusUsed(B_0, (1,))) == [
        share_set(A_0, Share(gpu_fraction=0.75), 2, 2.4, left),
        share_set(B_0, Share(gpu_fraction=0.25), 1, 0.8, left),
    ]
    assert driver.step(4.0, TaskExited(A_0, Exit(code=0))) == [
        job_marked(A, "done", "finished", 0),
        share_set(B_0, Share(gpu_fraction=UNLIMITED), 2, 2.0, left),
        share_set(TaskId("r/c/worker-0"), Share(), 2, 2.0, left),
    ]


@pytest.mark.parametrize("policy", BUILT_IN)
def test_a_pinned_job_has_its_slice_under_every_policy_and_the_others_share_the_rest(
    policy: str,
) -> None:
    driver = Driver(make(policy), cores=6.0)
    pinned = job("pinned", share="1/3")
    assert driver.submit(0.0, pinned) == [
        start(
            pinned,
            Share(cpu_weight=10_000.0, cpu_cap_cores=2.0),
            2,
            2.0,
            "pinned to 1/3 of its nodes",
        ),
        job_marked(JobId("r/pinned"), "running", "started"),
    ]
    for each in (1.0, 2.0):
        driver.step(each, Progress(TaskId("r/pinned/worker-0"), step=1, loss=0.5))
        driver.step(each, Usage(TaskId("r/pinned/worker-0"), 2.0, 1e6))
    running(driver, 3.0, job("a"), job("b"))
    tasks = {name: driver.task(name) for name in ("pinned", "a", "b")}
    assert tasks["pinned"].entitled == 2.0
    if policy != "none":
        assert tasks["a"].entitled + tasks["b"].entitled == pytest.approx(4.0)
    driver.step(4.0, GpusUsed(A_0, (0,)))
    driver.step(5.0, GpusUsed(TaskId("r/pinned/worker-0"), (0,)))
    assert (tasks["pinned"].share.gpu_fraction, tasks["a"].share.gpu_fraction) == pytest.approx(
        (1 / 3, 2 / 3)
    )
    ended = driver.step(6.0, TaskExited(TaskId("r/pinned/worker-0"), Exit(code=0)))
    assert tasks["a"].share.gpu_fraction is UNLIMITED
    assert all(isinstance(each, MarkJob | SetShare) for each in ended)


def test_a_pinned_job_on_a_gpu_is_told_nothing_where_nothing_changes_for_it() -> None:
    driver = Driver(make("equal"), cores=6.0)
    running(driver, 0.0, job("pinned", share="1/3"), job("a"))
    for name in ("pinned", "a"):
        driver.step(1.0, GpusUsed(TaskId(f"r/{name}/worker-0"), (0,)))
    for actions in (driver.submit(2.0, job("b")), driver.step(3.0, TaskExited(B_0, Exit(code=0)))):
        assert [
            each for each in actions if isinstance(each, SetShare) and "pinned" in each.task
        ] == []


def test_slices_that_come_to_more_than_a_node_are_cut_down_in_proportion() -> None:
    driver = Driver(make("equal"), cores=3.0)
    slices = {"large": "2/3", "a": "1/3", "b": "1/3"}
    for name, slice in slices.items():
        driver.submit(0.0, job(name, share=slice))
    assert {name: driver.task(name).entitled for name in slices} == pytest.approx(
        {"large": 1.5, "a": 0.75, "b": 0.75}
    )
    for name in slices:
        driver.step(1.0, GpusUsed(TaskId(f"r/{name}/worker-0"), (0,)))
    assert [driver.task(name).share.gpu_fraction for name in slices] == pytest.approx(
        [0.5, 0.25, 0.25]
    )
    driver.step(2.0, TaskExited(A_0, Exit(code=0)))
    assert [driver.task(name).entitled for name in ("large", "b")] == pytest.approx([2.0, 1.0])


def test_a_pinned_job_is_no_business_of_the_policy_and_its_tasks_divide_its_slice() -> None:
    policy = Recording()
    team = Team(allreduce(4), policy, share="1/2", limits=Limits(cores=1.8))
    [begun] = {
        (each.share, each.entitled_cores) for each in team.begun if isinstance(each, StartTask)
    }
    # Two of its tasks are on each node of one core; the limit would leave each 0.45.
    assert begun == (Share(cpu_weight=5_000.0, cpu_cap_cores=0.25), 0.25)
    team.step(1.0, Usage(A_0, 0.5, 1e6))
    assert policy.calls == []
    running(team, 2.0, job("b"))
    here = Placed(B, {"here": 2.0}, workers=1)
    assert [(cores, changes) for _, cores, changes in policy.calls] == [
        (5.0, (Arrived(B, 1.0, None), here))
    ]


@pytest.mark.parametrize("policy", ["equal", "srpt"])
def test_a_pinned_job_weighs_enough_for_its_slice_beside_many_others(policy: str) -> None:
    driver = Driver(make(policy), cores=4.0)
    others = [job(f"j{i}", priority=5.0) for i in range(30)]
    running(driver, 0.0, *others[:20], job("pinned", share="3/4"), *others[20:])
    weights = {
        spec.name: driver.task(spec.name).share.cpu_weight or 0.0
        for spec in (*others, job("pinned"))
    }
    assert weights["pinned"] / sum(weights.values()) >= 0.75
    driver.step(1.0, TaskExited(TaskId("r/pinned/worker-0"), Exit(code=0)))
    assert driver.task("j0").share.cpu_weight == pytest.approx(10.0 * weights["j0"], rel=0.01)


def test_no_policy_divides_no_gpu() -> None:
    driver = Driver()
    running(driver, 0.0, job("a"), job("b"))
    assert [driver.step(1.0, GpusUsed(TaskId(f"r/{name}/worker-0"), (0,))) for name in "ab"] == [
        [],
        [],
    ]


def test_the_policy_is_told_which_gpus_a_job_computes_on() -> None:
    policy = Recording()
    driver = Driver(policy)
    running(driver, 0.0, job("a"))
    driver.step(1.0, GpusUsed(A_0, (0, 2)))
    assert policy.calls[-1][2] == (
        Placed(A, {"here/gpu0": 2.0, "here/gpu2": 2.0}, on_gpus=True, workers=1),
    )


def test_what_a_job_leaves_of_a_gpu_for_anothers_sake_others_have() -> None:
    driver = Driver(EqualPolicy())
    running(driver, 0.0, *map(job, ("a", "b", "wide", "c")))
    for name, gpus in {"a": (0,), "b": (0,), "wide": (0, 1), "c": (1,)}.items():
        driver.step(1.0, GpusUsed(TaskId(f"r/{name}/worker-0"), gpus))
    fractions = {name: driver.task(name).share.gpu_fraction for name in ("a", "b", "wide", "c")}
    assert fractions == pytest.approx({"a": 1 / 3, "b": 1 / 3, "wide": 1 / 3, "c": 2 / 3})


def test_what_pinned_jobs_leave_of_a_gpu_for_anothers_sake_others_have() -> None:
    driver = Driver(EqualPolicy())
    running(driver, 0.0, job("wide", share="3/4"), job("pinned", share="3/4"), job("c"))
    for name, gpus in {"wide": (0, 1), "pinned": (0,), "c": (1,)}.items():
        driver.step(1.0, GpusUsed(TaskId(f"r/{name}/worker-0"), gpus))
    assert [driver.task(name).share.gpu_fraction for name in ("wide", "pinned", "c")] == [
        0.5,
        0.5,
        0.5,
    ]


@pytest.mark.parametrize(("synchronous", "each"), [(True, 0.5), (False, 0.25)])
def test_workers_that_take_turns_each_by_themselves_have_their_jobs_part_of_a_gpu_together(
    synchronous: bool, each: float
) -> None:
    team = Team(ps(synchronous=synchronous, worker_nodes=("c", "c")), EqualPolicy())
    team.step(1.0, JobSubmitted(B, job("b"), nodes=("c",)))
    team.step(1.0, JobPlanned(B, 1, replace(PLAN, worker_nodes=("c",))))
    tasks = ("r/a/worker-0", "r/a/worker-1", "r/b/worker-0")
    for task in tasks:
        team.step(2.0, GpusUsed(TaskId(task), (0,)))
    known = {
        id: task
        for record in team.controller._jobs.all.values()
        for id, task in record.tasks.items()
    }
    assert [known[TaskId(task)].share.gpu_fraction for task in tasks] == [each, each, 0.5]


def test_without_a_policy_what_becomes_of_a_node_is_followed_too() -> None:
    driver = Driver(NoPolicy())
    running(driver, 0.0, job("a"))
    [change] = driver.step(1.0, NodeJoined(Node("here", cores=8.0, memory_bytes=2**30)))
    assert isinstance(change, SetShare)
    assert (change.entitled_cores, change.threads) == (8.0, 8)


def test_priorities_and_limits_divide_the_cores() -> None:
    driver = Driver(EqualPolicy(), cores=8.0)
    high, low = job("high", priority=3.0), job("low")
    capped = job("capped", limits=Limits(cores=1.0, memory_bytes=2**30))
    running(driver, 0.0, high, low)
    actions = driver.submit(1.0, capped)
    assert [(a.task, a.entitled_cores, a.threads) for a in actions if isinstance(a, SetShare)] == [
        ("r/high/worker-0", 5.25, 5),
        ("r/low/worker-0", 1.75, 2),
    ]
    [started] = [a for a in actions if isinstance(a, StartTask)]
    assert (started.share, started.entitled_cores, started.threads) == (
        Share(cpu_weight=100.0, cpu_cap_cores=1.0, memory_bytes=2**30),
        1.0,
        1,
    )


@pytest.mark.parametrize("predicts", [True, False])
def test_a_policy_that_goes_by_what_is_left_is_told_with_a_job_what_such_jobs_took(
    predicts: bool,
) -> None:
    policy = Recording()
    policy.predicts = predicts
    driver, spec = Driver(policy), job(retries=1)
    driver.step(0.0, JobSubmitted(A, spec, work=(20.0, 15.0, 30.0)))
    driver.step(0.0, JobPlanned(A, 1, PLAN))
    known = (Predicted(A, 20.0, 15.0, 30.0),) if predicts else ()
    here = Placed(A, {"here": 2.0}, workers=1)
    assert policy.calls[-1][2] == (Arrived(A, 1.0, None), *known, here)
    driver.step(5.0, TaskExited(A_0, Exit(code=1)))
    driver.step(6.0, Wake())
    # of another attempt a part may be done
    assert policy.calls[-1][2] == (Arrived(A, 1.0, None), here)


def test_a_policy_that_reads_trackers_is_told_once_that_a_job_has_stalled() -> None:
    policy = Recording()
    policy.tracks = True
    driver = Driver(policy)
    running(driver, 0.0, job("a"))
    for now in range(1, 11):
        driver.step(now, Usage(A_0, 1.0, 1e6))
        driver.step(now, Progress(A_0, step=now, loss=1.0))
    for now in range(11, 40):
        driver.step(now, Usage(A_0, 1.0, 1e6))
    assert driver.wake_at == 40
    for now in range(40, 44):
        driver.step(now, Wake())
    assert [now for now, _, changes in policy.calls if Stalled(A) in changes] == [40]


def test_others_have_threads_for_the_cores_that_a_job_that_keeps_up_leaves() -> None:
    policy = EqualPolicy()
    policy.tracks = True
    driver = Driver(policy, cores=4.0)
    running(driver, 0.0, job("a"), job("b"))
    threads: dict[str, int] = {}
    for now in range(1, 9):
        pace = StepPace(0.0, 0.05, 0.0)
        for action in driver.step(float(now), Usage(A_0, 0.4, 1e6, pace=pace)):
            if isinstance(action, SetShare):
                threads[str(action.task)] = action.threads
    assert threads == {"r/b/worker-0": 3}  # not two


def test_the_pace_of_a_job_is_that_of_all_its_tasks() -> None:
    policy = Recording()
    team = Team(allreduce(2), policy)
    team.step(1.0, Usage(A_0, 0.5, 1e6, pace=StepPace(1.0, 0.2, 0.5)))
    team.step(1.0, Usage(A_1, 0.5, 1e6, pace=StepPace(3.0, 0.4, 0.7)))
    [told] = [change for change in policy.calls[-1][2] if isinstance(change, Used)]
    assert told.pace is not None
    assert asdict(told.pace) == pytest.approx(asdict(StepPace(4.0, 0.3, 0.6)))


def test_the_policy_is_told_what_changed_and_nothing_else() -> None:
    policy = Recording()
    driver = Driver(policy)
    running(driver, 1.0, job("a", priority=2.0, limits=Limits(cores=1.5)))
    driver.step(2.0, Progress(A_0, step=10, epoch=1, epochs=5, loss=0.5, count=4))
    driver.step(3.0, Usage(A_0, 1.25, 1e6, 3e6, 2e5))
    driver.step(4.0, Usage(TaskId("r/gone/worker-0"), 1.0, 1.0))
    driver.step(5.0, TaskExited(A_0, Exit(code=0)))
    assert policy.calls == [
        (1.0, 2.0, (Arrived(A, 2.0, 1.5), Placed(A, {"here": 2.0}, workers=1))),
        (2.0, 2.0, (Reported(A, 0.5, 10, 1, 5, 4),)),
        (3.0, 2.0, (Used(A, 1.25, 1e6, 3e6, 2e5),)),
        (5.0, 2.0, (Left(A),)),
    ]


@pytest.mark.parametrize(
    ("metric", "value", "told"),
    [("accuracy", 0.75, -0.75), ("episode_reward", -3.0, 3.0), ("val_perplexity", 20.0, 20.0)],
)
def test_to_the_policy_less_of_a_metric_is_better_whatever_it_is(
    metric: str, value: float, told: float
) -> None:
    policy = Recording()
    driver = Driver(policy)
    running(driver, 1.0, job(progress=ProgressRule(metric)))
    driver.step(2.0, Progress(A_0, step=1, loss=9.0, metrics={metric: value}))
    assert policy.calls[-1][2] == (Reported(A, told, 1, None, None, 1),)


def test_the_policy_is_told_whether_a_job_that_left_came_to_its_end() -> None:
    policy = Recording()
    driver = Driver(policy)
    running(driver, 1.0, job("a", retries=1), job("b"), job("c", progress=ProgressRule(goal=0.1)))
    driver.step(2.0, StopRequested(B))
    for step, loss in enumerate((2.3, 0.05)):
        driver.step(2.0, Progress(TaskId("r/c/worker-0"), step=step, loss=loss))
    for name, exit in (("a", Exit(code=1)), ("b", Exit(code=0)), ("c", Exit(code=None, signal=15))):
        driver.step(3.0, TaskExited(TaskId(f"r/{name}/worker-0"), exit))
    driver.step(10.0, Wake())
    driver.step(11.0, TaskExited(A_0, Exit(code=0)))
    told = [
        change for *_, changes in policy.calls for change in changes if isinstance(change, Left)
    ]
    assert told == [
        Left(A, done=False),
        Left(B, done=False),
        Left(JobId("r/c")),
        Left(A),
    ]


def test_the_policy_is_told_where_tasks_are_and_what_is_there_for_them() -> None:
    policy = Recording()
    team = Team(ps(), policy)
    assert policy.calls[-1][2][-1] == Placed(A, {"a": 1.0, "b": 1.0, "c": 2.0}, workers=2)
    team.step(1.0, JobSubmitted(JobId("r/pinned"), job("pinned", share="1/2"), nodes=("c",)))
    team.step(1.0, JobPlanned(JobId("r/pinned"), 1, replace(PLAN, worker_nodes=("c",))))
    assert policy.calls[-1][2] == (Placed(A, {"a": 1.0, "b": 1.0, "c": 1.0}, workers=2),)
    team.step(2.0, TaskExited(TaskId("r/pinned/worker-0"), Exit(code=0)))
    assert policy.calls[-1][2] == (Placed(A, {"a": 1.0, "b": 1.0, "c": 2.0}, workers=2),)
    team.step(3.0, ResizeRequested(A, 1))
    team.step(4.0, TaskExited(A_1, Exit(code=0)))
    assert policy.calls[-1][2] == (Placed(A, {"a": 1.0, "c": 2.0}, workers=1),)


def test_a_gpu_s_time_is_divided_at_most_six_times_a_minute_for_all_jobs_together() -> None:
    policy, names = Recording(), "abcd"
    policy.most_changes = math.inf
    driver = Driver(policy)
    running(driver, 0.0, *(job(name) for name in names))
    for name in names:
        driver.step(0.0, GpusUsed(TaskId(f"r/{name}/worker-0"), (0,)))
    changed = dict.fromkeys(names, 0)
    for second in range(1, 61):
        name = names[second % 4]
        policy.answer = Decision(
            {JobId(f"r/{name}"): (Share(cpu_weight=100.0 + second), "as it likes")}
        )
        for action in driver.step(float(second), Usage(TaskId(f"r/{name}/worker-0"), 0.5, 1e6)):
            if isinstance(action, SetShare) and action.share.gpu_fraction is not None:
                changed[action.task[2]] += 1
    assert max(changed.values()) == 6
    assert sum(driver.task(name).share.gpu_fraction for name in names) == pytest.approx(1.0)  # type: ignore[misc]


def test_the_policy_is_woken_when_it_asked_to_be() -> None:
    policy = Recording()
    driver = Driver(policy)
    policy.answer = Decision(wake_at=30.0)
    running(driver, 0.0, job())
    assert driver.wake_at == 30.0
    policy.answer = Decision(
        {A: (Share(cpu_weight=50.0), "it learns no more"), JobId("r/gone"): (Share(), "")}
    )
    assert driver.step(30.0, Wake()) == [
        user_warned("policy 'recording': its share for r/gone is dropped: no such job is there"),
        share_set(A_0, Share(cpu_weight=50.0), 2, 2.0, "it learns no more"),
    ]
    assert policy.calls[-1] == (30.0, 2.0, ())
    assert driver.wake_at is None


def test_a_share_that_stays_may_have_another_reason() -> None:
    policy = Recording()
    driver = Driver(policy)
    policy.answer = Decision({A: (Share(cpu_weight=50.0), "first")})
    running(driver, 0.0, job())
    policy.answer = Decision(reasons={A: "last", JobId("r/gone"): "nobody"})
    assert driver.step(1.0, Usage(A_0, 1.0, 1e6)) == [
        share_set(A_0, Share(), 2, 2.0, "last"),
    ]


def test_a_policy_never_grants_more_than_the_user_allows() -> None:
    policy = Recording()
    driver = Driver(policy, cores=8.0)
    running(driver, 0.0, job(limits=Limits(cores=2.0, memory_bytes=2**20)))
    policy.answer = Decision({A: (Share(cpu_cap_cores=6.0, memory_bytes=2**30), "more")})
    assert driver.step(1.0, Usage(A_0, 1.0, 1.0)) == [
        share_set(A_0, Share(cpu_cap_cores=2.0), 2, 2.0, "more")
    ]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (ZeroDivisionError("oh"), " failed, shares stay as they are: ZeroDivisionError('oh')"),
        (
            None,
            (
                " failed, shares stay as they are: AttributeError(\"'NoneType' object has no "
                "attribute 'shares'\")"
            ),
        ),
        (
            Decision({"r/a": Share()}),  # type: ignore[dict-item]
            ": its share for r/a is dropped: TypeError('cannot unpack non-iterable Share object')",
        ),
    ],
    ids=["raises", "answers nothing", "answers nonsense"],
)
def test_a_broken_policy_is_reported_once_and_ends_no_job(fault: object, told: str) -> None:
    class Broken(Policy):
        name = "broken"

        def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
            if isinstance(fault, Exception):
                raise fault
            return fault  # type: ignore[return-value]

    driver = Driver(Broken())
    assert driver.submit(0.0, job()) == [
        user_warned(f"policy 'broken'{told}"),
        start(job(), Share(), 2, 2.0, "no policy"),
        job_marked(A, "running", "started"),
    ]
    assert driver.step(1.0, Usage(A_0, 1.0, 2.0**20)) == []


def test_what_concerns_unknown_tasks_is_ignored() -> None:
    driver = Driver()
    for event in (
        TaskExited(TaskId("r/x/worker-0"), Exit(code=0)),
        Progress(TaskId("r/x/worker-0"), step=1, loss=1.0),
        TaskConnected(TaskId("r/x/worker-0"), "torch"),
        CheckpointDone(TaskId("r/x/worker-0"), Checkpoint("/c", 1, 1, None)),
        TaskStarted(TaskId("r/x/worker-0"), 1),
        StopRequested(JobId("r/x")),
        Wake(),
    ):
        assert driver.step(1.0, event) == []


def test_a_forgotten_run_leaves_nothing() -> None:
    driver = Driver()
    running(driver, 0.0, job(timeout=5.0))
    driver.step(0.0, TaskStarted(A_0, 1))
    driver.step(1.0, TaskExited(A_0, Exit(code=0)))
    driver.controller.forget("r")
    assert driver.step(9.0, StopRequested(A)) == []
    assert driver.wake_at is None


def test_tasks_that_have_not_told_yet_what_they_use_count_as_the_others() -> None:
    policy = Recording()
    team = Team(allreduce(3), policy)
    told = {"worker-0": 1.0, "worker-1": 2.0, "worker-2": 0.6}
    for name, cores in told.items():
        team.step(5.0, Usage(TaskId(f"r/a/{name}"), cores, 1e9))
    used = [
        change for _, _, changes in policy.calls for change in changes if isinstance(change, Used)
    ]
    assert [each.cpu_cores for each in used] == pytest.approx([3.0, 4.5, 3.6])
    assert [each.memory_bytes for each in used] == [3e9] * 3
