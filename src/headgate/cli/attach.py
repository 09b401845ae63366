"""`headgate attach`."""

from __future__ import annotations

import click

from headgate.cli.live_view import Interrupts, conclude, follow
from headgate.client.running_jobs import hub_of
from headgate.client.watching import Watch
from headgate.model.errors import NotFoundError
from headgate.recorded import runs


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
    folder = runs.find(run)
    hub = hub_of(folder.name) if runs.alive(folder) else None
    if hub is None and (host := runs.summary(folder).elsewhere):
        raise NotFoundError(f"run {folder.name} runs on host {host}: watch it there")
    if hub is not None:
        with hub, Interrupts() as interrupts:
            if folder.name in hub.ask("runs")["runs"]:  # still
                hub.ask("attach", run=folder.name)
                return follow(Watch(hub, folder.name), as_json, interrupts)
    page = folder / "report.html"
    conclude(folder, str(page) if page.exists() else None, as_json)
    return 0 if all(job.state == "done" for job in runs.summary(folder).jobs) else 1
