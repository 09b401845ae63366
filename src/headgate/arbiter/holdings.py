"""What the jobs of users hold of a machine, and whether that is within what they may have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headgate.arbiter.records import JobDemand, ResourceGrant
from headgate.model.cluster import Node
from headgate.model.sharing import Amounts, UserShare

_NOTHING = Amounts()


@dataclass(frozen=True, slots=True)
class Holding:
    """What the jobs of a user hold."""

    cores: float = 0.0
    memory_bytes: int = 0
    gpus: float = 0.0
    jobs: int = 0

    def plus(self, job: JobDemand) -> Holding:
        """The same with a further job."""
        return Holding(
            self.cores + job.cores,
            self.memory_bytes + job.all_memory_bytes,
            self.gpus + job.all_gpus,
            self.jobs + 1,
        )

    def minus(self, job: JobDemand) -> Holding:
        """The same without a job that it includes."""
        return Holding(
            self.cores - job.cores,
            self.memory_bytes - job.all_memory_bytes,
            self.gpus - job.all_gpus,
            self.jobs - 1,
        )

    def part(self, node: Node) -> float:
        """The part of a machine that it is: that of its dominant resource."""
        parts = [self.cores / node.cores, self.memory_bytes / node.memory_bytes]
        if node.gpus:
            parts.append(self.gpus / len(node.gpus))
        return max(parts)


def holdings(grants: Iterable[ResourceGrant]) -> dict[str, Holding]:
    """What each user's jobs hold."""
    return sums((grant.job.hub.user, grant.demand) for grant in grants)


def sums(demands: Iterable[tuple[str, JobDemand]]) -> dict[str, Holding]:
    """What each user has, from users and what is theirs."""
    has: dict[str, Holding] = {}
    for user, demand in demands:
        has[user] = has.get(user, Holding()).plus(demand)
    return has


def is_guaranteed(share: UserShare, held: Holding, job: JobDemand) -> bool:
    """Whether a further job is within what its user gets before others do."""
    if share.guaranteed == _NOTHING:
        return False
    after, guaranteed = held.plus(job), share.guaranteed
    asked = (
        (guaranteed.memory_bytes, job.all_memory_bytes, after.memory_bytes),
        (guaranteed.gpus, job.all_gpus, after.gpus),
        (guaranteed.jobs, 1, after.jobs),
    )
    stated = [(least, total) for least, needs, total in asked if least is not None and needs]
    return bool(stated) and all(total <= least for least, total in stated)


def exceeds(share: UserShare, before: Holding, job: JobDemand) -> bool:
    """Whether a user would have more than the largest part with a further job."""
    largest = share.largest
    if largest == _NOTHING:
        return False
    held = before.plus(job)
    amounts = (
        (largest.memory_bytes, held.memory_bytes),
        (largest.gpus, held.gpus),
        (largest.jobs, held.jobs),
    )
    return any(most is not None and total > most for most, total in amounts)
