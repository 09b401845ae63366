"""Compare how users of one machine fare with the arbiter, without, and with equal slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from headgate.model.cluster import Cluster
from headgate.model.errors import UsageError
from headgate.model.sharing import SharingRules
from headgate.simulation.outcomes import Assumptions, Outcome
from headgate.simulation.results import Figures, figures
from headgate.simulation.simulator import simulate
from headgate.simulation.traces import Trace
from headgate.simulation.user_hubs import Division, UserSharing, users_of

_DIVISIONS = (
    Division.SLICES,
    Division.NONE,
    Division.ARBITER,
    Division.TAKING_BACK,
    Division.TOGETHER,
)
"""In the order in which they are compared; slices are what users are compared with."""


@dataclass(frozen=True, slots=True)
class UserFigures:
    """How a user fares.

    Args:
        user: The user.
        jobs: Number of the user's jobs.
        mean: Mean completion time (s).
        over_slices: The same over that with an equal slice of the machine.
    """

    user: str
    jobs: int
    mean: float
    over_slices: float


@dataclass(frozen=True, slots=True)
class DivisionFigures:
    """How the users of a machine fare with a division.

    Args:
        division: How they share it.
        figures: Figures of all jobs.
        users: Those of each user with a job that ended.
        warnings: Warnings of the controllers.
    """

    division: Division
    figures: Figures
    users: tuple[UserFigures, ...]
    warnings: tuple[str, ...]

    @property
    def worst(self) -> UserFigures:
        """The user who loses most against an equal slice."""
        return max(self.users, key=lambda user: user.over_slices)


def compare(
    trace: Trace,
    machine: Cluster,
    policy: str,
    assumptions: Assumptions,
    rules: SharingRules,
    watcher: Callable[[int, float], None] | None = None,
) -> list[DivisionFigures]:
    """Simulate the users of a trace on one machine, with each division.

    Args:
        trace: Jobs with their users.
        machine: The machine: a cluster of one node.
        policy: Name of the policy that each user's hub follows.
        assumptions: Assumptions where the trace says nothing.
        rules: The administrator's rules.
        watcher: As of `simulate`.

    Raises:
        UsageError: The trace has no users or only one, or there are several nodes.
    """
    users = users_of(trace)
    if len(users) < 2 or not all(users):
        raise UsageError(
            f"found {'jobs without a user' if '' in users else 'one user'} in {trace.name}; "
            "expected a column `user` that names at least two"
        )
    if len(machine.nodes) != 1:
        raise UsageError(
            f"found {len(machine.nodes)} nodes; users share one machine: name a cluster of one node"
        )
    results: list[DivisionFigures] = []
    alone: dict[str, float] = {}
    for division in _DIVISIONS:
        outcome = simulate(
            trace,
            machine,
            policy,
            assumptions,
            watcher,
            UserSharing(division, rules),
        )
        means = _means(outcome)
        alone = alone or {user: mean for user, (_, mean) in means.items()}
        of_users = tuple(
            UserFigures(user, jobs, mean, mean / alone[user])
            for user, (jobs, mean) in means.items()
            if user in alone
        )
        warnings = tuple(dict.fromkeys(outcome.warnings))
        results.append(DivisionFigures(division, figures(outcome), of_users, warnings))
    return results


def _means(outcome: Outcome) -> dict[str, tuple[int, float]]:
    """Jobs that ended of each user, and their mean completion time."""
    times: dict[str, list[float]] = {}
    for job in outcome.jobs:
        if job.ended is not None:
            times.setdefault(job.job.user, []).append(job.ended - job.job.submitted)
    return {user: (len(own), fmean(own)) for user, own in sorted(times.items())}
