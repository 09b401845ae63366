"""`headgate service`."""

from __future__ import annotations

import json

import click

from headgate.client import service


@click.group()
def command() -> None:
    """Have runs go on when this machine was started again.

    Every command takes --json.

    \b
    Example: headgate service install
             headgate service install --print
             headgate service remove
    """


@command.command()
@click.option("--print", "only_print", is_flag=True, help="Print the unit and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def install(only_print: bool, as_json: bool) -> None:
    """Write a unit of systemd for your user, and enable it, also without a login.

    Example: headgate service install --print
    """
    text = service.unit()
    path = service.unit_path() if only_print else service.install()
    if as_json:
        answer = {"path": str(path), "unit": text, "installed": not only_print}
        click.echo(json.dumps(answer, indent=2))
    elif only_print:
        click.echo(text, nl=False)
    else:
        click.echo(f"{path}: runs that wait for a hub go on when this machine was started again")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def remove(as_json: bool) -> None:
    """Disable and remove that unit.

    Example: headgate service remove
    """
    removed = service.remove()
    if as_json:
        click.echo(json.dumps({"path": str(service.unit_path()), "removed": removed}, indent=2))
    else:
        click.echo(f"{service.unit_path()} {'is removed' if removed else 'did not exist'}")
