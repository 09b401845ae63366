"""`headgate run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from headgate.cli import job_options, options
from headgate.model.errors import UsageError
from headgate.model.sweeps import Passing, StopRule


@click.command(cls=options.OfJobs)
@click.argument("targets", nargs=-1, metavar="FILE... [-- ARGS] | COMMAND")
@click.option("--name", help="Name of the job, if you give one script. Default: the script's name.")
@click.option(
    "--policy",
    metavar="NAME",
    help=(
        "Policy that moves shares between jobs: headgate (default), srpt, equal, none, or "
        "headgate:rho=1.5."
    ),
)
@options.environment
@click.option(
    "--sweep",
    "swept",
    metavar="NAME=VALUES",
    multiple=True,
    help="A job for each value: lr=1e-3,1e-4, or seed=0..9. Given again: for each combination.",
)
@click.option(
    "--sweep-as",
    "passing",
    type=click.Choice(get_args(Passing)),
    help="How scripts get the values: --lr 0.1 (default), lr=0.1 (hydra), or a variable lr.",
)
@click.option(
    "--stop-early",
    "rule",
    type=click.Choice(get_args(StopRule)),
    help="End jobs of the sweep that will not be among its best, by this rule.",
)
@job_options.of_jobs()
@options.layout
@click.option(
    "--notify",
    "recipients",
    metavar="TO",
    multiple=True,
    help=(
        "Tell when a job fails or hangs, and when the run ends: a command, a URL, or an address "
        "of Apprise."
    ),
)
@click.option("-d", "--detach", is_flag=True, help="Return at once; watch with `headgate attach`.")
@click.option(
    "--dry-run", is_flag=True, help="Print exactly what would be started, and start nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
@options.example("headgate run train.py")
def command(
    ctx: click.Context,
    /,
    targets: tuple[str, ...],
    name: str | None,
    policy: str | None,
    given: tuple[str, ...],
    swept: tuple[str, ...],
    passing: Passing | None,
    rule: StopRule | None,
    recipients: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Run scripts side by side, the jobs of one job file, or a command. Watch them until they end.

    Options of Headgate stand before a command. What follows the command's name belongs to the
    command.

    Ctrl-C stops the jobs at the end of a step, with a checkpoint. A second Ctrl-C kills them.
    Closing the terminal detaches: the jobs go on.

    \b
    Example: headgate run train.py
             headgate run a.py b.py --policy srpt
             headgate run train.py -- --epochs 5
             headgate run -m package.train -- --epochs 5
             headgate run train.py --priority 3 --timeout 2h --retries 2 --env SEED=1
             headgate run --urgent idea.py
             headgate run train.py --sweep lr=1e-3,1e-4 --sweep seed=0..9
             headgate run train.py --sweep lr=1e-3,1e-4 --stop-early predicted
             headgate run --gpus 1 --exclusive train.py
             headgate run --tty train.py
             headgate run train.py --notify 'notify-send "$HEADGATE_TITLE"'
             headgate run --cores 1 python -m package.train --epochs 5
             headgate run jobs.yaml --detach
             headgate run train.py --cluster lab.yaml --strategy ps --workers 4 --servers 2
             headgate run --workers 4 -- torchrun train.py
             headgate run ddp.py --cluster lab.yaml --batch per-worker
             headgate run train.py --isolation container --image pytorch/pytorch --mount /out:rw

    \b
    Exit codes: 0   every job is done, or was ended by `--stop-early`
                1   a job did not end well
                2   bad input
                3   an optional part is not installed
                4   no place to write
                6   no hub
                130 interrupted
    """
    from headgate.cli import (  # what jobs need takes a while to import; help needs none of it
        placement,
        running,
    )

    placement_options = placement.PlacementOptions(**where)
    stated = job_options.stated(ctx)
    jobs = running.read(targets, ctx.meta["asked"], name, job_options.limits(stated))
    jobs = running.with_variables(jobs, running.stated_variables(given))
    jobs = job_options.applied(jobs, stated)
    is_file = bool(targets) and Path(targets[0]).suffix in (".yaml", ".yml")
    if (swept or rule) and is_file:
        raise UsageError(f"sweeps of the jobs of {targets[0]} go into that file, below `sweep:`")
    states_plan = placement_options.states_plan or job_options.goes_with_plans(stated)
    if states_plan and is_file:
        raise UsageError(
            f"plans of the jobs of {targets[0]} go into that file, below `plan:`, `allow:` "
            "and `moves:`"
        )
    running.hint_at_misplaced(ctx, jobs)
    jobs = running.swept(jobs, swept, passing, rule)
    submission = running.submission(jobs, placement_options)
    if recipients:
        submission = running.with_recipients(submission, recipients)
    if dry_run:
        from headgate.cli.dry_run import show
        from headgate.cli.standard_input import Handover

        show(Handover.of(submission, detach).submission, policy, as_json)
        return 0
    return running.submit(submission, policy, detach, as_json)
