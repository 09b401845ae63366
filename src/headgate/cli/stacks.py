"""`headgate stacks`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from headgate.model.errors import HeadgateError
from headgate.model.units import counted
from headgate.recorded import runs
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import TaskRow
from headgate.sampling import stacks
from headgate.sampling.stacks import TaskStacks

_MOST_FRAMES = 12


@click.command("stacks")
@click.argument("job")
@click.option("--run", help="Run of the job, by its id or part of it. Default: the latest with it.")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Print every thread with all its calls, not the main one alone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(job: str, run: str | None, every: bool, as_json: bool) -> None:
    """Show where each task of a running job stands: the stack of its main thread, or of all its
    threads.

    Tasks in the same place are shown together. A task that stands elsewhere than most is named: the
    others may be waiting for it. The script needs no change, and stands still for some hundredths
    of a second.

    \b
    Example: headgate stacks cnn
             headgate stacks cnn --all
             headgate stacks cnn --run 20261121-0930 --json
    """
    folder, name = runs.find_job(job, run)
    with RunReader(folder / runs.STORE) as reader:
        rows = list(reader.records(TaskRow, "job = ? AND ended IS NULL", [name]))
        engine = RunDescription.read(reader).engine
    if engine:
        raise HeadgateError(
            f"{name} runs on {engine}: stacks are read of processes of this machine alone"
        )
    if not rows or not runs.alive(folder):
        raise HeadgateError(
            f"no task of {name} runs now; `headgate status {folder.name}` shows how it stands"
        )
    living = [(row.of_run().name, row.pid) for row in rows if row.pid is not None]
    if not living:
        raise HeadgateError(
            f"the processes of {name} are not known yet; it has just been started, try again "
            "in a second"
        )
    task_stacks = [stacks.read(task, pid) for task, pid in living]
    groups = stacks.grouped(task_stacks)
    differ = stacks.differing(groups)
    if as_json:
        data = {
            "run": folder.name,
            "job": name,
            "tasks": [asdict(task) for task in task_stacks],
            "differ": differ,
        }
        click.echo(
            json.dumps(
                {**data, "groups": [[task.task for task in group] for group in groups]}, indent=2
            )
        )
        return
    for group in groups:
        _print_group(group, every)
    if differ:
        click.echo(f"{', '.join(differ)}: elsewhere than most; the others may be waiting for it")


def _print_group(group: Sequence[TaskStacks], every: bool) -> None:
    """Print the tasks at one place, and the stack of the first."""
    click.echo(f"{', '.join(task.task for task in group)}:")
    first = group[0]
    if not first.threads:
        click.echo(f"  {first.trouble}")
    for thread in first.threads if every else first.threads[:1]:
        if every:
            click.echo(f"  {thread.thread} of process {thread.process}")
        for frame in stacks.shortened(thread.frames, len(thread.frames) if every else _MOST_FRAMES):
            if isinstance(frame, int):
                click.echo(f"    ... {counted(frame, 'more call')}; --all shows them")
            else:
                click.echo(f"    {frame.function} ({frame.file}:{frame.line})")
