"""A lab: several nodes inside this machine, each with its own address, NIC rate, CPU and memory.

For an engine, a lab node differs from this machine only by its `place`.
"""

from __future__ import annotations

from headgate.lab.lifecycle import LabChanges, change, down, enter, up
from headgate.lab.record import names, none_up
from headgate.lab.status import NodeStatus, nodes, status

__all__ = [
    "NodeStatus",
    "LabChanges",
    "change",
    "down",
    "enter",
    "names",
    "nodes",
    "none_up",
    "status",
    "up",
]
