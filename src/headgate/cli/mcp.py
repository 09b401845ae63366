"""`headgate mcp`."""

from __future__ import annotations

import importlib.util
import signal

import click

from headgate.model.errors import UsageError

PACKAGE = "mcp>=2.0"


@click.command("mcp")
@click.option(
    "--allow-changes", is_flag=True, help="Also stop, checkpoint and change jobs when asked."
)
def command(allow_changes: bool) -> None:
    """Serve Headgate to a program that speaks the Model Context Protocol.

    It answers on standard input and output: name this command in the settings of that program. It
    can look at runs, explain and compare them, plan and simulate. With --allow-changes it can also
    stop, checkpoint and change jobs; each such call is a preview first.

    \b
    Example: headgate mcp
             headgate mcp --allow-changes
    """
    if importlib.util.find_spec("mcp") is None:
        raise UsageError(f"it needs the package mcp: pip install '{PACKAGE}'")
    from headgate.agents.server import server

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # else it waits for another line of input
    server(allow_changes).run()
