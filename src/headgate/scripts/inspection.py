"""Checks that the library of a job's script can do what the job's plan says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.isolation.base import HOST_IMAGE
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.scripts import keras_scripts
from headgate.scripts.facts import ScriptFacts
from headgate.task import cluster_variables, named_cluster

_FIT = (
    "its script trains by `fit` of Keras 3 over TensorFlow, which fails over several workers (it "
    "takes their tensors for plain ones); set KERAS_BACKEND=jax with --strategy allreduce, or "
    "TF_USE_LEGACY_KERAS=1 with tf_keras installed, or write the loop with strategy.run"
)


def workers_apart(job: Job, facts: ScriptFacts, workers: int) -> Reason:
    """The message about a job whose workers share nothing."""
    script = facts.file.name if facts.file is not None else None
    return Reason.of(ReasonKind.WORKERS_APART, job=job.name, workers=workers, script=script)


def check(job: Job, facts: ScriptFacts, environment: Mapping[str, str]) -> None:
    """Check that the library of a job's script can do what the job's plan says, as far as is plain.

    Args:
        job: A job with absolute paths.
        facts: Facts about its script.
        environment: The submitter's environment, with the job's own variables. Its tasks have these
            variables; tasks in an image only the job's own.

    Raises:
        UsageError: It cannot, or the environment describes another cluster. The message says why,
            and what works.
    """
    if job.plan is None or job.plan.strategy == "single" or facts.file is None:
        return
    environment = _task_variables(job, environment)
    refusal = (
        named_cluster(environment, job.plan.tasks)
        if job.plan.tasks > 1 and facts.source.libraries
        else ""
    )
    if refusal:
        raise UsageError(f"job {job.name!r}: {refusal}")
    library, backend = facts.source.library, ""
    if library == "keras" and job.plan.tasks > 1:
        source = facts.source
        backend = keras_scripts.backend(source.text, source.variables, environment)
        if backend == "tensorflow" and _fits_with_keras_3(job, facts, environment):
            raise UsageError(f"job {job.name!r}: {_FIT}")
    for reason, cure in _unsupported(library, backend, job.plan):
        raise UsageError(f"job {job.name!r}: {reason}; {cure}")


def other_cluster(job: Job, environment: Mapping[str, str]) -> str:
    """The variables that describe another cluster to a job's tasks, as `task.cluster_variables`
    lists them.

    Headgate's libraries refuse them in several tasks, so Headgate plans one task for such a job.
    Jobs with another launcher's contract do not get these variables.

    Args:
        job: A job with absolute paths.
        environment: As in `check`.
    """
    return cluster_variables(_task_variables(job, environment)) if job.contract is None else ""


def _task_variables(job: Job, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The variables of an environment, with the job's own, that its tasks have."""
    return environment if job.image in (None, HOST_IMAGE) else job.env


def _unsupported(library: str | None, backend: str, plan: Plan) -> Iterator[tuple[str, str]]:
    """Features of a plan that a library does not support, each with an alternative."""
    ps, allreduce = plan.strategy == "ps", f"run with --strategy allreduce --workers {plan.workers}"
    if library == "jax" and ps:
        yield "its script uses headgate.jax, and JAX has no parameter servers", allreduce
    if library == "keras" and backend == "torch":
        cure = (
            f"set KERAS_BACKEND=jax and {allreduce}, or write the loop in PyTorch with "
            "headgate.torch"
        )
        yield "its script uses headgate.keras, and Keras over torch trains in one task", cure
    if library == "keras" and ps and backend == "jax":
        yield (
            "its script uses headgate.keras over JAX, which has no parameter servers",
            f"{allreduce}, or TensorFlow",
        )
    if library == "keras" and ps and plan.synchronous:
        reason = (
            "its script uses headgate.keras, and workers of TensorFlow's parameter "
            "servers do not wait for another"
        )
        yield reason, f"allow that with --async, or {allreduce}"
    if library == "keras" and ps and plan.staleness is not None:
        reason = (
            "its script uses headgate.keras, and TensorFlow's parameter servers do not "
            "bound how far workers are"
        )
        yield f"{reason} apart", "leave --staleness out"
    if library in ("keras", "jax") and isinstance(plan.batch_per_worker, tuple):
        reason = (
            f"its script uses headgate.{library}, which gives all workers equal parts of a batch"
        )
        yield reason, "leave `batch_per_worker` out of the plan"


def _fits_with_keras_3(job: Job, facts: ScriptFacts, environment: Mapping[str, str]) -> bool:
    """Whether a TensorFlow script trains by `fit` of Keras 3, as far as is plain."""
    run = facts.program
    if run is None or job.image not in (None, HOST_IMAGE) or not facts.source.fits:
        return False
    return keras_scripts.version(run.python, environment.get("PATH")).startswith("3.")
