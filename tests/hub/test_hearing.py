"""What tasks say, as it comes to the controller and to the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headgate import runs
from headgate.cluster import Node
from headgate.events import Event, Exit, Progress, TaskExited
from headgate.hub.attempt import Attempt
from headgate.hub.hearing import Hearing
from headgate.hub.ledger import Ledger
from headgate.hub.run import LiveRun, Submission
from headgate.hub.thinning import AT_ONCE
from headgate.jobs import Job, ProgressRule
from headgate.plans import Plan
from headgate.telemetry.patterns import ProgressReader
from headgate.telemetry.store import RunReader

LINES = 1000


def heard(say: Callable[[Hearing, str], None]) -> tuple[list[Event], list[int]]:
    """What the controller is told of a task of which this is said, and the steps that are in the store."""
    events: list[Event] = []

    async def listens() -> LiveRun:
        submission = Submission((Job(name="a", run="true"),), {}, str(Path.cwd()), ("headgate",))
        run = LiveRun(submission, (Node("here", 2, 2**30),), "none", time.monotonic(), print)
        live, task = run.jobs["a"], f"{run.id}/a/worker-0"
        plan = Plan(strategy="single", workers=1, batch_per_worker=None)
        live.begin(Attempt(f"{run.id}/a", 1, plan, True, lambda *_: None), 0)
        assert live.current is not None
        live.current.start("worker-0", "here", "", ProgressReader(ProgressRule()), joins=False)
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
