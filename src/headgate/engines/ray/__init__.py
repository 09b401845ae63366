"""Engine `ray`: tasks on the nodes of a Ray cluster.

The hub holds a `RayEngine`, which starts a bridge: the process that is connected to Ray, so that what ends with that
connection (Ray ends a driver whose head is gone) is not the hub, and so that the hub can use several clusters. The
bridge puts an agent on each node, an actor that runs a `LocalEngine` there; a warden beside each agent clears up
should it be killed.
"""

from __future__ import annotations

from headgate.engines.ray.engine import RayEngine

__all__ = ["RayEngine"]
