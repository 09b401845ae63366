"""`headgate arbiter`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from headgate.arbiter import service
from headgate.arbiter.process import FOLDER, Places, start
from headgate.cli.arbiter_acts import COMMANDS
from headgate.config import arbiterfile
from headgate.machine import arbiter_socket
from headgate.machine.cgroup_layout import CGROUPS, passes_protection_on
from headgate.model.sharing import RULES

UNPROTECTED = (
    "the kernel may reclaim memory that users were granted: cgroup2 is mounted without "
    f"`memory_recursiveprot`. Add it: mount -o remount,nsdelegate,memory_recursiveprot {CGROUPS}"
)
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(invoke_without_command=True)
@click.option("--rules", type=_FILE, default=RULES, show_default=True, help="Who may have what.")
@click.option("--socket", type=_FILE, help=f"Where hubs find it. Default: {arbiter_socket.SOCKET}")
@click.option(
    "--folder", type=_FOLDER, default=FOLDER, show_default=True, help="Where it keeps its state."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def command(
    context: click.Context, rules: Path, socket: Path | None, folder: Path, as_json: bool
) -> None:
    """Divide this machine between its users, until a signal ends it. Only root can.

    The hubs of all users ask it before they start a job. SIGHUP has it read its rules again; if it
    ends, jobs go on with what they have.

    \b
    Example: headgate arbiter check arbiter.yaml
             sudo headgate arbiter
             sudo headgate arbiter install
             headgate arbiter hold ada:vae
    """
    if context.invoked_subcommand is not None:
        return
    socket = socket or arbiter_socket.path() or arbiter_socket.SOCKET

    start(Places(rules, socket, folder), as_json)


@command.command()
@click.argument("file", type=_FILE, default=RULES)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def check(file: Path, as_json: bool) -> None:
    """Check a file of rules as a whole; by default that of this machine.

    \b
    Example: headgate arbiter check
             headgate arbiter check arbiter.yaml
    """
    rules = arbiterfile.read(file)
    unknown = arbiterfile.unknown_names(rules)
    protects = passes_protection_on(CGROUPS)
    if as_json:
        facts = {
            "file": str(file),
            "exists": file.exists(),
            "unknown": unknown,
            "protects_memory": protects,
        }
        click.echo(json.dumps(facts, indent=2))
        return
    for kind, name in unknown:
        click.echo(f"{file}: this machine has no {kind} {name!r}; the entry waits for one")
    if protects is False:
        click.echo(UNPROTECTED)
    if file.exists():
        click.echo(f"{file}: no problems")
    else:
        click.echo(f"{file} does not exist: all users have equal shares")


@command.command()
@click.option("--print", "only_print", is_flag=True, help="Print the unit and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def install(only_print: bool, as_json: bool) -> None:
    """Write a unit of systemd, and start it now and with the machine. Only root can.

    \b
    Example: sudo headgate arbiter install
             headgate arbiter install --print
    """
    text = service.unit()
    if not only_print:
        arbiterfile.read()  # with problems it would not start
        service.install(text)
    if as_json:
        answer = {"path": str(service.UNIT), "unit": text, "installed": not only_print}
        click.echo(json.dumps(answer, indent=2))
    elif only_print:
        click.echo(text, nl=False)
    else:
        click.echo(f"{service.UNIT}: the arbiter runs, and will when the machine is started again")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def remove(as_json: bool) -> None:
    """Stop the arbiter and remove its unit. Jobs go on, and each hub is on its own again.

    Example: sudo headgate arbiter remove
    """
    removed = service.remove()
    if as_json:
        click.echo(json.dumps({"path": str(service.UNIT), "removed": removed}, indent=2))
    else:
        click.echo(f"{service.UNIT} {'is removed' if removed else 'did not exist'}")


for _act in COMMANDS:
    command.add_command(_act)
