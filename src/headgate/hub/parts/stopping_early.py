"""Ends jobs of sweeps by the rules of `forecast.stop_early`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from headgate.forecast.job_tracker import Trackers
from headgate.forecast.stop_early import PastTrial, SweepStopper, Verdict, best_end
from headgate.hub.parts import Component
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import Action, MarkJob
from headgate.model.events import Event, StopRequested
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.jobs import Job
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import read, text_of
from headgate.model.sweeps import StopRule
from headgate.recorded import runs
from headgate.recorded.reader import RunReader

if TYPE_CHECKING:
    from headgate.forecast.expected import ExpectedAt


class _Judged(NamedTuple):
    """What the jobs of a sweep are judged by."""

    stopper: SweepStopper
    rule: StopRule
    metric: str


class StoppingEarly(Component):
    """Follows the metrics of sweeps that state `stop_early`, and ends jobs with a checkpoint.

    Args:
        live_runs: The runs.
        tracker: Gives the controller's tracker of a job.
        step: Hands the controller an event.
    """

    def __init__(
        self, live_runs: LiveRuns, tracker: Trackers, step: Callable[[Event], None]
    ) -> None:
        self._live_runs = live_runs
        self._tracker = tracker
        self._step = step
        self._sweeps: dict[tuple[str, str], _Judged] = {}
        self._judging: dict[JobId, asyncio.Task[None]] = {}
        # Several fits at once would keep the interpreter from the hub's loop.
        self._one_at_once = asyncio.Semaphore()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, Progress):
            self._progressed(event)
        for action in actions:
            if isinstance(action, MarkJob) and action.state in ENDED:
                self._job_ended(action)

    def forget(self, run: str) -> None:
        for key in [key for key in self._sweeps if key[0] == run]:
            del self._sweeps[key]

    def close(self) -> None:
        for judging in self._judging.values():
            judging.cancel()

    def take_up(self, run: LiveRun) -> None:
        """Compare the jobs of a run whose hub died with those that had ended."""
        with RunReader(run.folder / runs.STORE) as reader:
            rows = list(reader.rows("trials"))
        for row in rows:
            live = run.jobs.get(row["job"])
            judged = self._of(run.id, live.spec) if live is not None else None
            if judged is not None:
                with suppress(ValueError):  # the record is damaged
                    judged.stopper.restore(read(PastTrial, row["ended"]))

    def _of(self, run: str, job: Job) -> _Judged | None:
        """What a job is judged by; None: its sweep states no rule."""
        trial = job.trial
        if trial is None or trial.stop_early is None:
            return None
        key = run, trial.sweep
        if key not in self._sweeps:
            stated, rule = trial.stop_early, job.progress
            metric = stated.metric or rule.metric
            stopper = SweepStopper(stated, rising=rule.direction(metric) == "higher")
            self._sweeps[key] = _Judged(stopper, stated.rule, metric)
        return self._sweeps[key]

    def _progressed(self, progress: Progress) -> None:
        job = progress.task.job
        if job.run not in self._live_runs.runs:
            return
        live = self._live_runs.find(job)[1]
        judged, tracker = self._of(job.run, live.spec), self._tracker(job)
        if judged is None or tracker is None or live.state in ENDED or progress.covers == "part":
            return
        loss = progress.loss if judged.metric == "loss" else None
        value = progress.metrics.get(judged.metric, loss)
        if value is None:
            return
        step, length = tracker.way()
        is_due = judged.stopper.report(job.name, step, value, progress.count, length)
        if is_due and job not in self._judging:
            judging = asyncio.get_running_loop().create_task(self._judge(job, judged))
            self._judging[job] = judging
            judging.add_done_callback(lambda _: self._judging.pop(job, None))

    async def _judge(self, job: JobId, judged: _Judged) -> None:
        question, end = judged.stopper.question(job.name), None
        if question is not None:
            async with self._one_at_once:
                end = await asyncio.to_thread(best_end, question)
        verdict = judged.stopper.judge(job.name, end)
        if verdict is None or job.run not in self._live_runs.runs:
            return
        from headgate.forecast.expected import expected_end

        live, tracker = self._live_runs.find(job)[1], self._tracker(job)
        if live.state == "running":
            rising = live.spec.progress.direction(live.spec.progress.metric) == "higher"
            expected = expected_end(tracker, rising) if tracker is not None else None
            self._step(StopRequested(job, reason=_reason(judged, verdict, expected)))

    def _job_ended(self, mark: MarkJob) -> None:
        job = mark.job
        if job.run not in self._live_runs.runs:
            return
        run, live = self._live_runs.find(job)
        judged = self._of(job.run, live.spec)
        if judged is None:
            return
        end = judged.stopper.end if mark.state == "done" else judged.stopper.forget
        if (past := end(job.name)) is not None:
            run.recorder.add("trials", job=job.name, ended=text_of(past))


def _reason(judged: _Judged, verdict: Verdict, end: ExpectedAt | None) -> Reason:
    return Reason.of(
        ReasonKind.STOPPED_EARLY,
        rule=judged.rule,
        metric=judged.metric,
        value=verdict.value if math.isfinite(verdict.value) else None,
        best=verdict.best,
        step=verdict.step,
        compared=verdict.compared,
        predicted=list(end[1:]) if end is not None else None,
    )
