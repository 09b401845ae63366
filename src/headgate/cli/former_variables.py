"""The environment variables of a resumed run: those that it was submitted with. Prints how this
terminal's differ.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from headgate.engines.launch import interpreter
from headgate.hub.submission import Submission
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.scripts import variables
from headgate.scripts.program import program

_MOST = 12
"""Most differing variables that are printed."""
_CURE = "`--env NAME` takes the value of this terminal, `--env NAME=VALUE` another one"


def kept(submission: Submission, folder: Path, overridden: Collection[str]) -> Submission:
    """A submission that resumes a run with its variables. Prints how this terminal's differ.

    Args:
        folder: The former run.
        overridden: Names of variables that the command line sets for its jobs.
    """
    former, present = variables.read(folder), dict(os.environ)
    if former is None:
        click.echo(
            f"note: run {folder.name} kept no variables; those of this terminal hold", err=True
        )
        return submission
    environment = variables.continued(former, present)
    lines = list(_interpreters(submission.jobs, environment, present))
    lines += [
        f"{name}: {first}, here {second}"
        for name, (first, second) in _shown(
            former, present, {*overridden, *_stated(submission.jobs)}
        )
    ]
    if lines:
        more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
        heading = (
            f"note: the variables of run {folder.name} hold, which differ from those of "
            f"this terminal; {_CURE}"
        )
        click.echo("\n  ".join([heading, *lines[:_MOST], *more]), err=True)
    return replace(submission, environment=environment)


def _shown(
    former: Mapping[str, str | None], present: Mapping[str, str], left_out: Collection[str]
) -> Iterator[tuple[str, tuple[str, str]]]:
    for variable in variables.differing(former, present):
        if variable.name not in left_out:
            yield variable.name, variable.shown()


def _stated(jobs: Sequence[Job]) -> Iterator[str]:
    """Variables that every job sets itself."""
    return (name for name in jobs[0].env if all(name in job.env for job in jobs))


def _interpreters(
    jobs: Sequence[Job], former: Mapping[str, str], present: Mapping[str, str]
) -> Iterator[str]:
    """The Python of each job, if this terminal would use another one."""
    paths = {}
    for job in jobs:
        if program(job) is not None:
            paths[job.name] = tuple(
                _python(job, {**environment, **job.env}.get("PATH"))
                for environment in (former, present)
            )
    for first, second in dict.fromkeys(paths.values()):
        if first != second:
            names = ", ".join(name for name, pair in paths.items() if pair == (first, second))
            yield f"Python of {names}: {first}, here {second}"


def _python(job: Job, path: str | None) -> str:
    try:
        return interpreter(job, path)
    except UsageError:
        return "none"
