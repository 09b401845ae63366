"""What a job that waits for room lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ShortageKind = Literal["gpus", "memory", "gpu-memory", "gpu-unseen", "gpu-alone"]


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a job lacks to start.

    Args:
        kind: Whole GPUs; memory of a node; memory of a GPU; a GPU on which it is seen what the job
            there holds; or a GPU without other jobs, because it, the job there or the compute mode
            asks for that.
        needs_bytes: Memory that each worker needs, of GPUs each worker on each GPU.
        count: How many times: workers, or workers and their GPUs.
        node: Where it is short; empty: that is not settled.
        gpu: Which GPU there has most of it left.
        free_bytes: What is left there.
        others_bytes: What programs hold there for which nothing is kept. None: they are not why it
            is short.
        is_known: Whether that is known to be its need; else it is what it is given until that is
            seen.
        gpus: Those that are not seen yet, or have other jobs.
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

    def plain(self) -> Mapping[str, object]:
        """Its kind and what is known of it, by name; the rest is left out."""
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
