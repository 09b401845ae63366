"""`headgate profile`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from headgate.cli import job_options, standard_input
from headgate.cli.options import OfJobs
from headgate.cli.running import read
from headgate.client import profiling
from headgate.client.watching import RunNews, RunSnapshot
from headgate.model.errors import UsageError
from headgate.model.limits import Limits
from headgate.model.profiles import Profile, StepTime
from headgate.model.units import counted, say_bytes, say_percent
from headgate.reports.words import MISSING, say_step_time, ways
from headgate.task.step_timing import BUSY


@click.command(cls=OfJobs)
@click.argument("targets", nargs=-1, metavar="FILE [-- ARGS] | COMMAND")
@click.option(
    "--job",
    "names",
    multiple=True,
    metavar="NAME",
    help="Measure only this job of a job file: --job digits.",
)
@job_options.of_jobs(*job_options.LAUNCHED)
@click.option("--again", is_flag=True, help="Measure again, even if a profile is stored.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    targets: tuple[str, ...],
    names: tuple[str, ...],
    again: bool,
    as_json: bool,
) -> None:
    """Measure what a script's model costs: parameters, FLOPs, data set, seconds a step.

    The script runs for a short time. Headgate times its step, and then ends it. Of a script that
    uses headgate.torch it does so at several batch sizes and thread counts. A script for another
    launcher runs unchanged, as one worker: it has to train by an optimizer of PyTorch, or to print
    the number of each step. The profile is stored. It is printed from there until the script, its
    arguments or the machine change.

    \b
    Example: headgate profile train.py
             headgate profile train.py --again -- --width 512
             headgate profile -m package.train
             headgate profile jobs.yaml --job digits
             headgate profile ddp.py --launch torchrun
             headgate profile tf_train.py --launch tensorflow --parameters 124M
    """
    if len(targets) > 1:
        raise UsageError(f"found {len(targets)} files; expected one script, or one job file")
    jobs = read(targets, ctx.meta["asked"], None, Limits())
    jobs = job_options.applied(jobs, job_options.stated(ctx))
    unknown = sorted(set(names) - {job.name for job in jobs})
    if unknown:
        raise UsageError(
            f"found --job {unknown[0]}; expected one of {', '.join(job.name for job in jobs)}"
        )
    jobs = [job for job in jobs if not names or job.name in names]
    standard_input.refuse("headgate profile")
    measured = {job.name: profiling.profile(job, again=again, watcher=_show) for job in jobs}
    if as_json:
        data = {name: asdict(profile) for name, profile in measured.items()}
        click.echo(json.dumps(data if len(data) > 1 else next(iter(data.values())), indent=2))
        return
    for name, profile in measured.items():
        click.echo(f"{name}:\n{describe(profile)}\n" if len(measured) > 1 else describe(profile))


def _show(news: RunNews | None) -> None:
    """Progress on standard error."""
    if not sys.stderr.isatty() or not isinstance(news, RunSnapshot):
        return
    if news.has_ended:
        click.echo(err=True)
    else:
        [job] = news.jobs
        click.echo(f"\rmeasuring: {news.t:.0f} s, step {job.step or 0} ", err=True, nl=False)


def describe(profile: Profile) -> str:
    """A profile, in words and figures."""
    lines = [
        (
            f"{profile.framework} {profile.framework_version}, measured in a {profile.source} "
            "of its own"
        )
    ]
    count = profile.parameters_dense
    if count is not None:
        sparse = MISSING if profile.parameters_sparse is None else f"{profile.parameters_sparse:,}"
        sizes = [size for size in (profile.dense_bytes, profile.sparse_bytes) if size is not None]
        lines.append(
            f"parameters    {count:,} dense, {sparse} sparse, "
            f"{_size(sum(sizes) if sizes else None)}"
        )
    if profile.sparse_rows_per_sample is not None:
        sample_size = _size(profile.sparse_bytes_per_sample)
        lines.append(
            f"sparse rows   {profile.sparse_rows_per_sample:,.1f} a sample, {sample_size} of them"
        )
    lines.append(f"layers        {', '.join(f'{n} {kind}' for kind, n in profile.layers.items())}")
    if profile.flops_per_sample is not None:
        forward = profile.flops_per_sample_forward
        part = "" if forward is None else f", {forward:,.0f} of them forward"
        lines.append(f"FLOPs         {profile.flops_per_sample:,.0f} a sample{part}")
    if computes := ways(profile):
        lines.append(f"computes      {', '.join(computes)}")
    if (data := profile.dataset) is not None:
        lines.append("data set      " + ", ".join(_dataset(asdict(data))))
    if profile.optimizer is not None:
        lines.append(
            f"optimizer     {profile.optimizer}, {_size(profile.optimizer_state_bytes)} of state"
        )
    if profile.memory_peak_bytes is not None:
        lines.append(f"memory        {say_bytes(profile.memory_peak_bytes)} at most")
    for time in profile.step_times:
        rate = time.batch / time.seconds
        lines.append(
            f"step          batch {time.batch} on {time.device}, "
            f"{counted(time.threads, 'thread')}: {say_step_time(time.seconds)}, {rate:,.0f} "
            f"samples/s (median of {time.steps}{_spread_note(time)})"
        )
    for fit in profile.fits:
        error = (
            f"±{say_percent(fit.relative_error, 1)}"
            if fit.relative_error is not None
            else "error not known"
        )
        alpha, beta = say_step_time(fit.alpha_seconds), say_step_time(fit.beta_seconds_per_sample)
        threads = counted(fit.threads, "thread")
        lines.append(f"fit           {fit.device}, {threads}: {alpha} + {beta} a sample, {error}")
    if profile.sharded:
        lines.append("sharded       its parameters, among its workers (FSDP, ZeRO-3)")
    if profile.alone:
        lines.append(f"tasks         one, because {profile.alone}")
    lines += [f"note          {note}" for note in profile.notes]
    return "\n".join(lines)


def _size(count: float | None) -> str:
    return MISSING if count is None else say_bytes(count)


def _spread_note(time: StepTime) -> str:
    """The spread of the steps' times, and whether other programs used the machine."""
    spread = f", ±{say_percent(time.spread, 1)}" if time.spread is not None else ""
    return spread + (
        f", threads waited {say_percent(time.waited)} of the time"
        if time.waited is not None and time.waited > BUSY
        else ""
    )


def _dataset(data: dict[str, Any]) -> list[str]:
    parts = [f"{data['samples']:,} samples" if data["samples"] is not None else "a stream"]
    if data["bytes_per_sample"] is not None:
        parts.append(f"{say_bytes(data['bytes_per_sample'])} each")
    if data["read_seconds_per_sample"] is not None:
        parts.append(f"{say_step_time(data['read_seconds_per_sample'])} to read one")
    return parts
