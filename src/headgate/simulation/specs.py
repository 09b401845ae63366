"""What of a trace a cluster can hold, and what its jobs would have been handed in as."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import ceil

from headgate.model.cluster import Cluster
from headgate.model.errors import UsageError
from headgate.model.jobs import Job, Limits
from headgate.model.plans import Plan, Strategy
from headgate.model.units import say_seconds
from headgate.simulation.outcomes import LONGEST
from headgate.simulation.traces import Trace, TraceJob, made

_BULK = 0.9
"""Part of the jobs from which others may come so far that it is told: where more do, that is how
the jobs come.
"""
_STRAY_TIMES = 100.0
"""As many times what those come within, or the longest job, is far from them."""
_NAMED = 3


def fitting(trace: Trace, cluster: Cluster) -> Trace:
    """The trace without the jobs that no simulation on a cluster could hold. Its notes tell of
    them, and of jobs that come long before or after all others.

    Raises:
        UsageError: At least half of them.
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
    """The time from which on most jobs come within `LONGEST` seconds, given when each comes, in
    order. A time far below the others is taken to be wrong.
    """
    counts = [bisect_right(times, time + LONGEST) - place for place, time in enumerate(times)]
    return times[counts.index(max(counts))]


def _strays(jobs: Sequence[TraceJob]) -> Iterator[str]:
    """What jobs come so long before or after the others that their times may be wrong: the
    simulation holds them, and figures of its length mean little.
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
        what = f"come {say_seconds(away)} or more before or after most others"
        yield f"{len(strays)} of {len(jobs)} jobs {what} ({named}); their times may be wrong"


def against(job: TraceJob, specs: Specs, begin: float = 0.0) -> str | None:
    """Why a job could not run even if it were alone, or what of the trace is said to come first
    `begin` s in.
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
    """The workers of a job, the GPUs of each, and a plan without nodes: as the nodes of a cluster
    have room for them.

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
        """Whether the cluster has the GPUs that a job asks for."""
        workers, gpus = self.divided(job)
        return not gpus or self._places.get(gpus, 0) >= workers

    def divided(self, job: TraceJob) -> tuple[int, int]:
        """Workers of a job, and the GPUs of each: as many as one node can give."""
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
        """What its user would have handed in, and a plan without nodes; the same for jobs that are
        alike.
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
