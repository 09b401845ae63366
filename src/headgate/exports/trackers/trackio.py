"""Runs of Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import copy_context

import trackio

from headgate.exports.series import PREFIX
from headgate.exports.trackers.base import (
    PROJECT,
    MetricPoint,
    TrackedEnd,
    TrackedJob,
    TrackerRun,
    by_time,
)


class TrackioRun(TrackerRun):
    def __init__(self, job: TrackedJob, output: str, id: str | None = None) -> None:
        self._began = job.began
        self._name = id or f"{job.run}/{job.name}"
        # a context of its own: Trackio ends the run that its context has
        self._run = copy_context().run(
            trackio.init,
            project=output or PROJECT,
            name=self._name,
            group=job.run,
            config=dict(job.parameters),
            resume="allow" if id is not None else "never",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    @property
    def id(self) -> str:
        return self._name

    def add(self, points: list[MetricPoint]) -> None:
        for _, seconds, values in by_time(points, self._began):
            self._run.log({"seconds": seconds, **values})

    def note(self, tags: Mapping[str, str]) -> None:
        rows = "\n".join(f"- {name}: {text}" for name, text in tags.items())
        self._run.log({f"{PREFIX}verdict": trackio.Markdown(rows)})

    def end(self, outcome: TrackedEnd | None) -> None:
        self._run.finish()
