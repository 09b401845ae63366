"""`headgate stop`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import click

from headgate.cli.many_jobs import folded
from headgate.client.running_jobs import JobEnd, running_jobs, stop
from headgate.model.job_states import state_in_words


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option(
    "--run", help="Run of the jobs, by its id or part of it. Default: the latest that is running."
)
@click.option("-a", "--all", "every", is_flag=True, help="Stop all jobs of all runs.")
@click.option("--kill", is_flag=True, help="Kill them at once, without a checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(jobs: tuple[str, ...], run: str | None, every: bool, kill: bool, as_json: bool) -> None:
    """Stop jobs at the end of a step, with a checkpoint, and wait until they ended.

    If you name no job, all jobs of the run are stopped; the name of a sweep stands for its jobs.
    `headgate resume` goes on with them. A job is `killed` that did not end in its time. The last
    checkpoint of each is named.

    \b
    Example: headgate stop cnn
             headgate stop --all --kill
    """
    ended = stop(running_jobs(jobs, run, every), kill=kill)
    if as_json:
        data = {id: {job: asdict(end) for job, end in ends.items()} for id, ends in ended.items()}
        click.echo(json.dumps(data, indent=2))
        return
    for id, ends in ended.items():
        for who, end in _folded(ends):
            click.echo(f"{id}/{who}: {state_in_words(end.state, end.reason)}")


def _folded(ends: Mapping[str, JobEnd]) -> Iterator[tuple[str, JobEnd]]:
    """Jobs with how they ended; many that had not started are one."""
    unstarted = defaultdict[tuple[str, str], list[str]](list)
    for job, end in ends.items():
        if end.ending is None:
            unstarted[end.state, end.reason].append(job)
        else:
            yield job, end
    for jobs in unstarted.values():
        yield from ((who, ends[jobs[0]]) for who in folded(jobs))
