"""`headgate profile`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

import click

from headgate import runs
from headgate.cli.run import WithRest, read
from headgate.errors import HeadgateError, UsageError
from headgate.hub.client import clean, connect_or_start
from headgate.hub.run import Submission
from headgate.hub.server import SUBMISSION
from headgate.profiles import Profile
from headgate.profiling import store
from headgate.telemetry import machine
from headgate.telemetry.store import RunReader
from headgate.units import say_bytes, say_seconds


@click.command(cls=WithRest)
@click.argument("script", metavar="FILE [-- ARGS]")
@click.option("--again", is_flag=True, help="Measure, though there is a stored profile.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def command(ctx: click.Context, script: str, again: bool, as_json: bool) -> None:
    """Measure what a script's model costs, in a short run of its own: parameters, FLOPs, data set, seconds a step.

    The script has to use headgate.torch. Its step is timed at several batch sizes and thread counts; it ends when that
    is done. The profile is stored, and printed from there until the script, its arguments or the machine change.

    \b
    Example: headgate profile train.py
             headgate profile train.py --again -- --width 512
    """
    [job] = read((script,), ctx.meta.get("rest", ()), None, None, None)
    if job.script is None:
        raise UsageError(f"{script}: expected a Python script that uses headgate.torch")
    node = machine.detect(runs.home() / "node.json")
    profile = store.load(runs.home() / "profiles", store.key(job, node))
    if again or profile is None or profile.source != "profile":
        submission = Submission((job,), dict(os.environ), os.getcwd(), ("headgate", *sys.argv[1:]), mode="profile")
        profile = _measure(submission)
    click.echo(json.dumps(asdict(profile), indent=2) if as_json else describe(profile))


def _measure(submission: Submission) -> Profile:
    """Run a script for its profile.

    Raises:
        HeadgateError: It ended without one.
    """
    clean()
    with connect_or_start() as hub:
        data = SUBMISSION.dump_python(submission, mode="json")
        answer = hub.ask("submit", submission=data, policy=None, attach=True)
        click.echo(f"run {answer['run']}: measuring {submission.jobs[0].script}", err=True)
        try:
            for message in hub.follow(1.0):
                if message is not None and message["type"] == "snapshot":
                    [job] = message["jobs"]
                    click.echo(f"\r{message['t']:5.0f} s, step {job['step'] or 0}", err=True, nl=False)
                if message is not None and message["type"] == "end":
                    break
        except KeyboardInterrupt:
            hub.send("stop", run=answer["run"], kill=True)
            raise
        finally:
            click.echo(err=True)
    folder = runs.home() / "runs" / answer["run"]
    with RunReader(folder / runs.STORE) as reader:
        [row] = reader.rows("jobs")
    profile = store.parse(json.loads(row["profile"])) if row["profile"] else None
    if profile is None or profile.source != "profile":
        why = "" if row["state"] == "done" else f" ({row['reason']})"
        raise HeadgateError(
            f"the script ended without a profile{why}; it has to call headgate.torch.prepare and to train on a loader "
            f"that it prepared. Its output: headgate logs {folder.name}/{row['name']}"
        )
    return profile


def describe(profile: Profile) -> str:
    """A profile in words and figures."""
    lines = [f"{profile.framework} {profile.framework_version}, measured in a {profile.source} of its own"]
    count = profile.parameters_dense
    if count is not None:
        sparse = profile.parameters_sparse or 0
        size = say_bytes((profile.dense_bytes or 0) + (profile.sparse_bytes or 0))
        lines.append(f"parameters    {count:,} dense, {sparse:,} sparse, {size}")
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
    lines += [f"note          {note}" for note in profile.notes]
    return "\n".join(lines)


def _dataset(data: dict[str, Any]) -> list[str]:
    parts = [f"{data['samples']:,} samples" if data["samples"] is not None else "a stream"]
    if data["bytes_per_sample"] is not None:
        parts.append(f"{say_bytes(data['bytes_per_sample'])} each")
    if data["read_seconds_per_sample"] is not None:
        parts.append(f"{say_seconds(data['read_seconds_per_sample'])} to read one")
    return parts
