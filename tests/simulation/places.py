"""Clusters and traces that simulations are tested on."""

from __future__ import annotations

from typing import TypeVar

import pytest

from headgate.controller.core import Controller
from headgate.model.actions import Action
from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.events import Event, Predicted, Usage
from headgate.model.progress import Progress
from headgate.simulation import Assumptions, Outcome, Trace, TraceJob, simulate
from headgate.simulation.traces import made

Kind = TypeVar("Kind", Predicted, Progress, Usage)

FREE = Assumptions(restart_seconds=0.0)
"""Nothing is lost by stopping a job."""


def gpus(*of_nodes: int, name: str = "g") -> Cluster:
    """Nodes with so many GPUs each."""
    return Cluster(
        tuple(
            Node(
                f"n{i}",
                cores=8.0,
                memory_bytes=2**36,
                gpus=tuple(Gpu(k, name, 2**34) for k in range(count)),
            )
            for i, count in enumerate(of_nodes)
        )
    )


def cores(*of_nodes: float) -> Cluster:
    """Nodes with so many cores each."""
    return Cluster(
        tuple(Node(f"n{i}", cores=count, memory_bytes=2**36) for i, count in enumerate(of_nodes))
    )


def on_gpus(*jobs: tuple[float, float, int]) -> Trace:
    """Jobs a, b, c, ...: when they come, seconds alone, GPUs."""
    return made(
        "t", [TraceJob(chr(97 + i), at, seconds, gpus=n) for i, (at, seconds, n) in enumerate(jobs)]
    )


def on_cores(*jobs: tuple[float, float, float], model: str = "") -> Trace:
    """Jobs a, b, c, ...: when they come, seconds alone, cores that they can use."""
    return made(
        "t",
        [
            TraceJob(chr(97 + i), at, seconds, cores=n, model=model)
            for i, (at, seconds, n) in enumerate(jobs)
        ],
    )


def ends(outcome: Outcome) -> dict[str, float]:
    """When each job ended."""
    return {job.job.name: job.ended for job in outcome.jobs if job.ended is not None}


def ran(trace: Trace, cluster: Cluster, policy: str, given: Assumptions = FREE) -> dict[str, float]:
    """When each job of a trace ended."""
    return ends(simulate(trace, cluster, policy, given))


def told(monkeypatch: pytest.MonkeyPatch, kind: type[Kind]) -> list[tuple[float, Kind]]:
    """What of that kind is told in simulations from now on, and when."""
    kept: list[tuple[float, Kind]] = []

    class Listening(Controller):
        def step(self, now: float, event: Event) -> tuple[list[Action], float | None]:
            if isinstance(event, kind):
                kept.append((now, event))
            return super().step(now, event)

    monkeypatch.setattr("headgate.simulation.simulator.Controller", Listening)
    return kept
