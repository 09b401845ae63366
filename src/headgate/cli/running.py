"""Submits and watches the jobs of a command line."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headgate.cli.live_view import Interrupts, follow, left_alone
from headgate.cli.options import CommandLine
from headgate.cli.placement import PlacementOptions
from headgate.cli.standard_input import Handover
from headgate.client import submitting
from headgate.client.starting import clean, connect_or_start
from headgate.exports import addresses
from headgate.hub.submission import Submission
from headgate.model.errors import UsageError
from headgate.model.job_checks import NAME_PATTERN, is_variable
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.recipients import Recipient
from headgate.model.roles import Role
from headgate.model.sweeps import (
    PARAMETER,
    Passing,
    StopEarly,
    StopRule,
    Sweep,
    is_parameter,
    swept_values,
)
from headgate.scripts.facts import source_facts
from headgate.scripts.launch_commands import parse_launcher
from headgate.scripts.program import program, python_name, source


def stated_variables(given: Sequence[str]) -> dict[str, str]:
    """The variables of `--env`, by name.

    Raises:
        UsageError: A variable has no name, or no value in this environment.
    """
    return dict(map(_variable, given))


def with_variables(jobs: Sequence[Job], added: Mapping[str, str]) -> list[Job]:
    """The jobs with additional variables. If a role sets one of them itself, the role's value
    changes too.
    """
    return [
        replace(
            job, env={**job.env, **added}, roles=tuple(_of_role(role, added) for role in job.roles)
        )
        for job in jobs
    ]


def _of_role(role: Role, added: Mapping[str, str]) -> Role:
    return replace(role, env={name: added.get(name, value) for name, value in role.env.items()})


def _variable(given: str) -> tuple[str, str]:
    name, sign, value = given.partition("=")
    if not is_variable(name):
        raise UsageError(
            f"found --env {given!r}; expected NAME=VALUE, or the NAME of a variable of "
            "this terminal"
        )
    if sign:
        return name, value
    if name not in os.environ:
        raise UsageError(
            f"found --env {name}, which is not set in this terminal; give its value: --env "
            f"{name}=VALUE"
        )
    return name, os.environ[name]


def swept(
    jobs: Sequence[Job],
    given: Sequence[str],
    passing: Passing | None = None,
    rule: StopRule | None = None,
) -> list[Job]:
    """The jobs of sweeps of these jobs.

    Args:
        given: The values of `--sweep`, such as `lr=1e-3,1e-4`; none: the jobs stay as they are.
        passing: How they are given to a script; None: as flags.
        rule: The rule that ends some early; None: none.

    Raises:
        UsageError: A sweep is invalid.
    """
    if not given:
        if passing is not None or rule is not None:
            option = "--sweep-as" if passing is not None else "--stop-early"
            raise UsageError(f"found {option} without a sweep; give --sweep lr=0.1,0.01 as well")
        return list(jobs)
    grid: dict[str, Sequence[str]] = {}
    for text in given:
        name, sign, values = text.partition("=")
        if not sign or not is_parameter(name):
            raise UsageError(f"found --sweep {text!r}; expected {PARAMETER}, and values: lr=0.1,1")
        if name in grid:
            raise UsageError(f"found --sweep {name} twice; give all of its values in one")
        if "" in (texts := values.split(",")):
            raise UsageError(f"found --sweep {text!r}; a value is empty")
        try:
            grid[name] = swept_values(texts)
        except ValueError as error:
            raise UsageError(f"found --sweep {text!r}; {error}") from None
    stop_early = StopEarly(rule) if rule is not None else None
    sweep = Sweep(grid, passing=passing or "flags", stop_early=stop_early)
    for _, fault, cure in sweep.problems():
        raise UsageError(f"--sweep: {fault}; {cure}")
    return [of_sweep for job in jobs for of_sweep in sweep.jobs(job)]


def submission(jobs: Sequence[Job], options: PlacementOptions) -> Submission:
    """A submission of jobs with these options.

    Raises:
        HeadgateError: An option is invalid, or names something out of reach.
    """
    return submitting.submission([options.applied(job) for job in jobs], **options.place().fields())


def with_recipients(submission: Submission, given: Sequence[str]) -> Submission:
    """A submission whose run is told to these recipients, and to no others that its file names for
    the whole run.

    Raises:
        UsageError: A text makes no sense.
    """
    try:
        notify = tuple(Recipient.of(text, of_run=True) for text in given)
    except ValueError as error:
        raise UsageError(f"found --notify: {error}") from None
    addresses.check(notify)
    jobs = tuple(
        replace(job, notify=tuple(to for to in job.notify if not to.of_run))
        for job in submission.jobs
    )
    return replace(submission, jobs=jobs, notify=notify)


def submit(submission: Submission, policy: str | None, detach: bool, as_json: bool) -> int:
    """Submit jobs and watch them. Returns the exit code."""
    clean()
    handed = Handover.of(submission, detach)
    with connect_or_start() as hub, Interrupts() as interrupts:
        # From here on a Ctrl-C is for the run, which may have begun before its id is known.
        watched = submitting.hand_in(hub, handed.submission, policy, handed.given)
        if handed.given is not None:
            handed.given.let_go()
        run = watched.run
        if detach and not interrupts.count:
            click.echo(
                json.dumps({"run": run, "path": str(watched.path)})
                if as_json
                else f"{run}\nwatch it: headgate attach {run}"
            )
            return 0
        with left_alone(run):
            if not as_json:
                click.echo(f"run {run} in {watched.path}")
        return follow(watched, as_json, interrupts, handed.watch)


def read(
    targets: Sequence[str],
    asked: CommandLine,
    name: str | None,
    limits: Limits,
) -> list[Job]:
    """The jobs that a command line names.

    Raises:
        UsageError: The command line is invalid.
    """
    files = [target for target in targets if Path(target).suffix in (".yaml", ".yml")]
    if files:
        if len(targets) > 1:
            raise UsageError(f"found {len(targets)} files; expected one job file, or scripts only")
        if asked != CommandLine() or name or limits != Limits():
            raise UsageError(
                f"arguments, name, interpreter and limits of the jobs of {files[0]} go "
                "into that file"
            )
        from headgate.config import jobfile

        return jobfile.load(files[0])
    programs = list(_programs(targets, asked))
    if not programs:
        raise UsageError("found nothing to run; expected a script, a job file (.yaml) or a command")
    if name is not None and len(programs) > 1:
        raise UsageError(f"found --name with {len(programs)} scripts; expected one script")
    jobs: list[Job] = []
    for stem, fields in programs:
        stem = name or (stem if NAME_PATTERN.fullmatch(stem) else "job")
        taken = {job.name for job in jobs}
        unique = next(
            n
            for n in (stem, *(f"{stem}-{i}" for i in range(2, len(programs) + 2)))
            if n not in taken
        )
        try:
            jobs.append(Job(name=unique, workdir=os.getcwd(), limits=limits, **fields))
        except ValueError as error:
            raise UsageError(str(error)) from None
    return jobs


def hint_at_misplaced(ctx: click.Context, jobs: Sequence[Job]) -> None:
    """Print a hint if an option of Headgate is among the arguments of a script that does not know
    it.
    """
    default = click.core.ParameterSource.DEFAULT
    free = {
        name: param
        for param in ctx.command.params
        if isinstance(param, click.Option) and ctx.get_parameter_source(str(param.name)) is default
        for name in param.opts
    }
    for job in jobs:
        program_run, file = program(job), source(job)
        if program_run is None or file is None:
            continue
        text = source_facts(file).text.decode(errors="replace")
        for name in [word.partition("=")[0] for word in program_run.args]:
            field = re.escape(name.lstrip("-").replace("-", "_"))
            if (
                name.startswith("--")
                and name in free
                and name not in text
                and not re.search(rf"\b{field}\s*[:=]", text)
            ):
                click.echo(
                    f"hint: {name} is given to {program_run.named}, which does not know it; as an "
                    "option of Headgate's it "
                    f"goes before the script: {ctx.command_path} {name} ...",
                    err=True,
                )


def _programs(targets: Sequence[str], asked: CommandLine) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each job if none is given, and the fields that say what it runs."""
    if asked.module is not None:
        if targets:
            raise UsageError(
                f"found -m {asked.module} with {targets[0]!r}; arguments of the module follow `--`"
            )
        python = asked.python or ("python" if shutil.which("python") else "python3")
        yield asked.module, {"run": (python, "-m", asked.module), "args": asked.rest}
        return
    if asked.command:
        first, *arguments = asked.command
        if first.endswith(".py"):  # behind a `--`
            yield from _programs((first,), replace(asked, command=(), rest=tuple(arguments)))
            return
        if asked.python is not None:
            raise UsageError(
                f"found --python with the command {first!r}; name the interpreter in the command"
            )
        job = Job(name="job", run=asked.command, workdir=os.getcwd())
        with suppress(UsageError):  # it is told once all is known of the job
            # a launcher that Headgate replaces need not be installed
            if (launcher := parse_launcher(job)) is not None:
                job, first = replace(job, run=launcher.command), launcher.command[0]
        if shutil.which(first) is None:
            raise UsageError(f"found no program {first!r}, neither here nor on the PATH")
        yield python_name(job) or Path(first).name, {"run": asked.command}
        return
    for i, target in enumerate(targets):
        if i and not os.path.isfile(target):
            cure = f"headgate run {shlex.join(targets[:i])} -- {shlex.join(targets[i:])}"
            raise UsageError(f"found no file {target!r}; arguments of a script follow `--`: {cure}")
        yield Path(target).stem, _file(target, asked)


def _file(target: str, asked: CommandLine) -> dict[str, Any]:
    path = Path(target).absolute()
    if not os.path.isfile(path):
        expected = (
            _suggestion(target) or "expected a script, a job file (.yaml) or a command on the PATH"
        )
        raise UsageError(f"found no file {target!r}; {expected}")
    if path.suffix == ".py":
        return {"script": str(path), "args": asked.rest, "python": asked.python}
    if not os.access(path, os.X_OK):
        raise UsageError(
            f"{target}: expected a Python script (.py), a job file (.yaml) or a program that "
            "may be executed"
        )
    if asked.python is not None:
        raise UsageError(f"found --python with {target}, which is no Python script (.py)")
    return {"run": (str(path),), "args": asked.rest}


def _suggestion(target: str) -> str:
    """A guess at the file that its user meant, for one that does not exist; empty: no name is
    similar.
    """
    first, _, rest = target.partition(" ")
    if rest and (os.path.isfile(first) or shutil.which(first) is not None):
        words = f"{first} -- {rest}" if first.endswith(".py") else target
        return f"without the quotes it is a command: headgate run {words}"
    module = target.rstrip("/").replace("/", ".")
    path = module.replace(".", "/")
    if os.path.isfile(f"{path}.py") or os.path.isfile(f"{path}/__main__.py"):
        return f"to run it as a module: headgate run -m {module}"
    folder = Path(target).parent
    try:
        names = [file.name for file in folder.iterdir() if file.suffix in (".py", ".yaml", ".yml")]
    except (OSError, ValueError):
        return ""
    # a common folder is no similarity
    close = difflib.get_close_matches(Path(target).name, names, n=1)
    return f"did you mean {folder / close[0]}?" if close else ""
