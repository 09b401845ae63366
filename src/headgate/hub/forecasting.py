"""What is left of the jobs that run, worked out beside the hub's loop where somebody asks for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headgate.analysis.forecast import Outlook, Question, answer
from headgate.events import Event, Fitted, JobId, Progress, TaskExited, TaskId, Usage
from headgate.hub.ledger import Ledger


@dataclass
class _Watched:
    """A job's outlook, the cores that each of its tasks uses, and when it is expected to end."""

    outlook: Outlook
    cores: dict[TaskId, float] = field(default_factory=dict)
    ends: float | None = None


class Forecasting:
    """Hears what jobs report and use, and tells what is left of them.

    Args:
        ledger: Where the runs are.
        tell: Takes a `Fitted`.
        wanted: Whether anybody goes by what is left: only then are curves fitted.
    """

    def __init__(self, ledger: Ledger, tell: Callable[[Event], None], wanted: Callable[[], bool]) -> None:
        self._ledger = ledger
        self._tell = tell
        self._wanted = wanted
        self._watched: dict[JobId, _Watched] = {}
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def ends(self) -> Mapping[JobId, float]:
        """When jobs are expected to end at the rate at which they go, seconds as of `time.monotonic`, where that is
        known."""
        return {job: watched.ends for job, watched in self._watched.items() if watched.ends is not None}

    def hear(self, event: Event) -> None:
        """Take in an event, after the controller."""
        match event:
            case Progress(task) if self._runs(task):
                self._reported(event)
            case Usage(task, cpu_cores) if self._runs(task):
                watched = self._of(task)
                watched.cores[task] = cpu_cores
                watched.outlook.used(time.monotonic(), sum(watched.cores.values()))
            case TaskExited(task):
                job = task.rsplit("/", 1)[0]
                if (known := self._watched.get(job)) is not None:
                    known.cores.pop(task, None)
                    if not known.cores:
                        del self._watched[job]

    def _runs(self, task: TaskId) -> bool:
        """Whether it has not ended yet: what was measured of one may come after its end."""
        attempt = self._ledger.find(task)[1].current
        known = attempt.tasks.get(task.rsplit("/", 1)[1]) if attempt is not None else None
        return known is not None and known.state != "ended"

    def _of(self, task: TaskId) -> _Watched:
        job = task.rsplit("/", 1)[0]
        if job not in self._watched:
            rule = self._ledger.find(job)[1].spec.progress
            self._watched[job] = _Watched(Outlook(time.monotonic(), goal=rule.goal, rising=rule.rising))
        return self._watched[job]

    def _reported(self, told: Progress) -> None:
        job = told.task.rsplit("/", 1)[0]
        value = self._ledger.find(job)[1].spec.progress.of(told.loss, told.metrics)
        if value is None:
            return
        outlook = self._of(told.task).outlook
        question = outlook.reported(
            time.monotonic(),
            value,
            step=told.step,
            epoch=told.epoch,
            epochs=told.epochs,
            count=told.count,
            asks=self._wanted(),
        )
        if question is not None:
            task = asyncio.get_running_loop().create_task(self._answer(job, outlook, question))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, job: JobId, outlook: Outlook, question: Question) -> None:
        left = await asyncio.to_thread(answer, question)
        watched = self._watched.get(job)
        if left is not None and watched is not None and watched.outlook is outlook:  # the same attempt still runs
            cores = sum(watched.cores.values())
            watched.ends = time.monotonic() + left.work / cores if cores > 0.0 else None
            self._tell(Fitted(job, *left))

    def close(self) -> None:
        """Answer nothing more."""
        for task in self._answering:
            task.cancel()
