"""What a hub states to the arbiter, from its controller, and the grants that it hears."""

from __future__ import annotations

from collections.abc import Callable

from headgate.arbiter.acts import Act
from headgate.arbiter.events import JobIdles
from headgate.arbiter.records import (
    Demand,
    Hub,
    JobDemand,
    MachineJob,
    ResourceGrant,
    Resumes,
    Span,
)
from headgate.controller.core import Controller
from headgate.controller.queue_orders import Claim
from headgate.controller.records import JobRecord
from headgate.model.events import JobGivesBack, JobGranted
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind


def demand(
    hub: Hub,
    controller: Controller,
    cores: Callable[[JobRecord], float],
    left: Callable[[JobId], Span | None],
    resumes: Callable[[JobId], Resumes],
) -> Demand:
    """All that a hub runs and wants.

    Args:
        hub: The hub.
        controller: Its controller.
        cores: Cores that a job can put to good use.
        left: Seconds that a job takes or has left; None: not known.
        resumes: From where a running job goes on if it is ended now.
    """
    waiting, running = controller.stated()

    def stated(claim: Claim, attempt: int, then: Resumes = Resumes.NO) -> JobDemand:
        job, request = claim.job, claim.request
        on_gpus = request.on_gpus
        is_shared = not request.gpus and on_gpus is not None and on_gpus.known and not on_gpus.alone
        gpus = request.gpus or (on_gpus.gpus if on_gpus is not None else 0)
        return JobDemand(
            f"{job.id}#{attempt}",
            cores(job),
            len(job.planned().worker_nodes) or request.workers,
            request.memory_bytes,
            gpus,
            on_gpus.memory_bytes if is_shared and on_gpus is not None else None,
            left(job.id),
            job.spec.name,
            job.spec.private,
            then,
        )

    return Demand(
        hub,
        tuple(stated(claim, claim.job.attempt + 1) for claim in waiting),
        tuple(stated(claim, claim.job.attempt, resumes(claim.job.id)) for claim in running),
    )


def granted(grant: ResourceGrant) -> JobGranted:
    """The event of a hub's controller for a grant: GPUs of each worker."""
    workers, gpus = grant.demand.workers, grant.demand.gpus
    of_workers = tuple(slot.gpus for slot in grant.slots)
    if len(of_workers) < workers:  # whole GPUs are granted for all workers together
        [every] = of_workers
        of_workers = tuple(every[i * gpus : (i + 1) * gpus] for i in range(workers))
    return JobGranted(job_of(grant.job.id), of_workers)


def job_of(id: str) -> JobId:
    """The job of a hub's id of one attempt."""
    return JobId(MachineJob(Hub(""), id).of_all_attempts.id)


def given_back(act: Act) -> JobGivesBack:
    """The event of a hub's controller for a job that has to give back what it holds."""
    attempt = MachineJob(Hub(""), act.job).attempt
    return JobGivesBack(job_of(act.job), attempt, gives_back(act), act.ends)


def gives_back(act: Act) -> Reason:
    """Why a job has to give back what it holds."""
    return Reason.of(ReasonKind.GIVES_BACK, to=act.by, waited=act.waited, ends=act.ends or None)


def idles(heard: JobIdles) -> Reason:
    """Why a job is warned that holds something for nothing."""
    kind = ReasonKind.HOLDS_IDLE_MEMORY if heard.memory else ReasonKind.HOLDS_IDLE_GPUS
    return Reason.of(kind, since=heard.since, ends=heard.ends or None)
