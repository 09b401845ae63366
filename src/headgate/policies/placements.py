"""Who is on which nodes, and what an equal share and a floor come to there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.model.identifiers import JobId

ONE_NODE: Mapping[str, float] = {"": 1.0}
"""The node of jobs whose nodes are not told, with all cores there are as its unit."""


class Placements:
    """The nodes that jobs are on.

    A weight of a job counts on each of its nodes, against those of the jobs there. A job of several
    tasks is as fast as its slowest, so what it has on the node that leaves it least is what counts.

    Attributes:
        of: Of each job the cores of its nodes, by name.
        on: Of each node the jobs there.
    """

    def __init__(self, of: Mapping[JobId, Mapping[str, float]]) -> None:
        self.of = of
        self.on: dict[str, list[JobId]] = {}
        for job, nodes in of.items():
            for node in nodes:
                self.on.setdefault(node, []).append(job)

    def equal(self, job: JobId) -> float:
        """Cores on each of its nodes that a job would have if all jobs on a node had as many
        there.
        """
        return min(cores / len(self.on[node]) for node, cores in self.of[job].items())

    def least(self, job: JobId, floor: float) -> dict[str, float]:
        """The part of each of its nodes that `floor`, a part of an equal share, comes to."""
        cores = floor * self.equal(job)
        return {node: cores / all_cores for node, all_cores in self.of[job].items()}

    def floor(self, job: JobId, floor: float, totals: Mapping[str, float]) -> float:
        """The weight that `floor`, a part of an equal share, comes to beside all weights on each of
        its nodes.
        """
        nodes_of_job = self.of[job]
        if len(nodes_of_job) == 1:
            [node] = nodes_of_job
            return floor * totals[node] / len(self.on[node])
        return max(part * totals[node] for node, part in self.least(job, floor).items())

    def totals(self, weights: Mapping[JobId, float]) -> dict[str, float]:
        """Sum of the weights on each node, of those jobs that have one."""
        return {node: sum(weights.get(job, 0.0) for job in jobs) for node, jobs in self.on.items()}

    def around(self, jobs: Iterable[JobId], totals: Mapping[str, float]) -> dict[JobId, float]:
        """Of each job the smallest of its nodes' totals."""
        return {job: min(totals[node] for node in self.of[job]) for job in jobs}
