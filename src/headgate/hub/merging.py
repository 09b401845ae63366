"""The progress of a job whose workers each report: one course, as if one had."""

from __future__ import annotations

from dataclasses import replace

from headgate.events import Progress, TaskId


class Course:
    """Merges what the workers of a job report.

    Steps, epochs and samples are those of the lowest worker, whose reports set the pace. Losses and metrics are the
    means of what each reported since its last one, or before if it had nothing new, weighted by how many losses each
    stands for.
    """

    def __init__(self) -> None:
        self._waiting: dict[TaskId, Progress] = {}
        self._told: dict[TaskId, Progress] = {}

    def add(self, progress: Progress, lowest: TaskId) -> Progress | None:
        """Take in a report; the job's progress, if it was that of the lowest worker."""
        before = self._waiting.get(progress.task)
        self._waiting[progress.task] = progress if before is None else before.merged(progress)
        if progress.task != lowest:
            return None
        self._told |= self._waiting
        self._waiting.clear()
        own, every = self._told[lowest], self._told.values()
        losses = [(each.loss, each.count) for each in every if each.loss is not None]
        names = dict.fromkeys(name for each in every for name in each.metrics)
        return replace(
            own,
            loss=_mean(losses) if losses else None,
            count=sum(count for _, count in losses) or own.count,
            metrics={
                name: _mean([(each.metrics[name], each.count) for each in every if name in each.metrics])
                for name in names
            },
        )

    def drop(self, task: TaskId) -> None:
        """A worker was lost: what it reported last is no part of the mean any more."""
        self._waiting.pop(task, None)
        self._told.pop(task, None)


def _mean(values: list[tuple[float, int]]) -> float:
    return sum(value * count for value, count in values) / sum(count for _, count in values)
