"""Figures of a simulation: completion times, fairness, utilisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.recorded.usage import Array
from headgate.simulation.modelled import Modelled
from headgate.simulation.outcomes import JobOutcome, Outcome
from headgate.simulation.speeds import Speeds


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a policy on a trace; seconds.

    Args:
        as_live: Whether a live hub decides the same. A live hub never preempts a job with whole
            GPUs.
        done: Number of completed jobs.
        mean: Mean completion time, from the arrival of a job; also the median and percentiles.
        makespan: From the first job's arrival to the last one's end.
        max_rho: The largest ρ of a job (Themis, NSDI 2020): its completion time divided by that
            alone on 1/n of the cluster. n is the mean number of jobs present during its time.
        utilisation: Busy fraction of the GPUs (cores, if no job has GPUs), from 0 s to the
            makespan.
        restarts: Number of preemptions.
    """

    policy: str
    order: str
    as_live: bool
    jobs: int
    done: int
    mean: float
    median: float
    p95: float
    p99: float
    makespan: float
    mean_rho: float
    max_rho: float
    utilisation: float
    restarts: int
    events: int
    wall_seconds: float


def figures(outcome: Outcome, speeds: Speeds | None = None) -> Figures:
    """Figures of a policy's outcome on a trace."""
    done = [job for job in outcome.jobs if job.ended is not None]
    times = completions(outcome)
    fairness = rho(done, outcome, speeds or Speeds())
    makespan = max((job.ended for job in done if job.ended is not None), default=0.0)
    return Figures(
        policy=outcome.policy,
        order=outcome.order,
        as_live=outcome.as_live,
        jobs=len(outcome.jobs),
        done=len(done),
        mean=float(times.mean()) if len(times) else 0.0,
        median=_percentile(times, 50),
        p95=_percentile(times, 95),
        p99=_percentile(times, 99),
        makespan=makespan,
        mean_rho=float(fairness.mean()) if len(times) else 0.0,
        max_rho=float(fairness.max()) if len(times) else 0.0,
        utilisation=_busy_seconds(outcome, makespan) / (outcome.capacity * makespan)
        if makespan > 0
        else 0.0,
        restarts=sum(max(job.starts - 1, 0) for job in outcome.jobs),
        events=outcome.events,
        wall_seconds=outcome.wall_seconds,
    )


def completions(outcome: Outcome) -> Array:
    """Completion time of each completed job, in the order of arrival."""
    return np.array(
        [job.ended - job.job.submitted for job in outcome.jobs if job.ended is not None]
    )


def rho(jobs: list[JobOutcome], outcome: Outcome, speeds: Speeds) -> Array:
    """Finish-time fairness of each of these completed jobs; at most 1 is fair."""
    if not jobs:
        return np.empty(0)
    came = np.array([job.job.submitted for job in jobs])
    ended = np.array([job.ended for job in jobs], dtype=float)
    edges, present = presence(came, ended)
    sums = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(edges))])
    spent = np.maximum(ended - came, 1e-9)
    others = np.maximum((np.interp(ended, edges, sums) - np.interp(came, edges, sums)) / spent, 1.0)
    array = np.array(
        [outcome.capacity if job_outcome.job.gpus else outcome.cores for job_outcome in jobs]
    )
    parts = zip(jobs, (array / others).tolist(), strict=True)
    alone = np.array(
        [_alone(job_outcome, part, speeds, outcome.modelled) for job_outcome, part in parts]
    )
    ratios: Array = spent / alone
    return ratios


def presence(came: Array, ended: Array) -> tuple[Array, Array]:
    """Times, and the number of present jobs from each of them on."""
    edges, index = np.unique(np.concatenate([came, ended]), return_inverse=True)
    change = np.bincount(
        index, np.concatenate([np.ones(len(came)), -np.ones(len(ended))]), len(edges)
    )
    return edges, np.cumsum(change)


def _alone(outcome: JobOutcome, part: float, speeds: Speeds, modelled: Modelled | None) -> float:
    """Seconds of a job alone on this many GPUs or cores."""
    job, startup = outcome.job, outcome.startup_core_seconds
    if job.gpus:
        return startup + job.seconds * max(job.gpus / part, 1.0)
    cores_each, most = part / job.workers, job.cores / job.workers
    if modelled is not None and job.profile:
        speed = modelled.usual(job).at(cores_each)
    else:
        speed = speeds.relative(job.model, cores_each, most)
    return startup / min(cores_each, most, 1.0) + job.seconds / speed


def _busy_seconds(outcome: Outcome, until: float) -> float:
    times = np.array([t for t, _ in outcome.busy] + [until])
    return float(np.sum(np.array([busy for _, busy in outcome.busy]) * np.diff(times)))


def _percentile(values: Array, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else 0.0
