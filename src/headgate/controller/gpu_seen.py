"""What a job of unknown need is seen to hold of its GPUs, until that has settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.model.events import GpuUse

SETTLED_SECONDS = 10.0
"""What a job holds has settled once it has not grown for so long,"""
_GROWS, _GROWS_BYTES = 1.02, 32 << 20
"""by more than this factor and so many bytes."""
PATIENCE_SECONDS: Mapping[GpuUse, float] = {
    "no": 0.0,
    "seen-none": 0.0,
    "maybe": 15.0,
    "yes": 300.0,
}
"""How long a job that holds nothing yet is waited for, by whether it is taken to use a GPU: it may
load its model into main memory first.
"""
_MOST_SECONDS = 600.0
"""What grows for longer is not waited for."""
_CONTEXT_BYTES = 64 << 20
"""Where it cannot be told whose memory it is: a GPU that has so much more in use than before is
used by the job.
"""


@dataclass(slots=True)
class GpuUseSeen:
    """What a job is seen to hold.

    Args:
        since: When it was given its GPUs.
        patience: Seconds until it is taken to use none.
        before: What was in use on each of its GPUs then.
    """

    since: float
    patience: float
    before: Mapping[int, float]
    held: dict[int, float] = field(default_factory=dict)
    grew: float = 0.0

    def observe(self, now: float, used: Mapping[int, float], its: Mapping[int, float]) -> bool:
        """Take note of what is in use on its GPUs, and of `its` part as far as that can be told;
        whether what it holds has settled.
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
