"""What a waiting job lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ShortageKind = Literal[
    "gpus",
    "memory",
    "gpu-memory",
    "gpu-unseen",
    "gpu-alone",
    "slots",
    "slots-of-run",
    "slots-of-sweep",
    "slots-of-script",
    "probe",
    "grant",
]


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a job lacks to start.

    Args:
        kind: The missing resource: whole GPUs, node memory or GPU memory. Or a GPU whose present
            use is observed, or a GPU without other jobs if a job or the compute mode demands that.
            Or a slot among all jobs or those of its run, its sweep or its script, or the first use
            of its script's memory. Or a grant on a machine that users share.
        needs_bytes: Memory that each worker needs; for GPUs, on each GPU.
        count: How many times: workers, or workers times their GPUs. For slots, how many there are.
        node: The node that is short; empty: not settled.
        gpu: The GPU there with most memory left.
        free_bytes: What is left there.
        others_bytes: Bytes held there by programs without a reservation; None: they are not the
            cause.
        is_known: Whether the need is known; else a default counts until the use is observed.
        gpus: GPUs that are not observed yet, or that have other jobs.
    """

    kind: ShortageKind
    needs_bytes: int = 0
    count: int = 1
    node: str = ""
    gpu: int | None = None
    free_bytes: int | None = None
    others_bytes: int | None = None
    is_known: bool = True
    gpus: tuple[int, ...] = ()

    @property
    def on_gpu(self) -> bool:
        return self.kind in ("gpu-memory", "gpu-unseen", "gpu-alone")

    @property
    def of_jobs(self) -> bool:
        """Whether other jobs are the cause by their number alone."""
        return self.kind in (
            "slots",
            "slots-of-run",
            "slots-of-sweep",
            "slots-of-script",
            "probe",
        )

    def plain(self) -> Mapping[str, object]:
        """Its kind and its known facts, by name."""
        named = (
            "needs_bytes",
            "count",
            "node",
            "gpu",
            "free_bytes",
            "others_bytes",
            "is_known",
            "gpus",
        )
        known = {name: getattr(self, name) for name in ("kind", *named)}
        return {name: value for name, value in known.items() if value not in (None, "", ())}
