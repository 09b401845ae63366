"""Search the best layout of a job: cost all layouts if they are few, else improve likely ones step
by step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from headgate.model.plans import Plan, Prediction
from headgate.model.reasons import Refusal, RefusalKind
from headgate.model.refused import RefusedError
from headgate.planning import initial_layouts
from headgate.planning.bounds import bound
from headgate.planning.cost import CostModel
from headgate.planning.features import Floats, Indices
from headgate.planning.joining import alone
from headgate.planning.memory import misfit
from headgate.planning.patterns import Mode
from headgate.planning.spaces import Space

_EXACT = 20_000  # up to this many layouts are all costed
_BEAM = 3  # layouts that are improved at a time
_ROUNDS = 30
_EQUAL = 5e-3  # fraction of the throughput that is not worth another node or task
_SAME = 1e-9
_KEPT = 400  # best layouts of a strategy that are kept


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Args:
        best: The plan to run, with its predicted throughput.
        runners_up: The next best plans that differ in tasks, nodes or strategy, best first, chosen
            by `varied`.
        bound: Samples a second that no plan can exceed by the model.
        exact: Whether the best plan is optimal by the model: the bound shows it, or all layouts
            were costed.
        costed: Number of costed layouts.
    """

    best: Prediction
    runners_up: tuple[Prediction, ...]
    bound: float
    exact: bool
    costed: int

    @property
    def gap(self) -> float:
        """Largest possible distance of the best plan from the bound, as a fraction of the best."""
        return self.bound / self.best.throughput - 1


def search(costs: CostModel, *, used: Collection[str] = (), runners_up: int = 9) -> SearchResult:
    """The best plan of a job by its cost model. Among equal plans: the fewest nodes, then the
    fewest tasks.

    Args:
        costs: Job, cluster and profile.
        used: Names of nodes that other jobs have.
        runners_up: How many other plans to return.

    Raises:
        RefusedError: No plan can run; the message gives the reason for each kind of node.
    """
    looked = Looked(Space(costs, used))
    top = looked.bounded()
    best, *others = costs.predictions(looked.ranked(1 + runners_up, variety=True))
    return SearchResult(best, tuple(others), max(top, best.throughput), looked.exact, looked.costed)


def varied(plans: Sequence[tuple[Hashable, int]], most: int) -> list[int]:
    """Choose which of many plans to show to a person.

    First comes the first plan, then the best of each strategy. Then come plans whose number of
    workers differs from all before by a factor of about 1.4. Remaining places go to the remaining
    plans. For `most` of two or less these are just the first ones.

    Args:
        plans: Strategy and workers of each plan, best first.
        most: Most plans to choose.

    Returns:
        Their indices, ascending.
    """
    if most <= 2:
        return list(range(min(most, len(plans))))
    strategies: dict[Hashable, int] = {}
    sizes: dict[Hashable, int] = {}
    for i, (strategy, workers) in enumerate(plans):
        strategies.setdefault(strategy, i)
        sizes.setdefault((strategy, round(2 * math.log2(workers))), i)
    first = dict.fromkeys([0, *strategies.values(), *sizes.values(), *range(len(plans))])
    return sorted(list(first)[:most]) if plans else []


class Looked:
    """A searched space with its good layouts.

    Raises:
        RefusedError: No layout is possible.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.exact = False
        self.costed = 0
        self._rows: list[Indices] = []
        self._facts: list[Floats] = []  # throughput, nodes, tasks, mode
        if space.patterns:
            self._look_everywhere(initial_layouts.likely(space))
        if not self._rows and not self.enumerate():
            raise RefusedError(_nowhere(space))
        if not self.exact:
            self._better()

    def enumerate(self) -> bool:
        """Cost all layouts if they are few enough. Returns whether any is possible."""
        if (
            not self.exact
            and self.space.patterns
            and initial_layouts.count(self.space) * len(self.space.modes) <= _EXACT
        ):
            self._look_everywhere(initial_layouts.every(self.space))
            self.exact = True
        return bool(self._rows)

    def bounded(self) -> float:
        """Samples a second that no layout exceeds. Costs all layouts if nothing else gives a
        bound.
        """
        best = max(float(facts[:, 0].max()) for facts in self._facts)
        limit = max(bound(self.space), best)
        if limit > best * (1 + _SAME):
            self.enumerate()
        else:
            self.exact = True
        return max(float(facts[:, 0].max()) for facts in self._facts) if self.exact else limit

    def _look_everywhere(self, rows: Indices) -> None:
        for mode in range(len(self.space.modes)):
            self._look(rows, mode)

    def ranked(self, most: int, *, variety: bool = False) -> list[Plan]:
        """The best plans that differ in strategy, tasks or nodes, best first; with `variety`,
        chosen by `varied`.
        """
        rows, facts = np.concatenate(self._rows), np.concatenate(self._facts)
        order = np.lexsort((facts[:, 2], facts[:, 1], -facts[:, 0]))
        rows, facts = rows[order], facts[order]
        equal = np.flatnonzero(facts[:, 0] >= facts[0, 0] * (1 - _EQUAL))
        chosen = min(equal, key=lambda i: (facts[i, 1], facts[i, 2], i))
        seen: dict[tuple[int, int, tuple[np.intp, ...], Mode], int] = {}
        for i in (chosen, *range(len(rows))):
            workers, servers = (
                int((rows[i] * self.space.workers).sum()),
                int((rows[i] * self.space.servers).sum()),
            )
            on = tuple(np.add.reduceat(rows[i], self._starts())) if rows[i].size else ()
            seen.setdefault((workers, servers, on, self.space.modes[int(facts[i, 3])]), i)
            if len(seen) == most and (most <= 2 or not variety):
                break
        kinds = [((mode, servers > 0, workers == 1), workers) for workers, servers, _, mode in seen]
        layouts = list(seen.values())
        picked = [layouts[i] for i in varied(kinds, most)] if variety else layouts
        return [self.space.plan(rows[i], self.space.modes[int(facts[i, 3])]) for i in picked]

    def _starts(self) -> Indices:
        """The index at which the patterns of each kind begin."""
        return np.flatnonzero(np.diff(self.space.kind, prepend=-1))

    def _look(self, rows: Indices, mode: int) -> tuple[Indices, Floats]:
        """Cost layouts. Returns the possible ones and their throughput, best first."""
        costed = self.space.cost(rows, self.space.modes[mode])
        self.costed += len(rows)
        runs = np.flatnonzero(costed.throughput > 0)
        order = np.lexsort((costed.tasks[runs], costed.nodes[runs], -costed.throughput[runs]))
        runs = runs[order]
        counts, served = rows[runs] @ self.space.workers, rows[runs] @ self.space.servers
        strategy = np.where(served > 0, 2, np.where(counts > 1, 1, 0))
        rank = np.zeros(runs.size, np.intp)
        for strategy_index in range(3):
            rank[strategy == strategy_index] = np.arange((strategy == strategy_index).sum())
        runs = runs[rank < _KEPT]
        if runs.size:
            facts = np.stack(
                [costed.throughput, costed.nodes, costed.tasks, np.full(len(rows), mode)], 1
            )
            self._rows.append(rows[runs])
            self._facts.append(facts[runs].astype(np.float64))
        return rows[runs], costed.throughput[runs]

    def _better(self) -> None:
        """Improve the best layouts by moving nodes from one pattern to another, until no move
        helps.
        """
        facts, rows = np.concatenate(self._facts), np.concatenate(self._rows)
        order = np.argsort(-facts[:, 0], kind="stable")
        beams: list[tuple[Indices, int, float]] = []
        layouts, in_modes = set[bytes](), set[int]()
        for i in order:
            mode, layout = int(facts[i, 3]), rows[i].tobytes()
            # The best layout of another mode may improve beyond the present best.
            if mode not in in_modes or (len(layouts) < _BEAM and layout not in layouts):
                beams.append((rows[i], mode, float(facts[i, 0])))
                layouts.add(layout)
                in_modes.add(mode)
        for row, mode, throughput in beams:
            for _ in range(_ROUNDS):
                around, values = self._look(_moves(self.space, row), mode)
                if not len(around) or values[0] <= throughput * (1 + _SAME):
                    break
                row, throughput = around[0], float(values[0])


def _moves(space: Space, row: Indices) -> Indices:
    """Neighbours of a layout: a power of two of nodes more or fewer, or moved to another pattern or
    kind.
    """
    kinds, patterns = space.kind, len(space.patterns)
    idle = space.free - np.bincount(kinds, weights=row, minlength=len(space.free)).astype(np.intp)
    same = (space.workers[:, None] > 0) == (space.workers[None, :] > 0)
    same &= space.servers[:, None] == space.servers[None, :]
    moves = []
    for to in range(patterns):
        steps = _steps(int(idle[kinds[to]]))
        moves += [(-1, to, step) for step in steps]
    for at in np.flatnonzero(row).tolist():
        steps = _steps(int(row[at]))
        moves += [(at, -1, step) for step in steps]
        for to in range(patterns):
            if to != at and kinds[to] == kinds[at]:
                moves += [(at, to, step) for step in steps]
            elif to != at and same[at, to] and idle[kinds[to]]:
                moves += [(at, to, step) for step in _steps(int(min(row[at], idle[kinds[to]])))]
    moved = np.repeat(row[None, :], len(moves), 0)
    table = np.array(moves, np.intp).reshape(-1, 3)
    lines = np.arange(len(moves))
    for column, sign in ((0, -1), (1, 1)):
        is_possible = table[:, column] >= 0
        moved[lines[is_possible], table[is_possible, column]] += sign * table[is_possible, 2]
    return moved


def _steps(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    steps = [1 << i for i in range(most.bit_length()) if 1 << i <= most]
    return steps if not steps or steps[-1] == most else [*steps, most]


def _nowhere(space: Space) -> Refusal:
    """Why no layout is possible, for each kind of node."""
    job, costs, memory = space.job, space.costs, space.costs.memory_of
    least = memory.of_worker(1, served=False, workers=max(int(space.free.sum()), 1))
    if space.serves:
        least = min(least, memory.of_worker(1, served=True))
    lacks = []
    for kind, free in zip(costs.kinds, space.free):
        node, name = kind.node, kind.in_words
        most = min(node.memory_bytes, job.limits.memory_bytes or node.memory_bytes)
        if not free:
            lacks.append(Refusal(RefusalKind.KIND_TAKEN, {"node": name, "nodes": len(kind.names)}))
        elif (lack := misfit(node, job.limits, name)) is not None:
            lacks.append(lack)
        elif least > most:
            facts = {"node": name, "most_bytes": most, "needs_bytes": int(least)}
            lacks.append(Refusal(RefusalKind.MODEL_TOO_LARGE, facts))
    workers = {"workers": job.limits.workers[0]}
    if workers["workers"] > costs.batch and not costs.grows:
        lacks.append(Refusal(RefusalKind.BATCH_TOO_SMALL, {**workers, "batch": costs.batch}))
    if workers["workers"] > 1 and not space.joins:
        why = {"text": alone(job, costs.profile)}
        lacks.append(Refusal(RefusalKind.TRAINS_ALONE, {**workers, **why}))
    if not lacks:
        lacks.append(Refusal(RefusalKind.NO_ROOM_FOR_STEP, {**workers, "batch": costs.batch}))
    return Refusal(RefusalKind.NO_LAYOUT, {"job": job.name, "lacks": tuple(lacks)})
