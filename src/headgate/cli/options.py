"""Options and arguments shared by several verbs. The code that acts on them is elsewhere, so that
help is fast.
"""

from __future__ import annotations

import difflib
import math
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import click

from headgate.engines.engine_options import declared

_F = TypeVar("_F", bound=Callable[..., Any])
_EXAMPLE = " " * 13 + "headgate"  # how a further example begins in a docstring


class Whole(click.IntRange):
    """A whole number in a range, called so in messages."""

    name = "whole number"


_COUNT = Whole(min=1)


class Finite(click.FloatRange):
    """A finite number in a range. click's own type accepts NaN, and infinity in a range without an
    end.
    """

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"found {value!r}; expected a finite number", param, ctx)
        return number


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The part of a command line that names what to run, except files.

    Args:
        command: The words of a command, for example `python -m package.train --epochs 5`.
        module: A Python module.
        python: The interpreter of scripts and of the module.
        rest: Arguments after `--`.
    """

    command: tuple[str, ...] = ()
    module: str | None = None
    python: str | None = None
    rest: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a command line after its files."""
        rest = ("--", *self.rest) if self.rest else ()
        return (*(("-m", self.module) if self.module else ()), *self.command, *rest)


class OfJobs(click.Command):
    """A verb that takes scripts, job files or a command. It separates a command's words, and
    arguments after `--`.

    A word that is the name of a program on the PATH, and of no file here, begins a command. All
    following words belong to the command, including options. So do all words after a `--` without a
    file before it.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.params += [
            click.Option(
                ["-m", "module"], metavar="MODULE", help="Run a Python module, as `python -m` does."
            ),
            click.Option(
                ["--python"],
                metavar="PATH",
                help="Interpreter of scripts. Default: the first `python` on PATH.",
            ),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        command, rest = self._command(ctx, args), tuple[str, ...]()
        if command:
            args = args[: len(args) - len(command)]
            args = args[:-1] if args[-1:] == ["--"] else args
        elif "--" in args:
            at = args.index("--")
            args, rest = args[:at], tuple(args[at + 1 :])
        try:
            left = super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            raise click.UsageError(_unknown_option_message(ctx, args, error), ctx) from None
        ctx.meta["asked"] = CommandLine(
            command, ctx.params.pop("module", None), ctx.params.pop("python", None), rest
        )
        return left

    def _command(self, ctx: click.Context, args: list[str]) -> tuple[str, ...]:
        """The words of a command to run; empty if there are only files, or nothing."""
        parser = self.make_parser(ctx)
        # the first word that is no option begins the remaining words
        parser.allow_interspersed_args = False
        try:
            options, _, _ = parser.parse_args(list(args))
        except click.UsageError:
            return ()
        [words] = (
            options.get(str(param.name))
            for param in self.params
            if isinstance(param, click.Argument)
        )
        if not isinstance(words, tuple) or not words or options.get("module"):
            return ()
        apart = args[: len(args) - len(words)][-1:] == ["--"]
        return words if apart or is_program(words[0]) else ()


def is_program(word: str) -> bool:
    """Whether a word begins a command: it is the name of a program, and of no file here, or the
    path of an interpreter, of a launcher or of a program on the PATH. A launcher that Headgate
    replaces need not be installed.
    """
    if word.endswith((".py", ".yaml", ".yml")):
        return False
    from headgate.scripts.launch_commands import is_named
    from headgate.scripts.program import is_python

    if not os.path.isfile(word):
        return shutil.which(word) is not None or is_named(word)
    folder, name = os.path.split(word)
    if not folder or not os.access(word, os.X_OK):
        return False
    on_path = shutil.which(name)
    is_on_path = on_path is not None and os.path.samefile(word, on_path)
    return is_on_path or is_named(name) or is_python(name)


def _unknown_option_message(ctx: click.Context, args: list[str], error: click.NoSuchOption) -> str:
    """The message about an option that a verb does not have."""
    name = error.option_name
    known = {
        option: param
        for param in ctx.command.params
        if isinstance(param, click.Option)
        for option in param.opts
    }
    ours: list[str] = []
    script_words: list[str] = []
    words = iter(args)
    for word in words:
        option = known.get(word.partition("=")[0])
        if option is not None:
            ours += [word] if option.is_flag or "=" in word else [word, *islice(words, 1)]
        elif word.startswith("-") or (script_words and not word.endswith(".py")):
            script_words.append(word)
        else:
            ours.append(word)
    if "-m" not in ours and not any(word.endswith(".py") for word in ours):
        ours.append("train.py")
    cure = shlex.join([*ctx.command_path.split(), *ours, "--", *script_words])
    from headgate.config.userfile import OTHER_NAMES

    field = name.lstrip("-").replace("-", "_")
    other = OTHER_NAMES.get(field, field)
    spelt = f"--{other.replace('_', '-')}"
    close = [spelt] if spelt in known else difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    meant = f" Did you mean {close[0]}?" if close else ""
    if not close and not any(_mentions(word, name) for word in ours):
        from headgate.config import jobfile

        place = jobfile.field_of_a_job(other)
        meant = f" A job has it in a job file: `{place}`." if place else ""
    return f"No such option: {name}.{meant} Options of a script follow `--`: {cure}"


def _mentions(file: str, text: str) -> bool:
    """Whether a word is the name of a file that contains this text."""
    if not os.path.isfile(file):
        return False
    with open(file, encoding="utf-8", errors="replace") as script:
        return text in script.read()


def of_engines(name: str) -> Callable[[_F], _F]:
    """Give a command an option that engines declare, as the keyword argument of that name."""
    takes = {
        engine.name: option
        for engine in declared().values()
        for option in engine.options
        if option.name == name
    }
    metavar = "|".join(dict.fromkeys(engine_option.metavar for engine_option in takes.values()))
    engine_helps = "; ".join(
        f"{engine}: {engine_option.help}" for engine, engine_option in takes.items()
    )
    return click.option(
        f"--{name.replace('_', '-')}",
        metavar=metavar or None,
        is_flag=not metavar,
        help=f"{engine_helps}.",
    )


def environment(command: _F) -> _F:
    """Give a command `--env`, as the keyword argument `given`."""
    return click.option(
        "--env",
        "given",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="Variable of the jobs: SEED=1. Without a value: as in this terminal.",
    )(command)


def example(words: str) -> Callable[[_F], _F]:
    """Add an example for each engine to a command's help.

    Args:
        words: The command line. The options that name the engine's cluster are added to it.
    """

    def add(command: _F) -> _F:
        lines = (command.__doc__ or "").splitlines()
        last = max(at for at, line in enumerate(lines) if line.startswith(_EXAMPLE))
        examples = (
            f"{words} --engine {declaration.name} {declaration.example}"
            for declaration in declared().values()
            if declaration.example
        )
        command.__doc__ = "\n".join(
            [
                *lines[: last + 1],
                *(_EXAMPLE.removesuffix("headgate") + shown for shown in examples),
                *lines[last + 1 :],
            ]
        )
        return command

    return add


def _engines() -> str:
    return ", ".join(["local (default)", *declared()])


def stated_plan(command: _F) -> _F:
    """Give a command the options that state a plan, as keyword arguments of
    `placement.PlacementOptions`.
    """
    for option in reversed(
        (
            click.option(
                "--plan",
                "plan_file",
                metavar="FILE",
                help=(
                    "Take the plan of this file, plan.yaml. `headgate schema plan` prints "
                    "its schema."
                ),
            ),
            click.option(
                "--strategy",
                type=click.Choice(["single", "allreduce", "ps"]),
                help="How workers learn together: by all-reduce, or by parameter servers (ps).",
            ),
            click.option("--workers", type=_COUNT, metavar="N", help="Number of workers: 4."),
            click.option(
                "--servers",
                type=_COUNT,
                metavar="N",
                help="ps: number of parameter servers. Default: 1.",
            ),
            click.option(
                "--async",
                "asynchronous",
                is_flag=True,
                help="ps: asynchronous, no worker waits for another.",
            ),
            click.option(
                "--staleness",
                type=Whole(min=0),
                metavar="N",
                help=(
                    "ps: asynchronous with bounded staleness: no worker is more than N steps "
                    "ahead of the slowest."
                ),
            ),
            click.option(
                "--backup-workers",
                type=_COUNT,
                metavar="N",
                help="ps: do not wait for the slowest N workers (stragglers).",
            ),
        )
    ):
        command = option(command)
    return command


def layout(command: _F) -> _F:
    """Give a command the options that `placement.PlacementOptions` takes, as keyword arguments."""
    for option in reversed(
        (
            click.option(
                "--engine",
                metavar="NAME",
                help=f"Where tasks run: {_engines()}, or a plug-in's name.",
            ),
            *map(of_engines, ("address", "shared_files")),
            click.option(
                "--cluster",
                metavar="LAB|FILE",
                help=(
                    "Run on the nodes of this lab, which has to be up: its name, or its "
                    "file, lab.yaml."
                ),
            ),
            click.option(
                "--nodes", metavar="A,B,...", help="Use only these nodes of the cluster: a,b."
            ),
            stated_plan,
        )
    ):
        command = option(command)
    return command
