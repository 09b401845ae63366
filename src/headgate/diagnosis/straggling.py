"""Workers of a job that wait for one: all of a synchronous plan are as slow as the slowest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from headgate.diagnosis.attribution import TimeEstimate, within
from headgate.diagnosis.own_time import OwnCause, OwnTime, mean_of
from headgate.model.units import say_seconds
from headgate.recorded.jobs import RecordedJob, RecordedNode, RecordedTask
from headgate.recorded.steps import EXPOSED

_LEAST_STEPS = 3
"""Sampled steps of a worker, for its own part of a step to be known."""
_STRAGGLES = 0.1
"""A straggler's own part of a step is longer than any other's by this part of the step."""
_LEAST_SPAN = 2e-4
"""Seconds: a shorter span tells nothing of a node."""
_LESS = 0.9
"""A node is a slower one if it has at most this part of the others' cores, or of their speed."""


def straggling(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> Iterator[OwnCause]:
    own = {task: seconds for task in job.tasks if (seconds := _own_part(task, time)) is not None}
    if len(own) < 2 or not job.synchronous:
        return
    step = max(task.division.step_seconds for task in own if task.division is not None)
    slow, extra = _slowest({task: seconds / step for task, seconds in own.items()})
    held = {task: _held_back(task, nodes, time) for task in own}
    limited, part = _slowest(held)
    others = [task for task in own if task is not limited]
    if part > extra and limited.node not in {task.node for task in others}:
        if part >= _STRAGGLES:
            usual = median(held[task] for task in others)
            parts = f"held it back for {held[limited]:.0%} of the time, the others for {usual:.0%}"
            cost = within(part * time.seconds, 0.3, time.seconds)
            yield _slow_node(job, limited, others, nodes, f"a limit on its CPU time {parts}", cost)
        return
    if extra < _STRAGGLES:
        return
    others = [task for task in own if task is not slow]
    usual = median(own[task] for task in others)
    cost = within(extra * time.seconds, 0.3, time.seconds)
    takes = f"{say_seconds(own[slow])} for its own part of a step, the others {say_seconds(usual)}"
    if _is_slow_node(slow, others, nodes, extra, own[slow] / max(usual, 1e-9), time):
        yield _slow_node(job, slow, others, nodes, f"it takes {takes}", cost)
        return
    span = (
        max(slow.division.seconds, key=lambda name: _longer(slow, others, name))
        if slow.division
        else ""
    )
    alike = [_times(slow, others, name) for name in ("forward", "backward")]
    both = all(each is not None and each > 1.0 + _STRAGGLES for each in alike)
    more = ", and its batches may be larger than theirs" if both else ""
    why = (
        f"All workers of {job.name} wait for {slow.name}, which takes {takes}; most of that "
        f"is in {span}{more}"
    )
    stacks = f"`headgate stacks {job.name}` shows where it stands while the job runs."
    yield OwnCause("straggler", cost, why, stacks, "communication", "straggler")


def _slowest(seconds: Mapping[RecordedTask, float]) -> tuple[RecordedTask, float]:
    """The task with most, and by how much that is more than the next one's: so much the others wait
    for it alone.
    """
    slow = max(seconds, key=lambda task: seconds[task])
    return slow, seconds[slow] - max(each for task, each in seconds.items() if task is not slow)


def _slow_node(
    job: RecordedJob,
    slow: RecordedTask,
    others: Sequence[RecordedTask],
    nodes: Mapping[str, RecordedNode],
    told: str,
    cost: TimeEstimate,
) -> OwnCause:
    cores = nodes[slow.node].cores if slow.node in nodes else None
    usual_cores = {nodes[task.node].cores for task in others if task.node in nodes}
    has = f" ({cores:g} cores)" if cores and cores not in usual_cores else ""
    why = (
        f"All workers of {job.name} wait for {slow.name}, because its node {slow.node}{has} "
        f"is slow: {told}"
    )
    leaves = leaving_out(job, others)
    return OwnCause("slow-node", cost, why, leaves, "communication", "straggler")


def leaving_out(job: RecordedJob, others: Sequence[RecordedTask]) -> str:
    """How to leave out the node that these workers are not on."""
    rest = ",".join(dict.fromkeys(task.node for task in others))
    stated, left = job.spec.plan, len(others)
    if stated is not None and stated.worker_nodes:
        has_part = isinstance(stated.batch_per_worker, tuple)
        batch = ", its part out of `batch_per_worker:`" if has_part else ""
        return f"Take it out of `worker_nodes:`{batch}, and have `workers: {left}`, below `plan:`."
    fewer = f" --workers {left}" if stated and left >= job.least_workers else ""
    return f"`--nodes {rest}{fewer}` leaves that node out."


def _held_back(task: RecordedTask, nodes: Mapping[str, RecordedNode], time: OwnTime) -> float:
    """Part of the time in which a limit on its node's CPU time held a worker back, in whatever part
    of a step that was: often in its part of the exchange, and then all exchange for as long. As
    many threads stand at once as run else. What it lost to neighbours there, or to its own cap, was
    not the node's doing.
    """
    node = nodes.get(task.node)
    throttled = mean_of(node, "cpu_throttled", time) if node is not None else 0.0
    if node is None or not throttled:
        return 0.0
    wanted = throttled + mean_of(node, "cpu_cores", time)
    stood = min(throttled, throttled / wanted * (mean_of(task, "cpu_ready", time) or 1.0))
    return max(stood - time.lost.get(task.id, 0.0), 0.0)


def _own_part(task: RecordedTask, time: OwnTime) -> float | None:
    """Seconds of a step that a worker did not wait for others, nor lost to neighbours."""
    division = task.division
    if not task.is_worker or division is None or division.steps < _LEAST_STEPS:
        return None
    exposed = sum(division.seconds.get(name, 0.0) for name in EXPOSED)
    return max(division.step_seconds * (1.0 - time.lost.get(task.id, 0.0)) - exposed, 0.0)


def _longer(slow: RecordedTask, others: Sequence[RecordedTask], span: str) -> float:
    """Seconds by which a span of its step is longer than the others'."""
    if span in EXPOSED or slow.division is None:
        return 0.0
    return slow.division.seconds.get(span, 0.0) - median(_span(task, span) for task in others)


def _span(task: RecordedTask, name: str) -> float:
    return task.division.seconds.get(name, 0.0) if task.division is not None else 0.0


def _is_slow_node(
    slow: RecordedTask,
    others: Sequence[RecordedTask],
    nodes: Mapping[str, RecordedNode],
    extra: float,
    times: float,
    time: OwnTime,
) -> bool:
    """Whether the straggler's node is the cause. Its threads wait for cores that nobody else uses,
    or each span of its steps is longer than the others', in about the same proportion, the
    optimizer's as well. Larger batches make forward and backward longer alike, and no optimizer.
    Without the time of that, the node has to be known as a slower one.
    """
    if not slow.node or slow.node in {task.node for task in others}:
        return False
    waited = mean_of(slow, "cpu_waiting", time) - median(
        mean_of(task, "cpu_waiting", time) for task in others
    )
    if waited > extra / 2.0:
        return True
    least = 1.0 + (times - 1.0) / 2.0
    longer = [
        each
        for name in ("forward", "backward", "compute")
        if (each := _times(slow, others, name)) is not None
    ]
    if len(longer) < 2 or min(longer) < least:
        return False
    optimizer = _times(slow, others, "optimizer")
    return optimizer >= least if optimizer is not None else _has_less(slow, others, nodes)


def _times(slow: RecordedTask, others: Sequence[RecordedTask], name: str) -> float | None:
    """How many times as long a span of its step is as the others'; None where they have none."""
    usual = median(_span(task, name) for task in others)
    return _span(slow, name) / usual if usual > _LEAST_SPAN else None


def _has_less(
    slow: RecordedTask, others: Sequence[RecordedTask], nodes: Mapping[str, RecordedNode]
) -> bool:
    """Whether its node has fewer or slower cores than those of the others."""
    mine, theirs = nodes.get(slow.node), [nodes[task.node] for task in others if task.node in nodes]
    if mine is None or not theirs:
        return False
    return any(
        had is not None and all(each is not None and each * _LESS > had for each in rest)
        for had, rest in (
            (mine.cores, [node.cores for node in theirs]),
            (mine.core_gflops, [node.core_gflops for node in theirs]),
        )
    )
