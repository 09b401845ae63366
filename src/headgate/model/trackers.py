"""Trackers of experiments, and where a job's figures go in one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

JOB_TAG = "headgate.job"
"""Tag of an MLflow run that a task opened: `RUN/JOB`."""


class Tracker(StrEnum):
    """The trackers of experiments. Each is named as the library that writes to it."""

    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"
    WANDB = "wandb"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a job's figures go.

    Args:
        tracker: The tracker.
        output: Folder, URI or project there; empty: the tracker's usual one.
    """

    tracker: Tracker
    output: str = ""

    @classmethod
    def of(cls, text: str) -> Destination:
        """Parse `TRACKER[=OUTPUT]`.

        Raises:
            ValueError: There is no such tracker.
        """
        name, _, output = text.partition("=")
        if name not in set(Tracker):
            raise ValueError(f"found {name!r}; expected one of {', '.join(Tracker)}")
        return cls(Tracker(name), output)

    def __str__(self) -> str:
        return f"{self.tracker}={self.output}" if self.output else str(self.tracker)
