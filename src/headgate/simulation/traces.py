"""Traces: jobs with their arrival times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

REPORT_SECONDS = 10.0
"""Least seconds between two reports of a job."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace.

    Args:
        name: Unique in its trace.
        submitted: Seconds on the trace's clock.
        seconds: Run time alone, with all requested GPUs or cores.
        startup_core_seconds: Additional work on one core before its first report; None: as assumed
            for all jobs.
        gpus: GPUs that it needs, all at once; 0: it uses cores.
        cores: Most cores that it can use; ignored with GPUs.
        workers: Number of workers that divide its cores; ignored with GPUs.
        model: Its model, for the lookup of speeds and interference.
        profile: A stored profile that gives its speed on other nodes or with fewer resources;
            empty: none.
        priority: As of any job.
        cores_limit: Its core limit; None: no limit.
        memory_bytes: Its memory limit; None: no limit.
        gpu_memory_bytes: Expected memory of each worker on each of its GPUs; None: unknown.
        share: The slice of its nodes that it is pinned to; None: the policy decides.
        starves: A GPU or NIC, which is not simulated, waits for its cores. With `cores` it keeps
            up, whatever its threads. Live, its spans tell that.
        threads_follow: Whether its thread count follows its share; else it stays as at the start.
        steps: Its number of steps.
        epochs: Its number of epochs.
        losses: Done fraction of its work with the loss then, in order.
        told: Step and epoch reported with each of its losses, each None if not reported. If given,
            they and the losses predict its remaining work, as in a live hub; otherwise the work is
            known.
        tells_parts: Whether it also reports the done fraction of an epoch, like a job with a
            prepared PyTorch loader.
        user: Whose it is; empty: the trace does not tell.
    """

    name: str
    submitted: float
    seconds: float
    gpus: int = 0
    cores: float = 1.0
    workers: int = 1
    model: str = ""
    profile: str = ""
    priority: float = 1.0
    cores_limit: float | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    share: str | None = None
    starves: bool = False
    threads_follow: bool = True
    steps: int | None = None
    epochs: int | None = None
    losses: tuple[tuple[float, float], ...] = ()
    told: tuple[tuple[int | None, int | None], ...] = ()
    tells_parts: bool = False
    startup_core_seconds: float | None = None
    user: str = ""

    @property
    def foretold(self) -> bool:
        """Whether its remaining work is predicted from its reports."""
        return bool(self.told)

    @property
    def size(self) -> float:
        """GPUs, or cores if it has none."""
        return float(self.gpus) if self.gpus else self.cores


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of arrival, the first at 0 s.

    Args:
        name: Name of its file.
        jobs: The jobs.
        notes: A sentence about each part of the file that was left out or ignored.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()

    @property
    def on_gpus(self) -> bool:
        return any(job.gpus for job in self.jobs)

    def capacity_at(self, load: float, startup_core_seconds: float = 0.0) -> float:
        """Number of GPUs (cores, if no job has GPUs) such that the jobs request the fraction `load`
        of them while they arrive. Jobs of unknown startup are assumed to need
        `startup_core_seconds`.
        """
        jobs = [job for job in self.jobs if bool(job.gpus) == self.on_gpus]
        work = sum(job.seconds * job.size for job in jobs)
        if not self.on_gpus:
            own = (job.startup_core_seconds for job in jobs)
            work += sum(startup_core_seconds if capacity is None else capacity for capacity in own)
        return work / (max(self.jobs[-1].submitted, 1e-9) * load)

    @property
    def report_seconds(self) -> float:
        """Seconds between two reports, the same for all jobs: 10 s, or a tenth of a job's mean
        duration if that is longer and no job has losses.
        """
        if any(job.losses for job in self.jobs):
            return REPORT_SECONDS
        return max(fmean(job.seconds for job in self.jobs) / 10.0, REPORT_SECONDS)

    def at_load(self, load: float, capacity: float, startup_core_seconds: float = 0.0) -> Trace:
        """The same jobs with scaled arrival times, so that they request the fraction `load` of
        `capacity` while they arrive.
        """
        factor = self.capacity_at(load, startup_core_seconds) / capacity
        return replace(
            self, jobs=tuple(replace(job, submitted=job.submitted * factor) for job in self.jobs)
        )


def made(name: str, jobs: Sequence[TraceJob], notes: Sequence[str] = ()) -> Trace:
    """A trace of these jobs, sorted, the first at 0 s."""
    first = min(job.submitted for job in jobs)
    moved = (replace(job, submitted=job.submitted - first) for job in jobs)
    return Trace(name, tuple(sorted(moved, key=lambda job: job.submitted)), tuple(notes))
