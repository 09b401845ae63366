"""What tasks say, as it comes to the controller and to the store."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headgate import runs
from headgate.cluster import Node
from headgate.events import CheckpointDone, Event, Exit, Progress, TaskExited, TaskJoined
from headgate.hub.attempt import Attempt
from headgate.hub.hearing import Hearing
from headgate.hub.ledger import Ledger
from headgate.hub.run import LiveRun
from headgate.hub.submission import Submission
from headgate.hub.thinning import AT_ONCE
from headgate.jobs import Job, ProgressRule
from headgate.plans import Plan
from headgate.telemetry.patterns import ProgressReader
from headgate.telemetry.store import RunReader

LINES = 1000


def heard(say: Callable[[Hearing, str], None], joins: bool = False) -> tuple[list[Event], list[int]]:
    """What the controller is told of a task of which this is said, and the steps that are in the store.

    Args:
        say: Says it.
        joins: Another worker waits for the state of this one.
    """
    events: list[Event] = []

    async def listens() -> LiveRun:
        submission = Submission((Job(name="a", run="true"),), {}, str(Path.cwd()), ("headgate",))
        run = LiveRun(submission, (Node("here", 2, 2**30),), "none", time.monotonic(), print)
        live, task = run.jobs["a"], f"{run.id}/a/worker-0"
        plan = Plan(strategy="ps" if joins else "single", workers=1, servers=int(joins), batch_per_worker=None)
        attempt = Attempt(f"{run.id}/a", 1, plan, True, lambda *_: None)
        live.begin(attempt, 0)
        for name in ["worker-0", "worker-1"][: 1 + joins]:
            attempt.start(name, "here", "", ProgressReader(ProgressRule()), joins=name != "worker-0")
            if joins:
                attempt.connect(name)
        ledger = cast(Ledger, SimpleNamespace(find=lambda _: (run, live), event=lambda *_, **__: None))
        hearing = Hearing(ledger, run.folder, events.append, lambda _: None, lambda *_: None)
        say(hearing, task)
        hearing.exited(task, Exit(code=0))
        await asyncio.sleep(0)
        run.close()
        return run

    run = asyncio.run(listens())
    with RunReader(run.folder / runs.STORE) as reader:
        return events, [row["step"] for row in reader.rows("progress")]


def checkpoints(task: str) -> Path:
    """The folder of a job's checkpoints."""
    run, job, _ = task.split("/")
    return runs.home() / "runs" / run / "jobs" / job / "checkpoints"


@pytest.mark.parametrize("name", ["../../../../../x.pt", "/etc/passwd", "link/passwd", "x/../../y.pt", "", "\0"])
def test_a_checkpoint_elsewhere_than_in_its_job_s_folder_is_none(name: str) -> None:
    def say(hearing: Hearing, task: str) -> None:
        (checkpoints(task) / "link").symlink_to("/etc")
        for each in (name, "step-1.pt"):
            path = os.path.join(checkpoints(task), each)
            hearing.message(task, {"type": "checkpoint", "path": path, "step": 1, "epoch": 0, "why": "epoch"})

    events, _ = heard(say)
    saved = [event.checkpoint.path for event in events if isinstance(event, CheckpointDone)]
    assert [Path(path).name for path in saved] == ["step-1.pt"]


def test_of_losses_that_are_printed_in_a_flood_none_is_lost_and_few_are_told() -> None:
    lines = [f"step {step} loss {step}.0" for step in range(1, LINES + 1)]
    events, steps = heard(lambda hearing, task: hearing.output(task, lines))
    told = [event for event in events if isinstance(event, Progress)]
    assert AT_ONCE / 2 < len(told) < 2 * AT_ONCE
    assert sum(progress.count for progress in told) == LINES
    total = sum((progress.loss or 0.0) * progress.count for progress in told)
    assert total == pytest.approx(LINES * (LINES + 1) / 2)
    assert [progress.step for progress in told] == steps
    assert steps[-1] == LINES
    assert isinstance(events[-1], TaskExited)


def test_what_was_printed_comes_before_what_the_script_then_reports_itself() -> None:
    lines = [f"step {step} loss {step}.0" for step in range(1, LINES + 1)]

    def say(hearing: Hearing, task: str) -> None:
        hearing.output(task, lines)
        hearing.message(task, {"type": "progress", "step": LINES + 1, "loss": 1.0})
        hearing.output(task, [f"step {LINES + 2} loss 1.0"])

    _, steps = heard(say)
    assert steps[-2:] == [LINES, LINES + 1]


def test_a_checkpoint_that_was_asked_for_and_failed_is_not_the_state_that_another_one_waits_for() -> None:
    def say(hearing: Hearing, task: str) -> None:
        hearing.message(f"{task[:-1]}1", {"type": "joining"})
        hearing.message(task, {"type": "checkpoint_failed", "error": "full", "why": "request"})
        message = {
            "type": "checkpoint",
            "path": str(checkpoints(task) / "step-1.pt"),
            "step": 1,
            "epoch": 0,
            "position": 1,
            "bytes": 1,
        }
        hearing.message(task, {**message, "seconds": 0.1, "why": "join"})

    events, _ = heard(say, joins=True)
    assert [event.task.rsplit("/")[-1] for event in events if isinstance(event, TaskJoined)] == ["worker-1"]
