"""`headgate schema`."""

from __future__ import annotations

import json

import click

from headgate import jobfile


@click.command()
@click.option("--json", "_as_json", is_flag=True, help="As JSON; it always is.")
def command(_as_json: bool) -> None:
    """Print the JSON schema of a job file, for an editor to check it by.

    \b
    Example: headgate schema > jobs.schema.json
    """
    click.echo(json.dumps(jobfile.schema(), indent=2))
