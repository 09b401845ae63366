"""What a trace's job would have been handed in as: its workers, the GPUs of each, and a plan without nodes."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.jobs import Job, Limits
from headgate.plans import Plan, Strategy
from headgate.simulation.traces import TraceJob


class Specs:
    """Divides jobs as the nodes of a cluster have room for them.

    Args:
        gpus: GPUs of each node.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self.gpus = sum(gpus)
        self.gpus_of_node = max(gpus)
        self._places = {each: sum(have // each for have in gpus) for each in range(1, self.gpus_of_node + 1)}
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
        sizes = (size for size in range(min(job.gpus, self.gpus_of_node), 0, -1) if job.gpus % size == 0)
        each = next((size for size in sizes if self._places[size] * size >= job.gpus), 1)
        return job.gpus // each, each

    def spec(self, job: TraceJob) -> tuple[Job, Plan]:
        """What its user would have handed in, and a plan without nodes; the same for jobs that are alike."""
        key = (job.gpus, job.workers, job.priority, job.cores_limit, job.memory_bytes, job.share)
        if key not in self._specs:
            workers, gpus = self.divided(job)
            limits = Limits(cores=job.cores_limit, memory_bytes=job.memory_bytes, gpus=gpus)
            spec = Job(name="job", run="simulated", priority=job.priority, share=job.share, limits=limits)
            strategy: Strategy = "allreduce" if workers > 1 else "single"
            self._specs[key] = spec, Plan(strategy=strategy, workers=workers, batch_per_worker=None)
        return self._specs[key]
