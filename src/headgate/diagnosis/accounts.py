"""Where the elapsed time of each job of a run went."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from headgate.diagnosis.account import Account
from headgate.diagnosis.at_once import Crowd, during, span
from headgate.diagnosis.fairness import AloneRate
from headgate.diagnosis.granted import Power
from headgate.diagnosis.grid import Grid
from headgate.diagnosis.job_account import account_of_job, unread_account
from headgate.diagnosis.own_steps import Part
from headgate.diagnosis.sequencing import SoloTime, in_order
from headgate.recorded.jobs import RecordedJob, RecordedNode

_MOST_BUCKETS, _LEAST_BUCKETS = 500_000, 500
"""Most bucket comparisons over all pairs of tasks, and the least number of buckets of a run. Longer
runs have buckets of several seconds.
"""
_UNREAD_SECONDS = 2.0
"""A shorter job has fewer than two readings."""
_MOST_OF_ONE_GRID = 32
"""With more tasks in a run, each job has a grid of its own."""


def accounts(
    jobs: Sequence[RecordedJob],
    nodes: Sequence[RecordedNode],
    seconds: float,
    since: float = 0.0,
    alone: Mapping[str, AloneRate] = {},
    only: Collection[str] | None = None,
) -> tuple[Account, ...]:
    """The account of each job of a run that has taken `seconds`.

    Args:
        jobs: The jobs, recorded from `since` on.
        nodes: The nodes, recorded from `since` on.
        seconds: Elapsed seconds of the run.
        since: Second of the run at which the accounts begin.
        alone: Speed of jobs in other runs alone.
        only: Names of the jobs that get an account; None: all.
    """
    by_name = {node.name: node for node in nodes}
    if sum(len(job.tasks) for job in jobs) <= _MOST_OF_ONE_GRID:
        grid = _grid(jobs, by_name, since, seconds)

        def account_of(job: RecordedJob, like: Power | None = None) -> Account:
            # a job that never ran is no neighbour, not even of itself
            others = [other for other in jobs if other is not job] if job.tasks else jobs
            return account_of_job(
                job, others, grid, seconds, None if like is not None else alone.get(job.name), like
            )

    else:
        crowd = Crowd.of(jobs)
        beside = dict(zip((job.name for job in jobs), crowd.beside()))

        def account_of(job: RecordedJob, like: Power | None = None) -> Account:
            alone_rate = None if like is not None else alone.get(job.name)
            return _of_many(job, beside[job.name], crowd, by_name, seconds, alone_rate, like)

    chosen = [job for job in jobs if only is None or job.name in only]
    first = [account_of(job) for job in chosen]
    powers = _powers(first)
    known = [
        account_of(account.record, like)
        if (like := _power_of_like_jobs(account, powers)) is not None
        else account
        for account in first
    ]
    solo_times = {account.job: _solo_time(account) for account in known}
    groups = _slowed_each_other(known)
    orders = {
        id(group): in_order(group & solo_times.keys(), solo_times) for group in groups.values()
    }
    return tuple(
        replace(
            account,
            around=replace(
                account.around,
                solo_times=solo_times,
                together=orders.get(id(groups.get(account.job)), ()),
            ),
        )
        for account in known
    )


def _grid(
    jobs: Sequence[RecordedJob], nodes: Mapping[str, RecordedNode], since: float, until: float
) -> Grid:
    tasks = sum(len(job.tasks) for job in jobs)
    most = max(_MOST_BUCKETS // max(tasks, 10) ** 2, _LEAST_BUCKETS)
    edges = np.linspace(
        since, max(until, since + 1e-3), min(max(math.ceil(until - since), 1), most) + 1
    )
    return Grid(jobs, nodes, edges)


def _of_many(
    job: RecordedJob,
    beside: Sequence[RecordedJob],
    crowd: Crowd,
    nodes: Mapping[str, RecordedNode],
    seconds: float,
    alone_rate: AloneRate | None,
    like: Power | None,
) -> Account:
    """The account of one of very many jobs, from the busiest of its neighbours and the time that it
    ran. The cost of all accounts then grows with the jobs, not with their pairs. A job with fewer
    than two readings gets none.
    """
    start, end = span(job)
    if end - start < _UNREAD_SECONDS:
        waited = start - job.submitted if end > start else None
        return unread_account(
            job, max(seconds, job.submitted) if job.ended is None else job.ended, waited
        )
    others = crowd.rest([job, *beside], start, end)
    grid = _grid([job, *beside, others], during(nodes, start, end), start, end)
    return account_of_job(job, beside, grid, seconds, alone_rate, like)


def _solo_time(account: Account) -> SoloTime:
    by_others: Sequence[Part] = ("waiting", "neighbours", "hypervisor")
    alone = account.elapsed - sum(account.parts[part].seconds for part in by_others)
    job = account.record
    return SoloTime(max(alone, 0.0), account.elapsed, job.state == "done", job.ended is None)


def _slowed_each_other(accounts: Sequence[Account]) -> Mapping[str, set[str]]:
    """For each job with a mutual slowdown, all jobs connected with it."""
    groups: dict[str, set[str]] = {}
    for account in accounts:
        for culprit in account.culprits:
            union = groups.get(account.job, {account.job}) | groups.get(culprit, {culprit})
            groups.update(dict.fromkeys(union, union))
    return groups


def _powers(known: Sequence[Account]) -> Mapping[str, Power]:
    """Known thread scaling by script."""
    powers: dict[str, Power] = {}
    for account in known:
        script = account.record.spec.script
        grant = account.around.grant
        if script is not None and grant is not None and grant.power is not None:
            powers.setdefault(script, grant.power)
    return powers


def _power_of_like_jobs(account: Account, powers: Mapping[str, Power]) -> Power | None:
    """Thread scaling of another job with the same script, if the job has none of its own."""
    grant = account.around.grant
    if grant is None or grant.power is not None:
        return None
    return powers.get(account.record.spec.script or "")
