"""`headgate results`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click
from rich.console import Console

from headgate.client.client import Client
from headgate.model.errors import UsageError
from headgate.model.job_states import FAULTS
from headgate.model.sweeps import Value
from headgate.model.units import counted, say_seconds
from headgate.recorded.results import JobResult, metric_names, parameter_names, ranked
from headgate.reports.table_parts import TableColumn, tables
from headgate.reports.words import MISSING, listed, say_loss

_MOST_SHOWN = 100


@click.command()
@click.argument("run", required=False)
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Order by a metric (the best first), a parameter, job, state or seconds. Default: by the "
    "metric that shows the progress of the jobs.",
)
@click.option("--all", "every", is_flag=True, help="Show all jobs, not only the first 100.")
@click.option("--csv", "as_csv", is_flag=True, help="Print as CSV, with all metrics.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON, with all metrics.")
def command(run: str | None, sort: str | None, every: bool, as_csv: bool, as_json: bool) -> None:
    """Compare what the jobs of a run came to: the latest run, or the one you name.

    For each job: its parameters in a sweep, the last and the best value of a metric, state and
    time. For a running job, also what the metric is predicted to end with, and in brackets where
    nine of ten end. A job that `stop_early` ended keeps its last prediction.

    \b
    Example: headgate results
             headgate results 20261121-0930 --sort val_acc
             headgate results --all
             headgate results --csv > results.csv
    """
    if as_csv and as_json:
        raise UsageError("found --csv with --json; give one of them")
    watched = Client().find(run)
    results = ranked(watched.results(), sort)
    if as_json:
        names = {"parameters": parameter_names(results), "metrics": metric_names(results)}
        jobs = [asdict(result) for result in results]
        click.echo(json.dumps({"run": watched.id, **names, "jobs": jobs}, indent=2))
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(_csv(results))
    else:
        _show(results, sort, len(results) if every else _MOST_SHOWN)


def _csv(results: Sequence[JobResult]) -> Iterator[Sequence[Value | None]]:
    parameters, metrics = parameter_names(results), metric_names(results)
    of_metrics = [f"{name}.{which}" for name in metrics for which in ("last", "best")]
    of_predicted = ("predicted", "predicted.low", "predicted.high")
    yield ("job", "state", "seconds", *parameters, *of_metrics, *of_predicted)
    for result in results:
        values: list[Value | None] = [result.name, result.state, result.seconds]
        values += map(result.parameters.get, parameters)
        for name in metrics:
            metric = result.metrics.get(name)
            values += (metric.last, metric.best) if metric is not None else (None, None)
        band = result.predicted
        values += (band.median, band.low, band.high) if band is not None else (None,) * 3
        yield values


def _show(results: Sequence[JobResult], sort: str | None, most: int) -> None:
    parameters, metrics = parameter_names(results), metric_names(results)
    shown = sort if sort in metrics else next(iter(metrics), None)
    predicted = [f"predicted\n{result.metric}" for result in results if result.predicted]
    predicts = bool(predicted)
    headings = ["job", *parameters]
    headings += [f"{shown}\nlast", "\nbest"] if shown is not None else []
    headings += predicted[:1]
    columns = [*map(TableColumn, headings), TableColumn("state", False), TableColumn("ran")]
    rows = [
        (_cells(result, parameters, shown, predicts), "red" if result.state in FAULTS else "")
        for result in results[:most]
    ]
    console = Console(highlight=False)
    for table in tables(columns, rows, console.width):
        console.print(table)
    if left := len(results) - len(rows):
        click.echo(f"... and {left:,} more of {counted(len(results), 'job')}; --all shows them")
    if others := [name for name in metrics if name != shown]:
        click.echo(f"--sort shows other metrics: {listed(others)}; --csv and --json have all")


def _cells(
    result: JobResult, parameters: Sequence[str], shown: str | None, predicts: bool
) -> list[str]:
    cells = [result.name, *(_said(result.parameters.get(name)) for name in parameters)]
    if shown is not None:
        metric = result.metrics.get(shown)
        last = say_loss(metric.last) if metric is not None else MISSING
        cells.append("nan" if result.nan and shown == "loss" else last)
        cells.append(say_loss(metric.best) if metric is not None else MISSING)
    if predicts:
        band = result.predicted
        cells.append(
            f"{band.median:.4g} ({band.low:.4g} to {band.high:.4g})" if band is not None else ""
        )
    ran = say_seconds(result.seconds) if result.seconds is not None else ""
    return [*cells, result.state, ran]


def _said(value: Value | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.6g}" if isinstance(value, float) else str(value)
