"""Causes of a job's lost time, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from headgate.diagnosis.account import Account
from headgate.diagnosis.attribution import (
    LEAST_PART,
    NODE,
    NONE,
    Resource,
    TimeEstimate,
    exact,
    less,
)
from headgate.diagnosis.findings import (
    OF_COMMUNICATION,
    OF_INPUT,
    BesidesFacts,
    CapFacts,
    DiskFacts,
    Finding,
    FindingKind,
    LongStart,
    MemoryFacts,
    WaitedFacts,
)
from headgate.diagnosis.neighbours import neighbours
from headgate.diagnosis.own_steps import Part
from headgate.diagnosis.remedies import (
    CoresFacts,
    ReadersFacts,
    Remedy,
    RemedyKind,
    ResourceFacts,
    StacksFacts,
    TasksFacts,
)
from headgate.model.jobs import MOST_PRIORITY
from headgate.recorded.jobs import CoresSetting

_LEAST_STARTING = 0.2
"""Every job has to start: only a start of at least this fraction of the time is worth a verdict."""
_EXCHANGING = (FindingKind.COMMUNICATION, FindingKind.NETWORK, FindingKind.SERVERS)
_BEHIND: Mapping[FindingKind, tuple[Resource, ...]] = {
    FindingKind.OWN_CAP: ("cores",),
    FindingKind.INPUT: ("loader", "disk"),
    FindingKind.DISK: ("disk",),
    FindingKind.COMMUNICATION: ("network", "servers"),
    FindingKind.NETWORK: ("network", "servers"),
    FindingKind.LOADER: ("loader",),
    FindingKind.DECODING: ("cores",),
    FindingKind.SERVERS: ("servers", "network"),
}
"""Resources whose increase may help against a cause."""
_PREPARE_DATA = Remedy(kind=RemedyKind.PREPARE_DATA)


def given(cause: Finding, account: Account) -> Finding:
    """A cause as the verdict, with the benefit of twice the resource."""
    start, notes = account.parts["starting"].seconds, cause.notes
    if cause.kind is not FindingKind.STARTING and start > max(
        cause.cost.seconds, account.elapsed / 2.0
    ):
        notes += (LongStart(start),)
    return replace(cause, remedy=_next(cause, account), notes=notes)


def causes_of(account: Account) -> Iterator[Finding]:
    yield from neighbours(account)
    yield from account.around.own_causes
    parts = account.parts
    yield Finding(
        kind=FindingKind.OWN_CAP,
        cost=parts["cap"],
        resource="cores",
        facts=CapFacts(account.around.cores_setting, _with_fewer(account)),
        remedy=Remedy(
            kind=RemedyKind.ADD_CORES,
            settings=_without(account.around.cores_setting),
            facts=CoresFacts(account.around.cores_setting),
        ),
    )
    yield Finding(
        kind=FindingKind.OWN_TASKS,
        cost=parts["itself"],
        resource="cores",
        remedy=_fewer(account, account.around.fewer_workers) or _more_cores(account),
    )
    yield Finding(
        kind=FindingKind.HYPERVISOR,
        cost=parts["hypervisor"],
        resource="cores",
        remedy=Remedy(kind=RemedyKind.ASK_FOR_CORES),
    )
    yield from _waits(account)
    yield Finding(
        kind=FindingKind.CHECKPOINTS,
        cost=parts["checkpoints"],
        remedy=Remedy(kind=RemedyKind.SAVE_LESS),
    )
    yield Finding(
        kind=FindingKind.FAULTS, cost=parts["faults"], remedy=Remedy(kind=RemedyKind.SEE_LOGS)
    )
    yield from _beginning(account)


def _beginning(account: Account) -> Iterator[Finding]:
    """Findings about waiting to start, and starting."""
    present = account.record.spec.priority
    priority = min(2.0 * max(present, 1.0), MOST_PRIORITY)
    yield Finding(
        kind=FindingKind.WAITING,
        cost=exact(max(account.parts["waiting"].seconds - account.asked_to_wait, 0.0)),
        facts=WaitedFacts(account.around.waited_for, account.around.overtaken_by),
        remedy=Remedy(
            kind=RemedyKind.SEE_STATUS,
            settings={"priority": priority} if priority > present else {},
        ),
    )
    solo = account.around.solo_times.get(account.job)
    goes_on = solo is not None and solo.goes_on  # its total length is unknown
    yield Finding(
        kind=FindingKind.STARTING,
        cost=account.parts["starting"],
        remedy=_PREPARE_DATA if goes_on else Remedy(kind=RemedyKind.LONGER_RUNS),
        least=_LEAST_STARTING,
    )


def _with_fewer(account: Account) -> float | None:
    """Seconds that its own core limit may have cost beyond throttling, through fewer threads."""
    cap = account.parts["cap"]
    least = max(LEAST_PART * account.elapsed, cap.seconds / 4.0)
    return None if cap.high - cap.seconds < least else cap.high


def _next(cause: Finding, account: Account) -> Remedy:
    """The remedy for a cause, with its benefit if known."""
    bought, remedy = _bought(cause.kind, account), cause.remedy
    times = account.record.single_worker_speedup
    if times is not None and cause.kind in _EXCHANGING:
        return Remedy(
            kind=RemedyKind.SINGLE_WORKER,
            settings={"plan.strategy": "single"},
            speedup=times,
            otherwise=bought or remedy,
        )
    if bought is None:
        return remedy
    if cause.kind in (FindingKind.INPUT, FindingKind.LOADER):
        return replace(bought, otherwise=_PREPARE_DATA)
    is_role = bool(account.record.spec.roles)
    if cause.kind is FindingKind.SERVERS and account.record.servers == 1 and not is_role:
        return bought  # one more makes twice as many
    return replace(bought, otherwise=remedy)


def _bought(kind: FindingKind, account: Account) -> Remedy | None:
    """The benefit of twice the resource behind a cause; None: unknown or too small."""
    speedups = account.around.speedups
    twice = {
        resource: speedups.figures.get(resource, {}).get("x2") for resource in _BEHIND.get(kind, ())
    }
    sure = {
        resource: speedup.speedup
        for resource, speedup in twice.items()
        if speedup is not None and speedup.low > 1.0
    }
    if not sure:
        return None
    resource = max(sure, key=lambda one: sure[one])
    now: int | None = None
    if resource == "loader":
        now = speedups.loader_workers
    elif resource == "servers" and not account.record.spec.roles:
        now = account.record.servers or None
    return Remedy(
        kind=RemedyKind.ADD_RESOURCE,
        settings={"plan.servers": 2 * now} if resource == "servers" and now else {},
        facts=ResourceFacts(resource, now),
        speedup=sure[resource],
    )


def _waits(account: Account) -> Iterator[Finding]:
    """Findings about waiting: devices, memory, input and communication, unless a cause within the
    job accounts for them.
    """
    kinds = {cause.kind for cause in account.around.own_causes}
    of_input, of_communication = kinds & OF_INPUT, kinds & OF_COMMUNICATION
    disk, waits = _divided(account, "input", "disk")
    nic, exposed = _divided(account, "communication", "network")
    yield from _devices(account, disk, NONE if of_communication else nic)
    if not of_input:
        readers = account.around.speedups.loader_workers
        add_workers = Remedy(
            kind=RemedyKind.ADD_LOADER_WORKERS, facts=ReadersFacts(None), otherwise=_PREPARE_DATA
        )
        stacks = Remedy(kind=RemedyKind.SEE_STACKS, facts=StacksFacts(readers=readers))
        yield Finding(
            kind=FindingKind.INPUT,
            cost=waits,
            resource="loader",
            facts=BesidesFacts(_besides(account, disk)),
            remedy=stacks if readers else add_workers,
        )
    if not of_communication:
        yield Finding(
            kind=FindingKind.COMMUNICATION,
            cost=exposed,
            facts=BesidesFacts(_besides(account, nic)),
            remedy=_other_plans(account),
        )


def _devices(account: Account, disk: TimeEstimate, nic: TimeEstimate) -> Iterator[Finding]:
    """Findings about the cost of its own traffic on disk and NIC, and of its own memory limit."""
    unsure = account.disk_unsure > disk.seconds / 2
    yield Finding(
        kind=FindingKind.DISK,
        cost=disk,
        resource="disk",
        facts=DiskFacts(unsure, account.disk_mover),
        remedy=Remedy(kind=RemedyKind.CALIBRATE if unsure else RemedyKind.CACHE_DATA),
    )
    yield Finding(
        kind=FindingKind.NETWORK, cost=nic, resource="network", remedy=_other_plans(account)
    )
    limit = account.record.limit("memory_bytes")
    yield Finding(
        kind=FindingKind.OWN_MEMORY,
        cost=account.parts["memory"],
        resource="memory",
        facts=MemoryFacts(limit),
        remedy=Remedy(
            kind=RemedyKind.RAISE_MEMORY, settings={"limits.memory": 2 * limit} if limit else {}
        ),
    )


def _other_plans(account: Account) -> Remedy:
    """A remedy: find a plan with less communication."""
    if account.record.can_be_planned:
        return Remedy(kind=RemedyKind.SEE_PLANS)
    half = max(account.record.workers // 2, account.record.least_workers)
    fewer = _fewer(account, half)
    if fewer is None:
        return Remedy(kind=RemedyKind.SEE_STACKS, facts=StacksFacts())
    return replace(fewer, otherwise=Remedy(kind=RemedyKind.COMPARE_RUNS))


def _fewer(account: Account, count: int) -> Remedy | None:
    """A remedy: `count` workers, or fewer servers, or none. None if it has no more of these, or has
    roles, which no plan changes.
    """
    job = account.record
    if job.spec.roles:
        return None
    if count < job.workers:
        return Remedy(kind=RemedyKind.REDUCE_WORKERS, settings={"plan.workers": count})
    if job.servers and job.can_run_alone:
        return Remedy(kind=RemedyKind.SINGLE_WORKER, settings={"plan.strategy": "single"})
    if job.servers > 1:
        return Remedy(kind=RemedyKind.REDUCE_SERVERS, settings={"plan.servers": job.servers // 2})
    return None


def _besides(account: Account, lost: TimeEstimate) -> float | None:
    """The rest of a part of the account with a cause of its own, if notable."""
    return lost.seconds if lost.seconds >= LEAST_PART * account.elapsed else None


def _without(setting: CoresSetting | None) -> Mapping[str, object]:
    return {} if setting is None else {setting.field: None}


def _more_cores(account: Account) -> Remedy:
    setting = account.around.cores_setting
    is_share = setting is not None and setting.field == "share"
    return Remedy(
        kind=RemedyKind.ADD_CORES_OR_REMOVE_TASKS,
        settings=_without(setting) if is_share else {},
        facts=TasksFacts(
            setting if is_share else None,
            account.around.cores,
            len(account.record.tasks),
            bool(account.record.spec.roles),
        ),
    )


def _divided(account: Account, part: Part, resource: Resource) -> tuple[TimeEstimate, TimeEstimate]:
    """Split a part into the time lost through a device without a culprit, and the rest. Neighbours'
    losses are separate from both.
    """
    through = next(
        (loss.lost for loss in account.losses if (loss.to, loss.resource) == (NODE, resource)), NONE
    )
    return through, less(account.parts[part], through.seconds)
