"""Runs of very many jobs: which ran at the same time, and the combined use of those without
individual comparison.

The cost of an account grows with the number of compared jobs. So in such a run each job is compared
with its busiest neighbours, and with all the others as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.diagnosis.attribution import REST
from headgate.model.identifiers import TaskName, TaskOfRun
from headgate.model.jobs import Job
from headgate.recorded.jobs import RecordedJob, RecordedNode, RecordedTask, Usage, running
from headgate.recorded.usage import EMPTY, Signal, sum_of_many
from headgate.sampling.columns import Column

MOST_APART = 12
_REST_NAME = "others"
"""Name of the job that stands for all the others."""
_ADDED: tuple[Column, ...] = ("cpu_cores", "disk_read", "disk_write")
"""Columns known of the others together."""


@dataclass(frozen=True, slots=True, eq=False)
class Crowd:
    """The jobs of a run.

    Args:
        jobs: All of them.
        used: Combined use of all tasks, by node.
    """

    jobs: Sequence[RecordedJob]
    used: Mapping[str, Usage]

    @classmethod
    def of(cls, jobs: Sequence[RecordedJob]) -> Crowd:
        """The jobs with their combined use."""
        on: dict[str, list[RecordedTask]] = defaultdict(list)
        for job in jobs:
            for task in job.tasks:
                on[task.node].append(task)
        return cls(jobs, {node: _sums(tasks) for node, tasks in on.items()})

    def beside(self) -> list[list[RecordedJob]]:
        """For each job, the busiest others that ran at the same time, in the order of
        submission.
        """
        jobs, spans = self.jobs, [span(job) for job in self.jobs]
        busy = [job.cpu_seconds or 0.0 for job in jobs]
        neighbours: list[list[int]] = [[] for _ in jobs]
        under_way: list[int] = []
        for index in sorted(
            (index for index, job in enumerate(jobs) if job.tasks), key=lambda index: spans[index]
        ):
            under_way = [other for other in under_way if spans[other][1] > spans[index][0]]
            under_way = sorted(under_way, key=lambda other: -busy[other])[:MOST_APART]
            neighbours[index] += under_way
            for other in under_way:
                neighbours[other].append(index)
            under_way.append(index)
        busiest = [
            sorted(others, key=lambda other: -busy[other])[:MOST_APART] for others in neighbours
        ]
        return [[jobs[other] for other in sorted(others)] for others in busiest]

    def rest(self, apart: Sequence[RecordedJob], start: float, end: float) -> RecordedJob:
        """All jobs without individual comparison as one job: the combined use in a time range,
        minus that of `apart`.
        """
        tasks: list[RecordedTask] = []
        for node, used in self.used.items():
            tasks_apart = [task for job in apart for task in job.tasks if task.node == node]
            left = {}
            for column, combined in used.items():
                used_apart = [task.signal(column).around(start, end) for task in tasks_apart]
                less = [replace(signal, value=-signal.value) for signal in used_apart]
                left[column] = sum_of_many([combined.around(start, end), *less])
            id = TaskOfRun.of(REST, TaskName.of("worker", len(tasks)))
            tasks.append(RecordedTask(id, node, start, end, left, None, None))
        return replace(
            apart[0],
            name=REST,
            spec=Job(name=_REST_NAME, run=""),
            phases=(),
            usage={},
            entitled=EMPTY,
            decisions=(),
            division=None,
            tasks=tuple(tasks),
            proofs=(),
            asides={},
        )


def span(job: RecordedJob) -> tuple[float, float]:
    """First start and last end in seconds of the run; the submission if it never ran."""
    ran = running(job.phases)
    return (ran[0][0], ran[-1][1]) if ran else (job.submitted, job.submitted)


def during(nodes: Mapping[str, RecordedNode], start: float, end: float) -> dict[str, RecordedNode]:
    """Records of nodes in a time range."""

    def part(usage: Usage) -> dict[Column, Signal]:
        return {column: signal.around(start, end) for column, signal in usage.items()}

    return {name: replace(node, usage=part(node.usage)) for name, node in nodes.items()}


def _sums(tasks: Sequence[RecordedTask]) -> Usage:
    return {column: sum_of_many([task.signal(column) for task in tasks]) for column in _ADDED}
