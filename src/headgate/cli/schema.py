"""`headgate schema`."""

from __future__ import annotations

import json

import click

from headgate.config import clusterfile, jobfile, planfile, settingsfile
from headgate.studies import studyfile

_FILES = {
    "jobs": jobfile.schema,
    "plan": planfile.schema,
    "cluster": clusterfile.schema,
    "study": studyfile.schema,
    "settings": settingsfile.schema,
}


@click.command()
@click.argument(
    "file", type=click.Choice(list(_FILES)), default="jobs", metavar=f"[{'|'.join(_FILES)}]"
)
@click.option("--json", "_as_json", is_flag=True, help="Print as JSON; it always does.")
def command(file: str, _as_json: bool) -> None:
    """Print the JSON schema of a job file, or of a plan, cluster or study file, or of your
    settings. An editor can check files by it.

    \b
    Example: headgate schema > jobs.schema.json
             headgate schema plan
    """
    click.echo(json.dumps(_FILES[file](), indent=2))
