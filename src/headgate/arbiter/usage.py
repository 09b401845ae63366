"""What each user has had of a machine, by day."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass, replace

DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class DayUse:
    """What a user had on a day (UTC).

    Args:
        core_seconds: CPU time.
        gpu_seconds: Time for which GPUs were held; a shared one counts for each user who holds it.
        idle_gpu_seconds: The part of it in which no process of the user computed there.
        memory_byte_seconds: Granted memory times its time.
    """

    core_seconds: float = 0.0
    gpu_seconds: float = 0.0
    idle_gpu_seconds: float = 0.0
    memory_byte_seconds: float = 0.0

    def plus(self, other: DayUse) -> DayUse:
        """Both together."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return DayUse(*(first + second for first, second in pairs))


class UsageLedger:
    """Sums use by user and day, a row for each.

    Args:
        rows: Rows of former days or of this one, by user and number of the day.
    """

    def __init__(self, rows: dict[tuple[str, int], DayUse] | None = None) -> None:
        self._rows = dict(rows or {})
        self._changed: set[tuple[str, int]] = set()

    def add(
        self,
        begin: float,
        end: float,
        user: str,
        *,
        cores: float,
        gpus: Collection[int],
        busy_gpus: Collection[int],
        memory_bytes: int,
    ) -> None:
        """Add what a user had for a time.

        Args:
            begin: Seconds since the epoch.
            end: The same.
            user: The user.
            cores: Cores used, on average.
            gpus: GPUs held.
            busy_gpus: GPUs on which the user's processes computed.
            memory_bytes: Memory granted.
        """
        idle = len(set(gpus) - set(busy_gpus))
        while begin < end:
            day = int(begin // DAY_SECONDS)
            until = min(end, float((day + 1) * DAY_SECONDS))
            seconds, key = until - begin, (user, day)
            row = self._rows.get(key, DayUse())
            self._rows[key] = replace(
                row,
                core_seconds=row.core_seconds + seconds * cores,
                gpu_seconds=row.gpu_seconds + seconds * len(gpus),
                idle_gpu_seconds=row.idle_gpu_seconds + seconds * idle,
                memory_byte_seconds=row.memory_byte_seconds + seconds * memory_bytes,
            )
            self._changed.add(key)
            begin = until

    def changed(self) -> dict[tuple[str, int], DayUse]:
        """The rows that changed since the last call, to be kept. Rows of other days are dropped."""
        rows = {key: self._rows[key] for key in self._changed}
        latest = max((day for _, day in rows), default=0)
        for key in [key for key in self._rows if key[1] < latest]:
            del self._rows[key]
        self._changed.clear()
        return rows
