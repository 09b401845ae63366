"""`themis`: who is furthest behind its fair finish goes first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.running_job import RunningJob
from headgate.policies.weighing import WeighingPolicy, check

_NOT_SERVED = 0.5
"""Of an equal share."""


class FairFinish:
    """How long each job takes shared over how long it would take alone on 1/n, n the mean number
    that were present.

    Attributes:
        present: How many jobs computed on GPUs (True), and how many others (False), when this was
            last called.
    """

    def __init__(self) -> None:
        # by the number of a job: of how many present and how long, job-seconds
        self._crowd: dict[int, float] = {}
        self._at = 0.0
        self.present = {False: 0, True: 0}

    def fair(self, now: float, cores: float, jobs: Sequence[RunningJob]) -> dict[JobId, float]:
        """Seconds from its arrival in which each job would be done alone on 1/n; 0 where nothing is
        known of it.

        To be called whenever a job has come or gone.
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
            elapsed, whole = (
                now - job.arrived,
                (job.attained + job.remaining()) * job.node_cores_per_core,
            )
            crowd = (
                self._crowd[job.number] / elapsed
                if elapsed > 0.0
                else float(self.present[job.on_gpus])
            )
            # Alone on 1/n of the machine it has that much of the cores, and no more than it may
            # use.
            result[job.id] = max(
                whole * max(crowd, 1.0) / sizes[job.on_gpus], whole / job.most_cores(cores)
            )
        return result


def machine(cores: float, jobs: Sequence[RunningJob]) -> dict[bool, float]:
    """Cores of what jobs on GPUs have together, those that any computes on, and of what others
    have.
    """
    gpus = {gpu: size for job in jobs if job.on_gpus for gpu, size in job.nodes.items()}
    return {True: sum(gpus.values()), False: cores}


class ThemisPolicy(WeighingPolicy):
    """The CPU goes to the jobs that are furthest behind the finish of an equal share.

    Objective: the least max ρ, finish-time fairness: time shared over time alone on 1/n.
    Rule: in each round the part 1 - `fairness` of the jobs with the highest ρ, at least one job,
        share the CPU equally,
    by priority. The others have half of an equal share. A job without a prediction is taken for one
    like the others.
    Source: Themis (NSDI 2020): partial auctions among the worst 1 - f of the jobs, f = 0.8. A round
        stands for its
    lease; bids are our predictions, because jobs here do not compete in their own words.
    Use it where nobody is to be slower than an equal share would have made them.

    Args:
        fairness: f, 0 to 1; higher is fairer to those behind, lower lets more jobs in.
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
            # With an equal share from now on, and no more than it may use.
            left = (
                job.remaining()
                * job.node_cores_per_core
                * max(parts_by_kind[job.on_gpus], 1.0 / job.most_cores(cores))
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
