"""`headgate rm`."""

from __future__ import annotations

import json
import sys

import click

from headgate.cli.options import Whole
from headgate.model.errors import UsageError
from headgate.recorded import retention, runs


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option(
    "--keep", metavar="N", type=Whole(min=0), help="Delete all but the latest N runs: --keep 20."
)
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Do not ask. --keep needs it with --json, or without a terminal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the ids of what was deleted as JSON.")
def command(names: tuple[str, ...], keep: int | None, yes: bool, as_json: bool) -> None:
    """Delete runs that have ended, with their logs, checkpoints and reports.

    Headgate keeps a run that a running one goes on from.

    \b
    Example: headgate rm 20261121-0930
             headgate rm --keep 20
    """
    if bool(names) == (keep is not None):
        raise UsageError("expected the ids of runs, or --keep N")
    chosen = [runs.find(name) for name in names] if keep is None else retention.outdated(keep)
    for folder in chosen:
        retention.check_removable(folder)
    if chosen and keep is not None and not yes:
        if as_json or not sys.stdin.isatty():
            raise UsageError(
                f"{len(chosen)} runs would be deleted, and there is no terminal to ask on; "
                "expected --yes with --keep"
            )
        saved = sum(map(retention.has_checkpoints, chosen))
        question = (
            f"delete {len(chosen)} runs, {chosen[0].name} to {chosen[-1].name}, {saved} "
            "of them with checkpoints?"
        )
        click.confirm(question, abort=True, err=True)
    for folder in chosen:
        retention.remove(folder)
    if as_json:
        click.echo(json.dumps([folder.name for folder in chosen]))
        return
    click.echo(f"deleted {', '.join(folder.name for folder in chosen) or 'nothing'}")
