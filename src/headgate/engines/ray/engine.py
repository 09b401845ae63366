"""Engine `ray`, the hub's end."""

from __future__ import annotations

from headgate.engines.ray import bridges
from headgate.engines.remote.bridge import Bridge
from headgate.engines.remote.engine import AgentsEngine


class RayEngine(AgentsEngine):
    """Starts tasks on the nodes of a Ray cluster.

    The address is HOST:PORT of the cluster's head, or `http://HOST:PORT` of its dashboard, to use
    its Jobs API. Without one, the engine starts a Ray of its own on this machine, and ends it.
    """

    name = "ray"
    words = "Ray"

    def connect(self) -> Bridge:
        return bridges.start(self.address)
