"""`headgate compare`."""

from __future__ import annotations

import json

import click

from headgate.cli.live_view import wide_console
from headgate.recorded import runs


@click.command("compare")
@click.argument("first")
@click.argument("second")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(first: str, second: str, as_json: bool) -> None:
    """Say what differs between two runs, and where the time of each job went differently.

    FIRST and SECOND are ids of runs, or parts of them. Jobs of the same name are compared. A
    difference is beyond the noise if its band of 90 % leaves out 0.

    \b
    Example: headgate compare 20260314-0900 20260315-0900
             headgate compare ab12 cd34 --json
    """
    from headgate.recorded.recording import read
    from headgate.recorded.store import told_as_damage
    from headgate.reports import compared

    stores = [runs.find(run) / runs.STORE for run in (first, second)]
    recordings = [read(store) for store in stores]
    with told_as_damage(stores[0]):
        comparison = compared.compare(*recordings)
    if as_json:
        click.echo(json.dumps(compared.as_json(comparison), indent=2))
    else:
        compared.tell(comparison, wide_console())
