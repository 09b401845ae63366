"""`headgate export`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.cli.patience import telling
from headgate.client.client import Client
from headgate.model.errors import StorageError, UsageError
from headgate.model.trackers import Destination, Tracker

if TYPE_CHECKING:
    from headgate.recorded.recording import Recording

_FILES = {"csv": "csv", "parquet": "parquet", "perfetto": "json"}
"""Forms that are one file, and how its name ends."""
_NEEDS = {"parquet": "pyarrow", **{str(tracker): str(tracker) for tracker in Tracker}}
"""The library that writes a form."""


@click.command("export")
@click.argument("run", required=False)
@click.option(
    "--to",
    "form",
    required=True,
    type=click.Choice(sorted({*_FILES, *_NEEDS})),
    help="The form: a table, a trace, or a tracker of experiments.",
)
@click.option(
    "--output",
    metavar="PATH|URI|PROJECT",
    help="File of a table or trace, folder of TensorBoard, URI of MLflow, project of the others.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(run: str | None, form: str, output: str | None, as_json: bool) -> None:
    """Write what was recorded of a run in the form that another tool reads.

    RUN is a run's id or part of it; by default the latest. Names of what Headgate measured begin
    with `headgate/`; losses and metrics have the names that the job gave them.

    \b
    Example: headgate export --to csv
             headgate export 20260314 --to perfetto --output steps.json
             headgate export --to tensorboard --output runs/
             headgate export --to mlflow --output http://127.0.0.1:5000
    """
    chosen = Client().find(run)
    to = output or _usual(chosen.id, form)
    try:
        with telling(lambda: f"exporting {chosen.id}"):
            written = _forms()[form](chosen.recording(), to)
    except ImportError as error:
        library = _NEEDS.get(form, form)
        raise UsageError(
            f"--to {form} needs {library}, which cannot be imported: {error}; install it with: "
            f"pip install {library}"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot write {to}: {error.strerror or error}") from error
    if as_json:
        click.echo(json.dumps({"run": chosen.id, "to": form, "written": written}))
    else:
        click.echo(written or f"written to what {form} is set to")


def _usual(run: str, form: str) -> str:
    if form in _FILES:
        return f"headgate-{run}.{_FILES[form]}"
    return f"headgate-{run}" if form == "tensorboard" else ""


def _forms() -> Mapping[str, Callable[[Recording, str], str]]:
    from headgate.exports import files, perfetto, tracking

    def at_path(write: Callable[[Recording, Path], Path]) -> Callable[[Recording, str], str]:
        return lambda recording, to: str(write(recording, Path(to)))

    def tracked(tracker: Tracker) -> Callable[[Recording, str], str]:
        def write(recording: Recording, to: str) -> str:
            tracking.export(recording, Destination(tracker, to))
            return to

        return write

    return {
        "csv": at_path(files.to_csv),
        "parquet": at_path(files.to_parquet),
        "perfetto": at_path(perfetto.to_perfetto),
        **{tracker: tracked(tracker) for tracker in Tracker},
    }
