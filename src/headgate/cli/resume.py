"""`headgate resume`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headgate.cli import job_options, options
from headgate.cli.former_variables import kept
from headgate.cli.placement import PlacementOptions, Where
from headgate.cli.running import stated_variables, submit, with_variables
from headgate.client import submitting
from headgate.client.starting import await_guards, take_up
from headgate.engines.base import LOCAL, EngineSpec
from headgate.hub.submission import Submission
from headgate.model.errors import StorageError, UsageError
from headgate.model.jobs import Job
from headgate.model.records import read
from headgate.recorded import resuming, runs
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow


@click.command()
@click.argument("run", required=False)
@click.option(
    "--checkpoint",
    "named",
    multiple=True,
    metavar="[JOB=]FILE",
    help=(
        "Go on from this checkpoint: best/step-1200.pt, or cnn=best/step-1200.pt if several "
        "jobs are left."
    ),
)
@click.option(
    "--from-scratch",
    is_flag=True,
    help=(
        "Start jobs without a whole checkpoint from the beginning. If every job has one, "
        "start all anew."
    ),
)
@click.option(
    "--policy",
    metavar="NAME",
    help="Policy that moves shares between jobs: headgate (default), srpt, equal, none.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
@options.environment
@options.layout
@job_options.of_jobs("resume_with", *job_options.LAID_OUT)
@click.option("-d", "--detach", is_flag=True, help="Return at once; watch with `headgate attach`.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    run: str | None,
    named: tuple[str, ...],
    from_scratch: bool,
    policy: str | None,
    dry_run: bool,
    given: tuple[str, ...],
    detach: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Go on with the jobs of a run that are not done: the latest run, or the one you name.

    Each job goes on from its newest whole checkpoint, of that run or of those that it went on from.
    A script without headgate.torch, .keras or .jax goes on from the newest whole checkpoint that it
    saved by itself. It gets the argument for that which it declares, such as --resume FILE, or that
    of --resume-with. --dry-run shows the command. A job that has made progress and can go on from
    nothing starts over only with --from-scratch.

    This is a new run, and its report names the former one. The jobs run where and how they ran
    before, unless options say otherwise, and with the variables that they were submitted with:
    --env overrides these. A checkpoint goes on under any strategy and any number of workers.

    \b
    Example: headgate resume
             headgate resume 20261121-0930 --from-scratch
             headgate resume --checkpoint best/step-1200.pt
             headgate resume --strategy allreduce --workers 2
             headgate resume --env CUDA_VISIBLE_DEVICES=1 --env DATA_DIR
    """
    take_up()
    folder, added, stated = runs.find(run), stated_variables(given), job_options.stated(ctx)
    if runs.summary(folder).state == "interrupted":
        await_guards()
    submission = _laid_out(
        unfinished(folder, named, from_scratch, stated.get("resume_with", "")),
        PlacementOptions(**where),
        stated,
        folder,
    )
    submission = kept(submission, folder, added)
    submission = replace(submission, jobs=tuple(with_variables(submission.jobs, added)))
    if dry_run:
        from headgate.cli.dry_run import show

        show(submission, policy, as_json)
        return 0
    if detach or as_json:  # who watches the run is told by it
        for name, text in submission.warnings.items():
            click.echo(f"{name}: {text}", err=True)
    return submit(submission, policy, detach, as_json)


def _laid_out(
    submission: Submission, options: PlacementOptions, stated: Mapping[str, Any], folder: Path
) -> Submission:
    """A submission with the nodes and layout of the command line."""
    states_plan = options.states_plan or job_options.goes_with_plans(stated)
    if states_plan and len(submission.jobs) > 1:
        names = ", ".join(job.name for job in submission.jobs)
        raise UsageError(f"found a plan for several jobs ({names}); it can be said for one only")
    jobs = tuple(options.applied(job) for job in job_options.applied(submission.jobs, stated))
    return submitting.launched(
        replace(submission, jobs=jobs, **options.place(_former_place(folder)).fields())
    )


def _former_place(folder: Path) -> Where:
    """Where the jobs of a run ran."""
    facts = runs.describe(folder)
    engine = EngineSpec(facts.engine or LOCAL.name, facts.address, facts.shared_files)
    return Where(cluster=facts.cluster, engine=engine, only=facts.only)


def unfinished(
    folder: Path, named: Sequence[str] = (), from_scratch: bool = False, resume_with: str = ""
) -> Submission:
    """The unfinished jobs of a run, and their checkpoints.

    Args:
        folder: The run.
        named: Checkpoints to resume from, `FILE` or `JOB=FILE`.
        from_scratch: Jobs without an intact checkpoint start from the beginning. If all have one,
            all start from the beginning.
        resume_with: The arguments with which scripts resume from their own checkpoints; empty: as
            they were submitted.

    Raises:
        UsageError: The run, or a run that resumed it, is running; no job is left; or progress would
            be lost without `from_scratch`.
    """
    resuming.check_ended(folder)
    left = [job.name for job in runs.summary(folder).jobs if job.state != "done"]
    if not left:
        raise UsageError(f"every job of run {folder.name} is done; there is nothing to go on with")
    with RunReader(folder / runs.STORE) as reader:
        rows = [row for row in reader.records(JobRow, order="position") if row.name in left]
        try:
            specs = [read(Job, row.spec) for row in rows]
        except ValueError as error:
            raise StorageError(
                f"cannot read what the jobs of {folder.name} were: its records are damaged"
            ) from error
    if resume_with:
        specs = [replace(spec, resume_with=resume_with) for spec in specs]
    files = _files(named, left)
    origins = [resuming.origin(folder, job) for job in specs if job.name not in files]
    resume = {
        job.name: resuming.named(folder, job, files[job.name]) for job in specs if job.name in files
    }
    lacking = [origin for origin in origins if origin.lacks]
    anew = (lacking or origins) if from_scratch else []
    again = (*files, *(restarted.job for restarted in anew))
    resuming.check_left(folder, left, again)
    if lacking and not anew:
        pronoun = "them" if lacking[1:] else "it"
        others = " and go on with the others" if len(lacking) < len(specs) else ""
        raise UsageError(
            f"{resuming.lacking(lacking)}; to start {pronoun} from the beginning{others}: "
            f"headgate resume {folder.name} --from-scratch"
        )
    warnings = resuming.lost_by(folder, [name for name in left if name not in again])
    warnings |= {origin.job: origin.warning for origin in origins if origin.warning}
    warnings |= {restarted.job: restarted.begins_anew for restarted in anew}
    resume |= {
        origin.job: origin.checkpoint
        for origin in origins
        if origin.checkpoint is not None and origin not in anew
    }
    return submitting.submission(
        specs,
        resume=resume,
        resumed_from=folder.name,
        from_scratch=tuple(restarted.job for restarted in anew),
        named=tuple(files),
        warnings=warnings,
        notes={
            origin.job: f"{origin.goes_on}; it {origin.came}"
            for origin in origins
            if origin.goes_on and origin not in anew
        },
    )


def _files(named: Sequence[str], jobs: Sequence[str]) -> dict[str, str]:
    """The files of `--checkpoint`, by job.

    Raises:
        UsageError: The job of a checkpoint is not clear, or a job has two checkpoints.
    """
    files: dict[str, str] = {}
    for checkpoint_path in named:
        job, equals, file = checkpoint_path.partition("=")
        if not equals or job not in jobs:
            job, file = jobs[0], checkpoint_path
            if len(jobs) > 1:
                raise UsageError(
                    f"found --checkpoint {checkpoint_path}; expected JOB=FILE with one of "
                    f"{', '.join(jobs)}"
                )
        if job in files:
            raise UsageError(
                f"found two checkpoints for job {job}, {files[job]} and {file}; give one"
            )
        files[job] = file
    return files
