"""The tracker of a job, fed as the controller feeds it, for parts of the hub without one."""

from __future__ import annotations

from headgate.forecast.job_tracker import JobTracker, is_busy
from headgate.model.events import Event, TaskStarted, Usage
from headgate.model.identifiers import JobId, TaskId
from headgate.model.progress import Progress
from headgate.output.vocabulary import is_adversarial


class Tracked:
    """One job.

    Args:
        now: Seconds, when its first attempt begins.
    """

    def __init__(self, now: float) -> None:
        self.tracker = JobTracker(now)
        self._cores: dict[TaskId, float] = {}

    def __call__(self, job: JobId) -> JobTracker:
        return self.tracker

    def hear(self, now: float, event: Event) -> None:
        match event:
            case TaskStarted():
                self.tracker.began(now)
                self.tracker.other_tasks()
            case Usage(task, cores):
                self._cores[task] = cores
                self.tracker.clock.worked(now, is_busy(event))
                self.tracker.use(now, sum(self._cores.values()))
            case Progress():
                adversarial = is_adversarial("loss", event.metrics)
                self.tracker.report(now, event.loss, event, adversarial)

    def begin(self, now: float, resumes: bool) -> None:
        """Another attempt begins."""
        self._cores.clear()
        self.tracker.begin_attempt(now, resumes=resumes)
