"""The speed of a script, from the steps that it prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log
from statistics import stdev

from headgate.forecast.remaining import step_seconds
from headgate.model.cluster import Node
from headgate.model.identifiers import FIRST_WORKER, TaskOfRun
from headgate.model.job_choices import Contract
from headgate.model.jobs import Job
from headgate.model.profiles import Profile, StepTime
from headgate.profiling.history import FEWEST_STEPS
from headgate.recorded.queries import most_memory, steps_of_workers
from headgate.recorded.reader import RunReader

STEPS = 40
"""Number of steps that suffice, once the job has run for `SECONDS`."""
SECONDS = 3.0
MOST_SECONDS = 30.0
"""Longest observation of a job, and half of the longest time until it begins."""
_FRAMEWORK: Mapping[Contract, str] = {
    "torchrun": "torch",
    "deepspeed": "torch",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "mpi": "mpi",
}


@dataclass(slots=True)
class ShownSteps:
    """The observed steps of a job: when it began, and when each step was first seen."""

    begun: float
    first: tuple[float, int] | None = None

    def enough(self, now: float, step: int | None) -> bool:
        """Whether its speed is known, or never will be. `step` is its latest, where it is news."""
        if self.first is None:
            if step:
                self.first = (now, step)
            return now - self.begun >= 2 * MOST_SECONDS
        took = now - self.first[0]
        return took >= MOST_SECONDS or (
            step is not None and step - self.first[1] >= STEPS and took >= SECONDS
        )


def tells_by_printing(job: Job) -> bool:
    """Whether only the output of a script shows its steps, because its framework has no hook for
    them.
    """
    return job.contract in ("tensorflow", "jax", "mpi")


def of_printed(reader: RunReader, job: Job, node: Node) -> Profile | None:
    """The profile of a script for another launcher, from the steps that its only worker printed in
    a run.

    Args:
        reader: The run's store.
        job: Its only job.
        node: The node where it ran.

    Returns:
        None if it printed too few steps.
    """
    task = TaskOfRun.of(job.name, FIRST_WORKER)
    reports = steps_of_workers(reader, job.name)[task]
    seconds = step_seconds(reports, FEWEST_STEPS)
    if seconds is None or job.contract is None:
        return None
    seconds_per_step = [
        (b[0] - a[0]) / (b[1] - a[1])
        for a, b in pairwise(reports[len(reports) // 3 :])
        if b[1] > a[1]
    ]
    logs = [log(value) for value in seconds_per_step if value > 0]
    device = node.gpus[0].name if node.gpus and job.limits.gpus != 0 else "cpu"
    # The times of single lines are of little use, because lines arrive together.
    spread = min(stdev(logs) / len(logs) ** 0.5, 1.0) if len(logs) > 1 else None
    time = StepTime(
        device, max(round(node.cores), 1), 1, seconds, int(reports[-1][1] - reports[0][1]), spread
    )
    return Profile(
        _FRAMEWORK[job.contract],
        "",
        "profile",
        memory_peak_bytes=most_memory(reader, task),
        step_times=(time,),
        notes=(
            (
                "its steps were timed by its output, which shows neither its parameters nor its "
                "batch"
            ),
        ),
        core_gflops=node.core_gflops,
        core_convolution_gflops=node.core_convolution_gflops,
        observed=True,
    )
