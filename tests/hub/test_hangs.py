"""A job that makes no step for far longer than usual is told of, with where its tasks stand."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.hub.tracked import Tracked

from headgate.hub.parts.monitoring import HangDetector
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import HoldJob
from headgate.model.endings import Exit
from headgate.model.events import Event, TaskConnected, TaskExited, TaskStarted, Usage
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress
from headgate.model.reason_text import in_words

STUCK = """
import sys
def wait_for_nobody():
    print("there", flush=True)
    input()
wait_for_nobody()
"""
TASK = TaskId("r/a/worker-0")


class Run:
    """A run with a job `a` of one real process that waits for nobody."""

    def __init__(self, here: bool) -> None:
        self.told: list[tuple[str, str]] = []
        live_runs = SimpleNamespace(
            runs={"r": SimpleNamespace(id="r")},
            event=lambda run, kind, reason, job: self.told.append((kind, in_words(reason))),
        )
        self.tracked = Tracked(time.monotonic())
        self.hangs = HangDetector(
            cast(LiveRuns, live_runs), self.tracked, lambda _: here, least=0.5
        )

    def hears(self, *happened: Event) -> None:
        for event in happened:
            self.tracked.hear(time.monotonic(), event)
            self.hangs.hear(event, ())

    async def waits(self, count: int) -> None:
        for _ in range(400):
            if len(self.told) >= count:
                return
            await asyncio.sleep(0.05)
        raise TimeoutError(f"only {self.told} was told")


SIX = tuple(Progress(TASK, step) for step in range(6))


def watched(
    tmp_path: Path, do: Callable[[Run], Any], *, here: bool = True, steps: tuple[Event, ...] = SIX
) -> list[tuple[str, str]]:
    """What is told of the process after it has made these steps, and then of what is done."""
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()

    async def watch() -> list[tuple[str, str]]:
        run = Run(here)
        try:
            run.hears(TaskStarted(TASK, process.pid), *steps)
            await do(run)
        finally:
            run.hangs.close()
        return run.told

    try:
        return asyncio.run(watch())
    finally:
        process.communicate(b"\n")


def test_where_a_silent_job_stands_is_told_and_when_it_goes_on(tmp_path: Path) -> None:
    async def goes_on(run: Run) -> None:
        await run.waits(1)
        run.hears(Progress(TASK, 6))

    silence, end = watched(tmp_path, goes_on)
    assert silence[0] == "warning"
    assert silence[1].startswith("no step for ")
    assert "worker-0 in wait_for_nobody (stuck.py:5)" in silence[1]
    assert end[0] == "note" and end[1].startswith("it makes steps again, after ")


@pytest.mark.parametrize(
    ("happened", "kind"),
    [((), "note"), ((TaskConnected(TASK, "torch"),), "warning"), ((Progress(TASK, 1),), "warning")],
    ids=["no step", "connected", "one step"],
)
def test_a_job_that_stands_still_before_it_makes_steps_is_told_of(
    tmp_path: Path, happened: tuple[Event, ...], kind: str
) -> None:
    async def idles(run: Run) -> None:
        for _ in range(400):
            run.hears(Usage(TASK, 0.01, 1e6))
            if run.told:
                return
            await asyncio.sleep(0.05)

    ((said, text),) = watched(tmp_path, idles, steps=happened)
    assert said == kind
    assert (
        text.startswith("no step and hardly any CPU used for ")
        and "wait_for_nobody (stuck.py:5)" in text
    )


@pytest.mark.parametrize(
    "usage", [(0.2, 1e6), (0.0, 1e6, 1e6), (0.0, 1e6, 0.0, 1e6)], ids=["cores", "disk", "network"]
)
def test_a_job_that_does_anything_before_it_makes_steps_is_not_told_of(
    tmp_path: Path, usage: tuple[float, ...]
) -> None:
    async def works(run: Run) -> None:
        for _ in range(30):
            run.hears(Usage(TASK, *usage))
            await asyncio.sleep(0.05)

    assert watched(tmp_path, works, steps=()) == []


@pytest.mark.parametrize("event", [Progress(TASK, None, epoch=2), None], ids=["epochs", "frozen"])
def test_a_job_that_makes_epochs_or_is_frozen_is_not_told_of(
    tmp_path: Path, event: Event | None
) -> None:
    async def goes_on(run: Run) -> None:
        if event is None:
            run.hangs.hear(Usage(TASK, 0.01, 1e6), (HoldJob(TASK.job, True),))
        for epoch in range(30):
            run.hears(Usage(TASK, 0.01, 1e6))
            if isinstance(event, Progress):
                run.hears(replace(event, epoch=epoch))
            await asyncio.sleep(0.05)

    assert watched(tmp_path, goes_on, steps=()) == []


def test_of_tasks_elsewhere_only_the_silence_is_told(tmp_path: Path) -> None:
    ((_, text),) = watched(tmp_path, lambda run: run.waits(1), here=False)
    assert "run elsewhere" in text and "stuck.py" not in text


def test_a_job_that_has_ended_or_whose_run_has_is_not_told_of(tmp_path: Path) -> None:
    async def ends(run: Run) -> None:
        run.hears(TaskExited(TASK, Exit(0)))
        await asyncio.sleep(1.0)  # twice what would be told of

    async def is_forgotten(run: Run) -> None:
        run.hangs.forget("r")
        await asyncio.sleep(1.0)

    assert watched(tmp_path, ends) == []
    assert watched(tmp_path, is_forgotten) == []
