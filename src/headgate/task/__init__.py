"""The part of Headgate in a training process that all frameworks share: identity, channel to the
engine, step spans.

Standard library only, from Python 3.9 on: it runs in the user's process and environment. Names are
handed out lazily, because a script that is observed imports this package at its start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.task.channel import Channel
    from headgate.task.environment import TaskEnvironment
    from headgate.task.epochs import Epochs
    from headgate.task.exit_hooks import at_end
    from headgate.task.fit import LineFit, fit_line
    from headgate.task.gate import Gate
    from headgate.task.membership import (
        ClusterError,
        cluster_variables,
        end_failed,
        named_cluster,
        plan_of,
        workers_gone,
    )
    from headgate.task.progress import ProgressReporter
    from headgate.task.saving import Saver
    from headgate.task.script_position import WorkersDiffer
    from headgate.task.spans import StepSpans
    from headgate.task.stop import PeerLost, Stop

_HOMES = {
    "Channel": "channel",
    "TaskEnvironment": "environment",
    "Epochs": "epochs",
    "at_end": "exit_hooks",
    "LineFit": "fit",
    "fit_line": "fit",
    "Gate": "gate",
    "ClusterError": "membership",
    "cluster_variables": "membership",
    "end_failed": "membership",
    "named_cluster": "membership",
    "plan_of": "membership",
    "workers_gone": "membership",
    "ProgressReporter": "progress",
    "Saver": "saving",
    "WorkersDiffer": "script_position",
    "StepSpans": "spans",
    "PeerLost": "stop",
    "Stop": "stop",
}

__all__ = [
    "Channel",
    "ClusterError",
    "Epochs",
    "Gate",
    "LineFit",
    "PeerLost",
    "ProgressReporter",
    "Saver",
    "StepSpans",
    "Stop",
    "TaskEnvironment",
    "WorkersDiffer",
    "at_end",
    "cluster_variables",
    "end_failed",
    "fit_line",
    "named_cluster",
    "plan_of",
    "workers_gone",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headgate.task' has no attribute {name!r}")
    return getattr(import_module(f"headgate.task.{home}"), name)
