"""Which tasks have their node's cores to themselves, and may let threads that wait spin."""

from __future__ import annotations

from collections import Counter

from headgate.hub.ledger import Ledger


def look(ledger: Ledger) -> None:
    """Tell each task for which that has changed.

    Spinning threads react sooner, but they steal the cores of other tasks, and eat up a task's own quota where it has
    more threads than cores.
    """
    attempts = [job.current for run in ledger.runs.values() for job in run.jobs.values() if job.current is not None]
    running = [(attempt, task) for attempt in attempts for task in attempt.tasks.values() if task.state != "ended"]
    on_node = Counter(task.node for _, task in running)
    for attempt, task in running:
        spin = on_node[task.node] == 1 and task.threads <= task.entitled_cores
        if spin != task.spin:
            task.spin = spin
            attempt.thread(task.name)
