"""Options and arguments that several verbs take, apart from what acts on them: help is at hand at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])
_COUNT = click.IntRange(min=1)


class Finite(click.FloatRange):
    """A number in a range, which by itself takes NaN, and infinity where it has no end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"found {value!r}; expected a finite number", param, ctx)
        return number


class WithRest(click.Command):
    """Keeps what follows `--` apart, as arguments for the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["rest"] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)


def layout(command: _F) -> _F:
    """Gives a command the options that `layout.Layout` takes, as keyword arguments."""
    for option in reversed(
        (
            click.option("--engine", metavar="NAME", help="What starts tasks: local (default), ray, or a plug-in's."),
            click.option("--address", metavar="HOST:PORT", help="ray: a cluster's head, or http:// its dashboard."),
            click.option("--shared-files", is_flag=True, help="ray: the nodes see this machine's files; send none."),
            click.option("--cluster", metavar="LAB|FILE", help="Run on the nodes of a lab that is up, or of its file."),
            click.option("--nodes", metavar="A,B,...", help="Only on these nodes of the cluster."),
            click.option("--plan", "plan_file", metavar="FILE", help="Its layout: `headgate schema plan`."),
            click.option("--strategy", type=click.Choice(["single", "allreduce", "ps"]), help="How workers join up."),
            click.option("--workers", type=_COUNT, help="Number of workers."),
            click.option("--servers", type=_COUNT, help="Number of parameter servers; 1 for ps."),
            click.option("--async", "asynchronous", is_flag=True, help="ps: no worker waits for another."),
            click.option(
                "--staleness", type=click.IntRange(min=0), help="ps: asynchronous, none so many steps ahead of another."
            ),
            click.option("--backup-workers", type=_COUNT, help="ps: gradients that a step does without."),
            click.option("--moves", type=click.IntRange(min=0), help="Most moves to a better plan while it runs; 2."),
            click.option("--no-encrypt", is_flag=True, help="Tasks talk in the clear: for private networks."),
        )
    ):
        command = option(command)
    return command
