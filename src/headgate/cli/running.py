"""Jobs as a command line names them, handed in and watched."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headgate import units
from headgate.cli.following import Interrupts, follow
from headgate.cli.layout import Layout
from headgate.errors import UsageError
from headgate.hub import api
from headgate.hub.client import clean, connect_or_start
from headgate.hub.submission import SUBMISSION, Submission
from headgate.jobs import NAME_PATTERN, Job, Limits


def boxed(jobs: list[Job], isolation: str | None, image: str | None) -> list[Job]:
    """The jobs, boxed in as the command line says; where it says nothing, as they were."""
    given: dict[str, Any] = {
        name: value for name, value in (("isolation", isolation), ("image", image)) if value is not None
    }
    try:
        return [replace(job, **given) for job in jobs]
    except ValueError as error:
        raise UsageError(str(error)) from None


def submission(jobs: Sequence[Job], said: Layout) -> Submission:
    """Jobs, and where and how they are to run.

    Raises:
        HeadgateError: Something of that makes no sense, or is out of reach.
    """
    return api.submission([said.applied(job) for job in jobs], **said.place().fields())


def submit(submission: Submission, policy: str | None, detach: bool, as_json: bool) -> int:
    """Hand jobs in and watch them; the exit code."""
    clean()
    with connect_or_start() as hub, Interrupts(hub) as interrupts:
        # From here on a Ctrl-C is one to the run, which may have begun before its id is known.
        answer = hub.submit(SUBMISSION.dump_python(submission, mode="json"), policy, attach=True)
        run = answer["run"]
        if detach and not interrupts.count:
            click.echo(
                json.dumps({"run": run, "path": answer["path"]})
                if as_json
                else f"{run}\nwatch it: headgate attach {run}"
            )
            return 0
        if not as_json:
            click.echo(f"run {run} in {answer['path']}")
        return follow(hub, run, as_json, interrupts)


def read(
    targets: tuple[str, ...], rest: tuple[str, ...], name: str | None, cores: float | None, memory: str | None
) -> list[Job]:
    """The jobs that a command line names.

    Raises:
        UsageError: It makes no sense.
    """
    files = [target for target in targets if Path(target).suffix in (".yaml", ".yml")]
    if files:
        if len(targets) > 1:
            raise UsageError(f"found {len(targets)} files; expected one job file, or scripts only")
        if rest or name or cores or memory:
            raise UsageError(f"arguments, name and limits of the jobs of {files[0]} go into that file")
        from headgate import jobfile

        return jobfile.load(files[0])
    if name is not None and len(targets) > 1:
        raise UsageError(f"found --name with {len(targets)} scripts; expected one script")
    memory_bytes = None
    if memory is not None:
        try:
            memory_bytes = units.size(memory)
        except ValueError as error:
            raise UsageError(f"found --memory {memory!r}; {error}") from None
    jobs: list[Job] = []
    for target in targets:
        path = Path(target).absolute()
        if not path.is_file():
            raise UsageError(f"found no file {target!r}; expected a script or a job file (.yaml)")
        executable = path.suffix != ".py" and os.access(path, os.X_OK)
        if path.suffix != ".py" and not executable:
            raise UsageError(
                f"{target}: expected a Python script (.py), a job file (.yaml) or a program that may be executed"
            )
        stem = name or (path.stem if NAME_PATTERN.fullmatch(path.stem) else "job")
        taken = {job.name for job in jobs}
        unique = next(n for n in (stem, *(f"{stem}-{i}" for i in range(2, len(targets) + 2))) if n not in taken)
        try:
            job = Job(
                name=unique,
                script=None if executable else str(path),
                run=(str(path),) if executable else None,
                args=rest,
                workdir=os.getcwd(),
                limits=Limits(cores=cores, memory_bytes=memory_bytes),
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        jobs.append(job)
    return jobs
