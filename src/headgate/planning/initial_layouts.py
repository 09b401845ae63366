"""Layouts to start a search from: all if they are few, else those that practice and papers
suggest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from headgate.planning import physics
from headgate.planning.features import Indices
from headgate.planning.spaces import Space


def count(space: Space) -> int:
    """Number of layouts in a space."""
    of_kind = [int((space.kind == kind).sum()) for kind in range(len(space.free))]
    return math.prod(
        math.comb(int(free) + patterns, patterns) for free, patterns in zip(space.free, of_kind)
    )


def every(space: Space) -> Indices:
    """All layouts, (layouts, patterns)."""
    parts = []
    for kind, free in enumerate(space.free):
        patterns = int((space.kind == kind).sum())
        parts.append(list(_shares(int(free), patterns)))
    # Patterns are ordered by kind, so those of one kind are adjacent.
    return np.array([sum(choice, ()) for choice in itertools.product(*parts)], np.intp).reshape(
        -1, len(space.patterns)
    )


def _shares(nodes: int, patterns: int) -> Iterator[tuple[int, ...]]:
    """All ways to assign up to this many nodes to patterns."""
    if patterns == 0:
        yield ()
        return
    for shares in range(nodes + 1):
        for later_shares in _shares(nodes - shares, patterns - 1):
            yield (shares, *later_shares)


def likely(space: Space) -> Indices:
    """Likely layouts: workers on the first nodes of several orders, in numbers that grow by about a
    third.

    They run by themselves, with servers beside them, with servers on other nodes, or both.
    """
    at = {
        (pattern.kind, pattern.workers, pattern.servers): i
        for i, pattern in enumerate(space.patterns)
    }
    layouts: dict[tuple[int, ...], None] = {}
    on_servers = _order(space, lambda rate, slow: (slow, rate))
    for most in (True, False):
        workers_by_kind = {kind: _workers(space, kind, most) for kind in range(len(space.free))}
        for order in (
            _order(space, lambda rate, slow: (-rate, slow)),
            _order(space, lambda rate, slow: (slow, -rate)),
        ):
            working = [kind for kind in order if workers_by_kind[kind]]
            for nodes in _ladder(int(sum(space.free[kind] for kind in working))):
                taken = _take(space, working, nodes, {})
                for beside in (0, 1) if space.serves else (0,):
                    row = [0] * len(space.patterns)
                    for kind, number in taken.items():
                        row[at[kind, workers_by_kind[kind], beside]] = number
                    layouts[tuple(row)] = None
                    left = int(space.free.sum()) - nodes
                    for servers in _ladder(left) if space.serves else ():
                        for factor in (1, 3) if beside else (1,):
                            more = list(row)
                            for kind, number in _take(space, on_servers, servers, taken).items():
                                more[at[kind, 0, factor]] += number
                            layouts[tuple(more)] = None
    return np.array(list(layouts), np.intp).reshape(-1, len(space.patterns))


def _workers(space: Space, kind: int, most: bool) -> int:
    """Workers on each node of a kind; 0: none fit."""
    worker_counts = [
        pattern.workers for pattern in space.patterns if pattern.kind == kind and pattern.workers
    ]
    return (max if most else min)(worker_counts, default=0)


def _order(space: Space, key: Callable[[float, float], tuple[float, float]]) -> list[int]:
    """Kinds with patterns, sorted by samples a second of a node and slowness of its NIC."""
    p = physics.by_name(space.costs.prior.mean)
    _, sample, read = physics.compute(
        p, space.overhead, space.work, space.reads, space.cores_alone, space.speeds
    )
    rate = space.workers / (sample + read)
    kinds = sorted(set(space.kind.tolist()))
    facts = {
        kind: (float(rate[space.kind == kind].max()), float(space.slowness[space.kind == kind][0]))
        for kind in kinds
    }
    return sorted(kinds, key=lambda kind: (*key(*facts[kind]), kind))


def _take(space: Space, order: list[int], nodes: int, taken: dict[int, int]) -> dict[int, int]:
    """Take this many nodes from the first kinds that have some left."""
    layouts = {}
    for kind in order:
        number = min(nodes, int(space.free[kind]) - taken.get(kind, 0))
        if number > 0:
            layouts[kind] = number
            nodes -= number
    return layouts


def _ladder(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, ... up to and including `most`."""
    steps, step = [], 1
    while step < most:
        steps.append(step)
        step = max(step + 1, step * 4 // 3)
    return [*steps, most] if most >= 1 else []
