"""What a server does, by the job's plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.task import TaskEnvironment
from headgate.torch.ps.broadcasts import Broadcasts
from headgate.torch.ps.calls import Clerk
from headgate.torch.ps.desk import Desk
from headgate.torch.ps.pace import Pace
from headgate.torch.ps.parameters import Parameters
from headgate.torch.ps.server import Server, Service
from headgate.torch.ps.synchronous import Synchronous
from headgate.torch.ps.tables import Tables
from headgate.torch.ps.timing import RoundSpans


def services(server: Server) -> list[Service]:
    """The services of a server: sums where workers step together; calls in any case, for tables if for nothing else."""
    plan = server.plan
    together: bool = plan["synchronous"]

    def clerks(saved: Mapping[str, Any], again: bool) -> dict[str, Clerk]:
        tables = Tables(server.index, together, plan["backup_workers"], saved.get("tables", {}), server.note)
        if together:
            return {"tables": tables}
        parameters = Parameters(saved.get("parameters", {}))
        if server.index:
            return {"tables": tables, "parameters": parameters}
        pace = Pace(plan["staleness"], saved.get("pace", {}), again, server.note)
        return {"tables": tables, "parameters": parameters, "pace": pace, "broadcasts": Broadcasts()}

    task = TaskEnvironment.read()
    spans = None if together else RoundSpans(server.loop, server.notify)
    desk = Desk(server, clerks, None if task.checkpoints is None else Path(task.checkpoints), spans, task.away)
    return [Synchronous(server), desk] if together else [desk]
