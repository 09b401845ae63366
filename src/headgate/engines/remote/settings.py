"""What an agent is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What an agent is told at its start.

    Args:
        engine: Name of the engine that it works for.
        name: The name of its node.
        address: The address of its node, by which others reach it; empty: the agent finds out.
        cores: Cores that the cluster gives to jobs there; None: all.
        memory_bytes: Memory that it gives to jobs there; 0: all.
        gpus: GPUs that it gives to jobs there; None: all.
        kind: Names of the node's custom resources.
        shared: Whether the node sees the files of the hub's machine under the same paths.
        speeds: Measured GFLOP/s of a core, by `speeds.key`.
        patience_seconds: An agent that hears nothing from the bridge for longer takes itself for
            cut off, and ends.
        log: What it logs to its standard error, as `HEADGATE_LOG` says it.
    """

    engine: str
    name: str
    address: str
    cores: float | None
    memory_bytes: int
    gpus: int | None
    kind: str
    shared: bool
    speeds: Mapping[str, float]
    patience_seconds: float
    log: str = ""
