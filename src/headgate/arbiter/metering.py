"""What users use of a machine, from readings of it: summed by day, and GPUs held for nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from headgate.arbiter.events import JobIdles, MachineUsed, UserUsed
from headgate.arbiter.holdings import Holding, holdings
from headgate.arbiter.records import MachineJob, ResourceGrant
from headgate.arbiter.usage import UsageLedger
from headgate.model.sharing import SharingRules

_IDLE_CORES = 0.1
"""What a user's hubs use by themselves is less."""


class Metering:
    """Sums up what users use.

    Attributes:
        usage: What users have had, by day.
        used_cores: What each user's jobs used at the last reading.
    """

    def __init__(self) -> None:
        self.usage = UsageLedger()
        self.used_cores: dict[str, float] = {}
        self._read_at: float | None = None
        self._idle_since: dict[MachineJob, tuple[float, int]] = {}

    def account(self, now: float, reading: MachineUsed, grants: Collection[ResourceGrant]) -> None:
        """Add what users had since the last reading."""
        begin, self._read_at = now if self._read_at is None else self._read_at, now
        self.used_cores = {user: used.cores for user, used in reading.users.items()}
        held = holdings(grants)
        for user, used in reading.users.items():
            gpus = {gpu for grant in grants if grant.job.hub.user == user for gpu in grant.gpus}
            self.usage.add(
                begin,
                now,
                user,
                cores=used.cores,
                gpus=gpus,
                busy_gpus=used.busy_gpus,
                memory_bytes=held.get(user, Holding()).memory_bytes,
            )

    def idle(
        self,
        now: float,
        reading: MachineUsed,
        grants: Mapping[MachineJob, ResourceGrant],
        rules: SharingRules,
    ) -> Iterator[JobIdles]:
        """Warn of jobs that hold GPUs or memory for nothing, and end them where the rules say so.
        GPUs count if the job has some, else memory: it is idle while no job of its user computes.
        """
        before, self._idle_since = self._idle_since, {}
        for job, grant in grants.items():
            used = reading.users.get(job.hub.user)
            if used is None or not _is_idle(grant, used):
                continue
            since, warned = before.get(job, (now, 0))
            due = int((now - since) / rules.idle_after) if rules.idle_after is not None else 0
            if 0 == warned < due or (rules.idle_ends and warned < 2 <= due):
                ends = rules.idle_ends and due >= 2
                yield JobIdles(job, since, ends, memory=not grant.gpus)
            self._idle_since[job] = since, max(warned, due)


def _is_idle(grant: ResourceGrant, used: UserUsed) -> bool:
    if grant.gpus:
        return used.busy_gpus.isdisjoint(grant.gpus)
    return bool(grant.demand.memory_bytes) and used.cores < _IDLE_CORES
