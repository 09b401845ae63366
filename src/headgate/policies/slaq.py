"""`slaq`: the job predicted to learn most goes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.running_job import RunningJob
from headgate.policies.weighing import WeighingPolicy, nodes_of

_UNITS = 40
"""Number of parts in which the cores are given out."""


class SlaqPolicy(WeighingPolicy):
    """The CPU goes, part by part, to the jobs with the greatest predicted drop of the loss.

    Objective: the highest mean quality of all jobs at any time: early progress counts, the last few
    percent hardly do.
    Rule: a job's drop of the loss is relative to its largest drop in any round. The cores of a node
    are given out in 40 parts. Each part goes to the job there that would gain most from it until
    the next round. Jobs without a prediction have an equal share. A job that would gain nothing,
    diverges or has stalled has its floor.
    Source: SLAQ (SoCC 2017), section 4: greedy by predicted normalised loss reduction.
    Use it for exploration: many jobs whose first results count, and that are often stopped early.
    """

    name = "slaq"

    def __init__(self, *, itval: float = 10.0, floor: float = 0.05) -> None:
        super().__init__(itval=itval, floor=floor)
        # number, level at the last round, largest drop
        self._levels: dict[JobId, tuple[int, float, float]] = {}

    def divide(
        self, now: float, cores: float, jobs: Sequence[RunningJob]
    ) -> Mapping[JobId, tuple[float, Reason]]:
        largest = self._largest(jobs)
        known = [job for job in jobs if _is_known(job, largest[job.id])]
        nodes = nodes_of(cores, jobs)
        equal = {job.id: nodes.equal(job.id) for job in jobs}
        most = {job.id: job.most_cores(cores) / len(nodes.of[job.id]) for job in jobs}
        wanted = {
            job.id: (min(equal[job.id], most[job.id]), Reason(ReasonKind.NO_CURVE)) for job in jobs
        }
        if not known:
            return wanted
        by_id = {job.id: job for job in known}
        sizes = {
            node: size for jobs_of_node in nodes.of.values() for node, size in jobs_of_node.items()
        }
        left = {
            node: sizes[node] * sum(id in by_id for id in on) / len(on)
            for node, on in nodes.on.items()
        }
        unit = {id: min(left[node] for node in nodes.of[id]) / _UNITS for id in by_id}
        got = dict.fromkeys(by_id, 0)

        def has(id: JobId, more: int = 0) -> float:
            """Cores on each of its nodes, with this many more parts."""
            return min((got[id] + more) * unit[id], most[id])

        def gain(id: JobId) -> float:
            """Gain for each core from one more part of each of its nodes, until the next round."""
            job = by_id[id]
            if job.last_because:
                return 0.0
            seconds = len(nodes.of[id]) / job.node_cores_per_core * self.itval
            before, after = has(id), has(id, 1)
            if after - before < 1e-9 or any(left[node] < 0.5 * unit[id] for node in nodes.of[id]):
                return 0.0
            drop = _drop(job, after * seconds) - _drop(job, before * seconds)
            return _part(drop, largest[id]) * job.priority / (after - before)

        heap = [(-gain(job.id), job.number, job.id) for job in known]
        heapify(heap)
        while heap[0][0] < 0.0:
            negative_gain, number, id = heap[0]
            now_gains = -gain(id)  # others may have taken the rest
            if now_gains == negative_gain:
                for node in nodes.of[id]:
                    left[node] -= has(id, 1) - has(id)
                got[id] += 1
                now_gains = -gain(id)
            heapreplace(heap, (now_gains, number, id))
        for job in known:
            gain_there = (
                has(job.id, 0 if got[job.id] else 1)
                * len(nodes.of[job.id])
                / job.node_cores_per_core
            )
            part = _part(_drop(job, gain_there * self.itval), largest[job.id])
            wanted[job.id] = (
                has(job.id),
                job.last_because or Reason.of(ReasonKind.LOSS_DROP, part=part),
            )
        return wanted

    def _largest(self, jobs: Sequence[RunningJob]) -> dict[JobId, float]:
        """The largest drop of each job in a round so far."""
        levels = {}
        for job in jobs:
            level = job.tracker.losses.level()
            number, before, largest = self._levels.get(job.id, (job.number, level, 0.0))
            if number != job.number:
                before, largest = level, 0.0
            # NaN, as before any loss, is no drop
            levels[job.id] = job.number, level, max(largest, before - level)
        self._levels = levels
        return {id: largest for id, (_, _, largest) in levels.items()}


def _is_known(job: RunningJob, largest: float) -> bool:
    """Whether a job's gain and its scale are known. Jobs without any gain need no scale, and jobs
    that come last no prediction.
    """
    if job.last_because:
        return True
    drops = job.curve[0].drops if job.curve is not None else ()
    return bool(drops) and (largest > 0.0 or all(drop <= 0.0 for _, drop in drops))


def _part(drop: float, largest: float) -> float:
    """A drop relative to the largest; 0: no drop, or no largest."""
    return drop / largest if drop > 0.0 and largest > 0.0 else 0.0


def _drop(job: RunningJob, work: float) -> float:
    """Predicted drop of the loss during this many core-seconds from now on."""
    if job.curve is None:
        return 0.0
    curve, attained = job.curve
    table = ((0.0, 0.0), *curve.drops)
    done = job.attained - attained
    return _between(table, done + work) - _between(table, done)


def _between(table: Sequence[tuple[float, float]], at: float) -> float:
    """Linear interpolation in a table; beyond its end, the last value."""
    for (x, y), (u, v) in pairwise(table):
        if at <= u:
            return y + (v - y) * (at - x) / (u - x) if u > x else v
    return table[-1][1]
