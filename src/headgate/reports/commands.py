"""Command lines for a job that was recorded: to run it once more, otherwise, or to plan it."""

from __future__ import annotations

import shlex

from headgate.recorded.jobs import RecordedJob


def single_worker_command(job: RecordedJob) -> str:
    """Run it as a single process. Empty if it is no script, or if another launcher's contract asks
    for what it has.
    """
    if not job.spec.script or not job.can_run_alone:
        return ""
    return _run(job, "--strategy", "single", job.spec.script)


def rerun_command(job: RecordedJob) -> str:
    """Run it as it was. Empty if it is no script of one task, or if its job says more than a
    command does.
    """
    spec, script = job.spec, job.spec.script
    says_more = any((spec.env, spec.python, spec.launch, spec.roles, spec.isolation))
    if not script or job.distributed or says_more or job.limit("cores") is not None:
        return ""
    folder = spec.workdir or "."
    command = _run(job, script.removeprefix(f"{folder}/"))
    return f"cd {shlex.quote(folder)} && {command}"  # in another folder it would be another job


def with_workers_command(job: RecordedJob, count: int) -> str:
    """Run it with so many workers. Empty if it is no script, or if it has no more. Another
    launcher's contract needs no strategy.
    """
    script, launch, plan = job.spec.script, job.spec.contract, job.plan
    if not script or count >= job.workers:
        return ""
    strategy = plan.strategy if plan is not None else "allreduce"
    options = ["--launch", launch] if launch is not None else []
    options += [] if launch is not None and strategy != "ps" else ["--strategy", strategy]
    options += ["--servers", str(plan.servers)] if plan is not None and plan.servers else []
    if plan is not None and not plan.synchronous:
        stale = plan.staleness
        options += ["--async"] if stale is None else ["--staleness", str(stale)]
    return _run(job, *options, "--workers", str(count), script)


def plan_command(job: RecordedJob) -> str:
    """Show other plans for it. Empty if Headgate cannot plan it. No run of several workers leaves a
    profile.
    """
    script, launch, options = job.spec.script, job.spec.contract, job.placement_options
    if not script or not job.can_be_planned:
        return ""
    contract = ["--launch", launch, "--batch", str(job.spec.batch)] if launch is not None else []
    # it plans for all
    placed = options[: options.index("--nodes")] if "--nodes" in options else options
    profiled = shlex.join(["headgate", "profile", script, *_arguments(job)])
    planned = shlex.join(["headgate", "plan", script, *contract, *placed, *_arguments(job)])
    return f"{profiled} && {planned}"


def location_hint(job: RecordedJob) -> str:
    """What to add to its commands, in words, where they do not say where it ran."""
    is_said = bool(job.placement_options) or len(job.nodes) < 2
    return "" if is_said else ", with `--cluster` as for the run"


def _run(job: RecordedJob, *rest: str) -> str:
    return shlex.join(["headgate", "run", *job.placement_options, *rest, *_arguments(job)])


def _arguments(job: RecordedJob) -> list[str]:
    """The arguments of its script, as they stand behind it on a command line."""
    return ["--", *job.spec.args] if job.spec.args else []
