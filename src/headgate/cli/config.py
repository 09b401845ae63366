"""`headgate config`."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table

from headgate import policies
from headgate.cli.live_view import print_table
from headgate.config import settingsfile
from headgate.config.settingsfile import SettingSource
from headgate.model.defaults import settings_path
from headgate.model.errors import InvalidFileError, Problem, UsageError


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show your settings and where each comes from, or change them.

    A command line counts first. Then count a job file, variables, and the file of your settings.

    \b
    Example: headgate config
             headgate config set keep_runs 50
             headgate config unset keep_runs
             headgate config edit
    """
    if ctx.invoked_subcommand is not None:
        return
    shown = list(settingsfile.effective())
    _check_policy()
    if as_json:
        rows = [
            {
                "key": setting.key,
                "value": setting.value,
                "source": setting.source,
                "variable": setting.variable,
                "line": setting.line,
            }
            for setting in shown
        ]
        click.echo(json.dumps({"file": str(settings_path()), "settings": rows}, indent=2))
        return
    table = Table("setting", "value", "from", box=None, header_style="bold")
    for setting in shown:
        table.add_row(setting.key, _shown(setting.value), _from(setting))
    print_table(table)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _from(setting: settingsfile.Setting) -> str:
    if setting.source is SettingSource.ENVIRONMENT:
        return setting.variable
    if setting.source is SettingSource.FILE:
        return f"{settings_path()}:{setting.line}"
    return "default"


def _check_policy() -> None:
    """Check that the policy of the file exists.

    Raises:
        InvalidFileError: It does not.
    """
    entry, file = settingsfile.read(settings_path())
    if entry.policy is None or file is None:
        return
    try:
        policies.make(entry.policy)
    except UsageError as error:
        problem = Problem(
            "policy", file.line(("policy",)), str(error), "headgate config set policy headgate"
        )
        raise InvalidFileError(file.path, [problem]) from None


@command.command("set")
@click.argument("key")
@click.argument("value")
def set_(key: str, value: str) -> None:
    """Write a setting into your file. Its other lines and comments stay.

    \b
    Example: headgate config set policy srpt
             headgate config set idle_seconds 10m
    """
    if key == "policy":
        policies.make(value)
    settingsfile.change(settings_path(), key, value)


@command.command()
@click.argument("key")
def unset(key: str) -> None:
    """Remove a setting from your file.

    \b
    Example: headgate config unset policy
    """
    settingsfile.change(settings_path(), key, None)


@command.command()
def edit() -> None:
    """Open your file in your editor, and check it.

    \b
    Example: headgate config edit
    """
    file = settings_path()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    click.edit(filename=str(file))
    settingsfile.read(file)
    _check_policy()


@command.command()
def path() -> None:
    """Print the path of your file, which need not exist.

    \b
    Example: headgate config path
    """
    click.echo(settings_path())
