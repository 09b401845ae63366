"""Command lines for a recorded job: to rerun it, run it differently, or plan it."""

from __future__ import annotations

import shlex

from headgate.recorded.jobs import RecordedJob


def single_worker_command(job: RecordedJob) -> str:
    """A command that runs it as a single process. Empty: it is no script, or has another launcher's
    contract.
    """
    if not job.spec.script or not job.can_run_alone:
        return ""
    return _run(job, "--strategy", "single", job.spec.script)


def rerun_command(job: RecordedJob) -> str:
    """A command that repeats it. Empty: it is no script of one task, or a command cannot express
    its job.
    """
    spec, script = job.spec, job.spec.script
    says_more = any((spec.env, spec.python, spec.launch, spec.roles, spec.isolation))
    if not script or job.distributed or says_more or job.limit("cores") is not None:
        return ""
    folder = spec.workdir or "."
    command = _run(job, script.removeprefix(f"{folder}/"))
    return f"cd {shlex.quote(folder)} && {command}"  # in another folder it would be another job


def with_workers_command(job: RecordedJob, count: int) -> str:
    """A command that runs it with `count` workers. Empty: it is no script, or has no more workers
    than that. Another launcher's contract needs no strategy.
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
    """A command that shows other plans for it. Empty: Headgate cannot plan it. A run of several
    workers leaves no profile.
    """
    script, launch, options = job.spec.script, job.spec.contract, job.placement_options
    if not script or not job.can_be_planned:
        return ""
    contract = ["--launch", launch, "--batch", str(job.spec.batch)] if launch is not None else []
    # it plans for all nodes
    placed = options[: options.index("--nodes")] if "--nodes" in options else options
    profiled = shlex.join(["headgate", "profile", script, *_arguments(job)])
    planned = shlex.join(["headgate", "plan", script, *contract, *placed, *_arguments(job)])
    return f"{profiled} && {planned}"


def location_hint(job: RecordedJob) -> str:
    """In words, what to add to its commands if they do not state where it ran."""
    is_said = bool(job.placement_options) or len(job.nodes) < 2
    return "" if is_said else ", with `--cluster` as for the run"


def _run(job: RecordedJob, *rest: str) -> str:
    return shlex.join(["headgate", "run", *job.placement_options, *rest, *_arguments(job)])


def _arguments(job: RecordedJob) -> list[str]:
    """The arguments of its script as on a command line."""
    return ["--", *job.spec.args] if job.spec.args else []
