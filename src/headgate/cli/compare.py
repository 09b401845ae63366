"""`headgate compare`."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import click

from headgate.cli.live_view import wide_console
from headgate.cli.patience import telling

_CANNOT_BE_TOLD = 10
"""The exit code if it cannot be told whether the second run is slower."""


class _Part(click.ParamType[Any]):
    """A fraction: `10%` or `0.1`."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        try:
            part = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
        except ValueError:
            part = math.nan
        if not (math.isfinite(part) and part >= 0.0):
            self.fail(f"found {value!r}; expected a part such as 10% or 0.1", param, ctx)
        return part


@click.command("compare")
@click.argument("first")
@click.argument("second")
@click.option(
    "--fail-if-slower",
    "limit",
    type=_Part(),
    metavar="PART",
    help="End with 1 if a step takes longer by more, such as 10%. Prints one line.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(first: str, second: str, limit: float | None, as_json: bool) -> None:
    """Say what differs between two runs, and where the time of each job went differently.

    FIRST and SECOND are ids of runs, or parts of them. Jobs of the same name are compared. A
    difference is beyond the noise if its band of 90 % leaves out 0.

    \b
    Example: headgate compare 20260314-0900 20260315-0900
             headgate compare ab12 cd34 --json
             headgate compare ab12 cd34 --fail-if-slower 10%

    \b
    Exit codes with --fail-if-slower: 0  not slower by more
                                      1  slower by more
                                      10 it cannot be told
    """
    from headgate.client.client import Client
    from headgate.reports import compared

    with telling(lambda: f"comparing {first} and {second}"):
        comparison = Client().compare(first, second).comparison
    if as_json:
        click.echo(json.dumps(compared.as_json(comparison, limit), indent=2))
    elif limit is not None:
        click.echo(compared.pace_line(comparison, limit))
    else:
        compared.tell(comparison, wide_console())
    if limit is not None:
        pace = compared.judged(comparison, limit)
        exits = {compared.Pace.SLOWER: 1, compared.Pace.NOT_KNOWN: _CANNOT_BE_TOLD}
        sys.exit(exits.get(pace, 0))
