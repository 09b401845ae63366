"""What becomes of a job that loses one of its tasks.

A task is lost when a signal killed its process, when it ended because it found another task gone,
or when it went with its node, its agent, its container or its daemon.

Of workers that find each other by another launcher's contract (`launch`), all end with the first
that a signal killed, and the job's retries apply, as under `single`. One that found its port taken
counts as lost with what it ran in.

| strategy | what is lost | what is done |
|---|---|---|
| `single` | the worker, killed by a signal | the job fails; its retries apply |
| `single` | the worker, with what it ran in | it is started again from the last checkpoint |
| `roles` | a task of any role | as `single`: one that fails by itself fails the job |
| `ps` | a worker | the others go on; it is started again and joins them, three times at most |
| `ps` | a worker that others did not wait for, and that is too far behind | the same |
| `ps` | the last worker at work | as `allreduce` |
| `ps` | a server | started again at once, on another node where its own is gone |
| `ps` over TensorFlow | another worker | the others go on; it is started again where it listened |
| `ps` over TensorFlow | the first worker, or a server | as `allreduce` |
| any, over TensorFlow | the evaluator | started again at once, elsewhere if its node is gone |
| `allreduce` | a worker | all tasks are ended and started again from the last checkpoint |

A job that runs out of memory and divides it among its workers (FSDP, DeepSpeed ZeRO) is started
again with up to twice as many, where its nodes have room for them.

A restart of all tasks, or of a server, is done three times between two checkpoints. After that the
job fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.controller.allocation import Pending
from headgate.controller.records import JobRecord, TaskRecord
from headgate.model.cluster import Node
from headgate.model.errors import UsageError
from headgate.model.events import NEXT, Action, Exit, Fault, Resize
from headgate.model.identifiers import EVALUATOR
from headgate.model.units import say_bytes, say_seconds
from headgate.planning.placement import place, place_job, place_within
from headgate.task.stop import PeerLost

MOST_BETWEEN_CHECKPOINTS = 3
"""Times that a job is started again, or one of its servers is, without a checkpoint in between."""

_GIVES_BACK = "MALLOC_MMAP_THRESHOLD_"
"""Has glibc give memory of this size or more back as soon as it is freed. By itself it keeps what
is freed below up to 32 MiB, which all tensors of a small model are, and which FSDP makes anew in
each step.
"""

MOST_STARTS = 4
"""Times that one worker is started in an attempt, the first included."""

BACK_SECONDS = 60.0
"""How long a job that has no node left waits for one to come back: where only its agent died it has
another in a few seconds, and somebody may start what joins it to its cluster again.
"""


def is_fault(job: JobRecord, task: TaskRecord, exit: Exit, nodes: Mapping[str, Node]) -> bool:
    """Whether a task was lost, and did not fail by its script."""
    taken = exit.lost or exit.port_taken or task.node not in nodes
    if _evaluates(job, task):
        return taken or exit.signal is not None or job.finished
    if (
        taken
        or not job.planned().trains_together
        or (job.spec.contract is not None and not is_coordinated(job))
    ):
        return taken
    # what could be started once fails by its node
    started_before = task.again and exit.code is None
    lost_another = exit.code == PeerLost.STATUS and task.connected
    ended_early = exit.ok  # by nobody's order
    return exit.signal is not None or started_before or lost_another or ended_early or task.leaving


def is_last(job: JobRecord, task: TaskRecord, exit: Exit) -> bool:
    """Whether the training is over with the end of a task, or was before."""
    if task.leaving or not exit.ok:
        return False
    return _is_over(job, task) or (task.is_worker and (task.index == 0 or not is_coordinated(job)))


def has_served(job: JobRecord, task: TaskRecord, exit: Exit) -> bool:
    """Whether a task has ended well that the others do without: of a role that the job does not end
    with, once it was ready; or TensorFlow's evaluator.
    """
    served = bool(job.spec.roles) and not task.is_worker and task.name in job.ready
    return exit.ok and (served or _evaluates(job, task))


def _evaluates(job: JobRecord, task: TaskRecord) -> bool:
    return job.spec.evaluator and task.name == EVALUATOR


def _is_over(job: JobRecord, task: TaskRecord) -> bool:
    """Whether the training was over, as far as a task goes: other workers may need servers that
    nobody coordinates.
    """
    return job.finished and (task.is_worker or _evaluates(job, task) or is_coordinated(job))


def is_coordinated(job: JobRecord) -> bool:
    """Whether the first worker of a job is its coordinator, as under TensorFlow's parameter
    servers: it hands out the work of all others and knows where each of them is, from beginning to
    end.
    """
    return job.planned().strategy == "ps" and (
        job.framework == "keras" or job.spec.contract is not None
    )


def happened(task: TaskRecord, exit: Exit, nodes: Mapping[str, Node]) -> str:
    """What happened to a task that was lost."""
    if task.leaving and exit.ok:
        return f"{task.name} fell too far behind the others"
    if exit.code == PeerLost.STATUS and task.node in nodes:
        return f"{task.name} could not go on: it lost touch with another task"
    if exit.port_taken:
        return f"{task.name} found that {exit.reason}"
    how = exit.in_words() if task.node in nodes else f"its node {task.node} is gone"
    return f"{task.name} was lost: {how}"


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
    """Whether another task takes the place of a lost one that is no worker, while the others go
    on.
    """
    served = not task.is_worker and not is_coordinated(job) and not job.spec.roles
    return served or _evaluates(job, task)


def alone(
    job: JobRecord, task: TaskRecord, what: str, nodes: Mapping[str, Node], pending: Pending
) -> list[Action]:
    """A task was lost whose loss costs the others nothing."""
    if job.finished:
        return [Fault(job.id, task.id, f"{what}; the training was over")]
    if task.node not in nodes or job.starts[task.name] >= MOST_STARTS:
        return [Fault(job.id, task.id, f"{what}; the others go on without it")]
    pending.start(job, [job.add(task.name, task.node, task.gpus, joins=not is_coordinated(job)).id])
    return [
        Fault(job.id, task.id, f"{what}; the others go on, and it is started again to join them")
    ]


def server(
    job: JobRecord, task: TaskRecord, what: str, node: str, pending: Pending
) -> list[Action]:
    """A server was lost: another is started in its place."""
    pending.start(job, [job.add(task.name, node, task.gpus).id])
    where = f" on {node}" if node != task.node else ""
    return [Fault(job.id, task.id, f"{what}; it is started again{where}")]


def restart(job: JobRecord, task: TaskRecord, what: str) -> list[Action]:
    """A task was lost without which the job cannot go on: all are started again once they have
    ended.
    """
    if job.resume is not None:
        where = f"from {job.resume.where}"
    elif job.spec.resumes:
        where = "from what its script saved"
    else:
        where = "from the beginning, because there is no checkpoint"
    which = "all tasks are" if job.planned().tasks > 1 else "it is"
    text = f"{what}; {which} started again {where}"
    job.restart = what
    actions: list[Action] = [Fault(job.id, task.id, text, restarts=True)]
    if job.tasks:
        actions += [
            job.mark("stopping", what),
            *(each.stop(what, kill=True) for each in job.tasks.values()),
        ]
    return actions


def failed(job: JobRecord, task: TaskRecord, exit: Exit) -> None:
    """A task failed, and its job with it: that is told with the task's name where the job has
    several.
    """
    job.failure, job.failed_at = _named(job, task, exit), task.node


def _named(job: JobRecord, task: TaskRecord, exit: Exit) -> Exit:
    return (
        replace(exit, reason=f"{task.name}: {exit.in_words()}") if job.planned().tasks > 1 else exit
    )


def is_cause(job: JobRecord, exit: Exit) -> bool:
    """Whether a task ran out of memory, and the failure that its job ends with only follows from
    that.
    """
    first = job.failure
    return exit.over_memory and job.ends_as is None and first is not None and not first.over_memory


def among_more(
    job: JobRecord, task: TaskRecord, failure: Exit, nodes: Mapping[str, Node]
) -> list[Action]:
    """After the last task of a job that ran out of memory: a start with up to twice as many
    workers, where its script divides the model's memory among them and its nodes have room; else
    none.
    """
    plan = job.planned()
    if not (failure.over_memory and job.divides and plan.strategy == "allreduce"):
        return []
    each = job.spec.limits.memory_bytes or failure.memory_peak_bytes
    left = job.reachable(nodes)
    room = sum(_room(node, each) for node in left)
    most = min(2 * plan.workers, room, job.spec.limits.workers[1] or room)
    if most <= plan.workers:
        return []
    job.least_workers = most
    wider = replace(plan, workers=most, worker_nodes=(), server_nodes=())

    def fits(name: str, workers: int, servers: int) -> bool:
        return workers <= _room(next(node for node in left if node.name == name), each)

    job.plan = place_within(wider, left, fits) or place(wider, left)
    held_by = "1 worker" if plan.workers == 1 else f"{plan.workers} workers"
    what = f"{failure.in_words()}; it needs more than {held_by} to hold its model"
    text = (
        f"{what}, and is started again with {most}; where each has a batch of its own, a "
        "step has more samples"
    )
    fault = Fault(job.id, task.id, text, restarts=True)
    resize = Resize(job.id, job.plan, restarts=True, least_workers=most)
    return [fault, resize, job.mark("waiting", f"{what}; started again with {most}")]


def memory_advice(job: JobRecord, failure: Exit, at: str, nodes: Mapping[str, Node]) -> str:
    """What the user of a job that ran out of main memory may change, where it has several tasks,
    its workers find each other by another launcher's contract, or its own limit ended it; else
    empty.

    Args:
        at: The node of the task that ran out of it.
    """
    held, limit, words = failure.memory_peak_bytes, job.spec.limits.memory_bytes, failure.in_words()
    plain = job.spec.contract is None and job.planned().tasks == 1
    if (
        not failure.over_memory
        or failure.on_gpu
        or (plain and (limit is None or "its memory limit" not in words))
    ):
        return ""
    told = [f"held {say_bytes(held)}"] if held is not None and say_bytes(held) not in words else []
    if limit is not None and say_bytes(limit) not in words:
        told.append(f"its limit is {say_bytes(limit)}")
    cures = ["make its batch smaller"]
    if limit is not None:
        cures.append("raise its limit of memory (`limits: {memory: …}`, --memory)")
    elif rest := _larger(job, at, nodes):
        size = say_bytes(nodes[at].memory_bytes)
        cures.insert(0, f"leave out {at}, which has {size} of memory (`--nodes {','.join(rest)}`)")
    if job.spec.contract is not None:
        cures.append(among_workers(job))
    if job.divides and _GIVES_BACK not in job.spec.env:
        cures.append(
            "have freed tensors given back at once, which costs CPU time (`env: "
            f'{{{_GIVES_BACK}: "1048576"}}`)'
        )
    return "".join(f"; {each}" for each in told) + f"{NEXT}{', or '.join(cures)}"


def _larger(job: JobRecord, at: str, nodes: Mapping[str, Node]) -> list[str]:
    """The nodes that a job may use and that have more memory than this one; none where its plan
    names its nodes.
    """
    stated = job.spec.plan is not None and job.spec.plan.worker_nodes
    if at not in nodes or stated or job.spec.roles:
        return []
    return [
        node.name for node in job.reachable(nodes) if node.memory_bytes > nodes[at].memory_bytes
    ]


def among_workers(job: JobRecord) -> str:
    """How the workers of a job would divide the memory of its model."""
    if not job.divides:
        return (
            "divide the model over several workers by FSDP or DeepSpeed ZeRO, as DDP gives "
            "each a whole one"
        )
    if job.planned().strategy == "single":
        return "give it several workers (--workers N), which divide the model"
    return "give it more or larger nodes: no more workers have room on these"


def _room(node: Node, each: int | None) -> int:
    """How many workers a node has memory for, with `each` so many bytes; on one with GPUs, at most
    one for each.
    """
    room = int(node.memory_bytes // each) if each and node.memory_bytes else 0
    return min(room, len(node.gpus)) if node.gpus else room


def settle(now: float, job: JobRecord) -> list[Action]:
    """After a task has ended: end those that nobody needs any more. An evaluator has the job's
    grace for what the workers saved last; its script ends it before, where it knows what comes
    last.
    """
    workers = job.workers()
    # the others do not end by themselves
    coordinates_itself = job.spec.contract is not None and is_coordinated(job)
    if workers and job.undisturbed and job.finished and (coordinates_itself or not job.at_work()):
        return [worker.stop("the training is over") for worker in workers if not worker.stopping]
    if workers or (job.held and job.undisturbed):
        return []
    left = [task for task in job.tasks.values() if not task.stopping]
    evaluator = next((each for each in left if _evaluates(job, each)), None)
    actions: list[Action] = []
    if evaluator is not None and job.undisturbed:
        left.remove(evaluator)
        if not job.evaluates_last:
            job.evaluates_last = True
            job.limit(now + job.spec.grace)
            actions.append(
                job.mark("running", f"its evaluator has {say_seconds(job.spec.grace)} to end")
            )
    return actions + [each.stop("its workers have ended") for each in left]


def evaluated(job: JobRecord) -> list[Action]:
    """The time is over that an evaluator had once its workers had ended."""
    reason = f"its workers ended {say_seconds(job.spec.grace)} ago"
    return [task.stop(reason) for task in job.tasks.values() if not task.stopping]


def replan(now: float, job: JobRecord, nodes: Mapping[str, Node]) -> list[Action]:
    """Before a job asks for room, or starts: tasks whose node is gone get another. A plan without
    nodes gets them as it starts. Where none is left, the job waits for one to come back, or has
    failed.
    """
    plan, there = job.planned(), job.there(nodes)
    names = {*plan.worker_nodes, *plan.server_nodes}
    job.awaits = None
    if names <= there.keys() and (names or any(name in there for name in job.nodes or there)):
        return []
    left = job.reachable(nodes)
    if not left:
        missed = job.missed(now)
        job.awaits = max((job.gone[name] for name in missed), default=None)
        if missed:
            reason = f"for node {' or '.join(missed)} to come back"
            return [job.mark("waiting", reason)] if reason != job.reason else []
        before = f"{job.restart}; the job cannot go on: " if job.restart is not None else ""
        return [job.mark("failed", f"{before}none of its nodes is there: {', '.join(job.names)}")]
    here = [node.name for node in left]
    if all(name in here for name in plan.worker_nodes):
        plan = replace(plan, server_nodes=())
    else:
        plan = replace(plan, worker_nodes=(), server_nodes=())
    try:
        job.plan = place_job(job.spec, plan, left)
    except UsageError as error:
        return [job.mark("failed", str(error))]
    return [Resize(job.id, job.plan)]
