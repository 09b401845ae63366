"""Certain and possible losses of a job to neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from headgate.diagnosis.account import Account
from headgate.diagnosis.attribution import (
    ITSELF,
    LEAST_PART,
    LEAST_SECONDS,
    NODE,
    OTHERS,
    REST,
    LostTime,
    Resource,
    is_other_user,
    sum_of,
)
from headgate.diagnosis.findings import LEAST_SECONDS_TOLD, Finding, FindingKind, NeighbourFacts
from headgate.diagnosis.granted import ThreadGrant
from headgate.diagnosis.remedies import (
    AloneFacts,
    CoresFacts,
    ProgramFacts,
    Remedy,
    RemedyKind,
    RunFacts,
)
from headgate.diagnosis.sequencing import in_order, one_after_the_other
from headgate.model.shares import slice_of
from headgate.recorded.jobs import CoresSetting
from headgate.sampling.outside_programs import OutsideProgram, neighbour_name
from headgate.sampling.process_use import INIT

_WORTH_A_WORD = 0.1
"""Fraction of a neighbour's cost from which on a resource is named."""
_KINDS: Mapping[Resource, FindingKind] = {
    "cores": FindingKind.NEIGHBOUR_CORES,
    "memory": FindingKind.NEIGHBOUR_MEMORY,
    "disk": FindingKind.NEIGHBOUR_DISK,
    "network": FindingKind.NEIGHBOUR_NETWORK,
    "gpu": FindingKind.NEIGHBOUR_GPU,
}


def neighbours(account: Account) -> Iterator[Finding]:
    """A finding about all certain losses to neighbours. It names the worst neighbour and its cost
    through all resources.
    """
    sure = [loss for loss in account.losses if loss.to not in (ITSELF, NODE) and loss.sure]
    if not sure:
        return
    by_neighbour: dict[str, list[LostTime]] = {}
    for loss in sure:
        by_neighbour.setdefault(loss.to, []).append(loss)
    seconds = {
        to: sum_of([loss.lost for loss in losses], account.elapsed).seconds
        for to, losses in by_neighbour.items()
    }
    culprit = max(seconds, key=lambda to: seconds[to])
    cost, lost = sum_of([loss.lost for loss in sure], account.elapsed), seconds[culprit]
    ways = sorted(by_neighbour[culprit], key=lambda loss: -loss.lost.seconds)
    ran = account.elapsed - account.parts["waiting"].seconds
    outside = culprit == OTHERS
    programs = programs_outside(account, ways[0].resource) if outside else ()
    facts = NeighbourFacts(
        lost=lost,
        slowed=lost / ran if ran > 0.0 else None,
        through=tuple(loss.resource for loss in ways if loss.lost.seconds >= _WORTH_A_WORD * lost),
        others=tuple(to for to in seconds if to != culprit),
        runs=account.around.meanwhile if outside else (),
        programs=programs,
    )
    grant, order = account.around.grant, _order(culprit, account)
    least = max(_WORTH_A_WORD * cost.seconds, LEAST_SECONDS)
    yield Finding(
        kind=_KINDS[ways[0].resource],
        cost=cost,
        resource=ways[0].resource,
        culprit=culprit,
        facts=facts,
        remedy=_instead(ways[0], order, account),
        notes=(grant,) if grant is not None and grant.lost.seconds >= least else (),
        order=order,
    )


def _order(culprit: str, account: Account) -> tuple[str, ...]:
    if culprit in (OTHERS, REST) or is_other_user(culprit):
        return ()
    return account.around.together or in_order((account.job, culprit), account.around.solo_times)


def _instead(worst: LostTime, order: Sequence[str], account: Account) -> Remedy:
    """A remedy against neighbours. On a GPU, a victim with a share of its own can first get a
    greater one.
    """
    if worst.to == REST:
        return Remedy(kind=RemedyKind.RUN_FEWER)
    if is_other_user(worst.to):
        return _of_other_user(worst.to, account)
    if worst.to == OTHERS:
        remedy = _against_programs(account, worst)
        runs = account.around.meanwhile
        if not runs:
            return remedy
        return Remedy(kind=RemedyKind.RUN_APART, facts=RunFacts(runs[0]), otherwise=remedy)
    remedy = one_after_the_other(order, account.around.solo_times, account.around.after)
    share = account.record.spec.share
    if worst.resource != "gpu" or share is None or slice_of(share) >= 1.0:
        return remedy
    return Remedy(
        kind=RemedyKind.RAISE_SHARE,
        settings={"share": None},
        facts=CoresFacts(CoresSetting("share", str(share))),
        otherwise=remedy,
    )


def _against_programs(account: Account, worst: LostTime) -> Remedy:
    """A remedy against programs outside Headgate; none that their user cannot carry out or that
    would not help.
    """
    # ending process 1 would end the machine or container
    programs = programs_outside(account, worst.resource)
    if not programs or programs[0].pid == INIT:
        return Remedy(kind=RemedyKind.END_OTHER_PROGRAMS)
    most = programs[0]
    if not most.is_mine:
        return Remedy(kind=RemedyKind.ASK_OWNER, facts=ProgramFacts(most))
    if most.is_hub:
        return Remedy(kind=RemedyKind.USE_ONE_HUB, facts=ProgramFacts(most))
    renice = worst.resource == "cores" and most.may_renice
    return Remedy(kind=RemedyKind.END_PROGRAM, facts=ProgramFacts(most, renice))


def programs_outside(account: Account, resource: Resource) -> tuple[OutsideProgram, ...]:
    """The programs outside Headgate with at least a tenth of the largest one's use of a resource,
    largest first; none where nothing tells which of them used it.
    """
    use = _USE.get(resource, _core_seconds)
    programs = [program for program in account.around.programs if program.job is None]
    programs.sort(key=use, reverse=True)
    least = max(_WORTH_A_WORD * use(programs[0]) if programs else 0.0, _LEAST_USE)
    return tuple(program for program in programs if use(program) >= least)


def _core_seconds(program: OutsideProgram) -> float:
    return program.seconds


_USE: Mapping[Resource, Callable[[OutsideProgram], float]] = {
    "disk": lambda program: program.disk_bytes,
    "gpu": lambda program: program.gpu_seconds,
    "network": lambda program: 0.0,
}
"""What programs used of a resource; cores otherwise, also for caches and memory bandwidth."""
_LEAST_USE = 1e-9


def _of_other_user(culprit: str, account: Account) -> Remedy:
    for program in account.around.programs:
        if program.job is not None and culprit == neighbour_name(program):
            return Remedy(kind=RemedyKind.ASK_OWNER, facts=ProgramFacts(program))
    return Remedy(kind=RemedyKind.END_OTHER_PROGRAMS)


def doubtful(account: Account) -> LostTime | None:
    """A possible loss to a neighbour that is worth a verdict. A neighbour that may cost nothing is
    not blamed.
    """
    losses = [loss for loss in account.losses if loss.to not in (ITSELF, NODE) and not loss.sure]
    worst = max(losses, key=may_be, default=None)
    least = max(LEAST_PART * account.elapsed, LEAST_SECONDS_TOLD)
    return worst if worst is not None and may_be(worst) >= least else None


def may_be(loss: LostTime) -> float:
    return loss.lost.high if loss.perhaps else loss.lost.seconds


def costly(account: Account) -> ThreadGrant | None:
    """The thread grant for the sake of other jobs, if the benefit of more threads is unknown and
    may be large.
    """
    least = max(LEAST_PART * account.elapsed, LEAST_SECONDS_TOLD)
    grant = account.around.grant
    return grant if grant is not None and grant.may_have_lost >= least else None


def alone_once(account: Account) -> Remedy:
    """A remedy that shows the benefit of more threads."""
    grant = account.around.grant
    is_fixed = grant is not None and grant.is_fixed
    return Remedy(kind=RemedyKind.RUN_ALONE, facts=AloneFacts(threads=True, fixed=is_fixed))


def alone_first(account: Account) -> Remedy:
    """A remedy that shows the cost of neighbours."""
    facts = AloneFacts(threads=False, provable=account.around.provable)
    return Remedy(kind=RemedyKind.RUN_ALONE, facts=facts)
