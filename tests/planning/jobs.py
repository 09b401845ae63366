"""Jobs, profiles and nodes that the tests of planning share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.profiles import Profile, TimeFit

GIB = 1 << 30
GIGABIT = 125e6


def profile(**fields: Any) -> Profile:
    """One of a job whose step of 256 samples takes 10 ms and 2 ms a sample on a core; 25 MB of
    parameters.
    """
    usual: dict[str, Any] = {
        "fits": (
            TimeFit("cpu", 1, 0.01, 0.002, 0.02),
            TimeFit("cpu", 2, 0.01, 0.002 / 2**0.8, 0.02),
        ),
        "dense_bytes": 25_000_000,
        "sparse_bytes": 0,
        "optimizer_state_bytes": 0,
        "memory_peak_bytes": GIB // 2,
        "batch": 256,
    }
    return Profile("torch", "2.11", "profile", **(usual | fields))


def job(allow: Sequence[str] = (), encrypt: bool = False, **limits: Any) -> Job:
    return Job(
        name="job",
        run="true",
        allow=frozenset(allow),  # type: ignore[arg-type]
        encrypt=encrypt,
        limits=Limits(**limits),
    )


def nodes(
    name: str, count: int, cores: float = 1.0, nic: float | None = GIGABIT, **fields: Any
) -> list[Node]:
    """Nodes of one kind: a0, a1, ..."""
    usual: dict[str, Any] = {"memory_bytes": 16 * GIB, "kind": name}
    return [
        Node(f"{name}{i}", cores, nic_bytes_per_second=nic, **(usual | fields))
        for i in range(count)
    ]


def gpus(name: str, count: int = 1) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, name, 16 * GIB) for i in range(count))


def cluster(*of_kinds: Sequence[Node]) -> Cluster:
    return Cluster(tuple(node for of_kind in of_kinds for node in of_kind))
