"""What a server does, by the job's plan."""

from __future__ import annotations

from headgate.torch.ps.server import Server, Service
from headgate.torch.ps.synchronous import Synchronous


def services(server: Server) -> list[Service]:
    """The services of a server."""
    return [Synchronous(server)] if server.plan["synchronous"] else []
