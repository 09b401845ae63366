"""Trackers of experiments, each by its own library. A job becomes a run there."""

from __future__ import annotations

from importlib import import_module

from headgate.exports.trackers.base import TrackedJob, TrackerRun
from headgate.model.trackers import Tracker

_CLASSES = {
    Tracker.MLFLOW: "MlflowRun",
    Tracker.TENSORBOARD: "TensorBoardRun",
    Tracker.TRACKIO: "TrackioRun",
    Tracker.WANDB: "WandbRun",
}


def run_type(tracker: Tracker) -> type[TrackerRun]:
    """The class of a tracker's runs.

    Raises:
        ImportError: Its library is not installed.
    """
    module = import_module(f"headgate.exports.trackers.{tracker}")
    kind: type[TrackerRun] = getattr(module, _CLASSES[tracker])
    return kind


__all__ = ["TrackedJob", "TrackerRun", "run_type"]
