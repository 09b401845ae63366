"""Choose the most important cause for a job: its verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from headgate.diagnosis.account import MOST_UNEXPLAINED, Account
from headgate.diagnosis.attribution import LEAST_PART, LEAST_SECONDS, NONE, TimeEstimate
from headgate.diagnosis.causes import causes_of, given
from headgate.diagnosis.convergence import Plateau
from headgate.diagnosis.findings import (
    LEAST_SECONDS_TOLD,
    CreepFacts,
    DoubtfulLoss,
    FailureFacts,
    Finding,
    FindingKind,
    HealthyFacts,
    MissingKind,
    PlateauFacts,
    SlowerFacts,
    ThreadFacts,
    UnknownFacts,
    WaitedFacts,
)
from headgate.diagnosis.neighbours import alone_first, alone_once, costly, doubtful, may_be
from headgate.diagnosis.own_causes import decode_once, reduced_threads
from headgate.diagnosis.own_steps import Part
from headgate.diagnosis.remedies import Remedy, RemedyKind, RunFacts, StacksFacts
from headgate.model.job_states import FAULTS

_SOON_SECONDS = 3600.0
"""If memory is full this soon, that comes before all that only costs time."""
_UNTOLD = 0.1
"""Fraction of a job's time: with more unexplained, it is not called healthy."""
_MANY_THREADS = 0.8
"""Mean number of waiting threads beyond what the cores could run from which on there are too
many.
"""


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
        notes += tuple(note for note in _on_gpus(account) if note.most > finding.cost.low)
        if grant is not None and grant.may_have_lost > finding.cost.high:
            notes += (grant,)
    elif (
        finding.kind is FindingKind.HEALTHY
        and account.around.grant is not None
        and account.around.grant.source is not None
    ):
        notes += (account.around.grant,)
    return replace(finding, notes=notes)


def _on_gpus(account: Account) -> Iterator[DoubtfulLoss]:
    """What neighbours on its GPUs may have cost, where nothing tells."""
    for missing in account.missing_readings:
        if missing.kind in (MissingKind.GPU_ALONE, MissingKind.GPU_OF_SEVERAL_TASKS):
            yield DoubtfulLoss(missing.culprit, "gpu", missing.seconds)


def findings(account: Account) -> tuple[Finding, ...]:
    """All findings about a job: its verdict, then the other causes by cost."""
    first, causes = verdict(account), [*causes_of(account)]
    if (plateau := account.around.plateau) is not None:
        causes.append(_learned(account, plateau))
    others = [
        given(cause, account)
        for cause in causes
        if cause.kind is not first.kind and cause.cost.seconds >= LEAST_SECONDS
    ]
    return (first, *sorted(others, key=lambda cause: -cause.cost.seconds), *besides(account, first))


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
    causes = list(causes_of(account))
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
        return given(worst, account)
    if learned is not None:
        return learned
    if account.around.excess_threads >= _MANY_THREADS:
        return _too_many_threads(account)
    if large:
        return given(large[0], account)
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
