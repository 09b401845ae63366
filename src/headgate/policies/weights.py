"""Turn the CPU parts that a policy wants into weights, with floors and few changes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import WEIGHT_DEFAULT, Share
from headgate.policies.placements import ONE_NODE, Placements

FLOOR = 0.05
"""Default floor of each job, as a fraction of an equal share."""
MOST_CHANGES = 6
"""Most changes of a job's share in a minute."""

KEPT = 1
"""Changes of a minute reserved for raising a job to its floor, and for large changes that are
apart.
"""
_KEPT_FOR_LARGE = 2
"""Further changes reserved for large ones: a job far from the front has little, and must get more
when its turn comes.
"""
_LARGE = 0.2
"""Changes by at least this fraction of all weights are large."""
_QUICK = 4
_APART = 20.0
"""After enough changes in a minute, large ones are this many seconds apart: the longest time for
which a wrong order stands.
"""
_SLIGHT = 0.05
"""A weight that would change by at most this fraction stays."""
_TINY = 0.02
"""So does a weight that would change by at most this fraction of all weights: changes are
limited.
"""
_MINUTE = 60.0
_LEAST, _MOST = 1.0, 10_000.0
_LARGEST_SCALE = 20.0
"""Most times the usual weights; two jobs that change places may reach twelve times."""


class ChangeHistory:
    """Recent changes of a job's share.

    Args:
        most: Most changes in a minute; infinity: no limit.
    """

    __slots__ = ("_at",)

    def __init__(self, most: float = MOST_CHANGES) -> None:
        self._at: deque[float] = deque(maxlen=int(most) if most < math.inf else 0)

    def note(self, now: float) -> None:
        """Record a change (s)."""
        self._at.append(now)

    def free_at(self, most: float) -> float:
        """When the next change would be at most the `most`-th of a minute (s)."""
        return self._at[-int(most)] + _MINUTE if len(self._at) >= most else 0.0

    def next_large(self, now: float) -> float:
        """When a large change would leave enough others for the rest of the minute (s)."""
        if len(self._at) < _QUICK or self._at[-_QUICK] <= now - _MINUTE:
            return 0.0
        return max(self._at[-1] + _APART, self.free_at(MOST_CHANGES))


@dataclass(slots=True)
class _JobWeight:
    """A job's weight; None: not granted yet. `why` is the reason last announced, at time `told`."""

    nodes: Mapping[str, float] = field(default_factory=lambda: ONE_NODE)
    weight: float | None = None
    why: Reason | None = None
    told: float = 0.0
    changes: ChangeHistory = field(default_factory=ChangeHistory)


class Weights:
    """The weights of jobs, and changes to them.

    Weights count only relative to others on a node. So they are scaled such that most stay as they
    are.

    Args:
        floor: Least fraction of an equal share for each job.
    """

    def __init__(self, floor: float = FLOOR) -> None:
        self._floor = floor
        self._held: dict[JobId, _JobWeight] = {}
        self._nodes: Placements | None = None

    def arrive(self, job: JobId) -> None:
        """Add a job, without a weight."""
        self._held[job] = _JobWeight()
        self._nodes = None

    def place(self, job: JobId, nodes: Mapping[str, float]) -> None:
        """Put a job on these nodes, with their cores."""
        self._held[job].nodes = nodes or ONE_NODE
        self._nodes = None

    def leave(self, job: JobId) -> None:
        """Remove a job."""
        self._held.pop(job, None)
        self._nodes = None

    def change(self, now: float, job: JobId) -> bool:
        """Whether another part of a job's share may change now; if so, count the change."""
        free = self._held[job].changes.free_at(MOST_CHANGES - KEPT) <= now
        if free:
            self._held[job].changes.note(now)
        return free

    def may_turn(self, now: float, job: JobId) -> bool:
        """Whether a job's share may change much now, and back at any time after that."""
        return self._held[job].changes.free_at(_QUICK - 1) <= now

    def settle(
        self, now: float, wanted: Mapping[JobId, tuple[float, Reason]]
    ) -> tuple[dict[JobId, tuple[Share, Reason]], float | None]:
        """Compute the changes.

        Args:
            now: Seconds.
            wanted: For each present job, its CPU part on each of its nodes, on any scale, with the
                reason.

        Returns:
            New shares with their reasons, and when to settle again because a change has to wait
            (None: none has).
        """
        if not wanted:
            return {}, None
        if self._nodes is None:
            self._nodes = Placements({job: held.nodes for job, held in self._held.items()})
        parts = self._floored(self._nodes, {job: part for job, (part, _) in wanted.items()})
        scale = self._scale(parts)
        around = self._nodes.around(parts, self._nodes.totals(parts))
        changes: dict[JobId, float] = {}
        waits: list[float] = []
        for job, part in parts.items():
            held, target = self._held[job], round(min(max(scale * part, _LEAST), _MOST), 3)
            if held.weight is None:
                changes[job] = target
            elif abs(target - held.weight) > max(
                _SLIGHT * held.weight, _TINY * scale * around[job]
            ):
                large = abs(target - held.weight) >= _LARGE * scale * around[job]
                few = MOST_CHANGES - KEPT - _KEPT_FOR_LARGE
                free = held.changes.next_large(now) if large else held.changes.free_at(few)
                if free <= now:
                    changes[job] = target
                else:
                    waits.append(free)
        lifted = self._lift(now, self._nodes, changes)
        for job, weight in changes.items():
            self._held[job].weight = weight
            self._held[job].changes.note(now)
        reasons = {
            job: Reason(ReasonKind.LIFTED) if job in lifted else wanted[job][1] for job in changes
        }
        for job, reason in reasons.items():
            self._held[job].why, self._held[job].told = reason, now
        return {
            job: (Share(cpu_weight=weight), reasons[job]) for job, weight in changes.items()
        }, min(waits, default=None)

    def reasons(
        self, now: float, wanted: Mapping[JobId, tuple[float, Reason]]
    ) -> dict[JobId, Reason]:
        """New reasons of jobs whose share stays, if they differ from the last ones. Changed figures
        alone count once a minute.
        """
        news = {}
        for job, (_, why) in wanted.items():
            held = self._held[job]
            if why != held.why and (now - held.told >= _MINUTE or _is_news(why, held.why)):
                held.why, held.told = why, now
                news[job] = why
        return news

    def _floored(self, nodes: Placements, parts: Mapping[JobId, float]) -> dict[JobId, float]:
        """Parts that sum to 1, none below its floor on any of its nodes, with a margin for small
        deviations.
        """
        floor = min(self._floor * (1.0 + 3.0 * _SLIGHT), 1.0)
        least = {job: nodes.least(job, floor) for job in parts}
        result = {job: max(part, 0.0) for job, part in parts.items()}
        for _ in nodes.on:  # a raise on one node also counts on the others
            lifted = False
            for node, jobs in nodes.on.items():
                lifted |= _fill(result, {job: least[job][node] for job in jobs})
            if not lifted or len(nodes.on) == 1:
                break
        total = sum(result.values())
        return {job: part / total for job, part in result.items()}

    def _scale(self, parts: Mapping[JobId, float]) -> float:
        known = ((self._held[job].weight, part) for job, part in parts.items())
        scales = sorted(weight / part for weight, part in known if weight is not None)
        usual = WEIGHT_DEFAULT * len(parts)
        middle = scales[(len(scales) - 1) // 2 : len(scales) // 2 + 1] or [usual]
        # The larger of two, because the kernel's weights are integers; but bounded.
        scale = middle[-1] if middle[-1] <= _LARGEST_SCALE * usual else middle[0]
        return min(max(scale, _LEAST / min(parts.values())), _MOST / max(parts.values()))

    def _lift(self, now: float, nodes: Placements, changes: dict[JobId, float]) -> set[JobId]:
        """Raise jobs that would stay below their floor because others may not change yet, with a
        margin.
        """
        lifted: set[JobId] = set()
        weights = {
            job: changes.get(job) or held.weight or _LEAST for job, held in self._held.items()
        }
        for _ in weights:
            totals = nodes.totals(weights)
            floors = {job: nodes.floor(job, self._floor, totals) for job in weights}
            low = [job for job, weight in weights.items() if weight < floors[job] * (1.0 - 1e-9)]
            low = [
                job
                for job in low
                if job in changes or self._held[job].changes.free_at(MOST_CHANGES) <= now
            ]
            low = [job for job in low if job not in lifted]
            if not low:
                break
            for job in low:
                weights[job] = changes[job] = round(min(max(4.0 * floors[job], _LEAST), _MOST), 3)
            lifted.update(low)
        return lifted


def _fill(parts: dict[JobId, float], least: Mapping[JobId, float]) -> bool:
    """Raise jobs on a node that are below their least fraction. Returns whether any was."""
    low: dict[JobId, None] = {}
    while True:
        above = [job for job in least if job not in low]
        left, total = 1.0 - sum(least[job] for job in low), sum(parts[job] for job in above)
        if total <= 0.0:
            parts.update(dict.fromkeys(above, 1.0))
            total = float(len(above))
        too_low = [job for job in above if parts[job] * left < least[job] * total * (1.0 - 1e-12)]
        if not too_low:
            parts.update({job: least[job] * total / left for job in low})
            return bool(low)
        low.update(dict.fromkeys(too_low))


def _is_news(reason: Reason, before: Reason | None) -> bool:
    """Whether more than figures changed. A rank is an integer and counts as a change."""
    return before is None or _without_figures(reason) != _without_figures(before)


def _without_figures(reason: Reason) -> tuple[ReasonKind, dict[str, object]]:
    facts = {
        name: _without_figures(fact) if isinstance(fact, Reason) else fact
        for name, fact in reason.facts.items()
        if not isinstance(fact, float)
    }
    return reason.kind, facts
