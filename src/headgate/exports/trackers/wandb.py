"""Runs of Weights & Biases. With `WANDB_MODE=offline` they stay on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

import wandb
from wandb.sdk.wandb_settings import Settings

from headgate.exports.trackers.base import (
    PROJECT,
    MetricPoint,
    TrackedEnd,
    TrackedJob,
    TrackerRun,
    by_time,
)

_START_SECONDS = 30.0
_CODES = {TrackedEnd.FINISHED: 0, TrackedEnd.FAILED: 1, TrackedEnd.KILLED: 255}
"""Exit codes by which it knows how a run ended."""


class WandbRun(TrackerRun):
    def __init__(self, job: TrackedJob, output: str, id: str | None = None) -> None:
        self._began = job.began
        shares = id is not None and id == os.environ.get("WANDB_RUN_ID")
        settings = Settings(
            console="off",
            silent=True,
            init_timeout=_START_SECONDS,
            x_disable_meta=True,
            x_disable_stats=True,
            **({"mode": "shared", "x_primary": False, "x_label": "headgate"} if shares else {}),
        )
        self._run = wandb.init(
            project=output or os.environ.get("WANDB_PROJECT") or PROJECT,
            group=None if shares else job.run,
            name=None if shares else job.name,
            config=None if shares else dict(job.parameters),
            id=id,
            resume=None if id is None or shares else "allow",
            reinit="create_new",
            settings=settings,
        )
        self._run.define_metric("seconds")
        self._run.define_metric("*", step_metric="seconds")

    @property
    def id(self) -> str:
        return str(self._run.id)

    def add(self, points: list[MetricPoint]) -> None:
        for at, seconds, values in by_time(points, self._began):
            self._run.log({"seconds": seconds, "_timestamp": at, **values})

    def note(self, tags: Mapping[str, str]) -> None:
        self._run.summary.update(dict(tags))

    def end(self, outcome: TrackedEnd | None) -> None:
        self._run.finish(exit_code=_CODES[outcome or TrackedEnd.FINISHED])

    @classmethod
    def of_script(
        cls, job: TrackedJob, output: str, since: float, pids: frozenset[int]
    ) -> str | None:
        """The run that the job's variables name, unless it is written to this machine alone: two
        processes cannot share that.
        """
        offline = os.environ.get("WANDB_MODE", "online") in ("offline", "dryrun")
        return None if offline else os.environ.get("WANDB_RUN_ID")
