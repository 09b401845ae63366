"""What happens to a job that loses one of its tasks.

A task is lost when a signal killed its process, when it ended because another task was gone, or
with its node, agent, container or daemon.

Workers that find each other by another launcher's contract (`launch`) all end with the first that a
signal killed. The job's retries apply, as under `single`. A worker that found its port taken counts
as lost.

| strategy | lost task | reaction |
|---|---|---|
| `single` | the worker, killed by a signal | the job fails; its retries apply |
| `single` | the worker, with its node or container | restarted from the last checkpoint |
| `roles` | a task of any role | as `single`: one that fails by itself fails the job |
| `ps` | a worker | the others go on; it restarts and joins them, three times at most |
| `ps` | an asynchronous worker that is too far behind | the same |
| `ps` | the last worker at work | as `allreduce` |
| `ps` | a server | restarted at once, on another node if its own is lost |
| `ps` over TensorFlow | another worker | the others go on; it restarts at its address |
| `ps` over TensorFlow | the first worker, or a server | as `allreduce` |
| any, over TensorFlow | the evaluator | restarted at once, elsewhere if its node is lost |
| `allreduce` | a worker | all tasks end and restart from the last checkpoint |

A job that runs out of memory and shards it among its workers (FSDP, DeepSpeed ZeRO) restarts with
up to twice as many, if its nodes have room.

At most three restarts of all tasks, or of a server, happen between two checkpoints. After that the
job fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.controller.pending import Pending
from headgate.controller.records import JobRecord
from headgate.controller.task_record import TaskRecord
from headgate.model.actions import Action, Fault, Resize
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.identifiers import EVALUATOR
from headgate.model.reasons import CureKind, Facts, Reason, ReasonKind
from headgate.model.refused import RefusedError
from headgate.planning.placement import place, place_job, place_within
from headgate.task.stop import PeerLost

MOST_BETWEEN_CHECKPOINTS = 3
"""Most restarts of a job, or of one of its servers, without a checkpoint in between."""

_GIVES_BACK = "MALLOC_MMAP_THRESHOLD_"
"""Variable that makes glibc return blocks of at least this size as soon as they are freed. By
default it keeps freed blocks of up to 32 MiB: all tensors of a small model, which FSDP allocates
anew in each step.
"""

MOST_STARTS = 4
"""Most starts of one worker in an attempt, including the first."""

BACK_SECONDS = 60.0
"""How long a job without nodes waits for one to come back. A dead agent is replaced in seconds; a
person may restart the program that joins a node to its cluster.
"""


def is_fault(job: JobRecord, task: TaskRecord, exit: Exit, nodes: Mapping[str, Node]) -> bool:
    """Whether a task was lost, rather than failed by its script."""
    taken = exit.lost or exit.port_taken or task.node not in nodes
    if _evaluates(job, task):
        return taken or exit.signal is not None or job.finished
    if (
        taken
        or not job.planned().trains_together
        or (job.spec.contract is not None and not is_coordinated(job))
    ):
        return taken
    # a task that started once and now cannot start has a broken node
    started_before = task.again and exit.code is None
    lost_another = exit.code == PeerLost.STATUS and task.connected
    ended_early = exit.ok  # without a stop request
    return exit.signal is not None or started_before or lost_another or ended_early or task.leaving


def is_last(job: JobRecord, task: TaskRecord, exit: Exit) -> bool:
    """Whether the training is over with the end of this task, or was before."""
    if task.leaving or not exit.ok:
        return False
    return _is_over(job, task) or (task.is_worker and (task.index == 0 or not is_coordinated(job)))


def has_served(job: JobRecord, task: TaskRecord, exit: Exit) -> bool:
    """Whether a task ended successfully that the others can do without: one of a serving role that
    was ready, or TensorFlow's evaluator.
    """
    served = bool(job.spec.roles) and not task.is_worker and task.name in job.ready
    return exit.ok and (served or _evaluates(job, task))


def _evaluates(job: JobRecord, task: TaskRecord) -> bool:
    return job.spec.evaluator and task.name == EVALUATOR


def _is_over(job: JobRecord, task: TaskRecord) -> bool:
    """Whether the training was over for this task. Without a coordinator other workers may still
    need the servers.
    """
    return job.finished and (task.is_worker or _evaluates(job, task) or is_coordinated(job))


def is_coordinated(job: JobRecord) -> bool:
    """Whether the job's first worker is its coordinator, as under TensorFlow's parameter servers.
    It hands out all work and knows every task's address from beginning to end.
    """
    return job.planned().strategy == "ps" and (
        job.framework == "keras" or job.spec.contract is not None
    )


def describe(task: TaskRecord, exit: Exit, why: Reason, nodes: Mapping[str, Node]) -> Reason:
    """What happened to a lost task.

    Args:
        why: Why the task ended.
    """
    name = str(task.name)
    if task.leaving and exit.ok:
        return Reason.of(ReasonKind.FELL_BEHIND, task=name)
    if exit.code == PeerLost.STATUS and task.node in nodes:
        return Reason.of(ReasonKind.LOST_TOUCH, task=name)
    if exit.port_taken:
        return Reason.of(ReasonKind.PORT_TAKEN, task=name, text=exit.reason)
    if task.node not in nodes:
        return Reason.of(ReasonKind.NODE_GONE, task=name, node=task.node)
    return Reason.of(ReasonKind.TASK_LOST, task=name, exit=why)


def costs_others(job: JobRecord, task: TaskRecord) -> bool:
    """Whether the loss of a task costs the job more than that task."""
    if _is_over(job, task):
        return False
    if job.spec.roles or not task.is_worker:
        return True
    if is_coordinated(job):
        return task.index == 0
    return job.planned().strategy == "allreduce" or (not task.joins and not job.at_work())


def is_replaced(job: JobRecord, task: TaskRecord) -> bool:
    """Whether a lost server or evaluator is replaced while the others go on."""
    served = not task.is_worker and not is_coordinated(job) and not job.spec.roles
    return served or _evaluates(job, task)


def survive(
    job: JobRecord, task: TaskRecord, loss: Reason, nodes: Mapping[str, Node], pending: Pending
) -> list[Action]:
    """Go on after losing a task without cost to the others."""
    if job.finished:
        return [Fault(job.id, task.id, Reason.of(ReasonKind.LOST_AT_END, after=loss))]
    is_replaced = task.node in nodes and job.starts[task.name] < MOST_STARTS
    if is_replaced:
        joins = not is_coordinated(job)
        pending.start(job, [job.add(task.name, task.node, task.gpus, joins=joins).id])
    reason = Reason.of(ReasonKind.OTHERS_GO_ON, after=loss, is_replaced=is_replaced or None)
    return [Fault(job.id, task.id, reason)]


def restart_server(
    job: JobRecord, task: TaskRecord, loss: Reason, node: str, pending: Pending
) -> list[Action]:
    """Start another server in place of a lost one."""
    pending.start(job, [job.add(task.name, node, task.gpus).id])
    elsewhere = node if node != task.node else None
    reason = Reason.of(ReasonKind.TASK_REPLACED, after=loss, node=elsewhere)
    return [Fault(job.id, task.id, reason)]


def restart(job: JobRecord, task: TaskRecord, loss: Reason) -> list[Action]:
    """Restart all tasks once they have ended, because the job cannot go on without a lost one."""
    job.restart = loss
    reason = Reason.of(
        ReasonKind.JOB_RESTARTED,
        after=loss,
        tasks=job.planned().tasks,
        resumed_from=job.resume.where if job.resume is not None else None,
        resumes=job.spec.resumes or None,
    )
    actions: list[Action] = [Fault(job.id, task.id, reason, restarts=True)]
    if job.tasks:
        actions += [
            job.mark("stopping", loss),
            *(other.stop(loss, kill=True) for other in job.tasks.values()),
        ]
    return actions


def fail(job: JobRecord, task: TaskRecord, exit: Exit, why: Reason) -> None:
    """Note that a task fails the job. The task is named if the job has several."""
    if job.planned().tasks > 1:
        why = Reason.of(ReasonKind.OF_TASK, task=str(task.name), reason=why)
    job.failure, job.failed_by, job.failed_at = exit, why, task.node


def is_cause(job: JobRecord, exit: Exit) -> bool:
    """Whether a task ran out of memory and so caused the failure that its job ends with."""
    first = job.failure
    return exit.over_memory and job.ends_as is None and first is not None and not first.over_memory


def grow_after_oom(
    job: JobRecord, task: TaskRecord, failure: Exit, why: Reason, nodes: Mapping[str, Node]
) -> list[Action]:
    """Restart a job that ran out of memory with up to twice as many workers, once its last task has
    ended. No actions unless its script shards the model's memory and its nodes have room.
    """
    plan = job.planned()
    if not (failure.over_memory and job.divides and plan.strategy == "allreduce"):
        return []
    per_job_bytes = job.spec.limits.memory_bytes or failure.memory_peak_bytes
    left = job.reachable(nodes)
    room = sum(_room(node, per_job_bytes) for node in left)
    most = min(2 * plan.workers, room, job.spec.limits.workers[1] or room)
    if most <= plan.workers:
        return []
    job.least_workers = most
    wider = replace(plan, workers=most, worker_nodes=(), server_nodes=())

    def fits(name: str, workers: int, servers: int) -> bool:
        return workers <= _room(next(node for node in left if node.name == name), per_job_bytes)

    job.plan = place_within(wider, left, fits) or place(wider, left)
    outgrew = Reason.of(ReasonKind.OUTGREW_WORKERS, exit=why, workers=plan.workers)
    reason = Reason.of(ReasonKind.JOB_WIDENED, after=outgrew, workers=most)
    fault = Fault(job.id, task.id, reason, restarts=True)
    resize = Resize(job.id, job.plan, restarts=True, least_workers=most)
    again = Reason.of(ReasonKind.GIVEN_WORKERS, after=outgrew, workers=most)
    return [fault, resize, job.mark("waiting", again)]


def advised(
    job: JobRecord, failure: Exit, why: Reason, at: str, nodes: Mapping[str, Node]
) -> Reason:
    """Add to a reason what the user of a job that ran out of main memory may change.

    Advice is added if the job has several tasks, uses another launcher's contract, or exceeded its
    own limit.

    Args:
        at: The node of the task that ran out of memory.
    """
    limit, is_over_limit = job.spec.limits.memory_bytes, failure.limit_bytes is not None
    plain = job.spec.contract is None and job.planned().tasks == 1
    if (
        not failure.over_memory
        or failure.on_gpu
        or (plain and (limit is None or not is_over_limit))
    ):
        return why
    cures: list[Facts] = [{"kind": CureKind.SMALLER_BATCH}]
    if limit is not None:
        cures.append({"kind": CureKind.HIGHER_LIMIT})
    elif larger := _larger(job, at, nodes):
        size = nodes[at].memory_bytes
        other = {"kind": CureKind.OTHER_NODES, "node": at, "bytes": size, "nodes": larger}
        cures.insert(0, other)
    if job.spec.contract is not None:
        cures.append({"kind": among_workers(job)})
    if job.divides and _GIVES_BACK not in job.spec.env:
        cures.append({"kind": CureKind.GIVE_BACK, "variable": _GIVES_BACK, "value": "1048576"})
    return Reason.of(
        ReasonKind.MEMORY_ADVICE,
        after=why,  # states its memory and its limit if the limit ended it
        held_bytes=failure.memory_peak_bytes if not is_over_limit else None,
        limit_bytes=limit if not is_over_limit else None,
        cures=cures,
    )


def _larger(job: JobRecord, at: str, nodes: Mapping[str, Node]) -> list[str]:
    """Nodes with more memory that the job may use; none if its plan names its nodes."""
    stated = job.spec.plan is not None and job.spec.plan.worker_nodes
    if at not in nodes or stated or job.spec.roles:
        return []
    return [
        node.name for node in job.reachable(nodes) if node.memory_bytes > nodes[at].memory_bytes
    ]


def among_workers(job: JobRecord) -> CureKind:
    """How the workers of a job could divide the model's memory."""
    if not job.divides:
        return CureKind.DIVIDE_MODEL
    if job.planned().strategy == "single":
        return CureKind.SEVERAL_WORKERS
    return CureKind.MORE_NODES


def _room(node: Node, memory_bytes: int | None) -> int:
    """How many workers fit into a node's memory; on a node with GPUs, at most one for each."""
    room = int(node.memory_bytes // memory_bytes) if memory_bytes and node.memory_bytes else 0
    return min(room, len(node.gpus)) if node.gpus else room


def settle(now: float, job: JobRecord) -> list[Action]:
    """After the end of a task: end tasks that are no longer needed.

    An evaluator gets the job's grace period for the last checkpoint. Its script ends it earlier if
    it knows which one is last.
    """
    workers = job.workers()
    # the other tasks do not end by themselves
    coordinates_itself = job.spec.contract is not None and is_coordinated(job)
    if workers and job.undisturbed and job.finished and (coordinates_itself or not job.at_work()):
        over = Reason(ReasonKind.TRAINING_OVER)
        return [worker.stop(over) for worker in workers if not worker.stopping]
    if workers or (job.held and job.undisturbed):
        return []
    left = [task for task in job.tasks.values() if not task.stopping]
    evaluator = next(
        (remaining_job for remaining_job in left if _evaluates(job, remaining_job)), None
    )
    actions: list[Action] = []
    if evaluator is not None and job.undisturbed:
        left.remove(evaluator)
        if not job.evaluates_last:
            job.evaluates_last = True
            job.limit(now + job.spec.grace)
            evaluating = Reason.of(ReasonKind.EVALUATING, seconds=job.spec.grace)
            actions.append(job.mark("running", evaluating))
    return actions + [task.stop(Reason(ReasonKind.WORKERS_ENDED)) for task in left]


def evaluated(job: JobRecord) -> list[Action]:
    """End the evaluator: its time after the end of the workers is over."""
    reason = Reason.of(ReasonKind.WORKERS_ENDED, seconds=job.spec.grace)
    return [task.stop(reason) for task in job.tasks.values() if not task.stopping]


def replan(now: float, job: JobRecord, nodes: Mapping[str, Node]) -> list[Action]:
    """Before a job asks for room or starts: replace lost nodes in its plan.

    A plan without nodes gets them at the start. If no node is left, the job waits for one to come
    back, or fails.
    """
    plan, nodes_for_job = job.planned(), job.there(nodes)
    names = {*plan.worker_nodes, *plan.server_nodes}
    job.awaits = None
    if names <= nodes_for_job.keys() and (
        names or any(name in nodes_for_job for name in job.nodes or nodes_for_job)
    ):
        return []
    left = job.reachable(nodes)
    if not left:
        missed = job.missed(now)
        job.awaits = max((job.gone[name] for name in missed), default=None)
        if missed:
            reason = Reason.of(ReasonKind.AWAITS_NODES, nodes=missed)
            return [job.mark("waiting", reason)] if reason != job.reason else []
        none = Reason(ReasonKind.NO_NODES, {"nodes": job.names})
        if job.restart is not None:
            none = replace(none, facts={**none.facts, "after": job.restart})
        return [job.mark("failed", none)]
    node_names = [node.name for node in left]
    if all(name in node_names for name in plan.worker_nodes):
        plan = replace(plan, server_nodes=())
    else:
        plan = replace(plan, worker_nodes=(), server_nodes=())
    try:
        job.plan = place_job(job.spec, plan, left)
    except RefusedError as error:
        return [job.mark("failed", Reason.of(ReasonKind.NO_PLACE, refusal=error.refusal))]
    return [Resize(job.id, job.plan)]
