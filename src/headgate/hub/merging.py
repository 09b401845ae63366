"""The progress of a job whose workers each report: one course, as if one had."""

from __future__ import annotations

from dataclasses import replace

from headgate.events import Progress, TaskId


class Course:
    """Merges what the workers of a job report.

    Steps, epochs and samples are those of the lowest worker, whose reports set the pace; losses and metrics are the
    means of what all reported since its last one, weighted by how many losses each stands for.
    """

    def __init__(self) -> None:
        self._waiting: dict[TaskId, Progress] = {}

    def add(self, progress: Progress, lowest: TaskId) -> Progress | None:
        """Take in a report; the job's progress, if it was that of the lowest worker."""
        before = self._waiting.get(progress.task)
        self._waiting[progress.task] = progress if before is None else before.merged(progress)
        if progress.task != lowest:
            return None
        own, others = self._waiting.pop(lowest), list(self._waiting.values())
        self._waiting.clear()
        every = [own, *others]
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


def _mean(values: list[tuple[float, int]]) -> float:
    return sum(value * count for value, count in values) / sum(count for _, count in values)
