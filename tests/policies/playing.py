"""Plays what happens to a policy, second by second, and keeps what every job has been granted."""

from __future__ import annotations

import math
from collections.abc import Iterable

from headgate import policies
from headgate.controller.safeguards import of_policy
from headgate.model.identifiers import JobId
from headgate.model.reason_text import in_words
from headgate.model.shares import Share
from headgate.policies import Arrived, Change, Left, Predicted, Reported, Used
from headgate.testing.policy import TrackedPolicy


class Play:
    """A policy, and the jobs that it was told of.

    Args:
        name: Of the policy, with its options.
        cores: Of the machine.
    """

    def __init__(self, name: str, cores: float = 2.0) -> None:
        self.policy = policies.make(name)
        self.tracked = TrackedPolicy(self.policy)
        self.cores = cores
        self.shares: dict[str, Share] = {}
        self.reasons: dict[str, str] = {}
        self.changed: dict[str, list[float]] = {}
        self.wake_at: float | None = None

    def at(self, now: float, *changes: Change) -> dict[str, Share]:
        """What changes when that happens."""
        for change in changes:
            if isinstance(change, Arrived):
                self.shares[change.job], self.changed[change.job] = Share(), []
            elif isinstance(change, Left):
                del self.shares[change.job]
        decision = self.tracked.decide(now, self.cores, changes)
        self.wake_at = decision.wake_at
        for job, (share, reason) in decision.shares.items():
            self.shares[job] = self.shares[job].merged(share)
            self.reasons[job] = in_words(of_policy(reason))
            self.changed[job].append(now)
        self.reasons |= {
            str(job): in_words(of_policy(reason)) for job, reason in decision.reasons.items()
        }
        return {job: share for job, (share, _) in decision.shares.items()}

    def wake_until(self, now: float) -> None:
        """Wake it whenever it asked to be, before a time."""
        while self.wake_at is not None and self.wake_at < now:
            self.at(self.wake_at)

    def parts(self) -> dict[str, float]:
        """The part of the CPU that each job's weight comes to."""
        weights = {job: share.cpu_weight or 0.0 for job, share in self.shares.items()}
        return {job: weight / sum(weights.values()) for job, weight in weights.items()}

    def over(self, one: str, other: str) -> float:
        """How many times the weight of another a job has."""
        parts = self.parts()
        return parts[one] / parts[other]

    def most_changes_in_a_minute(self) -> int:
        return max(
            (
                sum(start <= at < start + 60 for at in times)
                for times in self.changed.values()
                for start in times
            ),
            default=0,
        )


def arrivals(*jobs: str) -> Iterable[Arrived]:
    return [Arrived(JobId(job), 1.0) for job in jobs]


def loss(job: str, value: float, step: int | None = None) -> Reported:
    return Reported(JobId(job), value, step, None, None, 1)


def used(job: str, cores: float, memory: float = 1e9, disk: float = 0.0) -> Used:
    return Used(JobId(job), cores, memory, disk)


def predicted(
    job: str, work: float, asymptote: float | None = None, cores: float | None = math.inf
) -> Predicted:
    return Predicted(JobId(job), work, work / 2, work * 2, asymptote, cores=cores)
