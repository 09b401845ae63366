"""Which tasks have their machine to themselves, and may let threads that wait spin."""

from __future__ import annotations

from collections import Counter

from headgate.engines.base import LOCAL
from headgate.hub.ledger import Ledger


def look(ledger: Ledger, machine: str) -> None:
    """Tell each task for which that has changed.

    Spinning threads react sooner, but they steal the cores of other tasks, and eat up a task's own quota where it has
    more threads than cores.

    Args:
        ledger: The runs.
        machine: Name of this machine, which the nodes of a lab are parts of.
    """
    running = [
        (attempt, task, machine if run.submission.engine == LOCAL else task.node)
        for run in ledger.runs.values()
        for job in run.jobs.values()
        if (attempt := job.current) is not None
        for task in attempt.tasks.values()
        if task.state != "ended"
    ]
    there = Counter(where for *_, where in running)
    for attempt, task, where in running:
        spin = there[where] == 1 and task.threads <= task.entitled_cores
        if spin != task.spin:
            task.spin = spin
            attempt.thread(task.name)
