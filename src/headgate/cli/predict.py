"""`headgate predict`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence

import click

from headgate.client.predicting import LossPrediction, predict
from headgate.model.units import say_percent, say_seconds, say_time
from headgate.recorded import runs

_WIDEST = 100
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
    folder, name = runs.find_job(job, run)
    prediction = predict(folder, name)
    if as_json:
        click.echo(json.dumps(prediction.as_json(), indent=2))
        return
    for line in _describe(prediction):
        click.echo(line)


def _describe(prediction: LossPrediction) -> Sequence[str]:
    """The drawing, and its text."""
    from headgate.forecast.curves import FEWEST_POINTS
    from headgate.reports.plot import plot

    rule, expected, waited = prediction.rule, prediction.expected, prediction.silent_seconds
    until = _UNTIL[expected.until].format(
        whole=prediction.whole or "script, as that says itself",
        metric=rule.metric,
        goal=rule.goal or 0.0,
    )
    level = expected.points[-1][1]
    lines = [
        (
            f"{prediction.job} of run {prediction.run}: {prediction.state}, step "
            f"{expected.step:,.0f}, {rule.metric} {level:.4g}"
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
