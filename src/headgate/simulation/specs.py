"""Which jobs of a trace fit a cluster, and their specifications as submitted jobs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import ceil

from headgate.model.cluster import Cluster
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan, Strategy
from headgate.model.units import say_seconds
from headgate.simulation.outcomes import LONGEST
from headgate.simulation.traces import Trace, TraceJob, made

_BULK = 0.9
"""Fraction of the jobs that define the usual arrival times; if more are spread out, this is how
they arrive.
"""
_STRAY_TIMES = 100.0
"""An arrival is far off at this many times the spread of those, or the longest job."""
_NAMED = 3


def fitting(trace: Trace, cluster: Cluster) -> Trace:
    """The trace without jobs that no simulation on a cluster could hold. Its notes mention these,
    and jobs that arrive long before or after all others.

    Raises:
        UsageError: At least half of the jobs do not fit.
    """
    specs = Specs([len(node.gpus) for node in cluster.nodes])
    begin = _begin([job.submitted for job in trace.jobs])
    reasons = [reason for job in trace.jobs if (reason := against(job, specs, begin)) is not None]
    jobs, notes = trace.jobs, list(trace.notes)
    if reasons:
        how_many = f"{len(reasons)} of {len(jobs)} jobs"
        if 2 * len(reasons) >= len(jobs):
            raise UsageError(
                reasons[0] if len(jobs) == 1 else f"{how_many} cannot run there: {reasons[0]}"
            )
        jobs = tuple(job for job in jobs if against(job, specs, begin) is None)
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        notes.append(f"{how_many} cannot run there and are left out: {reasons[0]}{more}")
    notes += _strays(jobs)
    return made(trace.name, jobs, notes) if notes != list(trace.notes) else trace


def _begin(times: Sequence[float]) -> float:
    """The time from which on most jobs arrive within `LONGEST` seconds, from sorted arrival times.
    A time far below the others is assumed wrong.
    """
    counts = [bisect_right(times, time + LONGEST) - place for place, time in enumerate(times)]
    return times[counts.index(max(counts))]


def _strays(jobs: Sequence[TraceJob]) -> Iterator[str]:
    """Notes on jobs that arrive so long before or after the others that their times may be wrong.
    The simulation holds them, but figures of its length mean little.
    """
    times = [job.submitted for job in jobs]
    most = ceil(len(jobs) * _BULK)
    within, first = min(
        (times[i + most - 1] - times[i], times[i]) for i in range(len(jobs) - most + 1)
    )
    far = _STRAY_TIMES * max(within, *(job.seconds for job in jobs))
    if strays := [
        job for job in jobs if job.submitted < first - far or job.submitted > first + within + far
    ]:
        away = min(max(first - job.submitted, job.submitted - first - within) for job in strays)
        named = ", ".join(repr(job.name) for job in strays[:_NAMED])
        named += f" and {len(strays) - _NAMED} more" if len(strays) > _NAMED else ""
        how_far = f"come {say_seconds(away)} or more before or after most others"
        yield f"{len(strays)} of {len(jobs)} jobs {how_far} ({named}); their times may be wrong"


def against(job: TraceJob, specs: Specs, begin: float = 0.0) -> str | None:
    """Why a job could not run even alone.

    Args:
        begin: Seconds into the trace that count as its beginning.
    """
    if job.seconds > LONGEST or not 0 <= job.submitted - begin <= LONGEST:
        away, way = abs(job.submitted - begin), "before" if job.submitted < begin else "after"
        long = (
            f"lasts {job.seconds:g} s and comes {away:g} s {way} the "
            f"first{' of most' if begin else ''}"
        )
        return f"job {job.name!r} {long}; expected at most {LONGEST:g} of each"
    if not specs.fits(job):
        room = f"the cluster has {specs.gpus}, at most {specs.gpus_of_node} on a node"
        return f"job {job.name!r} asks for too many GPUs: {job.gpus}; {room}"
    return None


class Specs:
    """The workers of a job, GPUs of each, and a plan without nodes, as the nodes of a cluster
    allow.

    Args:
        gpus: GPUs of each node.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self.gpus = sum(gpus)
        self.gpus_of_node = max(gpus)
        self._places = {
            count: sum(have // count for have in gpus) for count in range(1, self.gpus_of_node + 1)
        }
        self._divisions: dict[tuple[int, int], tuple[int, int]] = {}
        self._specs: dict[tuple[object, ...], tuple[Job, Plan]] = {}

    def fits(self, job: TraceJob) -> bool:
        """Whether the cluster has the GPUs that a job requests."""
        workers, gpus = self.divided(job)
        return not gpus or self._places.get(gpus, 0) >= workers

    def divided(self, job: TraceJob) -> tuple[int, int]:
        """Number of workers of a job, and GPUs of each: as many as one node has."""
        key = (job.gpus, job.workers)
        if key not in self._divisions:
            self._divisions[key] = self._divide(job)
        return self._divisions[key]

    def _divide(self, job: TraceJob) -> tuple[int, int]:
        if not job.gpus:
            return job.workers, 0
        sizes = (
            size for size in range(min(job.gpus, self.gpus_of_node), 0, -1) if job.gpus % size == 0
        )
        gpus_each = next((size for size in sizes if self._places[size] * size >= job.gpus), 1)
        return job.gpus // gpus_each, gpus_each

    def spec(self, job: TraceJob) -> tuple[Job, Plan]:
        """The job as its user would have submitted it, and a plan without nodes; cached for equal
        jobs.
        """
        memory = job.memory_bytes, job.gpu_memory_bytes if job.gpus else None
        key = (job.gpus, job.workers, job.priority, job.cores_limit, memory, job.share)
        if key not in self._specs:
            workers, gpus = self.divided(job)
            limits = Limits(
                cores=job.cores_limit, memory_bytes=memory[0], gpus=gpus, gpu_memory_bytes=memory[1]
            )
            spec = Job(
                name="job", run="simulated", priority=job.priority, share=job.share, limits=limits
            )
            strategy: Strategy = "allreduce" if workers > 1 else "single"
            self._specs[key] = spec, Plan(strategy=strategy, workers=workers, batch_per_worker=None)
        return self._specs[key]
