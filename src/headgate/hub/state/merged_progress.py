"""The progress of a job, merged from what its tasks report."""

from __future__ import annotations

from dataclasses import replace

from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress
from headgate.task.progress import weighted_mean


class MergedProgress:
    """Merges the reports of a job's workers.

    Steps, epochs and samples come from the worker with the lowest number; each of its reports makes
    one of the job. Losses and metrics are means over what each worker reported since then, or last.
    Each mean is weighted by its number of losses and their weights, as the gradients are.
    """

    def __init__(self) -> None:
        self._waiting: dict[TaskId, Progress] = {}
        self._told: dict[TaskId, Progress] = {}

    def add(self, progress: Progress, lowest: TaskId) -> Progress | None:
        """Add a report. Returns the job's progress if the report came from the lowest worker."""
        before = self._waiting.get(progress.task)
        self._waiting[progress.task] = progress if before is None else before.merged(progress)
        if progress.task != lowest:
            return None
        self._told |= self._waiting
        self._waiting.clear()
        own, every = self._told[lowest], self._told.values()
        losses = [
            (report.loss, report.count * report.weight)
            for report in every
            if report.loss is not None
        ]
        names = dict.fromkeys(name for report in every for name in report.metrics)
        return replace(
            own,
            loss=_mean(losses) if losses else None,
            count=sum(report.count for report in every if report.loss is not None) or own.count,
            weight=1.0,
            metrics={
                name: _mean(
                    [
                        (report.metrics[name], report.count * report.weight)
                        for report in every
                        if name in report.metrics
                    ]
                )
                for name in names
            },
        )

    def drop(self, task: TaskId) -> None:
        """A worker was lost: its last report no longer counts."""
        self._waiting.pop(task, None)
        self._told.pop(task, None)


def _mean(values: list[tuple[float, float]]) -> float:
    # a part without weight has no loss
    weighing = [(value, weight) for value, weight in values if weight > 0]
    return weighted_mean(weighing or [(value, 1.0) for value, _ in values])
