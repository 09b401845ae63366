"""What is looked at of a submission before it is taken in."""

from __future__ import annotations

from headgate import isolation
from headgate.engines.base import LOCAL
from headgate.engines.launch import command
from headgate.hub.submission import Submission
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.planning import candidates
from headgate.profiling import store as profiles
from headgate.sampling.gpu_holders import missing_nvml
from headgate.scripts import arguments, inspection
from headgate.scripts.arguments import TrainingLength
from headgate.scripts.facts import facts_of
from headgate.scripts.program import program, source, words_of


def checked(
    submission: Submission, cluster: Cluster, machine: Node
) -> dict[str, tuple[str, TrainingLength]]:
    """What can be known of jobs before they start: one message now, and not a failed job later.
    Takes its time.

    Returns:
        For each job the key of its profile, and how long it is to train by its arguments.

    Raises:
        HeadgateError: One of them cannot be run there.
    """
    _check_isolations(submission)
    hints = {}
    for job in submission.jobs:
        _check_fit(submission, cluster, job)
        words = python.args if (python := program(job)) is not None else words_of(job)
        hints[job.name] = profiles.key(job, machine), arguments.length(words, source(job))
        environment = {**submission.environment, **job.env}
        for checked_job in [job.of_role(role) for role in job.roles] or [job]:
            command(checked_job, environment.get("PATH"))
        inspection.check(job, facts_of(job), environment)
    return hints


def _check_fit(submission: Submission, cluster: Cluster, job: Job) -> None:
    """Whether a job fits on a node. Where it asks for a GPU and none is found on a machine that has
    some, say why.

    Raises:
        HeadgateError: It does not.
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


def _check_isolations(submission: Submission) -> None:
    """Whether there is on this machine what the jobs are to be boxed in. Of others their nodes will
    tell.

    Raises:
        HeadgateError: There is not.
    """
    for job in submission.jobs if submission.engine == LOCAL else ():
        if job.isolation is not None and job.isolation != isolation.DEFAULT:
            isolation.make(
                job.isolation, "check", submission.environment.get("DOCKER_HOST")
            ).check()
