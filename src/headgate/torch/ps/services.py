"""Selects the services of a server by the job's plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.task import TaskEnvironment
from headgate.torch.ps.asynchronous.coordinator import Broadcasts, Coordinator
from headgate.torch.ps.asynchronous.parameters import Parameters
from headgate.torch.ps.rounds.service import Synchronous
from headgate.torch.ps.tables.service import Tables
from headgate.torch.ps.transport.requests import Dispatcher, Handler
from headgate.torch.ps.transport.server import Server, Service
from headgate.torch.ps.transport.timing import RoundSpans


def services(server: Server) -> list[Service]:
    """The services of a server: sums if workers step together; calls always, at least for
    tables.
    """
    plan = server.plan
    together: bool = plan["synchronous"]

    def handlers(saved: Mapping[str, Any], again: bool) -> dict[str, Handler]:
        tables = Tables(
            server.index, together, plan["backup_workers"], saved.get("tables", {}), server.note
        )
        if together:
            return {"tables": tables}
        parameters = Parameters(saved.get("parameters", {}))
        if server.index:
            return {"tables": tables, "parameters": parameters}
        coordinator = Coordinator(
            plan["staleness"], saved.get("coordinator", {}), again, server.note
        )
        return {
            "tables": tables,
            "parameters": parameters,
            "coordinator": coordinator,
            "broadcasts": Broadcasts(),
        }

    task = TaskEnvironment.read()
    spans = RoundSpans(server.loop, server.notify)
    dispatcher = Dispatcher(
        server,
        handlers,
        None if task.checkpoints is None else Path(task.checkpoints),
        spans,
        task.away,
    )
    return [Synchronous(server, spans), dispatcher] if together else [dispatcher]
