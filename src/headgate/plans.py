"""How a job is laid out over nodes, and what that is predicted to bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Strategy = Literal["single", "allreduce", "ps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Strategy, tasks, their sizes and their nodes.

    Args:
        strategy: `single`, `allreduce` or `ps`.
        workers: Number of workers, at least 1.
        batch_per_worker: Samples of a step on each worker; a tuple has one for each; None keeps the script's own.
        servers: Number of parameter servers; 0 unless the strategy is `ps`.
        synchronous: Whether a step waits for all workers.
        backup_workers: Workers whose gradient a synchronous step may leave out.
        staleness: Most steps that a fast worker may be ahead; None where synchronous or unbounded.
        worker_nodes: Name of each worker's node; empty: not placed.
        server_nodes: Name of each server's node; empty: not placed.
        cores_per_worker: Cores of each worker, None for all that its node has.
        cores_per_server: Cores of each server.
    """

    strategy: Strategy
    workers: int
    batch_per_worker: int | tuple[int, ...] | None
    servers: int = 0
    synchronous: bool = True
    backup_workers: int = 0
    staleness: int | None = None
    worker_nodes: tuple[str, ...] = ()
    server_nodes: tuple[str, ...] = ()
    cores_per_worker: float | None = None
    cores_per_server: float | None = None

    def __post_init__(self) -> None:
        if self.strategy not in ("single", "allreduce", "ps"):
            raise ValueError(f"Plan.strategy is {self.strategy!r}; expected single, allreduce or ps")
        if self.workers < 1 or (self.strategy == "single" and self.workers != 1):
            raise ValueError(f"Plan.workers is {self.workers} for strategy {self.strategy!r}")
        if (self.servers > 0) != (self.strategy == "ps"):
            raise ValueError(f"Plan.servers is {self.servers} for strategy {self.strategy!r}")
        for name, nodes, count in (
            ("worker_nodes", self.worker_nodes, self.workers),
            ("server_nodes", self.server_nodes, self.servers),
        ):
            if nodes and len(nodes) != count:
                raise ValueError(f"Plan.{name} has {len(nodes)} names; expected {count} or none")
        if isinstance(self.batch_per_worker, tuple) and len(self.batch_per_worker) != self.workers:
            raise ValueError(f"Plan.batch_per_worker has {len(self.batch_per_worker)} sizes; expected {self.workers}")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A plan's predicted throughput.

    Args:
        plan: The plan.
        throughput: Samples a second.
        low: Lower end of the 90 % band, samples a second.
        high: Upper end of the 90 % band, samples a second.
        seconds: Seconds of a step by resource.
        binds: The resource that bounds the step.
    """

    plan: Plan
    throughput: float
    low: float
    high: float
    seconds: Mapping[str, float]
    binds: str
