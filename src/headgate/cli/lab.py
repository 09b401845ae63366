"""`headgate lab`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict

import click
from rich.table import Table

from headgate import lab
from headgate.cli.live_view import print_table
from headgate.model import units
from headgate.model.cluster import Node
from headgate.model.errors import UsageError
from headgate.model.units import counted, say_bits, say_bytes

SETTINGS = "nic, cores, memory, disk"


@click.group()
def command() -> None:
    """Make several nodes inside this machine, each with its own address, NIC rate, CPU, memory and
    disk rate.

    Every command takes --json.

    \b
    Example: headgate lab up lab.yaml
             headgate lab exec half-1 -- python train.py
             headgate lab down
    """


@command.command()
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def up(file: str, as_json: bool) -> None:
    """Make the lab of a file.

    If it is up already, change what differs from the file. What runs in the nodes goes on.

    \b
    Example: headgate lab up lab.yaml
    """
    done = lab.up(file)
    nodes = lab.nodes(done.lab).nodes
    if as_json:
        click.echo(
            json.dumps(
                {
                    "lab": done.lab,
                    "changes": done.changes,
                    "nodes": [asdict(node) for node in nodes],
                }
            )
        )
        return
    for line in done.changes or ("nothing had to be changed",):
        click.echo(line)
    click.echo(
        f"lab {done.lab} is up: {counted(len(nodes), 'node')}, "
        f"{counted(sum(node.cores for node in nodes), 'core', 'g')}"
    )


@command.command()
@click.argument("name", metavar="[LAB]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def status(name: str | None, as_json: bool) -> None:
    """Show what lab nodes have and use.

    Without a name it shows all labs that are up.

    \b
    Example: headgate lab status
             headgate lab status lab
    """
    statuses = [lab.status(lab_name) for lab_name in ([name] if name is not None else lab.names())]
    if as_json:
        click.echo(json.dumps([asdict(node) for nodes in statuses for node in nodes], indent=2))
        return
    if not statuses:
        click.echo(lab.none_up())
    for nodes in statuses:
        click.echo(f"lab {nodes[0].lab}" if nodes else "an empty lab")
        print_table(_table(nodes))


@command.command(
    name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print output and exit code as JSON when it has ended."
)
@click.argument("node")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(node: str, words: tuple[str, ...], as_json: bool) -> None:
    """Run a command in a node.

    It has the node's address, host name, CPU and memory. NODE is a node's name, or LAB/NODE.

    \b
    Example: headgate lab exec half-1 -- python train.py
    """
    words = words[1:] if words[0] == "--" else words
    if not words:
        raise UsageError(
            "expected a command after the node, such as: headgate lab exec half-1 -- hostname"
        )
    if as_json:
        again = [sys.executable, "-m", "headgate", "lab", "exec", node, "--", *words]
        done = subprocess.run(again, capture_output=True, text=True, errors="replace", check=False)
        click.echo(
            json.dumps({"exit_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr})
        )
        raise SystemExit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
    lab.enter(node)
    # Python ignores the signal, and so would the programs that it starts
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        click.echo(f"headgate: {words[0]} cannot be run: {error.strerror}", err=True)
        raise SystemExit(127 if isinstance(error, FileNotFoundError) else 126) from None


@command.command(name="set")
@click.argument("node")
@click.argument("settings", metavar="SETTING=VALUE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def change(node: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Change a node while jobs run in it.

    Settings are cores, memory, nic and disk. The last two may be `unlimited`. With nic=down the NIC
    is disconnected, as if its cable were pulled. With nic=up it is connected again.

    \b
    Example: headgate lab set half-1 nic=100Mbit cores=0.5
             headgate lab set half-1 memory=2GiB disk=100MB/s
             headgate lab set half-1 nic=down
    """
    values, plugged = _settings(settings)
    after = lab.change(node, values, plugged)
    if as_json:
        click.echo(json.dumps(asdict(after)))
        return
    memory, nic = say_bytes(after.memory_bytes), _rate(after.nic_bytes_per_second)
    disk = (
        ""
        if after.disk_bytes_per_second is None
        else f", disk {say_bytes(after.disk_bytes_per_second)}/s"
    )
    states = {None: "", True: ", NIC connected", False: ", NIC disconnected"}
    state = states[plugged]
    click.echo(f"{after.name}: {counted(after.cores, 'core', 'g')}, {memory}, {nic}{disk}{state}")


@command.command()
@click.argument("name", metavar="[LAB]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def down(name: str | None, as_json: bool) -> None:
    """Take a lab down.

    This ends the processes in its nodes and leaves nothing of it.

    \b
    Example: headgate lab down
    """
    gone = lab.down(name)
    click.echo(json.dumps({"lab": gone}) if as_json else f"lab {gone} is down")


def _settings(words: Iterable[str]) -> tuple[dict[str, object], bool | None]:
    values: dict[str, object] = {}
    plugged: bool | None = None
    for word in words:
        key, _, text = word.partition("=")
        try:
            match key:
                case "nic" if text in ("up", "down"):
                    plugged = text == "up"
                case "nic" | "disk":
                    values[f"{key}_bytes_per_second"] = (
                        None if text == "unlimited" else units.rate(text)
                    )
                case "cores":
                    values["cores"] = float(text)
                case "memory":
                    values["memory_bytes"] = units.size(text)
                case _:
                    raise UsageError(
                        f"found {word!r}; expected one of {SETTINGS}, such as nic=100Mbit"
                    )
        except ValueError as error:
            expected = str(error) if key != "cores" else "expected a number such as 0.5"
            raise UsageError(f"{key}: found {text!r}; {expected}") from None
    return values, plugged


def _table(nodes: Iterable[lab.NodeStatus]) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for heading in (
        "node",
        "kind",
        "address",
        "cores",
        "memory",
        "NIC",
        "in",
        "out",
        "disk",
        "processes",
        "state",
    ):
        table.add_column(heading, no_wrap=True)
    for node_row in nodes:
        node = node_row.node
        table.add_row(
            node.name,
            node.kind,
            node.address,
            f"{node_row.cores:.2f} of {node.cores:g}",
            f"{say_bytes(node_row.memory_bytes)} of {say_bytes(node.memory_bytes)}",
            _rate(node.nic_bytes_per_second),
            say_bits(node_row.bytes_in),
            say_bits(node_row.bytes_out),
            _disk(node),
            str(node_row.processes),
            node_row.state,
        )
    return table


def _rate(rate: float | None) -> str:
    return "unlimited" if rate is None else say_bits(rate)


def _disk(node: Node) -> str:
    rate = node.disk_bytes_per_second
    return "unlimited" if rate is None else f"{say_bytes(rate)}/s"
