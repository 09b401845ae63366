"""What neighbours cost a job, in words: what is sure, and what may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headgate.diagnosis.accounts import Account
from headgate.diagnosis.attribution import (
    ITSELF,
    LEAST_PART,
    LEAST_SECONDS,
    NODE,
    OTHERS,
    REST,
    Loss,
    Resource,
    sum_of,
)
from headgate.diagnosis.causes import LEAST_SECONDS_TOLD, Cause, Name, part_of
from headgate.diagnosis.granted import Source, ThreadGrant
from headgate.diagnosis.sequencing import in_order, one_after_the_other
from headgate.model.units import say_seconds
from headgate.sampling.outside_programs import INIT

_COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}
_WORTH_A_WORD = 0.1
"""Part of what a neighbour cost, from which on a resource is named."""
_THROUGH: Mapping[Resource, tuple[str, Name]] = {
    "cores": ("the cores they share", "neighbour-cores"),
    "memory": ("caches and memory bandwidth", "neighbour-memory"),
    "disk": ("the disk they share", "neighbour-disk"),
    "network": ("the NIC they share", "neighbour-network"),
    "gpu": ("the GPU they share", "neighbour-gpu"),
}


_TOLD_BY: Mapping[Source, str] = {
    "own-steps": "its own steps tell",
    "trial": "a trial of some seconds told",
    "profile": "its profile tells",
    "runs-alone": "runs of it alone tell",
    "like-job": "another job of its script tells",
}
_PROGRAMS, _OTHER_RUNS = "Programs outside Headgate", "Other runs, or programs outside Headgate,"


def neighbours(account: Account) -> Iterator[Cause]:
    """All that was surely lost to neighbours, with the worst one named, and what it cost through
    all resources.
    """
    sure = [loss for loss in account.losses if loss.to not in (ITSELF, NODE) and loss.sure]
    if not sure:
        return
    of: dict[str, list[Loss]] = {}
    for loss in sure:
        of.setdefault(loss.to, []).append(loss)
    each = {
        to: sum_of([loss.lost for loss in losses], account.elapsed).seconds
        for to, losses in of.items()
    }
    culprit = max(each, key=lambda to: each[to])
    cost, lost = sum_of([loss.lost for loss in sure], account.elapsed), each[culprit]
    ways = sorted(of[culprit], key=lambda loss: -loss.lost.seconds)
    worst = ways[0]
    through = " and ".join(
        _THROUGH[loss.resource][0] for loss in ways if loss.lost.seconds >= _WORTH_A_WORD * lost
    )
    who = _outside(account) if culprit == OTHERS else culprit
    ran = account.elapsed - account.parts["waiting"].seconds
    slowed = f"{lost / ran:.0%}" if ran > 0.0 else ""
    why = f"{who} slowed {account.job} by {slowed} through {through}: that cost {say_seconds(lost)}"
    if also := [to for to in each if to != culprit]:
        others = "programs outside it" if also == [OTHERS] else also[0]
        others = f"{len(also)} others" if len(also) > 1 else others
        why += f". Together with {others} that is {part_of(cost.seconds, account.elapsed)}"
    why += "."
    if (grant := account.grant) is not None and grant.lost.seconds >= max(
        _WORTH_A_WORD * cost.seconds, LEAST_SECONDS
    ):
        why += f" {on_fewer(grant, account)}"
    order = (
        ()
        if culprit in (OTHERS, REST)
        else account.together or in_order((account.job, culprit), account.turns)
    )
    name = _THROUGH[worst.resource][1]
    yield Cause(name, cost, why, _instead(worst, order, account), culprit=culprit, order=order)


def _instead(worst: Loss, order: Sequence[str], account: Account) -> str:
    """What to do about neighbours. On a GPU a victim with a share of its own can have more of that
    first.
    """
    if worst.to == REST:
        return (
            "Run fewer of these jobs at a time: in a job file, `after:` has one wait for another."
        )
    if worst.to == OTHERS:
        runs = (
            f"Run {account.meanwhile[0]} went on beside it: start one after the other. "
            if account.meanwhile
            else ""
        )
        return f"{runs}{_against_programs(account, worst)}"
    advice = one_after_the_other(order, account.turns, account.after)
    if worst.resource != "gpu" or not account.share:
        return advice
    return (
        f"Raise or drop `share: {account.share}` of {account.job}. Or else: "
        f"{advice[0].lower()}{advice[1:]}"
    )


def _outside(account: Account) -> str:
    """Programs outside Headgate as the subject of a sentence, with the one that used most."""
    who = _OTHER_RUNS if account.meanwhile else _PROGRAMS
    if not account.programs:
        return who
    most = account.programs[0]
    more = " and others" if account.programs[1:] else ""
    return f"{who.removesuffix(',')} ({most.command} of user {most.user}{more})"


def _against_programs(account: Account, worst: Loss) -> str:
    """What to do about programs outside Headgate: nothing that their user alone may do, or that
    would not help.
    """
    # whose end is that of the machine, or of the container
    if not account.programs or account.programs[0].pid == INIT:
        return "`top` shows what else runs; end it."
    most = account.programs[0]
    if not most.is_mine:
        return (
            f"Ask {most.user}, whose {most.command} it is (process {most.pid}), or run the "
            "job when that has ended."
        )
    if most.is_hub:
        return (
            "That is another hub: submit its jobs to this one (same HEADGATE_HOME), or run "
            "this when they have ended."
        )
    ends = f"End {most.command} (process {most.pid})"
    if worst.resource == "cores" and most.may_renice:
        return f"{ends}, or lower its priority: `renice 19 -p {most.pid}`."
    return f"{ends}, or run the job when that has ended."


def doubtful(account: Account) -> Loss | None:
    """What a neighbour may have cost the job, if that is worth a verdict: it is not blamed for what
    may be nothing.
    """
    losses = [loss for loss in account.losses if loss.to not in (ITSELF, NODE) and not loss.sure]
    worst = max(losses, key=may_be, default=None)
    least = max(LEAST_PART * account.elapsed, LEAST_SECONDS_TOLD)
    return worst if worst is not None and may_be(worst) >= least else None


def may_be(loss: Loss) -> float:
    return loss.lost.high if loss.perhaps else loss.lost.seconds


def doubt(loss: Loss, account: Account) -> str:
    who, through = _PROGRAMS if loss.to == OTHERS else loss.to, _THROUGH[loss.resource][0]
    return (
        f"{who} may have slowed {account.job} through {through}, or not: that cost 0 to "
        f"{say_seconds(loss.lost.high)}."
    )


def costly(account: Account) -> ThreadGrant | None:
    """The threads that it had for the sake of other jobs, if what more would bring is not known and
    may be much.
    """
    least = max(LEAST_PART * account.elapsed, LEAST_SECONDS_TOLD)
    return (
        account.grant
        if account.grant is not None and account.grant.may_have_lost >= least
        else None
    )


def on_fewer(grant: ThreadGrant, account: Account) -> str:
    """Beside whom it had fewer cores than alone, and what more would save it, with what tells
    that.
    """
    beside = f" and {len(grant.beside) - 2} others" if len(grant.beside) > 2 else ""
    names = f"{', '.join(grant.beside[:2])}{beside}" if beside else " and ".join(grant.beside)
    had, more = (_COUNTS.get(count, str(count)) for count in (grant.threads, grant.alone))
    later = " and afterwards, as its threads stay as they began" if grant.stayed else ""
    return (
        f"{account.job} was on {had} of {more} cores beside {names}{later}; {_saves(grant, more)}."
    )


def _saves(grant: ThreadGrant, more: str) -> str:
    if grant.source is None:
        return f"what {more} would bring is not known"
    seconds, low, high = grant.lost
    if high < LEAST_SECONDS_TOLD:
        return f"{more} would bring it nothing, as {_TOLD_BY[grant.source]}"
    band = f"({_rounded(low)} to {_rounded(high)})"
    return f"{more} would save about {_rounded(seconds)} {band}, as {_TOLD_BY[grant.source]}"


def _rounded(seconds: float) -> str:
    return say_seconds(round(seconds, 1))


def alone_once(account: Account) -> str:
    """What tells what more threads bring a job."""
    command = f", `{account.again}`" if account.again else ""
    is_fixed = account.grant is not None and account.grant.is_fixed
    why = " No trial tells it while it runs, as its threads stay as they began." if is_fixed else ""
    return f"Run {account.job} alone once{command}: Headgate then tells it, of this run too.{why}"


def alone_first(account: Account) -> str:
    """What tells what neighbours cost a job."""
    prove = (
        " If only jobs of Headgate are beside it, `headgate explain --prove "
        f"{account.job}` tells it."
    )
    return f"Run {account.job} alone once.{prove if account.provable else ''}"
