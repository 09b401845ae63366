"""`headgate profile`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from headgate.cli.options import WithRest
from headgate.cli.running import read
from headgate.errors import UsageError
from headgate.hub import api
from headgate.profiles import Profile
from headgate.units import say_bytes, say_seconds


@click.command(cls=WithRest)
@click.argument("script", metavar="FILE [-- ARGS]")
@click.option("--again", is_flag=True, help="Measure, though there is a stored profile.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def command(ctx: click.Context, script: str, again: bool, as_json: bool) -> None:
    """Measure what a script's model costs, in a short run of its own: parameters, FLOPs, data set, seconds a step.

    The script has to use headgate.torch, .keras or .jax. Its step is timed, under PyTorch at several batch sizes and
    thread counts; it ends when that is done. The profile is stored, and printed from there until the script, its
    arguments or the machine change.

    \b
    Example: headgate profile train.py
             headgate profile train.py --again -- --width 512
    """
    if Path(script).suffix != ".py":
        raise UsageError(f"found {script!r}; expected a Python script (.py) that uses headgate.torch, .keras or .jax")
    [job] = read((script,), ctx.meta.get("rest", ()), None, None, None)
    profile = api.profile(job, again=again, watcher=_show)
    click.echo(json.dumps(asdict(profile), indent=2) if as_json else describe(profile))


def _show(message: dict[str, Any]) -> None:
    """Progress on standard error."""
    if not sys.stderr.isatty():
        return
    if message.get("type") == "snapshot":
        [job] = message["jobs"]
        click.echo(f"\rmeasuring: {message['t']:.0f} s, step {job['step'] or 0} ", err=True, nl=False)
    elif message.get("type") == "end":
        click.echo(err=True)


def describe(profile: Profile) -> str:
    """A profile in words and figures."""
    lines = [f"{profile.framework} {profile.framework_version}, measured in a {profile.source} of its own"]
    count = profile.parameters_dense
    if count is not None:
        sparse = profile.parameters_sparse or 0
        size = say_bytes((profile.dense_bytes or 0) + (profile.sparse_bytes or 0))
        lines.append(f"parameters    {count:,} dense, {sparse:,} sparse, {size}")
    if profile.sparse_rows_per_sample is not None:
        each = say_bytes(profile.sparse_bytes_per_sample or 0.0)
        lines.append(f"sparse rows   {profile.sparse_rows_per_sample:,.1f} a sample, {each} of them")
    lines.append(f"layers        {', '.join(f'{n} {kind}' for kind, n in profile.layers.items())}")
    if profile.flops_per_sample is not None and profile.flops_per_sample_forward is not None:
        each = f"{profile.flops_per_sample:,.0f} a sample, {profile.flops_per_sample_forward:,.0f} of them forward"
        lines.append(f"FLOPs         {each}")
    if (data := profile.dataset) is not None:
        lines.append("data set      " + ", ".join(_dataset(asdict(data))))
    if profile.optimizer is not None:
        lines.append(f"optimizer     {profile.optimizer}, {say_bytes(profile.optimizer_state_bytes or 0)} of state")
    if profile.memory_peak_bytes is not None:
        lines.append(f"memory        {say_bytes(profile.memory_peak_bytes)} at most")
    for time in profile.step_times:
        rate = time.batch / time.seconds
        lines.append(
            f"step          batch {time.batch} on {time.device}, {time.threads} threads: {say_seconds(time.seconds)}, "
            f"{rate:,.0f} samples/s (median of {time.steps})"
        )
    for fit in profile.fits:
        error = f"±{fit.relative_error:.1%}" if fit.relative_error is not None else "error not known"
        alpha, beta = say_seconds(fit.alpha_seconds), say_seconds(fit.beta_seconds_per_sample)
        lines.append(f"fit           {fit.device}, {fit.threads} threads: {alpha} + {beta} a sample, {error}")
    if profile.alone:
        lines.append(f"tasks         one, for {profile.alone}")
    lines += [f"note          {note}" for note in profile.notes]
    return "\n".join(lines)


def _dataset(data: dict[str, Any]) -> list[str]:
    parts = [f"{data['samples']:,} samples" if data["samples"] is not None else "a stream"]
    if data["bytes_per_sample"] is not None:
        parts.append(f"{say_bytes(data['bytes_per_sample'])} each")
    if data["read_seconds_per_sample"] is not None:
        parts.append(f"{say_seconds(data['read_seconds_per_sample'])} to read one")
    return parts
