"""`headgate run`."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headgate import jobfile
from headgate.cli import layout
from headgate.cli.following import Interrupts, follow
from headgate.cli.layout import Layout
from headgate.errors import UsageError
from headgate.hub import api
from headgate.hub.client import clean, connect_or_start
from headgate.hub.run import Submission
from headgate.hub.server import SUBMISSION
from headgate.jobs import NAME_PATTERN, Job, Limits


class WithRest(click.Command):
    """Keeps what follows `--` apart, as arguments for the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["rest"] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)


@click.command(cls=WithRest)
@click.argument("targets", nargs=-1, required=True, metavar="FILE... [-- ARGS]")
@click.option("--name", help="Name of the job, where one script is given.")
@click.option(
    "--policy", metavar="NAME", help="What moves shares between the jobs: headgate (default), equal, none or others."
)
@click.option("--cores", type=click.FloatRange(min=0, min_open=True), help="Most cores for each script.")
@click.option("--memory", help="Most memory for each script, such as 2GiB.")
@click.option(
    "--isolation", metavar="NAME", help="What tasks are boxed in: process (default), container, or a plug-in's."
)
@click.option("--image", help="container: an image, or host (default): what this machine has installed.")
@layout.options
@click.option("-d", "--detach", is_flag=True, help="Return at once; watch with `headgate attach`.")
@click.option("--dry-run", is_flag=True, help="Print exactly what would be started, and start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    targets: tuple[str, ...],
    name: str | None,
    policy: str | None,
    cores: float | None,
    memory: str | None,
    isolation: str | None,
    image: str | None,
    detach: bool,
    dry_run: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Run scripts side by side, or the jobs of one job file, and watch them until they end.

    Ctrl-C stops them at the end of a step, with a checkpoint; a second one kills them. Closing the terminal detaches.

    \b
    Example: headgate run train.py
             headgate run a.py b.py
             headgate run train.py -- --epochs 5
             headgate run jobs.yaml --detach
             headgate run train.py --cluster lab.yaml --strategy ps --workers 4 --servers 2
             headgate run train.py --engine ray --address 10.0.0.1:6379
             headgate run train.py --isolation container --image pytorch/pytorch

    Exit codes: 0 every job is done, 1 one is not, 2 bad input, 3 a part is missing, 4 no place to write, 6 no hub, 130
    interrupted.
    """
    said = Layout(**where)
    jobs = _boxed(read(targets, ctx.meta.get("rest", ()), name, cores, memory), isolation, image)
    if said.states_plan and Path(targets[0]).suffix in (".yaml", ".yml"):
        raise UsageError(f"plans of the jobs of {targets[0]} go into that file, below `plan:`, `allow:` and `moves:`")
    submission = api.submission([said.applied(job) for job in jobs], **said.place().fields())
    if dry_run:
        from headgate.cli.dry_run import show

        show(submission, policy, as_json)
        return 0
    return submit(submission, policy, detach, as_json)


def _boxed(jobs: list[Job], isolation: str | None, image: str | None) -> list[Job]:
    """The jobs, boxed in as the command line says; where it says nothing, as they were."""
    given: dict[str, Any] = {
        name: value for name, value in (("isolation", isolation), ("image", image)) if value is not None
    }
    try:
        return [replace(job, **given) for job in jobs]
    except ValueError as error:
        raise UsageError(str(error)) from None


def submit(submission: Submission, policy: str | None, detach: bool, as_json: bool) -> int:
    """Hand jobs in and watch them; the exit code."""
    clean()
    with connect_or_start() as hub, Interrupts(hub) as interrupts:
        # From here on a Ctrl-C is one to the run, which may have begun before its id is known.
        answer = hub.submit(SUBMISSION.dump_python(submission, mode="json"), policy, attach=not detach)
        run = answer["run"]
        if detach:
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
        return jobfile.load(files[0])
    if name is not None and len(targets) > 1:
        raise UsageError(f"found --name with {len(targets)} scripts; expected one script")
    memory_bytes = None
    if memory is not None:
        from headgate import units

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
