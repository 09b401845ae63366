"""The part of Headgate in a training process that all frameworks share: identity, channel to the
engine, step spans.

Standard library only, from Python 3.9 on, and cheap to import: it runs in the user's process and
environment.
"""

from __future__ import annotations

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

__all__ = [
    "Channel",
    "ClusterError",
    "Epochs",
    "Gate",
    "LineFit",
    "PeerLost",
    "ProgressReporter",
    "Saver",
    "Stop",
    "StepSpans",
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
