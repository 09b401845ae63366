"""Change the plan of a running job.

Under `ps`, workers join and leave. Any other change, and every change under `allreduce`, restarts
the job from a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from headgate.controller.allocation import Allocator
from headgate.controller.faults import is_coordinated
from headgate.controller.pending import Pending
from headgate.controller.records import JobRecord
from headgate.controller.task_record import TaskRecord
from headgate.model.actions import Action, Resize
from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.planning.placement import with_more


def resize(job: JobRecord, workers: int, allocator: Allocator, pending: Pending) -> list[Action]:
    """Change a running job to this many workers. A job that cannot be resized now stays as it
    is.
    """
    plan = job.plan
    if plan is None or not plan.trains_together or job.state != "running" or job.finished:
        return []
    if workers < job.least_workers:
        return []
    staying = [task for task in job.workers() if not task.leaving]
    # Workers that still wait for the others' state leave first, then the highest numbers.
    kept = sorted(staying, key=lambda task: (task.joins, task.index))[:workers]
    if workers == len(staying):
        return []
    names = tuple(task.node for task in sorted(kept, key=lambda task: task.index))
    if workers > len(kept):
        names = with_more(names, workers, job.reachable(allocator.nodes), plan.cores_per_worker)
    job.plan = replace(plan, workers=workers, worker_nodes=names)
    sizes = {"before": len(staying), "workers": workers}
    reason = Reason(ReasonKind.RESIZED, sizes)
    if plan.strategy == "allreduce" or is_coordinated(job):
        job.restart = reason
        # servers when their workers have ended
        ends = [task.stop(reason) for task in job.workers()]
        return [Resize(job.id, job.plan), job.mark("stopping", reason), *ends]
    gone = [task for task in staying if task not in kept]
    for task in gone:
        task.leaving = True
    new = _join(job, names[len(kept) :], allocator)
    if new:
        pending.start(job, [task.id for task in new])
    ends = [task.stop(reason) for task in gone]
    tasks = [str(task.name) for task in gone + new]
    by_name = Reason(ReasonKind.RESIZED, {**sizes, "tasks": tasks})
    return [Resize(job.id, job.plan), job.mark("running", by_name), *ends]


def move(job: JobRecord, plan: Plan, reason: Reason, waits: bool = False) -> list[Action]:
    """Continue a running job under another plan, from its last checkpoint.

    A job without a checkpoint stays as it is, unless no task has started yet (`waits`) or its
    script saves when it ends.
    """
    if job.state != "running" or not job.undisturbed or job.finished or plan == job.plan:
        return []
    if plan.workers < job.least_workers or not (
        job.resume is not None or waits or job.spec.resumes
    ):
        return []
    job.plan, job.restart, job.worked = plan, reason, False
    ends = [task.stop(reason) for task in job.workers()]  # servers when their workers have ended
    return [Resize(job.id, plan, restarts=True), job.mark("stopping", reason), *ends]


def _join(job: JobRecord, nodes: Collection[str], allocator: Allocator) -> list[TaskRecord]:
    """Make joining workers on these nodes, with the lowest free numbers."""
    taken = {task.index for task in job.workers()}
    free = (index for index in range(len(taken) + len(nodes)) if index not in taken)
    beside = job.spread(workers=True) + Counter(nodes)
    new = []
    for name in nodes:
        gpus = allocator.gpus(job, allocator.nodes[name], beside[name])
        new.append(job.add(TaskName.of("worker", next(free)), name, gpus, joins=True))
    return new
