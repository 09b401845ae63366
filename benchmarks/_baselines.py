"""What people and papers would choose, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from headgate.model.cluster import Cluster, Node
from headgate.model.errors import UsageError
from headgate.model.plans import Plan, Strategy

_SERVED = 4  # workers of each server in a plan made by hand


def manual(cluster: Cluster, batch: int) -> Plan:
    """What a person would do: one worker for each GPU, or each node where there are none; one
    server for every four workers, on nodes without GPUs in the order of their names (on any, where
    all have some); equal batches.

    Args:
        cluster: The nodes.
        batch: Samples of a step.

    Raises:
        UsageError: The cluster has no node.
    """
    workers = _workers(cluster, batch)
    if len(workers) == 1:
        return _plan("single", workers, batch)
    plain = [node for node in cluster.nodes if not node.gpus] or list(cluster.nodes)
    names = sorted(node.name for node in plain)
    count = -(-len(workers) // _SERVED)
    return _plan("ps", workers, batch, tuple(names[i % len(names)] for i in range(count)))


def all_reduce(cluster: Cluster, batch: int) -> Plan:
    """All-reduce on everything: one worker for each GPU of all nodes, and one for each node
    without; equal batches.

    Raises:
        UsageError: The cluster has no node.
    """
    names = [node.name for node in cluster.nodes for _ in range(max(len(node.gpus), 1))][:batch]
    if not names:
        raise UsageError("the cluster has no node to plan for")
    return _plan("single" if len(names) == 1 else "allreduce", names, batch)


def at_random(space: Sequence[Plan], seed: int) -> Plan:
    """Any plan of a space, each as likely.

    Raises:
        ValueError: The space is empty.
    """
    if not space:
        raise ValueError("found no plan to draw from; expected at least one")
    return space[int(np.random.default_rng(seed).integers(len(space)))]


def optimus_form(measured: Mapping[Plan, float]) -> Callable[[int, int], float]:
    """Samples a second of so many workers and servers, by the form of Optimus (EuroSys 2018) for
    synchronous training: steps a second 1 / (a·M/w + b + c·w/p + d·w + e·p), non-negative, fitted
    by least squares to the seconds of a step.

    Args:
        measured: Samples a second of synchronous plans with equal batches that are stated, at least
            one.

    Raises:
        ValueError: There is no such plan.
    """
    told = [
        (plan.workers, plan.servers, float(plan.batch_per_worker), value)
        for plan, value in measured.items()
        if isinstance(plan.batch_per_worker, int) and value > 0
    ]
    if not told:
        raise ValueError("found no measured plan with a stated batch; expected at least one")
    each = float(np.mean([batch for _, _, batch, _ in told]))
    table = [_terms(workers, servers, batch) for workers, servers, batch, _ in told]
    found, _ = nnls(
        np.array(table), np.array([workers * batch / value for workers, _, batch, value in told])
    )
    # Where all have the same samples in all, so do those that are asked for; else all have the
    # usual batch.
    whole = {workers * batch for workers, _, batch, _ in told}
    fixed = next(iter(whole)) if len(whole) == 1 and len(told) > 1 else None

    def throughput(workers: int, servers: int) -> float:
        batch = each if fixed is None else fixed / workers
        return float(
            workers * batch / max(float(np.array(_terms(workers, servers, batch)) @ found), 1e-12)
        )

    return throughput


def _terms(workers: int, servers: int, batch: float) -> tuple[float, ...]:
    return batch, 1.0, workers / max(servers, 1), float(workers), float(servers)


def optimus(space: Sequence[Plan], measured: Mapping[Plan, float]) -> Plan:
    """Optimus's greedy: from the fewest tasks one worker or one server more, whichever gains more
    by its fitted form, until neither gains.

    Args:
        space: Plans; of those with the same numbers of workers and servers the first is meant.
        measured: Samples a second of some of them.

    Raises:
        ValueError: The space is empty, or nothing was measured that the form can be fitted to.
    """
    if not space:
        raise ValueError("found no plan to choose from; expected at least one")
    form = optimus_form(measured)
    known: dict[tuple[int, int], Plan] = {}
    for plan in space:
        known.setdefault((plan.workers, plan.servers), plan)
    at = min(known, key=lambda each: (each[0] + each[1], each))
    while True:
        near = [each for each in ((at[0] + 1, at[1]), (at[0], at[1] + 1)) if each in known]
        if not near or form(*(more := max(near, key=lambda each: form(*each)))) <= form(*at):
            return known[at]
        at = more


def _workers(cluster: Cluster, batch: int) -> list[str]:
    with_gpus: list[Node] = [node for node in cluster.nodes if node.gpus]
    names = [node.name for node in with_gpus for _ in node.gpus] or [
        node.name for node in cluster.nodes
    ]
    if not names:
        raise UsageError("the cluster has no node to plan for")
    return names[:batch]


def _plan(
    strategy: Strategy, workers: Sequence[str], batch: int, servers: tuple[str, ...] = ()
) -> Plan:
    """With equal batches, as far as they divide."""
    least, more = divmod(batch, len(workers))
    sizes = tuple(least + (i < more) for i in range(len(workers)))
    return Plan(
        strategy=strategy,
        workers=len(workers),
        batch_per_worker=sizes if more else least,
        servers=len(servers),
        worker_nodes=tuple(workers),
        server_nodes=servers,
    )
