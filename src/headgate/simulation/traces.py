"""Traces: jobs, and when they came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

REPORT_SECONDS = 10.0
"""Between two reports of a job, at the least."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace.

    Args:
        name: Unique in its trace.
        submitted: Seconds on the trace's clock.
        seconds: That it takes alone, with all the GPUs or cores that it asks for.
        startup_core_seconds: What it does beside that, on one core, before it has anything to say;
            None: what is assumed of all jobs.
        gpus: That it has to have, all at once; 0: it uses cores.
        cores: The most that it can use; of no meaning where it has GPUs.
        workers: Among which its cores are divided; of no meaning where it has GPUs.
        model: What it trains, by which speeds and interference are looked up.
        profile: The stored profile that says how fast it is on other nodes, or with less; empty:
            none.
        priority: As of any job.
        cores_limit: As its limits say; None: no limit.
        memory_bytes: As its limits say; None: no limit.
        gpu_memory_bytes: That each of its workers is expected to hold on each of its GPUs; None:
            not known.
        share: The slice of its nodes that it is pinned to, as of any job; None: the policy decides.
        threads_follow: Whether its compute threads become as many as its share comes to whenever
            that changes; else they stay as many as it started with.
        steps: That it takes.
        epochs: That it takes.
        losses: Fraction of its work that was done, and the loss then, in that order.
        told: Step and epoch that came with each of its losses, each None where it tells none. Where
            they are given, what is left of it is predicted by them and the losses, as live; else it
            is known.
        tells_parts: Whether it then says how much of an epoch is done, as one does that has a
            prepared PyTorch loader.
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
    threads_follow: bool = True
    steps: int | None = None
    epochs: int | None = None
    losses: tuple[tuple[float, float], ...] = ()
    told: tuple[tuple[int | None, int | None], ...] = ()
    tells_parts: bool = False
    startup_core_seconds: float | None = None

    @property
    def foretold(self) -> bool:
        """Whether what is left of it is predicted by what it told."""
        return bool(self.told)

    @property
    def size(self) -> float:
        """GPUs, or cores where it has none."""
        return float(self.gpus) if self.gpus else self.cores


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs by the time they came, the first at 0 s.

    Args:
        name: Of its file.
        jobs: They.
        notes: What of the file was left out, or counts for nothing, a sentence each.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()

    @property
    def on_gpus(self) -> bool:
        return any(job.gpus for job in self.jobs)

    def capacity_at(self, load: float, startup_core_seconds: float = 0.0) -> float:
        """GPUs (cores, where no job has GPUs) with which the jobs would ask for `load` of what
        there is while they come; jobs whose startup is not known are taken to need so much before
        their work.
        """
        jobs = [job for job in self.jobs if bool(job.gpus) == self.on_gpus]
        work = sum(job.seconds * job.size for job in jobs)
        if not self.on_gpus:
            own = (job.startup_core_seconds for job in jobs)
            work += sum(startup_core_seconds if capacity is None else capacity for capacity in own)
        return work / (max(self.jobs[-1].submitted, 1e-9) * load)

    @property
    def report_seconds(self) -> float:
        """Seconds between two reports of a job, the same for all jobs. That is 10 s. Without
        losses, which would come together in one report, it is a tenth of a job's mean duration if
        that is more.
        """
        if any(job.losses for job in self.jobs):
            return REPORT_SECONDS
        return max(fmean(job.seconds for job in self.jobs) / 10.0, REPORT_SECONDS)

    def at_load(self, load: float, capacity: float, startup_core_seconds: float = 0.0) -> Trace:
        """The same jobs, coming so much slower or faster that they ask for `load` of `capacity`
        while they come.
        """
        factor = self.capacity_at(load, startup_core_seconds) / capacity
        return replace(
            self, jobs=tuple(replace(job, submitted=job.submitted * factor) for job in self.jobs)
        )


def made(name: str, jobs: Sequence[TraceJob], notes: Sequence[str] = ()) -> Trace:
    """A trace of these jobs, in order, the first at 0 s."""
    first = min(job.submitted for job in jobs)
    moved = (replace(job, submitted=job.submitted - first) for job in jobs)
    return Trace(name, tuple(sorted(moved, key=lambda job: job.submitted)), tuple(notes))
