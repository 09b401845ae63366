"""A run's time as a grid of buckets: tasks' use of their nodes, and losses by waiting for cores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headgate.diagnosis.attribution import COUNTED_ERROR, ITSELF, OTHERS, LostTime, within
from headgate.diagnosis.contention import THROTTLED, Contended, OnNode, contended
from headgate.diagnosis.device_contention import Devices
from headgate.model.identifiers import TaskOfRun
from headgate.recorded.jobs import RecordedJob, RecordedNode, RecordedTask
from headgate.recorded.usage import Array, Signal, ratio

SPREAD = 1.645
"""Deviations on each side of a 90 % band."""
_BETWEEN = 0.02
"""Fraction of a bucket to which a task's busy time is always known."""
_SPINNING, _HELPED = 0.05, 0.1
"""Spinning threads are all ready all the time, within the first tolerance. Beyond the second, child
processes run too.
"""


class Grid:
    """Use of nodes by the tasks of a run, bucket by bucket."""

    def __init__(
        self, jobs: Sequence[RecordedJob], nodes: Mapping[str, RecordedNode], edges: Array
    ) -> None:
        self.edges = edges
        self.width = float(edges[1] - edges[0])
        self.nodes = nodes
        self.devices = Devices(jobs, nodes, edges)
        self._tasks = [(job.name, task) for job in jobs for task in job.tasks]
        self._ran = {task.id: self.mean(task.signal("cpu_cores")) for _, task in self._tasks}

    def mean(self, signal: Signal) -> Array:
        """The mean of each bucket; NaN: unknown."""
        return signal.buckets(self.edges).mean

    def part_within(self, stretches: Sequence[tuple[float, float]]) -> Array:
        """The fraction of each bucket, 0 to 1, within stretches of time."""
        if not stretches:
            return np.zeros(len(self.edges) - 1)
        table = np.array(stretches, dtype=float)
        inside = Signal(table[:, 0], table[:, 1], np.ones(len(table))).cumulative(self.edges)
        return np.diff(inside) / self.width

    def neighbours(self, job: RecordedJob, task: RecordedTask) -> dict[str, Array]:
        """Cores that others used on a task's node: other jobs by name, its own other tasks, jobs of
        other users, programs outside.
        """
        used: dict[str, Array] = {}
        own_cores = np.nan_to_num(self._ran[task.id])
        for other, other_task in self._tasks:
            if other_task.node == task.node and other_task.id != task.id:
                name, ran = (
                    ITSELF if other == job.name else other,
                    np.nan_to_num(self._ran[other_task.id]),
                )
                used[name] = used.get(name, np.zeros_like(ran)) + ran
        if (node := self.nodes.get(task.node)) is not None:
            left = np.maximum(
                self.mean(node.signal("cpu_cores")) - sum(used.values(), own_cores), 0.0
            )
            for name, neighbour in node.neighbours.items():
                ran = np.minimum(np.nan_to_num(self.mean(neighbour.signal("cpu_cores"))), left)
                used[name], left = ran, left - ran
            used[OTHERS] = left
        return used

    def contended(
        self, job: RecordedJob, task: RecordedTask, ready: Array, meets: bool = True
    ) -> Contended:
        """Time that one of its tasks lost to its neighbours.

        Args:
            ready: The fraction of each bucket in which it was ready to run.
            meets: Whether threads of one process wait for each other; else each goes on by itself.
        """
        node = self.nodes.get(task.node)
        cap, limit = self.mean(task.cap), 0.99 * job.allowed_cores(task, self.cores(task))
        return contended(
            OnNode(
                ran=_carried(self._ran[task.id]),
                waited=self._waited(task),
                ready=ready,
                throttled=_carried(self.mean(task.signal("cpu_throttled"))),
                # A cap below the user's limit comes from the policy, on behalf of the neighbours.
                cap=np.where(np.isfinite(cap) & (cap >= limit), cap, np.inf),
                meets=meets & ~self._is_helped(task),
                spins=meets & self._spins(task),
                busiest=self._busiest(task),
            ),
            self.neighbours(job, task),
            self.mean(node.signal("cpu_stolen")) if node is not None else np.zeros_like(ready),
            self.cores(task),
        )

    def _busiest(self, task: RecordedTask) -> Array | None:
        busiest = _carried(self.mean(task.signal("cpu_ready")))
        return busiest if np.isfinite(busiest).any() else None

    def _waited(self, task: RecordedTask) -> Array:
        """Threads that waited for a core. Throttled threads wait too, and not every kernel counts
        these separately.
        """
        waited, throttled = (
            _carried(self.mean(task.signal(name))) for name in ("cpu_waiting", "cpu_throttled")
        )
        return np.where(np.nan_to_num(throttled) > THROTTLED, np.fmax(waited, throttled), waited)

    def _spins(self, task: RecordedTask) -> npt.NDArray[np.bool_]:
        """The buckets in which several of its threads were always ready. No step keeps all of them
        busy all the time, so they spin when they wait for each other.
        """
        wanted = np.nan_to_num(self._ran[task.id]) + np.nan_to_num(
            self.mean(task.signal("cpu_waiting"))
        )
        is_integer = (wanted >= 2.0 - _SPINNING) & (np.abs(wanted - np.round(wanted)) <= _SPINNING)
        return is_integer & ~self._is_helped(task)

    def _is_helped(self, task: RecordedTask) -> npt.NDArray[np.bool_]:
        """The buckets in which its child processes ran too, such as a loader's workers."""
        helped: npt.NDArray[np.bool_] = (
            np.nan_to_num(self.mean(task.signal("helper_cores"))) > _HELPED
        )
        return helped

    def cores(self, task: RecordedTask) -> float:
        """Cores of its node; infinite: unknown."""
        node = self.nodes.get(task.node)
        return node.cores if node is not None and node.cores else math.inf

    def ready(self, task: RecordedTask) -> ReadyParts:
        """The fraction of each bucket in which some thread ran or waited.

        Its busiest thread gives the lower bound. The sum over all threads gives the upper bound, as
        if they took turns. Threads of a pool take turns, threads that compute together do not.
        Whether some thread was ready at the moments of the readings shows the position between the
        bounds.
        """
        ran, waited = (
            _carried(self._ran[task.id]),
            np.nan_to_num(_carried(self.mean(task.signal("cpu_waiting")))),
        )
        wanted = ran + np.nan_to_num(self._waited(task))
        most = np.minimum(np.nan_to_num(wanted), 1.0)
        # Throttled time that the kernel did not count as waiting is divided among the threads.
        busiest = _carried(self.mean(task.signal("cpu_ready"))) * np.maximum(
            ratio(wanted, ran + waited), 1.0
        )
        least = np.where(np.isfinite(busiest), np.minimum(busiest, most), most)
        seen, between = self.mean(task.signal("any_ready")), most - least
        is_known = np.isfinite(seen) & (between > _BETWEEN)
        if not is_known.any():
            return ReadyParts(least, most, least, most)
        span = float(np.sum(between[is_known]))
        turns = float(np.clip(np.sum((seen - least)[is_known]) / span, 0.0, 1.0))
        usual = np.clip((least + turns * between)[is_known], _BETWEEN, 1.0 - _BETWEEN)
        error = SPREAD * math.sqrt(float(np.sum(usual * (1.0 - usual)))) / span
        low, point, high = (
            least + min(max(part, 0.0), 1.0) * between
            for part in (turns - error, turns, turns + error)
        )
        return ReadyParts(least, point, low, high)


def _carried(values: Array) -> Array:
    """Extend the first known value to the buckets before it: a first reading has no rates."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return values
    filled = values.copy()
    filled[: known[0]] = values[known[0]]
    return filled


class ReadyParts(NamedTuple):
    """The fraction of each bucket in which some thread of a task ran or waited; arrays over the
    grid.

    Args:
        least: Lower bound, from its busiest thread.
        usual: Best estimate.
        low: Low end of its 90 % band.
        high: High end of it.
    """

    least: Array
    usual: Array
    low: Array
    high: Array


class LostCores(NamedTuple):
    """Fractions of each bucket that a job lost; arrays over the grid.

    Args:
        by: Lost to each neighbour, by its name.
        most: The same if all threads of a task stopped whenever one waited.
        least: Least loss to all neighbours together.
        whole: Total loss of each of its workers.
    """

    by: Mapping[str, Array]
    most: Mapping[str, Array]
    stolen: Array
    by_cap: Array
    ready: ReadyParts
    excess: Array
    least: Array
    whole: Mapping[TaskOfRun, Array]

    def losses(self, inside: Array, elapsed: float) -> list[LostTime]:
        """Losses by waiting for cores. Its busiest thread gives the low end of the band."""
        totals = {name: float(np.sum(part * inside)) for name, part in self.by.items()}
        total_lost, least = sum(totals.values()), float(np.sum(self.least * inside))
        sure = least / total_lost if total_lost > 0.0 else 1.0
        low = sure * (1.0 - COUNTED_ERROR)
        return [
            LostTime(
                to,
                "cores",
                within(seconds, COUNTED_ERROR, elapsed)._replace(low=seconds * low),
                "counted",
            )
            for to, seconds in totals.items()
        ]


def lost_cores(job: RecordedJob, grid: Grid) -> LostCores:
    """Time lost by a job: that of the task with the greatest loss, because the others wait for
    it.
    """
    tasks = [task for task in job.tasks if task.is_worker] or list(job.tasks)
    ready = [grid.ready(task) for task in tasks]
    contended_seconds = [
        grid.contended(job, task, known.usual) for task, known in zip(tasks, ready, strict=True)
    ]
    least = [
        grid.contended(job, task, known.least, False)
        for task, known in zip(tasks, ready, strict=True)
    ]
    names = sorted({name for contended in contended_seconds for name in contended.by})
    empty = np.zeros(len(grid.edges) - 1)
    by = np.array(
        [[contended.by.get(name, empty) for name in names] for contended in contended_seconds]
    )
    most = np.array(
        [[contended.most.get(name, empty) for name in names] for contended in contended_seconds]
    )
    by_least = np.array([[contended.by.get(name, empty) for name in names] for contended in least])
    # also if no neighbour is known
    by_least = by_least.reshape(len(least), len(names), len(empty))
    caps, stolen = (
        np.array([contended.by_cap for contended in contended_seconds]),
        np.array([contended.stolen for contended in contended_seconds]),
    )
    total_lost = by.sum(axis=1) + caps + stolen
    slowest, at = np.argmax(total_lost, axis=0), np.arange(len(empty))
    # A bucket cannot lose more than itself, even if its readings say so.
    fits = 1.0 / np.maximum(total_lost[slowest, at], 1.0)
    return LostCores(
        by={name: by[slowest, index, at] * fits for index, name in enumerate(names)},
        most={name: most[slowest, index, at] * fits for index, name in enumerate(names)},
        stolen=stolen[slowest, at] * fits,
        by_cap=caps[slowest, at] * fits,
        ready=ReadyParts(*(np.max(parts, axis=0) for parts in zip(*ready, strict=True))),
        excess=np.max([contended.excess for contended in contended_seconds], axis=0),
        least=by_least.sum(axis=1)[slowest, at] * fits,
        whole={
            task.id: np.minimum(contended_seconds, 1.0)
            for task, contended_seconds in zip(tasks, total_lost, strict=True)
        },
    )
