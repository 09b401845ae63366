"""`headgate run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headgate.cli import options
from headgate.cli.options import Whole
from headgate.model.errors import UsageError


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
@click.option(
    "--cores",
    type=options.Finite(min=0, min_open=True),
    help="Most cores for each script: 2, or 0.5.",
)
@click.option("--memory", help="Most memory for each script: 2GiB.")
@click.option("--gpu-memory", help="Memory that each script is expected to hold on its GPU: 10GiB.")
@click.option(
    "--gpus", type=Whole(min=0), metavar="N", help="GPUs for each script: 1. With 0 it sees none."
)
@click.option(
    "--exclusive", is_flag=True, help="No other job of Headgate's on the GPUs of each script."
)
@click.option(
    "--isolation",
    metavar="NAME",
    help="What limits tasks: process (default; cgroups), container, vm, vm+container, a plug-in's.",
)
@click.option(
    "--image",
    help=(
        "container, vm+container: an image, pytorch/pytorch, or host (default): what this "
        "machine has installed."
    ),
)
@click.option(
    "--runtime",
    metavar="NAME",
    help=(
        "container: what runs it, as the Docker daemon calls it, such as runsc; its default "
        "otherwise."
    ),
)
@click.option(
    "--mount",
    "mounts",
    metavar="PATH[:OTHER][:rw]",
    multiple=True,
    help=(
        "container, vm, vm+container: also show it this folder, read-only or with :rw "
        "writable: ~/data:/mnt:rw."
    ),
)
@click.option(
    "--stop-signal",
    metavar="NAME",
    help=(
        "Signal that asks a script to end if it uses no library of Headgate's: SIGINT. "
        "Default: SIGTERM."
    ),
)
@click.option(
    "--tty", is_flag=True, help="Have the jobs print to a pseudo-terminal, as bars of Rich want."
)
@options.environment
@click.option(
    "--priority",
    type=options.Finite(min=0, min_open=True, max=100),
    metavar="N",
    help=(
        "Claim of each job on what is contended, relative to the others, up to 100: 3. Default: 1."
    ),
)
@click.option(
    "--timeout", metavar="TIME", help="Longest that an attempt of each job may run: 90m, or 2h."
)
@click.option(
    "--retries",
    type=Whole(min=0, max=1000),
    metavar="N",
    help="How often each job is started again after it failed: 2. Default: 0.",
)
@options.launched
@options.layout
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
    cores: float | None,
    memory: str | None,
    gpu_memory: str | None,
    gpus: int | None,
    exclusive: bool,
    isolation: str | None,
    image: str | None,
    runtime: str | None,
    mounts: tuple[str, ...],
    stop_signal: str | None,
    tty: bool,
    given: tuple[str, ...],
    priority: float | None,
    timeout: str | None,
    retries: int | None,
    launch: str | None,
    batch: str | None,
    parameters: str | None,
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
    Example: headgate run train.py headgate run a.py b.py --policy srpt headgate run train.py --
             --epochs 5 headgate run -m package.train -- --epochs 5 headgate run train.py --priority
             3 --timeout 2h --retries 2 --env SEED=1 headgate run --gpus 1 --exclusive train.py
             headgate run --tty train.py headgate run --cores 1 python -m package.train --epochs 5
             headgate run jobs.yaml --detach headgate run train.py --cluster lab.yaml --strategy ps
             --workers 4 --servers 2 headgate run --workers 4 -- torchrun train.py headgate run
             ddp.py --cluster lab.yaml --batch per-worker headgate run train.py --isolation
             container --image pytorch/pytorch --mount ~/data --mount /out:rw

    \b
    Exit codes: 0   every job is done
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
    stated = running.stated_limits(cores, memory, gpu_memory, gpus, exclusive)
    jobs = running.read(targets, ctx.meta["asked"], name, stated)
    jobs = running.tried(jobs, priority, timeout, retries)
    jobs = running.with_variables(jobs, running.stated_variables(given))
    jobs = running.launches(
        running.boxed(jobs, isolation, image, runtime, mounts, stop_signal, tty),
        launch,
        batch,
        parameters,
    )
    if placement_options.states_plan and targets and Path(targets[0]).suffix in (".yaml", ".yml"):
        raise UsageError(
            f"plans of the jobs of {targets[0]} go into that file, below `plan:`, `allow:` "
            "and `moves:`"
        )
    running.hint_at_misplaced(ctx, jobs)
    submission = running.submission(jobs, placement_options)
    if dry_run:
        from headgate.cli.dry_run import show
        from headgate.cli.standard_input import Handover

        show(Handover.of(submission, detach).submission, policy, as_json)
        return 0
    return running.submit(submission, policy, detach, as_json)
