"""Policies that go by what is left of a job are told it while jobs run."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.hub.tracked import Tracked
from tests.hub.user import User

from headgate.forecast.remaining import Question
from headgate.hub.parts.forecasting import Forecasting
from headgate.hub.state.attempt import Attempt
from headgate.hub.state.job import LiveJob
from headgate.hub.state.runs import LiveRuns
from headgate.model.endings import Checkpoint, Exit
from headgate.model.events import Event, Predicted, TaskExited, TaskStarted, Usage
from headgate.model.identifiers import FIRST_WORKER, JobId, TaskId, TaskName
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.model.records import text_of
from headgate.output.patterns import ProgressReader
from headgate.profiling import lengths, store
from headgate.recorded.reader import RunReader
from headgate.testing import wait

EPOCHS = """
    import sys, time
    epochs = int(sys.argv[1])
    for epoch in range(1, epochs + 1):
        for step in range(10):
            until = time.process_time() + 0.005
            while time.process_time() < until:
                pass
            number = 10 * (epoch - 1) + step + 1
            print(f"epoch {epoch}/{epochs} step {number} loss {1 + 5 / number:.5f}", flush=True)
"""

ARGUMENTS = EPOCHS.replace("sys.argv[1]", "sys.argv[2]").replace("{epoch}/{epochs}", "{epoch}")
"""It says how many epochs there are in its arguments alone."""


@pytest.mark.slow
def test_who_is_predicted_to_have_less_left_goes_first(user: User) -> None:
    policy = "srpt:floor=0.06"
    user.write("train.py", ARGUMENTS)
    user.write("short.yaml", "jobs: [{name: short, script: train.py, args: [--epochs, 3000]}]")
    user.write("long.yaml", "jobs: [{name: long, script: train.py, args: [--epochs, 100000]}]")
    first = str(user.json("run", "--detach", "short.yaml", "--policy", policy)["run"])
    wait.until(lambda: told(user, first) > 5.0, 60, "enough is told to go by")
    second = str(user.json("run", "--detach", "long.yaml")["run"])
    wait.until(
        lambda: weight(user, first) > 2 * weight(user, second), 60, "who has less left goes first"
    )
    wait.until(
        lambda: predicted(user, first) and predicted(user, second),
        60,
        "what is left of each is told",
    )
    stands = user.sees_job(
        "short", lambda job: "core-seconds left" in job["decision"]["reason"], first, "is told why"
    )
    assert stands["reason"] == "started"
    last = user.types("status", first).stdout.splitlines()[-1].rstrip()
    assert last.startswith("short ") and last.endswith(
        tuple(row["reason"] for row in shares(user, first))
    )
    assert f"policy {policy}, 2 runs going on" in user.types("doctor").stdout
    assert user.types("run", "long.yaml", "--policy", "srpt:floor=0.1", code=2).message.startswith(
        "jobs run under"
    )
    for run, job in ((first, "short"), (second, "long")):
        user.types("stop", "--kill", f"{run}/{job}")
        user.sees_state(job, "killed", run=run)


@pytest.mark.long
def test_a_job_is_expected_to_take_as_long_as_before_or_as_its_script_s_other_jobs(
    user: User,
) -> None:
    user.write("train.py", EPOCHS)
    user.write("jobs.yaml", "jobs: [{name: again, script: train.py, args: ['60']}]")
    user.write("other.yaml", "jobs: [{name: other, script: train.py, args: ['50']}]")
    reasons = []
    for file, job in (("jobs.yaml", "again"), ("jobs.yaml", "again"), ("other.yaml", "other")):
        run = str(user.json("run", "--detach", file, "--policy", "srpt")["run"])
        user.sees_state(job, "done", run=run)
        reasons.append([row["reason"] for row in shares(user, run)])
    assert reasons[0][0] == "shortest: nothing predicted yet, 0 core-seconds used"
    assert all(" core-seconds left (" in told[0] for told in reasons[1:])


@pytest.mark.parametrize(("workers", "cores"), [(1, None), (2, 2.0), (3, 3.0)])
def test_of_several_workers_each_is_told_to_put_a_core_to_good_use(
    workers: int, cores: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveJob(Job(name="a", run="train.py"), 0, 0.0)
    plan = Plan(
        strategy="allreduce" if workers > 1 else "single", workers=workers, batch_per_worker=None
    )
    live.current = Attempt(JobId("r/a"), 1, plan, False, lambda task, message: None)
    for i in range(workers):
        live.current.start(
            TaskName(f"worker-{i}"), "here", "127.0.0.1", ProgressReader(ProgressRule()), False
        )
    live_runs = cast("LiveRuns", SimpleNamespace(find=lambda id: (None, live)))
    now = 0.0
    monkeypatch.setattr(
        "headgate.hub.parts.forecasting.time", SimpleNamespace(monotonic=lambda: now)
    )

    async def hear() -> Predicted:
        nonlocal now
        fitted: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        tracked = Tracked(now)
        forecasting = Forecasting(
            live_runs,
            tracked,
            tmp_path,
            tmp_path,
            fitted.set_result,
            asks=lambda job: True,
            predicts=lambda: True,
        )

        def hear_both(event: Event) -> None:
            tracked.hear(now, event)
            forecasting.hear(event, ())

        for second in range(4):
            now = float(second)
            for i in range(workers):
                hear_both(Usage(TaskId(f"r/a/worker-{i}"), 1.0, 1e9))
            report = Progress(
                TaskId("r/a/worker-0"),
                100 * (second + 1),
                1 + second,
                loss=1 / (second + 1),
                epochs=9,
            )
            hear_both(report)
        return cast("Predicted", await asyncio.wait_for(fitted, 60))

    assert asyncio.run(hear()).cores == cores


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_what_threads_brought_one_run_is_known_in_the_next_from_its_first_prediction(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two threads it made as many steps as on one. Where threads are fixed, no trial would tell
    more.
    """
    now, told = 0.0, list[Predicted]()
    monkeypatch.setattr(
        "headgate.hub.parts.forecasting.time", SimpleNamespace(monotonic=lambda: now)
    )
    store.save(tmp_path, "job", Profile(framework, "1", "run"))

    async def trains(threads: Callable[[int], int]) -> None:
        nonlocal now
        live = LiveJob(
            Job(name="a", run="train.py"), 0, 0.0, script_key="script", profile_key="job"
        )
        live.profile = (
            text_of(known) if (known := store.load(tmp_path, "job")) is not None else None
        )
        plan = Plan(strategy="single", workers=1, batch_per_worker=None)
        live.current = Attempt(JobId("r/a"), 1, plan, False, lambda task, message: None)
        live.current.start(FIRST_WORKER, "here", "127.0.0.1", ProgressReader(ProgressRule()), False)
        live.current.connect(FIRST_WORKER, framework)
        live_runs = cast("LiveRuns", SimpleNamespace(find=lambda id: (None, live)))
        tracked = Tracked(now)
        forecasting = Forecasting(
            live_runs,
            tracked,
            tmp_path,
            tmp_path,
            lambda event: told.append(cast("Predicted", event)),
            lambda _: True,
            lambda: True,
        )
        task = live.current.tasks[FIRST_WORKER]
        for second in range(1, 21):
            now += 1.0
            task.threads, task.entitled_cores = threads(second), float(threads(second))
            worker, cores = TaskId("r/a/worker-0"), float(threads(second))
            report = Progress(worker, 100 * second, second, loss=1 / second, epochs=40)
            for event in (Usage(worker, cores, 1e9), report):
                tracked.hear(now, event)
                forecasting.hear(event, ())
            await asyncio.gather(*forecasting._doing)
        live.current.remove(FIRST_WORKER, True)
        forecasting.hear(TaskExited(TaskId("r/a/worker-0"), Exit(code=0)), ())
        await asyncio.gather(*forecasting._doing)

    asyncio.run(trains(lambda second: 1))
    assert {each.cores for each in told} == {None}
    asyncio.run(trains(lambda second: 1 if second <= 10 else 2))
    told.clear()
    asyncio.run(trains(lambda second: 1))
    assert {(each.cores, each.follows) for each in told} == {(1.0, framework == "torch")}


def test_a_hub_predicts_for_one_job_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prediction takes the interpreter from the hub."""
    others, met = threading.Barrier(2), list[JobId]()

    def predicts(job: JobId, question: Question) -> None:
        with suppress(threading.BrokenBarrierError):
            others.wait(0.1)
            met.append(job)

    monkeypatch.setattr("headgate.hub.parts.forecasting.answer", predicts)
    tell = list[Event]().append
    live = LiveJob(Job(name="a", run="train.py"), 0, 0.0)
    live_runs = cast("LiveRuns", SimpleNamespace(find=lambda id: (None, live)))
    asked = [JobId(f"r/{name}") for name in "abcdef"]

    async def asks() -> None:
        forecasting = Forecasting(
            live_runs, Tracked(0.0), tmp_path, tmp_path, tell, lambda _: True, lambda: True
        )
        question, watched = cast("Question", None), cast("Any", None)
        await asyncio.gather(*(forecasting._answer(job, watched, question) for job in asked))

    asyncio.run(asks())
    assert met == []


def test_who_saves_a_checkpoint_is_no_longer_expected_to_last_as_long_once_it_waits_again(
    tmp_path: Path,
) -> None:
    live = LiveJob(Job(name="a", run="train.py"), 0, 0.0, script_key="script", profile_key="job")
    plan = Plan(strategy="single", workers=1, batch_per_worker=None)
    live.current = Attempt(JobId("r/a"), 1, plan, False, lambda task, message: None)
    run = SimpleNamespace(submission=SimpleNamespace(mode="run"))
    live_runs = cast("LiveRuns", SimpleNamespace(find=lambda id: (run, live)))
    forecasting = Forecasting(
        live_runs,
        Tracked(0.0),
        tmp_path,
        tmp_path,
        lambda event: None,
        asks=lambda job: True,
        predicts=lambda: True,
    )
    lengths.remember(tmp_path, "script", lengths.Took("job", 50.0, 100.0))
    assert forecasting.lasts(JobId("r/a")) == 100.0
    forecasting.hear(TaskStarted(TaskId("r/a/worker-0"), 1), ())
    ends = dict(forecasting.ends)
    assert set(ends) == {"r/a"}
    live.keep(Checkpoint("r/a/worker-0/1.pt", 1, 0, 1))
    assert forecasting.lasts(JobId("r/a")) is None
    assert forecasting.ends == ends  # the attempt that goes on began at the beginning
    live.saved.clear()
    lengths.remember(tmp_path, "script", lengths.Took("job", 50.0, 300.0))
    forecasting.forget("other")
    assert forecasting.lasts(JobId("r/a")) == 100.0
    forecasting.forget("r")
    assert forecasting.lasts(JobId("r/a")) == 200.0


def told(user: User, run: str) -> float:
    """When a job last told its progress, in seconds of its run."""
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        return max((row["t"] for row in reader.rows("progress")), default=0.0)


def shares(user: User, run: str) -> list[dict[str, Any]]:
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        return list(reader.rows("shares"))


def predicted(user: User, run: str) -> bool:
    return any(" core-seconds left (" in row["reason"] for row in shares(user, run))


def weight(user: User, run: str) -> float:
    """The latest that a job has; one that has none yet has the most."""
    given = shares(user, run)
    return float(given[-1]["cpu_weight"]) if given else math.inf
