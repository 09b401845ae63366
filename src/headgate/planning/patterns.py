"""The building blocks of layouts: patterns of tasks on a node, and modes in which workers
cooperate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.model.jobs import Job
from headgate.planning.cost import CostModel
from headgate.planning.features import Indices
from headgate.planning.memory import misfit

# more than one server on a node, which then carries a greater part of the model
_ON_ONE = (2, 3)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Tasks of a node: index of its kind, workers, servers."""

    kind: int
    workers: int
    servers: int


@dataclass(frozen=True, slots=True)
class Mode:
    """How workers cooperate: fields of `Plan`, and the multiple of the script's own batch."""

    synchronous: bool = True
    staleness: int | None = None
    backups: int = 0
    scale: int = 1


def patterns(costs: CostModel, free: Indices, *, serves: bool, joins: bool) -> tuple[Pattern, ...]:
    """The possible patterns of each kind.

    Args:
        costs: Job, cluster and profile.
        free: Free nodes of each kind.
        serves: Whether parameter servers are possible.
        joins: Whether several workers are possible.
    """
    limits = costs.job.limits
    most = float(limits.workers[1] or math.inf) if joins else 1.0
    if not costs.grows:
        most = min(most, costs.batch)
    patterns_found = []
    fewest, free_cores = limits.workers[0], max(int(free.sum()), 1)
    # workers on each node when all nodes have equally many
    equal = {fewest // free_cores, -(-fewest // free_cores)}
    for i, kind in enumerate(costs.kinds):
        # no task starts there, not even a server
        if not free[i] or misfit(kind.node, limits) is not None:
            continue
        gpus, cores = len(kind.node.gpus), kind.node.cores
        if limits.gpus == 0 or not gpus:
            counts = {
                1,
                *(2,) * (cores >= 4),
                *(4,) * (cores >= 16),
                *(count for count in equal if count <= cores),
            }
        else:
            slots = gpus // (limits.gpus or 1)
            # the remainder beside full nodes
            left = {(bound or 0) % slots for bound in limits.workers}
            some = {
                1,
                slots // 2,
                slots,
                *(1 << i for i in range(slots.bit_length())),
                *left,
                *equal,
            }
            counts = {count for count in some if count <= slots}
        worker_counts = sorted(count for count in counts if 1 <= count <= most)
        patterns_found += [Pattern(i, count, 0) for count in worker_counts]
        if serves:
            patterns_found += [Pattern(i, count, 1) for count in worker_counts]
            patterns_found += [Pattern(i, 0, count) for count in (1, *_ON_ONE)]
    return tuple(patterns_found)


def modes(job: Job, *, serves: bool, joins: bool) -> tuple[Mode, ...]:
    """How workers may cooperate: the user's mathematics first, then what else the user allows."""
    allow, modes_found = job.allow, [Mode()]
    if "weak" in allow and joins and job.contract is None:
        modes_found += [Mode(scale=scale) for scale in (2, 4, 8, 16)]
    if allow and serves:
        modes_found += [Mode(backups=backups) for backups in (1, 2)]
    if "async" in allow and serves:
        modes_found += [Mode(synchronous=False), Mode(synchronous=False, staleness=4)]
    return tuple(modes_found)
