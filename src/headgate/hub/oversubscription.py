"""Which tasks may let threads that wait spin: none on a machine whose cores are oversubscribed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from headgate.cluster import Node
from headgate.engines.base import LOCAL
from headgate.events import Action, Event, MarkIdle, SetShare, StartTask, TaskExited
from headgate.hub.component import Component
from headgate.hub.live_runs import LiveRuns
from headgate.shares import spare

_EXACT = 1e-6


class Oversubscription(Component):
    """Tells each task whether its threads may spin, whenever that changes.

    Spinning threads react sooner. A thread that sleeps beside a busy task waits for its core each time that it is
    woken, and does not get its share. But spinning threads steal the cores of other tasks where no weight holds them
    back. They also eat up a task's own part where it has more threads than cores. So a task's threads may spin while
    both hold:

    - all threads on its machine have a core each, or the task's own part has (nearly) a core for each of its threads;
    - all tasks of the machine together are entitled to no more cores than it has, by weights and not by holding steps.

    Idle tasks do not count.

    Args:
        live_runs: The runs.
        machine: This machine, which the nodes of a lab are parts of.
    """

    def __init__(self, live_runs: LiveRuns, machine: Node) -> None:
        self._live_runs = live_runs
        self._machine = machine

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, TaskExited) or any(
            isinstance(action, StartTask | SetShare | MarkIdle) for action in actions
        ):
            self.look()

    def look(self) -> None:
        """Look at all tasks, and tell those for which it has changed."""
        live_runs, machine = self._live_runs, self._machine
        running = [
            (attempt, task, machine.name if run.submission.engine == LOCAL else task.node)
            for run in live_runs.runs.values()
            for job in run.jobs.values()
            if (attempt := job.current) is not None
            for task in attempt.tasks.values()
            if task.state != "ended"
        ]
        cores = {node.name: node.cores for run in live_runs.runs.values() for node in run.nodes}
        cores[machine.name] = machine.cores  # whatever an engine there was told to use of it
        promised, threads = defaultdict[str, float](float), Counter[str]()
        for _, task, where in running:
            if not task.idle:
                promised[where] += task.entitled_cores
                threads[where] += task.threads
        for attempt, task, where in running:
            there = cores.get(where, 0.0) + _EXACT
            mine = (task.entitled_cores, task.threads) if task.idle else (0.0, 0)  # not counted yet
            divided = promised[where] + mine[0] <= there and "cores" not in task.gate
            fits = threads[where] + mine[1] <= there or task.threads <= task.entitled_cores + spare(task.threads)
            spin = divided and fits
            if spin != task.spin:
                task.spin = spin
                attempt.thread(task.name)
