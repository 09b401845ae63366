"""`headgate attach`."""

from __future__ import annotations

import click

from headgate.cli.live_view import Interrupts, conclude, follow
from headgate.client.client import Client


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(run: str | None, as_json: bool) -> int:
    """Watch a run until it ends: the latest, or the one you name.

    Ctrl-C acts on its jobs as under `headgate run`: it stops them with a checkpoint, and a second
    one kills them.

    \b
    Example: headgate attach
             headgate attach 20261121-0930
    """
    running = Client().find(run)
    with running.watched() as watched:
        if watched is not None:
            with Interrupts() as interrupts:
                return follow(watched, as_json, interrupts)
    page = running.path / "report.html"
    conclude(running.path, str(page) if page.exists() else None, as_json)
    return 0 if all(job.succeeded for job in running.summary().jobs) else 1
