"""Measure whether jobs on one GPU do more side by side than by turns, and let them.

By turns, each of n jobs has 1/n of the time during the measurement, so its rate times n is its
rate alone. Side by side it keeps a fraction of that rate. These fractions decide for any weights.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headgate.controller.records import JobRecord
from headgate.model.actions import ShareGpu
from headgate.model.cluster import Node
from headgate.model.events import KeptSideBySide
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind

SETTLE_SECONDS = 5.0
"""Time from the arrival of a job on a GPU to the measurement."""
WARM_SECONDS, WINDOW_SECONDS = 1.0, 5.0
"""Start of a window that is left out, and the rest, which counts."""
SIDE_BY_SIDE = (False, True, True, False, False, True)
"""Which windows are side by side. A steady drift of the rates cancels out."""
LEAST_STEPS = 5
"""Least steps of each job in a window; it is longer otherwise."""
LONGEST_SECONDS = 30.0
"""Longest window. After that the measurement is given up."""
_TRIES, _AGAIN_SECONDS = 3, 60.0
MORE = 1.05
"""Least sum of rates side by side, relative to turns."""
KEEPS = 0.95
"""Least rate of each job side by side, relative to that by its turns."""
_LEAVES = 0.05
"""Margin below both bounds at which jobs that run side by side return to turns."""
CHECK_SECONDS = 60.0
DRIFT = 0.3
"""Relative change of a job's rate, in two checks in a row, after which it is measured again."""

_Place = tuple[str, tuple[int, ...]]


@dataclass(slots=True)
class _Group:
    """The jobs on a GPU.

    Args:
        jobs: The jobs, in the order of their keys.
        due_at: When to look at it next.
        began: Start of the window that is measured now; None: none is.
        rates: Steps a second of each job in past windows.
        kept: Fraction of its rate alone that each keeps side by side; None: not measured.
        is_new: Whether `kept` has not been announced.
        side_by_side: How the jobs run now.
        fractions: Their fractions by turns, as of the last check.
        usual: Rates per fraction at the first check.
    """

    jobs: Mapping[JobId, JobRecord]
    due_at: float
    began: float | None = None
    rates: list[dict[JobId, float]] = field(default_factory=list)
    kept: dict[JobId, float] | None = None
    is_new: bool = False
    side_by_side: bool = False
    tries: int = 0
    checked_at: float = 0.0
    fractions: dict[JobId, float] = field(default_factory=dict)
    usual: dict[JobId, float] = field(default_factory=dict)
    drifts: int = 0

    def advance(self, now: float, fractions: Mapping[JobId, float]) -> None:
        """Go on with the measurement, or check its result, if it is time."""
        if now < self.due_at:
            return
        if self.kept is not None:
            self._check(now, fractions)
        elif self.began is None:
            self._begin_window(now)
        else:
            self._end_window(now)

    def decide(self, fractions: Mapping[JobId, float]) -> None:
        """Choose how the jobs run, by their fractions by turns."""
        if self.kept is None:
            return
        margin = _LEAVES if self.side_by_side else 0.0
        together = self.together(fractions) >= MORE - margin
        self.side_by_side = together and all(
            self.kept[id] >= (KEEPS - margin) * fractions[id] for id in self.jobs
        )

    def together(self, fractions: Mapping[JobId, float]) -> float:
        """Sum of the rates side by side, relative to turns."""
        return sum((self.kept or {}).values()) / sum(fractions[id] for id in self.jobs)

    def parts(self, fractions: Mapping[JobId, float]) -> dict[JobId, float]:
        """The fraction of time of each job from now on; 1: it is not held."""
        if self.began is not None:
            part = 1.0 if SIDE_BY_SIDE[len(self.rates)] else 1.0 / len(self.jobs)
            return dict.fromkeys(self.jobs, part)
        return {id: 1.0 if self.side_by_side else fractions[id] for id in self.jobs}

    def _begin_window(self, now: float) -> None:
        self.began = now + WARM_SECONDS
        self.due_at = self.began + WINDOW_SECONDS

    def _end_window(self, now: float) -> None:
        assert self.began is not None
        steps = self._steps(self.began, now)
        if min(steps.values()) >= LEAST_STEPS:
            seconds = now - self.began
            self.rates.append({id: count / seconds for id, count in steps.items()})
            self._begin_window(now)
            if len(self.rates) == len(SIDE_BY_SIDE):
                self._conclude(now)
        elif now - self.began < LONGEST_SECONDS:
            self.due_at = now + WARM_SECONDS
        else:
            self.tries += 1
            again_at = now + _AGAIN_SECONDS if self.tries < _TRIES else math.inf
            self.began, self.rates, self.due_at = None, [], again_at
            self.side_by_side = False

    def _conclude(self, now: float) -> None:
        sums = {True: dict.fromkeys(self.jobs, 0.0), False: dict.fromkeys(self.jobs, 0.0)}
        for mode, rates in zip(SIDE_BY_SIDE, self.rates, strict=True):
            for id, rate in rates.items():
                sums[mode][id] += rate
        count = len(self.jobs)
        self.know(
            now, {id: min(sums[True][id] / (sums[False][id] * count), 1.0) for id in self.jobs}
        )
        self.is_new = True

    def know(self, now: float, kept: dict[JobId, float]) -> None:
        """Take the result of a measurement."""
        self.kept, self.began, self.rates, self.usual = kept, None, [], {}
        self.checked_at, self.due_at, self.fractions = now, now + CHECK_SECONDS, {}

    def _check(self, now: float, fractions: Mapping[JobId, float]) -> None:
        """Measure again if the rates have changed since."""
        parts = self.parts(fractions)
        if parts == self.fractions:
            seconds = now - self.checked_at
            rates = {
                id: steps / seconds / parts[id]
                for id, steps in self._steps(self.checked_at, now).items()
            }
            self.usual = self.usual or rates
            drifted = any(
                abs(rates[id] - usual) > DRIFT * usual for id, usual in self.usual.items()
            )
            self.drifts = self.drifts + 1 if drifted else 0
        else:
            self.usual, self.drifts = {}, 0
        self.fractions, self.checked_at, self.due_at = parts, now, now + CHECK_SECONDS
        if self.drifts == 2:
            self.kept, self.tries, self.drifts = None, 0, 0
            self._begin_window(now)

    def _steps(self, begin: float, end: float) -> dict[JobId, float]:
        """How many steps each job reported in a time."""
        return {id: _step_at(job, end) - _step_at(job, begin) for id, job in self.jobs.items()}


class SideBySide:
    """How the jobs on each GPU run: by turns or side by side.

    Compared are jobs whose steps are known, without slices, that all use the same GPUs. Their
    memory is the same both ways: each process keeps what it has allocated.

    Args:
        nodes: The available nodes, by name.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._groups: dict[_Place, _Group] = {}
        self._known: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = {}
        self._decided: list[ShareGpu] = []

    @property
    def due_at(self) -> float | None:
        """When the next window ends, or the next check is due; None: none is."""
        return min((group.due_at for group in self._groups.values()), default=None)

    def due(self, now: float) -> set[str]:
        """Nodes with a GPU to look at."""
        return {name for (name, _), group in self._groups.items() if group.due_at <= now}

    def learn(self, known: Iterable[KeptSideBySide]) -> None:
        """Take what was measured before."""
        for measured in known:
            self._known.setdefault((measured.place, measured.jobs), measured.kept)

    def decided(self) -> list[ShareGpu]:
        """The decisions since the last call."""
        decided, self._decided = self._decided, []
        return decided

    def parts(
        self,
        now: float,
        name: str,
        users: Mapping[int, Mapping[JobId, JobRecord]],
        fractions: Mapping[JobId, float],
    ) -> dict[JobId, float]:
        """The fractions of time of jobs on a node, instead of those by turns.

        Args:
            now: Seconds on the run's clock.
            name: The node.
            users: The jobs that compute on each of its GPUs.
            fractions: Their fractions by turns.
        """
        before = {place: self._groups.pop(place) for place in [*self._groups] if place[0] == name}
        result: dict[JobId, float] = {}
        for gpus, jobs in _groups(name, users, fractions):
            group = before.get((name, gpus))
            if group is None or group.jobs.keys() != jobs.keys():
                group = self._new(now, name, gpus, jobs)
            self._groups[name, gpus] = group
            was_side_by_side = group.side_by_side
            group.advance(now, fractions)
            group.decide(fractions)
            changed = group.is_new or group.side_by_side != was_side_by_side
            if changed and group.kept is not None:
                self._announce(name, gpus, group, fractions)
            result |= group.parts(fractions)
        return result

    def _new(
        self, now: float, name: str, gpus: tuple[int, ...], jobs: Mapping[JobId, JobRecord]
    ) -> _Group:
        ordered = dict(sorted(jobs.items(), key=lambda item: (item[1].key, item[1].number)))
        group = _Group(ordered, now + SETTLE_SECONDS)
        kept = self._known.get((self._place(name, gpus), _keys(group)))
        if kept is not None:
            group.know(now, dict(zip(ordered, kept, strict=True)))
        return group

    def _announce(
        self, name: str, gpus: tuple[int, ...], group: _Group, fractions: Mapping[JobId, float]
    ) -> None:
        """Note how the jobs run from now on, and what was measured."""
        kept = group.kept or {}
        measured = None
        if group.is_new and all(keys := _keys(group)):
            fractions_kept = tuple(round(fraction, 3) for fraction in kept.values())
            measured = KeptSideBySide(self._place(name, gpus), keys, fractions_kept)
            self._known[measured.place, keys] = fractions_kept
        names = {id: job.spec.name for id, job in group.jobs.items()}
        for id in group.jobs:
            reason = Reason.of(
                ReasonKind.GPU_SHARED,
                side_by_side=group.side_by_side,
                gpus=gpus,
                beside=tuple(names[other] for other in group.jobs if other != id),
                together=round(group.together(fractions), 3),
                keeps=round(kept[id], 3),
                by_turns=round(fractions[id], 3),
            )
            self._decided.append(ShareGpu(id, group.side_by_side, reason, measured))
            measured = None  # once is enough
        group.is_new = False

    def _place(self, name: str, gpus: tuple[int, ...]) -> str:
        """The node and the name of its GPU."""
        node = self._nodes.get(name)
        known = (gpu.name for gpu in (node.gpus if node is not None else ()) if gpu.index in gpus)
        return " ".join((name, *dict.fromkeys(known)))


def _groups(
    name: str, users: Mapping[int, Mapping[JobId, JobRecord]], fractions: Mapping[JobId, float]
) -> Iterator[tuple[tuple[int, ...], Mapping[JobId, JobRecord]]]:
    """GPUs of a node, and the jobs on them, that can be compared."""
    for gpu, jobs in users.items():
        tasks = [task for job in jobs.values() for task in job.tasks.values()]
        gpus, *others = {task.computes_on for task in tasks}
        apart = others or any(task.node != name for task in tasks)
        if len(jobs) < 2 or apart or gpu != gpus[0]:
            continue
        if all(id in fractions and _is_comparable(job) for id, job in jobs.items()):
            yield gpus, jobs


def _is_comparable(job: JobRecord) -> bool:
    """Whether a job's steps are known, and its GPU time follows its weight."""
    by_weight = job.spec.slice is None and job.granted.gpu_fraction is None
    return by_weight and job.tracker is not None and (len(job.tasks) == 1 or job.planned().in_step)


def _keys(group: _Group) -> tuple[str, ...]:
    return tuple(job.key for job in group.jobs.values())


def _step_at(job: JobRecord, at: float) -> float:
    """The last step that a job had reported at a time."""
    assert job.tracker is not None
    steps = job.tracker.steps
    index = bisect_right(steps.times, at) - 1
    return steps.steps[index] if index >= 0 else 0.0
