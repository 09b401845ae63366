"""Observe the GPU memory of a job with unknown need, until it has settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.model.events import GpuUse

SETTLED_SECONDS = 10.0
"""A job's use has settled once it has not grown for this long."""
_GROWS, _GROWS_BYTES = 1.02, 32 << 20
"""Growth counts if it exceeds this factor and this many bytes."""
PATIENCE_SECONDS: Mapping[GpuUse, float] = {
    "no": 0.0,
    "seen-none": 0.0,
    "maybe": 15.0,
    "yes": 300.0,
}
"""How long to wait for a job that holds no GPU memory yet, by whether it is expected to use a GPU.
It may load its model into main memory first.
"""
_MOST_SECONDS = 600.0
"""Longest wait for a job whose use keeps growing."""
_CONTEXT_BYTES = 64 << 20
"""If memory cannot be attributed to tasks, this much growth on a GPU means that the job uses it."""


@dataclass(slots=True)
class GpuUseSeen:
    """The observed GPU memory of a job.

    Args:
        since: When it was given its GPUs.
        patience: Seconds until it is assumed to use none.
        before: Bytes in use on each of its GPUs at that time.
    """

    since: float
    patience: float
    before: Mapping[int, float]
    held: dict[int, float] = field(default_factory=dict)
    grew: float = 0.0

    def observe(self, now: float, used: Mapping[int, float], its: Mapping[int, float]) -> bool:
        """Record the bytes in use on its GPUs, and the job's own part if it can be told.

        Returns:
            Whether the job's use has settled.
        """
        for gpu in self.before:
            size = its.get(gpu, 0.0)
            if not any(its.values()):
                more = used.get(gpu, 0.0) - self.before[gpu]
                size = more if more > _CONTEXT_BYTES else 0.0
            most = self.held.get(gpu, 0.0)
            if size > _GROWS * most + _GROWS_BYTES:
                self.grew = now
            self.held[gpu] = max(most, size)
        if now - self.since >= _MOST_SECONDS:
            return True
        if any(self.held.values()):
            return now - self.grew >= SETTLED_SECONDS
        return now - self.since >= self.patience

    @property
    def bytes(self) -> int:
        """The most that it held of one GPU."""
        return int(max(self.held.values(), default=0.0))
