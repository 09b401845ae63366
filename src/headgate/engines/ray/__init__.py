"""Engine `ray`: tasks on the nodes of a Ray cluster.

The hub holds a `RayEngine`. It starts a bridge: the process that is connected to Ray. Ray ends a
driver whose head is gone, so it ends the bridge and not the hub. With several bridges, the hub can
use several clusters. A bridge puts an agent on each node, as a Ray actor. `headgate.engines.remote`
has the agent and the messages between it and the hub.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headgate.engines.engine_options import Declaration, Option

if TYPE_CHECKING:
    from headgate.engines.base import Engine, EngineSpec


REQUIREMENT = "ray>=2.30"
"""What has to be installed; pyproject.toml says the same."""


def _make(spec: EngineSpec, home: Path) -> Engine:
    from headgate.engines.ray.engine import RayEngine

    return RayEngine(spec.address, shared_files=spec.shared_files, speeds=home / "ray-speeds.json")


ENGINE = Declaration(
    "ray",
    _make,
    options=(
        Option(
            "address",
            "the cluster's head, 10.0.0.1:6379, or its dashboard, http://10.0.0.1:8265",
            metavar="HOST:PORT",
            variable="RAY_ADDRESS",
        ),
        Option("shared_files", "send no files, because the nodes see this machine's files"),
    ),
    example="--address 10.0.0.1:6379",
    distribution="ray",
    requirement=REQUIREMENT,
)
