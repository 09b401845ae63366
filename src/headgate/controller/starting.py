"""When a job starts, and with which tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from headgate.controller import faults
from headgate.controller.allocation import Allocator
from headgate.controller.jobs import Jobs, in_order
from headgate.controller.pending import Pending
from headgate.controller.records import JobRecord
from headgate.controller.task_record import TaskRecord
from headgate.model.actions import Action, PlanJob, Resize
from headgate.model.cluster import Node
from headgate.model.identifiers import EVALUATOR, JobId, TaskName
from headgate.model.job_states import ENDED
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.roles import held_back, task_names
from headgate.planning import placement


def time_of(job: JobRecord) -> float | None:
    """When a waiting job may start or has waited long enough; None: not known yet."""
    if job.awaits is not None:
        return job.awaits
    if job.not_before is not None:
        return job.not_before
    return job.submitted + job.spec.at if not job.spec.forerunners else None


def wait(now: float, job: JobRecord) -> list[Action]:
    """Announce what a job waits for; no actions if it may start."""
    if job.not_before is None and job.spec.forerunners:
        first = Reason.of(ReasonKind.AFTER_JOBS, jobs=job.spec.forerunners)
        return [job.mark("waiting", first)]
    when = time_of(job)
    if when is None or when <= now:
        return []
    return [job.mark("waiting", Reason.of(ReasonKind.STARTS_IN, seconds=when - now))]


def plan_anew(job: JobRecord, reason: Reason, code: int | None = None) -> list[Action]:
    """Have a job planned; it waits for that."""
    return [job.mark("waiting", reason, code), PlanJob(job.id, job.wanted, job.revision)]


def due(now: float, jobs: Jobs, nodes: Mapping[str, Node]) -> tuple[list[JobRecord], list[Action]]:
    """Jobs that may start now, with plans on available nodes. Jobs behind a failed one are
    skipped.
    """
    job_records: dict[int, JobRecord] = {}
    actions: list[Action] = []
    ended = True
    while ended:  # another job may wait for the skipped one
        ended = False
        for job in in_order(jobs.planned):
            if job.number in job_records:
                continue
            if job.not_before is None and job.spec.forerunners:
                first = [jobs.all.get(JobId.of(job.run, name)) for name in job.spec.forerunners]
                left = [other for other in first if other is not None and not _is_done(other)]
                over = next((other for other in left if other.state in ENDED), None)
                if over is not None:
                    actions.append(job.mark("skipped", _why_skipped(over)))
                    ended = True
                    continue
                if not left:
                    job.not_before = now + job.spec.at
                    actions += wait(now, job)
            when = time_of(job)
            if when is not None and now >= when:
                actions += faults.replan(now, job, nodes)
                if job.state in ENDED:
                    ended = True
                elif job.awaits is None:
                    job_records[job.number] = job
    return list(job_records.values()), actions


def _is_done(job: JobRecord) -> bool:
    """Whether a job succeeded, without a doubt, or was ended by the rule of its sweep."""
    if job.state == "stopped" and job.reason is not None:
        return job.reason.root.kind is ReasonKind.STOPPED_EARLY
    return job.state == "done" and (job.ending is None or job.ending.doubt is None)


def _why_skipped(other: JobRecord) -> Reason:
    """Why a job is not started after another that has ended."""
    name, ending = other.spec.name, other.ending
    if other.state != "done" or ending is None:
        return Reason.of(ReasonKind.SKIPPED, job=name, state=other.state)
    facts = {"job": name, "run": other.run, "ending": asdict(ending)}
    return Reason(ReasonKind.SKIPPED_IN_DOUBT, facts)


def place(pending: Pending, job: JobRecord, allocator: Allocator) -> list[Action]:
    """Make the tasks of a job's next attempt."""
    plan, actions = job.planned(), list[Action]()
    placed = (
        plan
        if plan.worker_nodes
        else placement.place_job(job.spec, plan, job.reachable(allocator.nodes))
    )
    if job.spec.contract is not None and not job.placed_by_user:
        placed = replace(placed, worker_nodes=placement.grouped(placed.worker_nodes))
    if placed != plan:
        plan = job.plan = placed
        actions.append(Resize(job.id, plan))
    job.begin()
    for i, name in enumerate(plan.server_nodes):
        job.add(TaskName.of("server", i), name, ())
    if job.spec.roles:
        job.held = dict(zip(task_names(job.spec.roles), plan.worker_nodes))
        release(pending, job, allocator)
        return actions
    slots = list(job.slots)
    for i, name in enumerate(plan.worker_nodes):
        node, beside = allocator.nodes[name], plan.worker_nodes.count(name)
        kept = [gpu for slot in job.slots if slot.node == name for gpu in slot.gpus]
        if slots and not job.sees_gpus_of_all:
            own = next(slot for slot in slots if slot.node == name)
            slots.remove(own)
            kept = list(own.gpus)
        job.add(TaskName.of("worker", i), name, allocator.gpus(job, node, beside, kept=kept))
    if job.spec.evaluator:  # beside the worker whose checkpoints it reads
        job.add(EVALUATOR, plan.worker_nodes[0], ())
    pending.start(job, job.tasks)
    return actions


def release(pending: Pending, job: JobRecord, allocator: Allocator) -> None:
    """Start the tasks whose preceding roles are ready."""
    waiting = held_back(job.spec.roles, job.ready)
    for name in [name for name in job.held if name.role not in waiting]:
        node = job.held.pop(name)
        gpus = allocator.gpus(job, allocator.nodes[node], 1, job.spec.limits_of(name).gpus)
        pending.start(job, [job.add(name, node, gpus).id])


def ready(pending: Pending, job: JobRecord, task: TaskRecord, allocator: Allocator) -> None:
    """A task of a role is ready: start the tasks that waited for it, if all others are ready
    too.
    """
    job.ready.add(task.name)
    if job.held and job.undisturbed:
        release(pending, job, allocator)


def limit(job: JobRecord) -> None:
    """Set the deadline of a running attempt by its timeout."""
    if job.begun and not (job.is_frozen or job.evaluates_last or job.spec.timeout is None):
        job.limit(job.counts_from + job.spec.timeout)


def began(now: float, job: JobRecord) -> None:
    """A task has started. The first of an attempt starts its clock, so that waiting for the
    engine's resources does not count.
    """
    if not job.begun:
        job.begun, job.counts_from = True, now
        limit(job)
    if job.tracker is not None:
        job.tracker.began(now)


def running(job: JobRecord, why: Reason | None = None) -> Action:
    """Announce that a job runs. `why`: the reason, unless it starts in its turn."""
    resumed_from = job.resume.where if job.resume is not None else None
    in_turn = Reason.of(
        ReasonKind.STARTED,
        attempt=job.attempt,
        resumed_from=resumed_from,
        is_urgent=job.spec.urgent or None,
        **job.overtook,
    )
    job.overtook = {}
    return job.mark("running", why or in_turn)
