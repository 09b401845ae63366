"""Choose the most important cause for a job: its verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from headgate.diagnosis.accounts import MOST_UNEXPLAINED, Account
from headgate.diagnosis.attribution import (
    LEAST_PART,
    LEAST_SECONDS,
    NODE,
    NONE,
    Resource,
    TimeEstimate,
    exact,
    less,
)
from headgate.diagnosis.convergence import Plateau
from headgate.diagnosis.findings import (
    LEAST_SECONDS_TOLD,
    OF_COMMUNICATION,
    OF_INPUT,
    BesidesFacts,
    CapFacts,
    CreepFacts,
    DiskFacts,
    DoubtfulLoss,
    FailureFacts,
    Finding,
    FindingKind,
    HealthyFacts,
    LongStart,
    MemoryFacts,
    PlateauFacts,
    SlowerFacts,
    ThreadFacts,
    UnknownFacts,
    WaitedFacts,
)
from headgate.diagnosis.neighbours import (
    alone_first,
    alone_once,
    costly,
    doubtful,
    may_be,
    neighbours,
)
from headgate.diagnosis.own_causes import decode_once, reduced_threads
from headgate.diagnosis.own_steps import Part
from headgate.diagnosis.remedies import (
    CoresFacts,
    ReadersFacts,
    Remedy,
    RemedyKind,
    ResourceFacts,
    RunFacts,
    StacksFacts,
    TasksFacts,
)
from headgate.model.job_states import FAULTS
from headgate.model.jobs import MOST_PRIORITY
from headgate.recorded.jobs import CoresSetting

_LEAST_STARTING = 0.2
"""Every job has to start: only a start of at least this fraction of the time is worth a verdict."""
_SOON_SECONDS = 3600.0
"""If memory is full this soon, that comes before all that only costs time."""
_UNTOLD = 0.1
"""Fraction of a job's time: with more unexplained, it is not called healthy."""
_MANY_THREADS = 0.8
"""Mean number of waiting threads beyond what the cores could run from which on there are too
many.
"""
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


def verdict(account: Account) -> Finding:
    """How a job failed, if it did; else the most expensive cause. `healthy`: no cause is large;
    `not-known`: too much is unexplained.
    """
    state, reason = account.record.state, account.record.reason
    if state in FAULTS and reason is not None:
        return Finding(
            kind=FindingKind.FAILED,
            cost=TimeEstimate(0.0, account.elapsed, account.elapsed),
            facts=FailureFacts(state, reason),
            remedy=Remedy(kind=RemedyKind.SEE_LOGS),
        )
    if state == "skipped":
        facts = WaitedFacts(skipped=reason)
        return Finding(kind=FindingKind.WAITING, cost=NONE, facts=facts)
    finding, unsure, grant = _of_its_time(account), doubtful(account), costly(account)
    notes = finding.notes
    if finding.kind.has_cost:
        if unsure is not None and may_be(unsure) > finding.cost.low:
            notes += (DoubtfulLoss(unsure.to, unsure.resource, unsure.lost.high),)
        if grant is not None and grant.may_have_lost > finding.cost.high:
            notes += (grant,)
    elif (
        finding.kind is FindingKind.HEALTHY
        and account.around.grant is not None
        and account.around.grant.source is not None
    ):
        notes += (account.around.grant,)
    return replace(finding, notes=notes)


def findings(account: Account) -> tuple[Finding, ...]:
    """All findings about a job: its verdict, then the other causes by cost."""
    first, causes = verdict(account), [*_causes(account)]
    if (plateau := account.around.plateau) is not None:
        causes.append(_learned(account, plateau))
    others = [
        _given(cause, account)
        for cause in causes
        if cause.kind is not first.kind and cause.cost.seconds >= LEAST_SECONDS
    ]
    return (
        first,
        *sorted(others, key=lambda cause: -cause.cost.seconds),
        *besides(account, first),
    )


def besides(account: Account, first: Finding) -> tuple[Finding, ...]:
    """What is told of a job whatever its verdict `first` is."""
    around = account.around
    kinds = [
        *([_slower(account, around.slower)] if around.slower is not None else []),
        *_creeps(account),
    ]
    return tuple(finding for finding in kinds if finding.kind is not first.kind)


def _of_its_time(account: Account) -> Finding:
    elapsed = account.elapsed
    unexplained = account.parts["unexplained"]
    learned = (
        _learned(account, account.around.plateau) if account.around.plateau is not None else None
    )
    if learned is not None and learned.kind is FindingKind.DIVERGED:
        return learned
    creeps = _creeps(account)
    if creeps and account.record.ended is None and _until_full(creeps[0]) < _SOON_SECONDS:
        return creeps[0]
    causes = list(_causes(account))
    missing = bool(account.missing_readings)
    if missing or (elapsed > 0.0 and unexplained.seconds > MOST_UNEXPLAINED * elapsed):
        worst = max(causes, key=lambda cause: cause.cost.low, default=None)
        least = max(
            LEAST_SECONDS_TOLD, unexplained.seconds, account.may_have_lost, LEAST_PART * elapsed
        )
        if worst is None or (worst.cost.low < least and not _is_mostly_a_wait(worst, account)):
            return _unknown(account, TimeEstimate(0.0, unexplained.low, elapsed))
    large = [cause for cause in causes if _is_large(cause, elapsed)]
    # A start is paid once, what holds steps back as long as the job runs. In a short run the latter
    # may be less than a second.
    held = [cause for cause in large if cause.kind is not FindingKind.STARTING]
    if large and not held:
        held = [
            cause
            for cause in causes
            if cause.kind is not FindingKind.STARTING and cause.cost.low >= LEAST_PART * elapsed
        ]
    worst = max(held, key=lambda cause: cause.cost.seconds, default=None)
    if worst is not None and (learned is None or worst.cost.seconds >= learned.cost.low):
        return _given(worst, account)
    if learned is not None:
        return learned
    if account.around.excess_threads >= _MANY_THREADS:
        return _too_many_threads(account)
    if large:
        return _given(large[0], account)
    if creeps:
        return creeps[0]
    if (doubt := _doubted(account)) is not None:
        return doubt
    slower = account.around.slower
    if slower is not None and not slower.is_explained:
        return _slower(account, slower)
    return _healthy(account, sum(cause.cost.seconds for cause in causes))


def _is_mostly_a_wait(cause: Finding, account: Account) -> bool:
    """Whether the job waited, for a reason, most of its time, however short."""
    reasoned = cause.kind is FindingKind.WAITING and account.around.waited_for is not None
    return reasoned and cause.cost.seconds > account.elapsed / 2.0


def _is_large(cause: Finding, elapsed: float) -> bool:
    if cause.kind is FindingKind.WAITING and cause.cost.seconds > elapsed / 2.0:
        return True  # a job that has hardly begun did no work of its own
    return cause.cost.seconds >= max(cause.least * elapsed, LEAST_SECONDS_TOLD)


def _doubted(account: Account) -> Finding | None:
    """If no cause is large: a possible cause, or that it is unknown."""
    unexplained, elapsed = account.parts["unexplained"], account.elapsed
    if (unsure := doubtful(account)) is not None:
        return Finding(
            kind=FindingKind.NOT_KNOWN,
            cost=TimeEstimate(0.0, 0.0, unsure.lost.high),
            facts=DoubtfulLoss(unsure.to, unsure.resource, unsure.lost.high),
            remedy=alone_first(account),
        )
    if (grant := costly(account)) is not None:
        return Finding(
            kind=FindingKind.NOT_KNOWN,
            cost=TimeEstimate(0.0, 0.0, grant.may_have_lost),
            facts=grant,
            remedy=alone_once(account),
        )
    if (
        unexplained.seconds >= max(_UNTOLD * elapsed, LEAST_SECONDS_TOLD)
        and unexplained.low >= LEAST_PART * elapsed
    ):
        return _unknown(account, TimeEstimate(0.0, unexplained.low, unexplained.high))
    return None


def _healthy(account: Account, lost: float) -> Finding:
    began = not account.asked_to_wait >= account.elapsed > 0.0
    return Finding(
        kind=FindingKind.HEALTHY,
        cost=TimeEstimate(0.0, 0.0, lost if began else 0.0),
        facts=HealthyFacts(
            own=account.parts["compute"].seconds,
            elapsed=account.elapsed - account.asked_to_wait,
            began=began,
            lost=lost >= LEAST_SECONDS_TOLD,
        ),
    )


def _given(cause: Finding, account: Account) -> Finding:
    """A cause as the verdict, with the benefit of twice the resource."""
    start, notes = account.parts["starting"].seconds, cause.notes
    if cause.kind is not FindingKind.STARTING and start > max(
        cause.cost.seconds, account.elapsed / 2.0
    ):
        notes += (LongStart(start),)
    return replace(cause, remedy=_next(cause, account), notes=notes)


def _causes(account: Account) -> Iterator[Finding]:
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
        facts=DiskFacts(unsure),
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


def _too_many_threads(account: Account) -> Finding:
    """A finding about too many threads. Their cost cannot be counted, so this verdict comes only if
    nothing else is large.
    """
    # without the loader's workers, its threads would fit
    decodes = account.around.excess_threads - account.around.helper_cores < _MANY_THREADS
    too_many = reduced_threads(account.around.threads, account.record.told_threads)
    return Finding(
        kind=FindingKind.DECODING if decodes else FindingKind.OWN_THREADS,
        cost=TimeEstimate(0.0, 0.0, account.parts["compute"].seconds / 2),
        resource="cores",
        facts=ThreadFacts(account.around.excess_threads, account.around.helper_cores),
        remedy=decode_once(account.around.cores_setting) if decodes else too_many,
    )


def _learned(account: Account, plateau: Plateau) -> Finding:
    """A finding about a converged loss. A schedule might still help, so half of the time since then
    counts as lost.
    """
    since = max(account.elapsed - plateau.since, 0.0)
    diverged = plateau.kind is FindingKind.DIVERGED
    low = since if diverged else since / 2.0
    rule = account.record.spec.progress
    goal = plateau.loss if rule.metric == "loss" else None
    return Finding(
        kind=plateau.kind,
        cost=TimeEstimate((low + since) / 2.0, low, since),
        facts=PlateauFacts(since, plateau.loss, plateau.step),
        remedy=Remedy(kind=RemedyKind.LOWER_LEARNING_RATE)
        if diverged
        else Remedy(kind=RemedyKind.STOP, settings={"progress.goal": goal}),
    )


def _slower(account: Account, slower: SlowerFacts) -> Finding:
    """A finding about steps that take longer than in earlier runs. Other causes may explain it, so
    its cost includes theirs.
    """
    before: tuple[Part, ...] = ("waiting", "starting", "checkpoints", "evaluation", "faults")
    stepping = account.elapsed - sum(account.parts[part].seconds for part in before)
    seconds, low, high = (
        max(stepping * (1.0 - 1.0 / times), 0.0)
        for times in (slower.times, slower.low, slower.high)
    )
    return Finding(
        kind=FindingKind.SLOWER_THAN_BEFORE,
        cost=TimeEstimate(seconds, low, high),
        facts=slower,
        remedy=Remedy(kind=RemedyKind.COMPARE_EARLIER, facts=RunFacts(slower.runs[0])),
    )


def _creeps(account: Account) -> list[Finding]:
    """Findings about memory that creeps up, what is full first before the others. It costs no time
    until it is full.
    """
    limit = account.record.limit("memory_bytes")
    settings = {"limits.memory": 2 * limit} if limit else {}
    none: dict[str, float] = {}
    kinds = (
        (FindingKind.MEMORY_CREEPS, account.around.creep, settings),
        (FindingKind.GPU_MEMORY_CREEPS, account.around.gpu_creep, none),
    )
    creeps = [
        Finding(
            kind=kind,
            cost=NONE,
            facts=creep,
            remedy=Remedy(kind=RemedyKind.FIND_LEAK, settings=more),
        )
        for kind, creep, more in kinds
        if creep is not None
    ]
    return sorted(creeps, key=_until_full)


def _until_full(creep: Finding) -> float:
    facts: CreepFacts = creep.facts
    return math.inf if facts.seconds_left is None else facts.seconds_left


def _unknown(account: Account, cost: TimeEstimate) -> Finding:
    """A finding that the cause is unknown, with what would tell more."""
    return Finding(
        kind=FindingKind.NOT_KNOWN,
        cost=cost,
        facts=UnknownFacts(
            not account.read, account.missing_readings, account.parts["unexplained"].seconds
        ),
        remedy=_to_know(account),
    )


def _to_know(account: Account) -> Remedy:
    if not account.read:
        return Remedy(kind=RemedyKind.NONE)
    if not np.isfinite(account.record.progress.step).any():
        pattern = account.record.spec.progress.pattern
        return Remedy(kind=RemedyKind.NAME_STEP if pattern else RemedyKind.PRINT_STEPS)
    if account.may_have_lost:
        return alone_first(account)
    if account.missing_readings:
        return Remedy(kind=RemedyKind.TURN_ON_READINGS)
    return Remedy(
        kind=RemedyKind.SEE_STACKS, facts=StacksFacts(libraries=account.record.division is None)
    )
