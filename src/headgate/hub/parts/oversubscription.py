"""The part of a hub that says which tasks may let threads spin."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from headgate.engines.base import LOCAL
from headgate.hub.parts import Component
from headgate.hub.state.attempt import Attempt
from headgate.hub.state.runs import LiveRuns
from headgate.hub.state.task import LiveTask
from headgate.model.actions import Action, MarkIdle, SetShare, StartTask
from headgate.model.cluster import Node
from headgate.model.events import Event, TaskExited
from headgate.model.identifiers import JobId
from headgate.model.shares import spare

_EXACT = 1e-6


class Oversubscription(Component):
    """Tells each task whether its threads may spin, whenever that changes.

    Spinning threads react sooner. A sleeping thread beside a busy task waits for its core at each
    wake-up and does not get its share. But spinning threads steal cores of other tasks if no weight
    holds them back. They also waste a task's own share if it has more threads than cores. So a
    task's threads may spin while both hold:

    - All threads on its machine have a core each, or the task's own share has (nearly) a core for
      each of its threads.
    - All tasks of the machine together are entitled to no more cores than it has, by weights and
      not by throttled steps.

    Idle tasks do not count.

    Args:
        live_runs: The runs.
        machine: This machine, which lab nodes are parts of.
    """

    def __init__(self, live_runs: LiveRuns, machine: Node) -> None:
        self._live_runs = live_runs
        self._machine = machine
        self._started: dict[JobId, None] = {}

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        self._started.update(
            {action.job: None for action in actions if isinstance(action, StartTask)}
        )
        if isinstance(event, TaskExited) or any(
            isinstance(action, StartTask | SetShare | MarkIdle) for action in actions
        ):
            self.look()

    def forget(self, run: str) -> None:
        for job in [job for job in self._started if job.run == run]:
            del self._started[job]

    def look(self) -> None:
        """Check all tasks, and tell those for which the answer has changed."""
        live_runs, machine = self._live_runs, self._machine
        running: list[tuple[Attempt, LiveTask, str]] = []
        for id in list(self._started):
            run, job = live_runs.find(id)
            tasks = (
                [task for task in job.current.tasks.values() if task.state != "ended"]
                if job.current
                else []
            )
            if job.current is None or not tasks:
                del self._started[id]
                continue
            machine_name = machine.name if run.submission.engine == LOCAL else ""
            running += [(job.current, task, machine_name or task.node) for task in tasks]
        cores = {node.name: node.cores for run in live_runs.runs.values() for node in run.nodes}
        cores[machine.name] = machine.cores  # regardless of what an engine may use of it
        promised, threads = defaultdict[str, float](float), Counter[str]()
        for _, task, where in running:
            if not task.idle:
                promised[where] += task.entitled_cores
                threads[where] += task.threads
        for attempt, task, where in running:
            free_cores = cores.get(where, 0.0) + _EXACT
            # not yet included
            own_idle = (task.entitled_cores, task.threads) if task.idle else (0.0, 0)
            divided = promised[where] + own_idle[0] <= free_cores and "cores" not in task.gate
            fits = threads[where] + own_idle[
                1
            ] <= free_cores or task.threads <= task.entitled_cores + spare(task.threads)
            spin = divided and fits
            if spin != task.spin:
                task.spin = spin
                attempt.thread(task.name)
