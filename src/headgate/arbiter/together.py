"""One policy for the jobs of all users, where the rules have `users: together`."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.arbiter.records import MachineJob, ResourceGrant
from headgate.model.identifiers import JobId
from headgate.model.shares import WEIGHT_DEFAULT
from headgate.policies.base import Arrived, Change, Left, Policy, Predicted


class OnePolicy:
    """Asks a policy for the weights of all jobs. A user's cgroup gets the sum of those of the
    user's jobs; within it the user's hub divides, by a policy of its own.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._told: dict[MachineJob, ResourceGrant] = {}
        self._weights: dict[MachineJob, float] = {}
        self._wake_at: float | None = None

    def shares(
        self,
        now: float,
        cores: float,
        grants: Mapping[MachineJob, ResourceGrant],
        priorities: Mapping[str, float],
    ) -> dict[str, float]:
        """The shares of users with running jobs.

        Args:
            now: Seconds; never goes back.
            cores: Cores of the machine.
            grants: Running jobs.
            priorities: The shares that the rules give each user; their jobs have this priority.
        """
        changes = self._changes(grants, priorities)
        if changes or (self._wake_at is not None and now >= self._wake_at):
            decision = self._policy.decide(now, cores, changes)
            self._wake_at = decision.wake_at
            jobs = {_id(job): job for job in grants}
            for id, (share, _) in decision.shares.items():
                if id in jobs and share.cpu_weight is not None:
                    self._weights[jobs[id]] = share.cpu_weight
        result = dict.fromkeys((job.hub.user for job in grants), 0.0)
        for job in grants:
            result[job.hub.user] += self._weights.get(job, WEIGHT_DEFAULT)
        return result

    def _changes(
        self, grants: Mapping[MachineJob, ResourceGrant], priorities: Mapping[str, float]
    ) -> list[Change]:
        changes: list[Change] = []
        for job in self._told.keys() - grants.keys():
            changes.append(Left(_id(job)))
            self._weights.pop(job, None)
        for job, grant in grants.items():
            before, left = self._told.get(job), grant.demand.left
            if before is None:
                changes.append(Arrived(_id(job), priorities[job.hub.user]))
            if left is not None and (before is None or before.demand.left != left):
                likely, least, most = (seconds * grant.demand.cores for seconds in left)
                changes.append(Predicted(_id(job), likely, least, most, seconds=left.likely))
        self._told = dict(grants)
        return changes


def _id(job: MachineJob) -> JobId:
    return JobId.of(f"{job.hub.user}:{job.hub.name}", job.id)
