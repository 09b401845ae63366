"""What an agent is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What an agent is told at its start.

    Args:
        engine: Name of the engine that it works for.
        name: Of its node.
        address: Of its node, by which the others reach it.
        cores: That the cluster lets jobs have there.
        memory_bytes: Likewise.
        gpus: Likewise.
        kind: Names of the node's custom resources.
        shared: The node sees the files of the hub's machine under the same paths.
        speeds: Measured GFLOP/s of a core, by `speeds.key`.
        patience_seconds: An agent that hears nothing from the bridge for longer is cut off, and ends.
    """

    engine: str
    name: str
    address: str
    cores: float
    memory_bytes: int
    gpus: int
    kind: str
    shared: bool
    speeds: Mapping[str, float]
    patience_seconds: float
