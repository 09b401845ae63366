"""Stragglers: all workers of a synchronous plan are as slow as the slowest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from headgate.diagnosis.attribution import TimeEstimate, within
from headgate.diagnosis.findings import Finding, FindingKind, SlowNodeFacts, StragglerFacts
from headgate.diagnosis.own_time import OwnTime, mean_of
from headgate.diagnosis.remedies import NodesFacts, Remedy, RemedyKind, StacksFacts
from headgate.recorded.jobs import RecordedJob, RecordedNode, RecordedTask
from headgate.recorded.steps import EXPOSED

_LEAST_STEPS = 3
"""Least sampled steps of a worker for its own part of a step to be known."""
_STRAGGLES = 0.1
"""A straggler's own part exceeds any other's by this fraction of the step."""
_LEAST_SPAN = 2e-4
"""Seconds; a shorter span says nothing about a node."""
_LESS = 0.9
"""A node is slower if it has at most this fraction of the others' cores, or of their speed."""


def straggling(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> Iterator[Finding]:
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
            cost = within(part * time.seconds, 0.3, time.seconds)
            facts = SlowNodeFacts(
                task=limited.name,
                node=limited.node,
                cores=_unusual_cores(limited, others, nodes),
                limited=True,
                own=held[limited],
                usual=usual,
            )
            yield _slow_node(job, others, facts, cost)
        return
    if extra < _STRAGGLES:
        return
    others = [task for task in own if task is not slow]
    usual = median(own[task] for task in others)
    cost = within(extra * time.seconds, 0.3, time.seconds)
    if _is_slow_node(slow, others, nodes, extra, own[slow] / max(usual, 1e-9), time):
        node_facts = SlowNodeFacts(
            task=slow.name,
            node=slow.node,
            cores=_unusual_cores(slow, others, nodes),
            limited=False,
            own=own[slow],
            usual=usual,
        )
        yield _slow_node(job, others, node_facts, cost)
        return
    spans = slow.division.seconds if slow.division else {}
    alike = [_times(slow, others, name) for name in ("forward", "backward")]
    yield Finding(
        kind=FindingKind.STRAGGLER,
        cost=cost,
        resource="straggler",
        facts=StragglerFacts(
            task=slow.name,
            own=own[slow],
            usual=usual,
            span=max(spans, key=lambda name: _longer(slow, others, name), default=""),
            larger_batches=all(times is not None and times > 1.0 + _STRAGGLES for times in alike),
        ),
        remedy=Remedy(kind=RemedyKind.SEE_STACKS, facts=StacksFacts(every_thread=False)),
    )


def _slowest(seconds: Mapping[RecordedTask, float]) -> tuple[RecordedTask, float]:
    """The task with the greatest value, and its distance to the next: how long the others wait for
    it alone.
    """
    slow = max(seconds, key=lambda task: seconds[task])
    return slow, seconds[slow] - max(other for task, other in seconds.items() if task is not slow)


def _slow_node(
    job: RecordedJob, others: Sequence[RecordedTask], facts: SlowNodeFacts, cost: TimeEstimate
) -> Finding:
    return Finding(
        kind=FindingKind.SLOW_NODE,
        cost=cost,
        resource="straggler",
        facts=facts,
        remedy=leaving_out(job, others),
    )


def _unusual_cores(
    slow: RecordedTask, others: Sequence[RecordedTask], nodes: Mapping[str, RecordedNode]
) -> float | None:
    """Cores of its node, if different from the others'; None: the same."""
    cores = nodes[slow.node].cores if slow.node in nodes else None
    usual = {nodes[task.node].cores for task in others if task.node in nodes}
    return cores if cores and cores not in usual else None


def leaving_out(job: RecordedJob, others: Sequence[RecordedTask]) -> Remedy:
    """A remedy: leave out the node that none of these workers is on."""
    stated, left = job.spec.plan, len(others)
    listed = stated is not None and bool(stated.worker_nodes)
    fewer = listed or (stated is not None and left >= job.least_workers)
    return Remedy(
        kind=RemedyKind.LEAVE_NODE_OUT,
        settings={"plan.workers": left} if fewer else {},
        facts=NodesFacts(
            nodes=tuple(dict.fromkeys(task.node for task in others)),
            listed=listed,
            parts=stated is not None and isinstance(stated.batch_per_worker, tuple),
        ),
    )


def _held_back(task: RecordedTask, nodes: Mapping[str, RecordedNode], time: OwnTime) -> float:
    """Fraction of time in which a CPU limit of its node throttled a worker.

    Throttling often hits its part of the exchange, and then all workers exchange for as long. As
    many threads stop at once as usually run. Losses to neighbours there, or to its own cap, are not
    the node's fault.
    """
    node = nodes.get(task.node)
    throttled = mean_of(node, "cpu_throttled", time) if node is not None else 0.0
    if node is None or not throttled:
        return 0.0
    wanted = throttled + mean_of(node, "cpu_cores", time)
    stood = min(throttled, throttled / wanted * (mean_of(task, "cpu_ready", time) or 1.0))
    return max(stood - time.lost.get(task.id, 0.0), 0.0)


def _own_part(task: RecordedTask, time: OwnTime) -> float | None:
    """Seconds of a step that a worker neither waited for others nor lost to neighbours."""
    division = task.division
    if not task.is_worker or division is None or division.steps < _LEAST_STEPS:
        return None
    exposed = sum(division.seconds.get(name, 0.0) for name in EXPOSED)
    return max(division.step_seconds * (1.0 - time.lost.get(task.id, 0.0)) - exposed, 0.0)


def _longer(slow: RecordedTask, others: Sequence[RecordedTask], span: str) -> float:
    """Seconds by which a span of its step exceeds the others'."""
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
    """Whether the straggler's node is the cause.

    Either its threads wait for cores that nobody else uses, or all its spans, including the
    optimizer's, are longer in about the same proportion. Larger batches lengthen forward and
    backward, but not the optimizer. Without the optimizer's time, the node has to be known as
    slower.
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
        ratio
        for name in ("forward", "backward", "compute")
        if (ratio := _times(slow, others, name)) is not None
    ]
    if len(longer) < 2 or min(longer) < least:
        return False
    optimizer = _times(slow, others, "optimizer")
    return optimizer >= least if optimizer is not None else _has_less(slow, others, nodes)


def _times(slow: RecordedTask, others: Sequence[RecordedTask], name: str) -> float | None:
    """A span of its step relative to the others'; None: they have none."""
    usual = median(_span(task, name) for task in others)
    return _span(slow, name) / usual if usual > _LEAST_SPAN else None


def _has_less(
    slow: RecordedTask, others: Sequence[RecordedTask], nodes: Mapping[str, RecordedNode]
) -> bool:
    """Whether its node has fewer or slower cores than those of the others."""
    slow_node, other_nodes = (
        nodes.get(slow.node),
        [nodes[task.node] for task in others if task.node in nodes],
    )
    if slow_node is None or not other_nodes:
        return False
    return any(
        had is not None
        and all(other_has is not None and other_has * _LESS > had for other_has in others_have)
        for had, others_have in (
            (slow_node.cores, [node.cores for node in other_nodes]),
            (slow_node.core_gflops, [node.core_gflops for node in other_nodes]),
        )
    )
