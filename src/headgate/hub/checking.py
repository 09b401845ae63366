"""Checks of a submission before it is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headgate import isolation
from headgate.engines.base import LOCAL
from headgate.engines.launch import command
from headgate.engines.namesakes import Known, kept_out_by
from headgate.hub.submission import Submission
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import MissingExtraError, UsageError
from headgate.model.jobs import Job
from headgate.model.trackers import Destination
from headgate.planning import candidates
from headgate.profiling import store as profiles
from headgate.sampling.gpu_holders import missing_nvml
from headgate.scripts import arguments, inspection
from headgate.scripts.arguments import TrainingLength
from headgate.scripts.facts import FileState, ScriptFacts, facts_of
from headgate.scripts.job_files import FileLook
from headgate.scripts.program import words_of


@dataclass(frozen=True, slots=True)
class InspectedJob:
    """Facts about a job before it starts.

    Args:
        facts: Facts of its script.
        profile_key: The key of its profile.
        length: Its training length by its arguments.
        files: The files that it depends on.
        namesake: Path of another package called `headgate` that its tasks on this machine may
            import; empty: none.
    """

    facts: ScriptFacts
    profile_key: str
    length: TrainingLength
    files: Mapping[Path, FileState]
    namesake: str


def checked(submission: Submission, cluster: Cluster, machine: Node) -> dict[str, InspectedJob]:
    """Check what can be known of jobs before they start, so that users get one message instead of a
    failed job. Takes some time.

    Returns:
        The profile key of each job, and its training length by its arguments.

    Raises:
        HeadgateError: A job cannot run there.
    """
    _check_isolations(submission)
    _check_trackers(submission)
    look, namesakes = FileLook(), Known()
    inspected = {}
    for job in submission.jobs:
        _check_fit(submission, cluster, job)
        facts, environment = facts_of(job), {**submission.environment, **job.env}
        words = facts.program.args if facts.program is not None else words_of(job)
        for checked_job in [job.of_role(role) for role in job.roles] or [job]:
            command(checked_job, environment.get("PATH"))
        inspection.check(job, facts, environment)
        inspected[job.name] = InspectedJob(
            facts,
            profiles.key(job, machine),
            arguments.length(words, facts.source.options),
            look.files(job, facts, submission.environment),
            kept_out_by(job, facts, submission.environment, namesakes)
            if submission.engine == LOCAL
            else "",
        )
    return inspected


def _check_fit(submission: Submission, cluster: Cluster, job: Job) -> None:
    """Check that a job fits on a node. If it needs a GPU and none is found although the machine has
    some, say why.

    Raises:
        HeadgateError: It does not fit.
    """
    try:
        candidates(cluster, job)
    except UsageError as error:
        limits = job.limits
        asks = limits.gpus or limits.exclusive or limits.gpu_memory_bytes is not None
        is_here = submission.engine == LOCAL and not any(node.gpus for node in cluster.nodes)
        missing = missing_nvml() if asks and is_here else None
        if missing is None:
            raise
        raise UsageError(f"{error}; {missing.in_words()}") from None


def _check_trackers(submission: Submission) -> None:
    """Check that the libraries of the jobs' trackers are installed beside Headgate.

    Raises:
        MissingExtraError: One is not.
    """
    for job in submission.jobs:
        for text in job.track:
            tracker = Destination.of(text).tracker
            if find_spec(tracker) is None:
                needs = f"job {job.name!r}: `track: {tracker}`, in Headgate's own Python,"
                raise MissingExtraError(tracker, needs)


def _check_isolations(submission: Submission) -> None:
    """Check that this machine has the isolations of the jobs. Other nodes report theirs.

    Raises:
        HeadgateError: An isolation is missing.
    """
    for job in submission.jobs if submission.engine == LOCAL else ():
        if job.isolation is not None and job.isolation != isolation.DEFAULT:
            isolation.make(
                job.isolation, "check", submission.environment.get("DOCKER_HOST")
            ).check()
