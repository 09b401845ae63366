"""One forecast of a job tells its policy core-seconds, and seconds to whoever weighs a better
plan.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.hub.tracked import Tracked
from tests.planning import jobs as planned

from headgate.forecast import remaining
from headgate.forecast.remaining import Question
from headgate.hub.parts.forecasting import Forecasting
from headgate.hub.parts.replanning import Replanning
from headgate.hub.state.attempt import Attempt
from headgate.hub.state.job import LiveJob
from headgate.hub.state.runs import LiveRuns
from headgate.model.endings import Checkpoint, Exit
from headgate.model.events import Event, Predicted, TaskExited, TaskStarted, Usage
from headgate.model.identifiers import FIRST_WORKER, JobId, TaskName
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.output.patterns import ProgressReader
from headgate.planning.moving import Standing

SAMPLES = 256
"""Of a step, whatever the plan."""

JOB = JobId("r/a")


class Course:
    """A job of a run, what it reports and uses by a clock of its own, and what follows from that.

    Attributes:
        waits: Whether another job waits for the end of this one.
        tells_steps: Whether it tells its steps, and not only losses.
        asked: What answers were asked for.
        fitted: What was told to be left of it.
        weighed: How it stood each time that a move was weighed.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.waits, self.tells_steps = False, True
        self.asked: list[Question] = []
        self.fitted: list[Predicted] = []
        self.weighed: list[Standing] = []
        self.live = LiveJob(Job(name="a", script="a.py"), 0, 0.0, state="running")
        self.live.profile = json.dumps(asdict(planned.profile(batch=SAMPLES)))
        submission = SimpleNamespace(mode="run", environment={}, cluster="")
        cluster = planned.cluster(planned.nodes("a", 2, cores=2))
        live_runs = cast(
            "LiveRuns",
            SimpleNamespace(find=lambda _: (SimpleNamespace(submission=submission), self.live)),
        )
        self._tracked = Tracked(0.0)
        self.forecasting = Forecasting(
            live_runs,
            self._tracked,
            folder,
            folder,
            self._hear,
            asks=self._asks,
            predicts=lambda: False,
        )
        nodes, used = (
            SimpleNamespace(cluster=lambda _: cluster),
            SimpleNamespace(used=lambda *_: Counter()),
        )
        held = lambda job, plan: False  # noqa: E731
        parts = cast(
            "Any",
            (live_runs, nodes, None, self.forecasting, used, cluster.nodes[0], self._hear, held),
        )
        self._replanning = Replanning(folder, *parts)
        self._step = 0
        clock = SimpleNamespace(monotonic=lambda: self.now, thread_time=lambda: 0.0)
        for part in ("forecasting", "replanning"):
            monkeypatch.setattr(f"headgate.hub.parts.{part}.time", clock)
        monkeypatch.setattr("headgate.hub.parts.forecasting.answer", self._answer)
        monkeypatch.setattr(
            Replanning, "_better", lambda _, spec, watched, standing, *_more: self._weigh(standing)
        )

    def begins(self, workers: int = 1) -> None:
        """An attempt begins."""
        plan = _plan(workers)
        if self.live.attempt:
            self._tracked.begin(self.now, resumes=self.live.checkpoint is not None)
        self.live.begin(Attempt(JOB, self.live.attempt + 1, plan, False, lambda *_: None), 0)
        for index in range(workers):
            self.grows(index)

    def grows(self, index: int) -> None:
        """A worker starts."""
        assert self.live.current is not None
        name = TaskName.of("worker", index)
        self.live.current.start(
            name, f"a{index}", "127.0.0.1", ProgressReader(ProgressRule()), False
        )
        self.live.current.connect(name, "torch")
        self._hear(TaskStarted(JOB.task(name), 1))

    def ends(self) -> None:
        """All tasks of the attempt end."""
        assert self.live.current is not None
        for name in self.live.current.tasks:
            self.live.current.remove(name, False)
            self._hear(TaskExited(JOB.task(name), Exit(code=1)))

    async def trains(self, count: int, seconds: float, cores: float = 1.0, **about: Any) -> None:
        """Each step takes so long on so many cores, which are read each second, and is reported
        with its loss.
        """
        assert self.live.current is not None
        for _ in range(count):
            until = self.now + seconds
            while self.now < until:
                self.now = min(self.now + 1.0, until)
                for name in self.live.current.tasks:
                    self._hear(Usage(JOB.task(name), cores / len(self.live.current.tasks), 1e9))
            self._step += 1
            loss = 1.0 + 1.0 / self._step
            step = self._step if self.tells_steps else None
            progress = Progress(JOB.task(FIRST_WORKER), step, loss=loss, **about)
            self.live.progressed(progress)
            self._hear(progress)
            while others := asyncio.all_tasks() - {
                cast("asyncio.Task[Any]", asyncio.current_task())
            }:
                await asyncio.gather(*others)

    def back_to(self, step: int) -> None:
        """It goes on from a checkpoint of this step."""
        self._step = step
        self.live.keep(Checkpoint("r/a/worker-0/1.pt", step, 0, step))

    def back_to_the_beginning(self) -> None:
        """It does all again."""
        self._step = 0

    def _hear(self, event: Event) -> None:
        if isinstance(event, Predicted):
            self.fitted.append(event)
        self._tracked.hear(self.now, event)
        for component in (self._replanning, self.forecasting):
            component.hear(event, ())

    def _asks(self, job: JobId) -> bool:
        return self.waits or self._replanning.considers(job)

    def _answer(self, job: JobId, question: Question) -> Predicted | None:
        self.asked.append(question)
        return remaining.answer(job, question)

    def _weigh(self, standing: Standing) -> tuple[None, float]:
        self.weighed.append(standing)
        return None, 0.0


def _plan(workers: int) -> Plan:
    return Plan(
        strategy="allreduce" if workers > 1 else "single", workers=workers, batch_per_worker=None
    )


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    return Course(tmp_path, monkeypatch)


@pytest.mark.parametrize("seconds", [1.0, 40.0])
def test_of_a_job_whose_steps_are_long_all_of_their_time_counts_for_policies_and_for_moves(
    course: Course, seconds: float
) -> None:
    async def play() -> None:
        course.begins()
        course.now += 5.0  # until it has imported all
        await course.trains(100, seconds, cores=0.5, steps=1000)

    asyncio.run(play())
    steps_left = 1000 - course.asked[-1].step
    assert course.fitted[-1].work == pytest.approx(steps_left * seconds * 0.5, rel=0.02)
    assert course.fitted[-1].seconds == pytest.approx(steps_left * seconds)
    assert course.weighed[-1].seconds_left == course.fitted[-1].seconds
    assert course.weighed[-1].throughput == pytest.approx(SAMPLES / seconds)
    assert course.weighed[-1].restart_seconds == pytest.approx(5.0 + seconds)
    ends = course.forecasting.ends[JOB]
    assert course.now <= ends <= course.now + course.weighed[-1].seconds_left


def test_an_attempt_from_a_checkpoint_keeps_the_losses_and_measures_anew_what_a_step_costs(
    course: Course,
) -> None:
    async def play() -> None:
        course.begins()
        await course.trains(200, 2.0, steps=10_000)
        course.now += 3.0
        course.ends()
        course.now += 1000.0  # it waits for room
        course.back_to(150)
        course.begins()
        course.now += 4.0
        await course.trains(60, 1.0, cores=3.0, steps=10_000)

    asyncio.run(play())
    question = course.asked[-1]
    assert question.points[0][0] == 1.0
    assert question.cost == pytest.approx(3.0, rel=0.02)
    assert question.step_seconds == pytest.approx(1.0)
    assert course.weighed[-1].restart_seconds == pytest.approx(3.0 + 4.0 + 1.0)  # but for the wait


def test_an_attempt_from_the_beginning_has_a_forecast_of_its_own(course: Course) -> None:
    """It tells no steps: nothing else says that it does all again."""
    course.waits, course.tells_steps = True, False

    async def play() -> None:
        for _ in range(2):
            course.begins()
            await course.trains(100, 1.0)
            course.ends()
            course.back_to_the_beginning()

    asyncio.run(play())
    of_each = len(course.asked) // 2
    assert course.asked[of_each:] == course.asked[:of_each] != []
    assert "r/a" not in course.forecasting.ends


def test_after_a_resize_the_new_plan_is_measured_and_not_the_former_one(course: Course) -> None:
    async def play() -> None:
        course.begins(1)
        await course.trains(250, 1.0, steps=10_000)
        assert course.live.current is not None
        course.live.current.plan = _plan(2)
        course.grows(1)
        await course.trains(40, 0.5, cores=2.0, steps=10_000)

    asyncio.run(play())
    rates = {standing.plan.workers: standing.throughput for standing in course.weighed}
    assert rates == pytest.approx({1: SAMPLES, 2: 2 * SAMPLES})
    question = course.asked[-1]
    assert question.cost == pytest.approx(1.0, rel=0.05)
    assert course.weighed[-1].seconds_left == pytest.approx((10_000 - question.step) * 0.5)


def test_too_few_steps_are_no_measure_of_a_plan_though_they_tell_when_the_job_ends(
    course: Course,
) -> None:
    async def play() -> None:
        course.begins()
        await course.trains(6, 60.0, steps=100)

    asyncio.run(play())
    assert course.fitted[-1].seconds == pytest.approx((100 - course.asked[-1].step) * 60.0)
    assert course.weighed == []


def test_early_stopping_that_the_script_tells_of_counts(course: Course) -> None:
    async def play() -> None:
        course.begins()
        await course.trains(10, 1.0)
        course.live.stops_after(3, 0.1, "loss")
        await course.trains(10, 1.0)

    asyncio.run(play())
    assert (course.asked[0].rest, course.asked[-1].rest) == (None, (3.0, 0.1))


def test_losses_that_are_trained_against_each_other_are_no_end(course: Course) -> None:
    async def play() -> None:
        course.begins()
        await course.trains(30, 1.0, metrics={"loss_d": 0.5, "loss_g": 0.5}, steps=1000)

    asyncio.run(play())
    assert course.asked[-1].points == ()
    assert course.weighed[-1].seconds_left == pytest.approx(1000 - course.asked[-1].step)
