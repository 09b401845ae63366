"""`headgate config`."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import click
from rich.table import Table

from headgate import policies
from headgate.cli.live_view import print_table
from headgate.config import settings, settingsfile
from headgate.config.settingsfile import SettingSource
from headgate.exports import addresses, delivering
from headgate.model.defaults import settings_path
from headgate.model.errors import InvalidFileError, Problem, UsageError
from headgate.model.recipients import Notice, Occasion, Recipient
from headgate.recorded import runs


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
             headgate config test
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
    if isinstance(value, list):
        return ", ".join(map(str, value))
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
    if key == "notify":
        with suppress(ValueError):  # told below, as of the file
            addresses.check([Recipient.of(value)])
    settingsfile.change(settings_path(), key, value)


@command.command()
@click.argument("key")
def unset(key: str) -> None:
    """Remove a setting from your file.

    \b
    Example: headgate config unset policy
    """
    settingsfile.change(settings_path(), key, None)


@command.command("test")
@click.argument("to", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def test_(to: tuple[str, ...], as_json: bool) -> int:
    """Send a message to each recipient of your settings, or to those that you name.

    \b
    Example: headgate config test
             headgate config test 'mail -s "$HEADGATE_TITLE" me'
    """
    try:
        recipients = tuple(map(Recipient.of, to)) or settings.usual_recipients()
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not recipients:
        raise UsageError("your settings name no recipient: headgate config set notify TO")
    notice = Notice(occasion=Occasion.TEST, host=runs.host(), at=time.time())
    errors: list[str | None] = []
    for recipient in recipients:
        try:
            delivering.deliver(recipient, notice, delivering.new_id())
            errors.append(None)
        except delivering.DeliveryError as error:
            errors.append(str(error))
        if not as_json:
            click.echo(f"{recipient.name}: {errors[-1] or 'delivered'}")
    if as_json:
        outcomes = zip(recipients, errors)
        click.echo(json.dumps([{"recipient": to.name, "error": error} for to, error in outcomes]))
    return int(any(errors))


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
