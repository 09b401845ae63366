"""The layout of a job over nodes, and its predicted throughput."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headgate.model.declarations import Kind, declared, documented

Strategy = Literal["single", "allreduce", "ps"]
"""How the workers of a job synchronize."""
Layout = Literal["single", "allreduce", "ps", "roles"]
"""Strategy of a plan. `roles`: tasks of several roles, on nodes in the order of the job's roles."""


APART = "apart"
"""Extra key of a recorded plan: its workers were found to share nothing."""


def problems(plan: Plan, unknown: Container[str] = ()) -> Iterator[tuple[str, object, str]]:
    """Invalid fields of a plan: field, value, and what was expected. Rules that depend on an
    `unknown` field are skipped.
    """
    for name, others, fits, expected in _rules(plan):
        if not fits and not any(field in unknown for field in (name, *others)):
            yield name, getattr(plan, name), expected


def _rules(plan: Plan) -> Iterator[tuple[str, tuple[str, ...], bool, str]]:
    """Conditions on a plan: field, fields that it depends on, whether it holds, and what is
    expected.
    """
    strategy, workers, batch = plan.strategy, plan.workers, plan.batch_per_worker
    ps = strategy == "ps"
    sizes: Sequence[int] = ()
    if isinstance(batch, Sequence):
        sizes = batch
    elif batch is not None:
        sizes = (batch,)
    synchronous_ps = ps and plan.synchronous
    is_each_known = not isinstance(batch, Sequence) or len(batch) == workers
    named, served = len(plan.worker_nodes), len(plan.server_nodes)
    yield "workers", (), workers >= 1, "at least 1"
    yield "workers", ("strategy",), workers <= 1 or strategy != "single", "1 for strategy single"
    yield "servers", ("strategy",), plan.servers >= 1 or not ps, "at least 1 for strategy ps"
    yield "servers", ("strategy",), plan.servers == 0 or ps, f"0 for strategy {strategy}"
    yield "synchronous", ("strategy",), plan.synchronous or ps, f"true for strategy {strategy}"
    yield "backup_workers", (), plan.backup_workers >= 0, "0 or more"
    kind = ("strategy", "synchronous")
    yield (
        "backup_workers",
        kind,
        plan.backup_workers == 0 or synchronous_ps,
        "0 for what is no synchronous ps",
    )
    fewer = plan.backup_workers < max(workers, 1)
    yield "backup_workers", ("workers",), fewer, f"fewer than the workers, which are {workers}"
    yield "staleness", (), plan.staleness is None or plan.staleness >= 0, "0 or more steps"
    yield (
        "staleness",
        ("synchronous",),
        plan.staleness is None or not plan.synchronous,
        "none for a synchronous plan",
    )
    yield "batch_per_worker", (), all(size >= 1 for size in sizes), "at least 1 sample"
    yield (
        "batch_per_worker",
        ("workers",),
        is_each_known,
        f"one number, or one for each of {workers} workers",
    )
    yield (
        "cores_per_worker",
        (),
        plan.cores_per_worker is None or plan.cores_per_worker > 0,
        "more than 0",
    )
    yield (
        "cores_per_server",
        (),
        plan.cores_per_server is None or plan.cores_per_server > 0,
        "more than 0",
    )
    yield (
        "worker_nodes",
        ("workers",),
        named in (0, workers),
        f"{workers} names, one for each worker, or none",
    )
    yield (
        "server_nodes",
        ("servers",),
        served in (0, plan.servers),
        f"{plan.servers} names, one for each, or none",
    )


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Strategy, tasks, their sizes and their nodes.

    The strategy `roles` is internal: its workers are the tasks of a job made of roles.

    Raises:
        ValueError: A value is invalid, or does not fit this strategy.
    """

    strategy: Layout = field(
        metadata=declared(
            "How the workers synchronize: `single`, `allreduce` or `ps` (parameter servers).",
            kind=Kind.STRATEGY,
        )
    )
    workers: int = field(metadata=declared("Number of workers."))
    batch_per_worker: int | tuple[int, ...] | None = field(
        metadata=declared(
            "Samples of each worker in a step: one number, or a list with one for each; without "
            "it, the script's own.",
            kind=Kind.BATCH,
        )
    )
    servers: int = field(
        default=0, metadata=declared("Number of parameter servers; 0 unless the strategy is `ps`.")
    )
    synchronous: bool = field(
        default=True,
        metadata=declared("Whether each step waits for all workers; only `ps` can do without."),
    )
    backup_workers: int = field(
        default=0,
        metadata=declared(
            "Number of workers whose gradients a synchronous step of `ps` does not wait for."
        ),
    )
    staleness: int | None = field(
        default=None,
        metadata=declared(
            "The most steps that an asynchronous worker may be ahead of the slowest; without it, "
            "no bound."
        ),
    )
    worker_nodes: tuple[str, ...] = field(
        default=(),
        metadata=declared("The name of each worker's node; empty: Headgate places them."),
    )
    server_nodes: tuple[str, ...] = field(
        default=(),
        metadata=declared("The name of each parameter server's node; empty: Headgate places them."),
    )
    cores_per_worker: float | None = field(
        default=None,
        metadata=declared("The most CPU cores of each worker; without it, what its node has."),
    )
    cores_per_server: float | None = field(
        default=None,
        metadata=declared(
            "The most CPU cores of each parameter server; without it, what its node has."
        ),
    )

    @property
    def in_step(self) -> bool:
        """Whether several workers wait for each other in every step."""
        return (
            self.trains_together
            and self.synchronous
            and not self.backup_workers
            and self.workers > 1
        )

    @property
    def trains_together(self) -> bool:
        """Whether its tasks train one model together."""
        return self.strategy in ("allreduce", "ps")

    def __post_init__(self) -> None:
        if self.strategy not in ("single", "allreduce", "ps", "roles"):
            raise ValueError(
                f"Plan.strategy is {self.strategy!r}; expected single, allreduce or ps"
            )
        for name, value, expected in problems(self):
            raise ValueError(f"Plan.{name} is {value!r}; expected {expected}")

    @property
    def tasks(self) -> int:
        """Number of tasks: workers and servers."""
        return self.workers + self.servers


@dataclass(frozen=True, slots=True)
class Prediction:
    """A plan's predicted throughput.

    Args:
        plan: The plan.
        throughput: Samples a second.
        low: Lower end of the 90 % band, samples a second.
        high: Upper end of the 90 % band, samples a second.
        seconds: Seconds of a step by resource.
        bottleneck: The resource that bounds the step.
    """

    plan: Plan
    throughput: float
    low: float
    high: float
    seconds: Mapping[str, float]
    bottleneck: str
