"""A pause is as long as it was to be, whatever keeps the hub busy; what cannot be held ends a proof
with a reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.diagnosis.proving import Window
from headgate.engines.base import LOCAL
from headgate.forecast.job_tracker import JobTracker
from headgate.hub.parts.proving import InterferenceProber
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.isolation.base import Box
from headgate.model.actions import StopTask
from headgate.model.defaults import HELD_PART
from headgate.model.errors import IsolationError, UsageError
from headgate.model.identifiers import FIRST_WORKER, JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.testing import wait


class HeldBox:
    """A box that notes when it was held and released."""

    def __init__(self, refuses: bool = False) -> None:
        self.at: list[float] = []
        self.refuses = refuses

    def hold(self) -> bool:
        if self.refuses:
            raise IsolationError(
                "r/b/worker-0: it cannot be held: cgroup.freeze: Read-only file system"
            )
        self.at.append(time.monotonic())
        return True

    def release(self) -> None:
        self.at.append(time.monotonic())

    @property
    def seconds(self) -> list[float]:
        """How long each pause was."""
        return [end - begin for begin, end in zip(self.at[::2], self.at[1::2], strict=False)]


class Stage:
    """A run `r` with the jobs `a` and `b`, which make a step every 10 ms, of which `b` can be
    held.
    """

    def __init__(self, boxes: list[HeldBox]) -> None:
        jobs = {
            name: SimpleNamespace(spec=Job(name=name, run="true"), state="running", current=None)
            for name in ("a", "b")
        }
        self.recorded: list[object] = []
        self.told: list[dict[str, Any]] = []
        self.run = SimpleNamespace(
            id="r", jobs=jobs, submission=SimpleNamespace(engine=LOCAL), clock=lambda: 0.0
        )
        self.run.record_proof, self.run.event = self.recorded.append, lambda *_, **__: None
        tasks = {TaskId(f"r/b/worker-{index}"): cast("Box", box) for index, box in enumerate(boxes)}
        live_runs = LiveRuns(lambda: "none", lambda _: None)
        live_runs.runs["r"] = cast("LiveRun", self.run)
        self._trackers: dict[JobId, JobTracker] = {}
        self.proving = InterferenceProber(
            live_runs, self._trackers.get, lambda: cast("Mapping[TaskId, Box]", tasks), self._other
        )
        self._reports(JobId("r/a"))

    async def _other(self, name: str, seconds: float) -> Window:
        raise IsolationError(f"{name} is not held for {seconds} s")

    def _reports(self, job: JobId) -> None:
        """Steps of the last half minute, told ten times a second."""
        now = time.monotonic()
        self._trackers[job] = tracker = JobTracker(now - 30.0)
        for index in range(300):
            report = Progress(job.task(FIRST_WORKER), 10 * index)
            tracker.report(now - 30.0 + index / 10, None, report)

    def begins(self, most: float = 0.25) -> None:
        self.work = self.proving.begin("r", ["a"], ["b"], most, self.told.append)


async def until(done: Any) -> None:
    deadline = time.monotonic() + 20.0
    while not done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_a_freezer_that_cannot_be_written_ends_the_proof_with_its_reason() -> None:
    async def scene() -> None:
        stage = Stage([HeldBox(refuses=True)])
        stage.begins()
        await stage.work.work
        last = stage.told[-1]
        assert (last["type"], last["proofs"]) == ("proved", [])
        assert last["reasons"] == [
            "r/b/worker-0: it cannot be held: cgroup.freeze: Read-only file system"
        ]
        assert stage.recorded == []

    asyncio.run(scene())


def test_while_the_hub_s_loop_is_blocked_a_pause_ends_in_time_and_a_stop_ends_it() -> None:
    async def scene() -> None:
        boxes = [HeldBox(), HeldBox()]
        stage = Stage(boxes)
        stage.begins()
        await until(lambda: len(boxes[1].at) == 3)  # the first was a trial
        wait.until(
            lambda: len(boxes[1].at) == 4, 5.0, "it is released though the loop stands still"
        )
        assert boxes[0].seconds[1] == pytest.approx(0.4, abs=0.15)
        await until(lambda: len(boxes[1].at) == 5)
        stage.proving.hear(
            Progress(task=TaskId("r/b/worker-0"), step=1),
            [StopTask(TaskId("r/b/worker-0"), 1.0, Reason(ReasonKind.TEXT, {"text": ""}))],
        )
        await until(lambda: len(boxes[1].at) == 6)
        assert boxes[1].seconds[2] < 0.35
        stage.work.cancel()
        await asyncio.sleep(0)
        assert stage.told[-1]["type"] == "proved"
        assert "the proof ended after" in stage.told[-1]["reasons"][0]

    asyncio.run(scene())


def test_a_job_without_steps_holds_up_nobody() -> None:
    async def scene() -> None:
        stage = Stage([HeldBox()])
        stage.run.jobs["c"] = SimpleNamespace(
            spec=Job(name="c", run="true"), state="running", current=None
        )
        work = stage.proving.begin("r", None, ["b"], 0.25, stage.told.append)
        await until(lambda: stage.told)
        assert stage.told[0]["text"].startswith(
            "8 pauses of 0.4 s show whether b slows a by 5 %: 12.8 s at 25.0 %"
        )
        work.cancel()
        reason = (
            "c reports too few steps: print a line for each step, or name the pattern of "
            "its lines (docs/progress.md)"
        )
        assert stage.told[-1]["reasons"][0] == reason
        await asyncio.wait([work.work])

    asyncio.run(scene())


def test_a_pause_lasts_a_round_if_the_other_job_takes_turns() -> None:
    async def scene() -> None:
        stage = Stage([HeldBox()])
        task = SimpleNamespace(gate={"type": "gate", "fraction": 0.5, "turns": ["gpu-0"]})
        stage.run.jobs["a"].current = SimpleNamespace(tasks={"worker-0": task})
        stage.begins()
        await until(lambda: stage.told)
        assert "pauses of 1 s show whether b slows a" in stage.told[0]["text"]
        stage.work.cancel()
        await asyncio.wait([stage.work.work])

    asyncio.run(scene())


def test_a_second_proof_waits_and_a_part_has_to_be_one() -> None:
    async def scene() -> None:
        stage = Stage([HeldBox()])
        for most in (0.0, 0.5, float("nan")):
            with pytest.raises(UsageError, match="expected a part above 0 and at most 25%"):
                stage.begins(most)
        stage.begins(HELD_PART)
        with pytest.raises(UsageError, match="a proof is under way in run r"):
            stage.begins()
        stage.proving.forget("r")
        await asyncio.wait([stage.work.work])
        stage.run.submission.engine = "ray at 10.0.0.1"
        with pytest.raises(UsageError, match="only tasks of this machine can be held"):
            stage.begins()

    asyncio.run(scene())
