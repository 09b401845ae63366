"""`headgate predict`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.model.errors import HeadgateError, NotFoundError
from headgate.model.events import ENDED, Progress
from headgate.model.identifiers import JobId
from headgate.model.jobs import ProgressRule
from headgate.model.units import say_percent, say_seconds, say_time
from headgate.recorded import runs
from headgate.recorded.queries import mean_cores_together
from headgate.recorded.rows import JobRow, ProgressRow, TaskRow
from headgate.recorded.store import RunReader

if TYPE_CHECKING:
    from headgate.forecast.expected import Expected
    from headgate.forecast.loss_history import Estimate

_WIDEST = 100
_READING_SECONDS = 5.0
"""Usage of tasks is averaged over this time: each task was read several times in it."""
_PLACE = ("step", "epoch", "epochs", "within", "steps", "remaining")
_UNTIL = {
    "epochs": "the end of its {whole}",
    "goal": "{metric} {goal:g}",
    "rest": "{metric} comes to rest",
}


@click.command()
@click.argument("job")
@click.option(
    "--run", metavar="RUN", help="Run, by its id or part of it. Default: the latest with this job."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(job: str, run: str | None, as_json: bool) -> None:
    """Draw how a job's loss is expected to go on, and say when the job would end.

    Headgate fits families of curves to the losses that the job has reported, and weighs each by its
    likelihood. The band holds nine of ten. A job that has ended is predicted as if it went on.

    \b
    Example: headgate predict train
             headgate predict 20261121-0930/train --json
    """
    from headgate.forecast.expected import expect

    folder, name = runs.find_job(job, run)
    run_summary = runs.summary(folder)
    summary = next((job_row for job_row in run_summary.jobs if job_row.name == name), None)
    if summary is None:  # its folder is made first
        raise NotFoundError(
            f"run {folder.name} has recorded nothing of job {name!r}; `headgate ps` says "
            "whether it is still running"
        )
    with RunReader(folder / runs.STORE) as reader:
        [row] = reader.records(JobRow, "name = ?", [name])
        rule = row.job().progress
        reports = _reports(reader, JobId.of(folder.name, name), rule)
        used = _used(reader, name)
    began = summary.started if summary.attempt == 1 else None
    expected = expect(reports, used, rule.goal, rule.rising, rule.stopping, began)
    if expected is None:
        cure = (
            f"see `headgate logs {name}` for what it prints, and docs/progress.md for how it "
            "can say more"
        )
        raise HeadgateError(
            f"job {name!r} has reported no {rule.metric} yet, so nothing can be predicted; {cure}"
        )
    until = _UNTIL[expected.until].format(
        whole=_total_work(reports), metric=rule.metric, goal=rule.goal or 0.0
    )
    waited = (
        max((run_summary.took or 0.0) - expected.reported, 0.0)
        if summary.state not in ENDED
        else None
    )
    if as_json:
        click.echo(
            json.dumps(_plain(folder, name, summary.state, rule, expected, waited), indent=2)
        )
        return
    for line in _describe(folder, name, summary.state, rule, expected, until, waited):
        click.echo(line)


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
    """The total work of a job, by its latest report."""
    for *_, last_report in reversed(reports):
        for count, unit in ((last_report.steps, "steps"), (last_report.epochs, "epochs")):
            if count is not None:
                return f"{count} {unit}"
    return "script, as that says itself"


def _used(reader: RunReader, job: str) -> list[tuple[float, float]]:
    tasks = [row.id for row in reader.records(TaskRow, "job = ?", [job])]
    return mean_cores_together(reader, tasks, _READING_SECONDS)


def _describe(
    folder: Path,
    name: str,
    state: str,
    rule: ProgressRule,
    expected: Expected,
    until: str,
    waited: float | None,
) -> Sequence[str]:
    """The drawing, and its text. `waited`: seconds since the last report; None: the job has
    ended.
    """
    from headgate.forecast.curves import FEWEST_POINTS
    from headgate.reports.plot import plot

    level = expected.points[-1][1]
    lines = [
        (
            f"{name} of run {folder.name}: {state}, step {expected.step:,.0f}, {rule.metric} "
            f"{level:.4g}"
        ),
        "",
    ]
    lines += plot(
        expected.points, expected.curve, min(shutil.get_terminal_size().columns, _WIDEST), rule.goal
    )
    lines.append("")
    if expected.family is None:
        lines.append(
            f"too few reports for a curve: {len(expected.points)}; {FEWEST_POINTS} are needed"
        )
    else:
        at = expected.curve[-1]
        lines.append(
            f"o reported, - expected, . nine of ten: at step {at.step:,.0f} {rule.metric} "
            f"{at.middle:.4g} ({at.low:.4g} to {at.high:.4g}), in the end "
            f"{expected.asymptote:.4g}; by {expected.family} curves"
        )
    if expected.diverging:
        lines.append(f"its {rule.metric} diverges: these predictions may be far off")
    left, seconds, work = expected.left, expected.seconds(waited or 0.0), expected.core_seconds()
    if left is None:
        return [
            *lines,
            (
                "its remaining time cannot be predicted: it reports neither its epochs nor "
                "enough losses"
            ),
        ]
    ended = waited is None and left.steps > 0.5
    left_of = f"it has ended; had it gone on until {until}" if ended else f"left until {until}"
    lines.append(f"{left_of}: {left.steps:,.0f} steps ({left.low:,.0f} to {left.high:,.0f})")
    if left.likely < 0.5:
        lines.append(f"that it gets there at all is hardly likely: {say_percent(left.likely)}")
    if seconds is not None:
        of_step = expected.seconds_per_step or 1.0
        costs = (
            f", {work.steps:,.0f} core-seconds at {expected.cost / of_step:.2g} cores"
            if work
            else ""
        )
        band = f"({say_seconds(seconds.low)} to {say_seconds(seconds.high)})"
        lines.append(
            f"that takes {say_seconds(seconds.steps)} {band} at {say_seconds(of_step)} a "
            f"step{costs}"
        )
        if waited is not None:
            lines.append(
                f"would end at about {_time_of_day(seconds.steps)} ({_time_of_day(seconds.low)} to "
                f"{_time_of_day(seconds.high)})"
            )
    return lines


def _time_of_day(seconds: float) -> str:
    """The time of day in that many seconds, with the date if it is another day."""
    if seconds > 366 * 86_400:
        return "in more than a year"
    return say_time(time.time() + seconds, seconds=True)


def _plain(
    folder: Path,
    name: str,
    state: str,
    rule: ProgressRule,
    expected: Expected,
    waited: float | None,
) -> dict[str, Any]:
    seconds, now = expected.seconds(waited or 0.0), time.time()
    return {
        "run": folder.name,
        "job": name,
        "state": state,
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
        "ends": _band(seconds, shift=now) if waited is not None else None,
    }


def _band(estimate: Estimate | None, shift: float = 0.0) -> dict[str, float] | None:
    if estimate is None:
        return None
    steps, low, high, likely = estimate
    return {"median": steps + shift, "low": low + shift, "high": high + shift, "likely": likely}
