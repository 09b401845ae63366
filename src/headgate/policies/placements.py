"""The nodes of jobs, and what an equal share and a floor amount to there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.model.identifiers import JobId

ONE_NODE: Mapping[str, float] = {"": 1.0}
"""The node of jobs without known nodes, with all cores as its unit."""


class Placements:
    """The nodes of jobs.

    A job's weight counts on each of its nodes, against those of the jobs there. A job of several
    tasks is as fast as its slowest, so its worst node counts.

    Attributes:
        of: Cores of the nodes of each job, by node name.
        on: Jobs on each node.
    """

    def __init__(self, of: Mapping[JobId, Mapping[str, float]]) -> None:
        self.of = of
        self.on: dict[str, list[JobId]] = {}
        for job, nodes in of.items():
            for node in nodes:
                self.on.setdefault(node, []).append(job)

    def equal(self, job: JobId) -> float:
        """Cores of a job on each of its nodes if all jobs on a node had equally many."""
        return min(cores / len(self.on[node]) for node, cores in self.of[job].items())

    def least(self, job: JobId, floor: float) -> dict[str, float]:
        """The fraction of each of its nodes that `floor`, a fraction of an equal share, amounts
        to.
        """
        cores = floor * self.equal(job)
        return {node: cores / all_cores for node, all_cores in self.of[job].items()}

    def floor(self, job: JobId, floor: float, totals: Mapping[str, float]) -> float:
        """The weight that `floor`, a fraction of an equal share, amounts to, given the total
        weights of its nodes.
        """
        own_nodes = self.of[job]
        if len(own_nodes) == 1:
            [node] = own_nodes
            return floor * totals[node] / len(self.on[node])
        return max(part * totals[node] for node, part in self.least(job, floor).items())

    def totals(self, weights: Mapping[JobId, float]) -> dict[str, float]:
        """Sum of the weights on each node."""
        return {node: sum(weights.get(job, 0.0) for job in jobs) for node, jobs in self.on.items()}

    def around(self, jobs: Iterable[JobId], totals: Mapping[str, float]) -> dict[JobId, float]:
        """For each job, the smallest total among its nodes."""
        return {job: min(totals[node] for node in self.of[job]) for job in jobs}
