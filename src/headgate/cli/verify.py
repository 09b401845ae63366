"""`headgate verify`."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from headgate.cli import job_options, options
from headgate.cli.options import Whole
from headgate.model.errors import UsageError
from headgate.model.limits import Limits

_CODES = {"same": 0, "differs": 8, "unknown": 9}


@click.command(cls=options.OfJobs)
@click.argument("targets", nargs=-1, metavar="FILE [-- ARGS] | COMMAND")
@click.option("--job", "name", metavar="NAME", help="Verify this job of a job file: --job digits.")
@options.stated_plan
@job_options.of_jobs(*job_options.LAUNCHED)
@click.option(
    "--steps", type=Whole(min=1), metavar="N", help="Compare N steps. Default: 6; with --resume 24."
)
@click.option(
    "--resume",
    is_flag=True,
    help="Verify a stop at a random place and a resume, in place of several workers.",
)
@click.option(
    "--seed", type=Whole(min=0), metavar="N", help="--resume: stop at the place that N stands for."
)
@click.option(
    "--seconds",
    type=options.Finite(min=0, min_open=True),
    metavar="S",
    help="End each of its runs after S seconds. Default: 120.",
)
@click.option(
    "--writable",
    multiple=True,
    metavar="FOLDER",
    help="Let the script write to this folder as it does otherwise: --writable /data/cache.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    targets: tuple[str, ...],
    name: str | None,
    steps: int | None,
    resume: bool,
    seed: int | None,
    seconds: float | None,
    writable: tuple[str, ...],
    as_json: bool,
    **plan: Any,
) -> int:
    """Compare what a script trains alone with what several workers train, step by step.

    The script runs as it is for a few steps: alone, and under the plan. Seeds and batches are the
    same. Headgate compares gradients, weights and buffers after each step. The script computes in
    float64 where it can. It runs in a copy of its folder, and can write nowhere else.

    With --resume the script is stopped at a random place and resumed, and compared with a run that
    was not stopped.

    \b
    Example: headgate verify train.py --workers 2
             headgate verify train.py --strategy ps --workers 2 --servers 1 --steps 12
             headgate verify train.py --workers 2 -- --width 512
             headgate verify train.py --resume --seed 7
             headgate verify jobs.yaml --job digits

    \b
    Exit codes: 0 the same
                8 it differs
                2 bad input
                9 not verified: nothing can be said, and why
    """
    from headgate.cli import (  # what jobs need takes a while to import; help needs none of it
        placement,
        running,
        standard_input,
    )
    from headgate.client import verification_trial, verifying
    from headgate.verification.wording import words

    if len(targets) > 1:
        raise UsageError(f"found {len(targets)} files; expected one script, or one job file")
    jobs = running.read(targets, ctx.meta["asked"], None, Limits())
    jobs = job_options.applied(jobs, job_options.stated(ctx))
    jobs = [job for job in jobs if name is None or job.name == name]
    if len(jobs) != 1:
        raise UsageError(f"found {len(jobs)} jobs; expected one: name it with --job")
    [job] = jobs
    stated_options = placement.PlacementOptions(**plan)
    if (
        stated_options.strategy is None
        and stated_options.servers is None
        and stated_options.plan_file is None
        and job.plan is None
        and not resume
    ):
        stated_options = replace(stated_options, strategy="allreduce")
    if (
        stated_options.workers is None
        and stated_options.plan_file is None
        and (job.plan is None or stated_options.strategy is not None)
    ):
        stated_options = replace(stated_options, workers=None if resume else 2)
    job = stated_options.applied(job)
    if not resume and (job.plan is None or job.plan.workers < 2):
        raise UsageError("found a plan of one worker; expected --workers 2 or more, or --resume")
    asked = verification_trial.Asked(
        job,
        steps or (verifying.RESUME_STEPS if resume else verification_trial.STEPS),
        resume,
        seed,
        seconds or verification_trial.SECONDS,
        tuple(str(Path(folder).absolute()) for folder in writable),
    )
    standard_input.refuse("headgate verify")
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C, so that nothing stays behind
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    verify = verifying.verify(asked, _show)
    verifying.keep(asked, verify)
    if as_json:
        click.echo(json.dumps(asdict(verify), indent=2))
    else:
        click.echo(words(verify))
    return _CODES[verify.answer]


def _show(what: str) -> None:
    """Progress on standard error."""
    if sys.stderr.isatty():
        click.echo(f"running: {what}", err=True)
