"""How a job's loss is expected to go on, and when the job would end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.client import notebook
from headgate.model.errors import HeadgateError, NotFoundError
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.recorded import runs
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.reader import RunReader
from headgate.recorded.results import PredictedEnd
from headgate.recorded.rows import JobRow, ProgressRow, TaskRow

if TYPE_CHECKING:
    from headgate.forecast.epoch_steps import Estimate
    from headgate.forecast.expected import Expected
    from headgate.reports.figures import Plot

_READING_SECONDS = 5.0
"""What tasks used is read over so long at once: each was read several times."""
_PLACE = ("step", "epoch", "epochs", "within", "steps", "remaining")


@dataclass(frozen=True, slots=True, repr=False)
class LossPrediction:
    """How a job's loss is expected to go on.

    Args:
        run: Id of its run.
        job: Its name.
        state: Of the job.
        rule: What its progress is judged by.
        expected: The curve and what is left.
        whole: All that the job is to do, as it said last: `30 epochs`; empty where it says nothing.
        silent_seconds: Seconds since its last report; None: it has ended.
    """

    run: str
    job: str
    state: str
    rule: ProgressRule
    expected: Expected
    whole: str
    silent_seconds: float | None

    def __repr__(self) -> str:
        step, until = self.expected.step, self.expected.until
        return f"LossPrediction(job={self.job!r}, step={step}, until={until!r})"

    def _repr_html_(self) -> str:
        return notebook.drawn(f"Prediction of {self.job}", self.plot())

    def plot(self, colour: str = "job-0") -> Plot:
        """The losses that it has reported, and the band in which they are expected to go on."""
        from headgate.reports.figures import prediction_plot

        expected = self.expected
        return prediction_plot(self.rule.metric, expected.points, expected.curve, colour)

    def as_json(self) -> dict[str, Any]:
        """The output of `headgate predict --json`."""
        expected, rule, now = self.expected, self.rule, time.time()
        seconds = expected.seconds(self.silent_seconds or 0.0)
        return {
            "run": self.run,
            "job": self.job,
            "state": self.state,
            "metric": rule.metric,
            "goal": rule.goal,
            "step": expected.step,
            "points": expected.points,
            "family": expected.family,
            "progress": expected.progress,
            "asymptote": expected.asymptote,
            "diverging": expected.diverging,
            "curve": [point._asdict() for point in expected.curve],
            "until": expected.until if expected.left is not None else None,
            "steps_left": _band(expected.left),
            "seconds_per_step": expected.seconds_per_step,
            "seconds_left": _band(seconds),
            "core_seconds_left": _band(expected.core_seconds()),
            "ends": _band(seconds, shift=now) if self.silent_seconds is not None else None,
        }


def predict(folder: Path, name: str) -> LossPrediction:
    """Fit curves to the losses that a job has reported.

    A job that has ended is predicted as if it went on.

    Raises:
        NotFoundError: The run has recorded nothing of the job.
        HeadgateError: The job has reported no loss yet.
    """
    from headgate.forecast.expected import expect

    is_alive = runs.alive(folder)
    with RunReader(folder / runs.STORE) as reader:
        row = next(reader.records(JobRow, "name = ?", [name]), None)
        if row is None:  # its folder is made first
            raise NotFoundError(
                f"run {folder.name} has recorded nothing of job {name!r}; `headgate ps` says "
                "whether it is still running"
            )
        rule = row.job().progress
        reports = _reports(reader, JobId.of(folder.name, name), rule)
        used = _used(reader, name)
        took = runs.elapsed(RunDescription.read(reader))
    began = row.started if row.attempt == 1 else None
    expected = expect(reports, used, rule.goal, rule.rising, rule.stopping, began)
    if expected is None:
        cure = (
            f"see `headgate logs {name}` for what it prints, and docs/progress.md for how it "
            "can say more"
        )
        raise HeadgateError(
            f"job {name!r} has reported no {rule.metric} yet, so nothing can be predicted; {cure}"
        )
    state = row.state if is_alive or row.state in ENDED else "interrupted"
    silent = None if state in ENDED else max(took - expected.reported, 0.0)
    return LossPrediction(folder.name, name, state, rule, expected, _total_work(reports), silent)


def predicted_ends(folder: Path, jobs: Sequence[str]) -> dict[str, PredictedEnd]:
    """What some jobs' metrics are expected to end with, by job; without jobs that nothing can be
    said of.
    """
    ends = {}
    for name in jobs:
        with suppress(HeadgateError):  # it has reported no loss yet
            if curve := predict(folder, name).expected.curve:
                _, *band = curve[-1]
                ends[name] = PredictedEnd(*band)
    return ends


def _reports(
    reader: RunReader, job: JobId, rule: ProgressRule
) -> list[tuple[float, float | None, Progress]]:
    """The reports of the first of a job's workers that reported, in order of time: time, metric,
    and progress.
    """
    tasks = [row.of_run() for row in reader.records(TaskRow, "job = ?", [job.name])]
    for task in sorted(
        (task for task in tasks if task.name.is_worker), key=lambda task: task.name.index
    ):
        reports = []
        for row in reader.records(ProgressRow, "task = ?", [task], "t"):
            value = rule.value(float("nan") if row.nan else row.loss, row.metric_values())
            place: dict[str, Any] = {name: getattr(row, name) for name in _PLACE}
            reports.append(
                (row.t, value, Progress(job.task(task.name), count=row.count or 1, **place))
            )
        if reports:
            return reports
    return []


def _total_work(reports: Sequence[tuple[float, float | None, Progress]]) -> str:
    """The total work of a job, by its latest report; empty: it reported none."""
    for *_, last_report in reversed(reports):
        for count, unit in ((last_report.steps, "steps"), (last_report.epochs, "epochs")):
            if count is not None:
                return f"{count} {unit}"
    return ""


def _used(reader: RunReader, job: str) -> list[tuple[float, float]]:
    from headgate.recorded.queries import mean_cores_together  # with numpy, which few commands use

    tasks = [row.id for row in reader.records(TaskRow, "job = ?", [job])]
    return mean_cores_together(reader, tasks, _READING_SECONDS)


def _band(estimate: Estimate | None, shift: float = 0.0) -> dict[str, float] | None:
    if estimate is None:
        return None
    steps, low, high, likely = estimate
    return {"median": steps + shift, "low": low + shift, "high": high + shift, "likely": likely}
