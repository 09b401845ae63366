"""`headgate report`."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import click

from headgate.cli.patience import telling
from headgate.client.client import Client
from headgate.model.errors import UsageError
from headgate.recorded import runs


@click.command("report")
@click.argument("run", required=False)
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write this file instead of the run's own: /tmp/report.html.",
)
@click.option(
    "--bundle",
    metavar="[FILE]",
    is_flag=False,
    flag_value="",
    help="Write one file for a bug report instead: headgate-RUN.tar.gz.",
)
@click.option(
    "--with-paths",
    is_flag=True,
    help="Leave paths, arguments, variables, hosts and users in the bundle as they are.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures of the report as JSON.")
def command(
    run: str | None,
    show: bool,
    output: Path | None,
    bundle: str | None,
    with_paths: bool,
    as_json: bool,
) -> None:
    """Write a run's report as one HTML page, and print its path.

    RUN is a run's id or part of it; by default the latest. You can report a run that still goes on.

    \b
    Example: headgate report
             headgate report 20260314 --open
             headgate report --output /tmp/for-a-colleague.html
             headgate report --json
             headgate report 20260314 --bundle
    """
    if bundle is not None:
        if show or output:
            raise UsageError("found --bundle with --open or --output; it is a file of its own")
        _bundle(runs.find(run), bundle, with_paths, as_json)
        return
    if with_paths:
        raise UsageError("found --with-paths without --bundle; it says what a bundle holds")
    with telling(lambda: "writing the report"):
        report = Client().find(run).report(output)
    if as_json:
        click.echo(json.dumps({"report": str(report.path), **report.figures()}, indent=2))
    else:
        click.echo(report.path)
    if show and not webbrowser.open(report.path.as_uri()):
        click.echo("no browser could be opened", err=True)


def _bundle(folder: Path, name: str, with_paths: bool, as_json: bool) -> None:
    from headgate.reports import bundle

    if name and not name.endswith(".tar.gz"):
        raise UsageError(
            f"found --bundle {name}; expected a file *.tar.gz, or --bundle as the last word"
        )
    with telling(lambda: "writing the bundle"):
        path = bundle.write(folder, Path(name or f"headgate-{folder.name}.tar.gz"), with_paths)
    click.echo(json.dumps({"bundle": str(path)}) if as_json else path)
    if not with_paths:
        click.echo(
            "paths, arguments, hosts and users are replaced; look through it still", err=True
        )
