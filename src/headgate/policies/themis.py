"""`themis`: the job furthest behind its fair finish goes first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.running_job import RunningJob
from headgate.policies.weighing import WeighingPolicy, check

_NOT_SERVED = 0.5
"""Fraction of an equal share."""


class FairFinish:
    """Time of each job when shared, relative to its time alone on 1/n, with n the mean number of
    present jobs.

    Attributes:
        present: Number of jobs on GPUs (True) and of others (False) at the last call.
    """

    def __init__(self) -> None:
        # by a job's number: job-seconds of presence since its arrival
        self._crowd: dict[int, float] = {}
        self._at = 0.0
        self.present = {False: 0, True: 0}

    def fair(self, now: float, cores: float, jobs: Sequence[RunningJob]) -> dict[JobId, float]:
        """Seconds from its arrival in which each job would be done alone on 1/n; 0: unknown.

        Call it whenever a job arrives or leaves.
        """
        passed = {on_gpus: count * (now - self._at) for on_gpus, count in self.present.items()}
        self._crowd = {
            job.number: self._crowd[job.number] + passed[job.on_gpus]
            if job.number in self._crowd
            else 0.0
            for job in jobs
        }
        self._at, self.present = (
            now,
            {kind: sum(job.on_gpus == kind for job in jobs) for kind in (False, True)},
        )
        sizes = machine(cores, jobs)
        result = {}
        for job in jobs:
            elapsed, machine_cores = (
                now - job.arrived,
                (job.attained + job.remaining()) * job.node_cores_per_core,
            )
            crowd = (
                self._crowd[job.number] / elapsed
                if elapsed > 0.0
                else float(self.present[job.on_gpus])
            )
            # Alone on 1/n of the machine it has that many cores, up to its limit and its need.
            result[job.id] = max(
                machine_cores * max(crowd, 1.0) / sizes[job.on_gpus],
                machine_cores / job.fastest_cores(cores),
            )
        return result


def machine(cores: float, jobs: Sequence[RunningJob]) -> dict[bool, float]:
    """Total cores for jobs on GPUs (those with any job), and for other jobs."""
    gpus = {gpu: size for job in jobs if job.on_gpus for gpu, size in job.nodes.items()}
    return {True: sum(gpus.values()), False: cores}


class ThemisPolicy(WeighingPolicy):
    """The CPU goes to the jobs furthest behind the finish of an equal share.

    Objective: the least maximum of ρ, finish-time fairness: time shared over time alone on 1/n.
    Rule: in each round the fraction 1 - `fairness` of jobs with the highest ρ, at least one, share
    the CPU by priority. The others have half of an equal share. A job without a prediction is
    assumed to be like the others.
    Source: Themis (NSDI 2020): partial auctions among the worst 1 - f of the jobs, f = 0.8. A round
    stands for its lease. Bids are Headgate's predictions, because jobs do not bid themselves.
    Use it if no job may be slower than with an equal share.

    Args:
        fairness: f, 0 to 1; higher is fairer to jobs behind, lower admits more jobs.
    """

    name = "themis"

    def __init__(self, *, fairness: float = 0.8, itval: float = 20.0, floor: float = 0.05) -> None:
        super().__init__(itval=itval, floor=floor)
        check(self.name, "fairness", fairness, 0 <= fairness < 1, "0 or more, below 1")
        self._fairness = fairness
        self._finish = FairFinish()

    def divide(
        self, now: float, cores: float, jobs: Sequence[RunningJob]
    ) -> Mapping[JobId, tuple[float, Reason]]:
        fair, sizes = self._finish.fair(now, cores, jobs), machine(cores, jobs)
        parts_by_kind = {
            kind: count / sizes[kind] for kind, count in self._finish.present.items() if count
        }
        rho = {}
        for job in jobs:
            # With an equal share from now on, up to its limit.
            left = (
                job.remaining()
                * job.node_cores_per_core
                * max(parts_by_kind[job.on_gpus], 1.0 / job.fastest_cores(cores))
            )
            rho[job.id] = (now - job.arrived + left) / fair[job.id] if fair[job.id] > 0 else 1.0
        served = max(math.ceil((1.0 - self._fairness) * len(jobs) - 1e-9), 1)
        most = (len(jobs) - _NOT_SERVED * (len(jobs) - served)) / served
        order = sorted(jobs, key=lambda job: (-rho[job.id] * job.priority, job.number))
        wanted = {}
        for rank, job in enumerate(order):
            part = job.priority * (most if rank < served else _NOT_SERVED)
            wanted[job.id] = (
                part,
                Reason.of(ReasonKind.FAIRNESS, rho=rho[job.id], is_served=rank < served),
            )
        return wanted
