"""The one cause that matters most for a job: a stable name, why, and what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headgate.diagnosis.accounts import MOST_UNEXPLAINED, Account
from headgate.diagnosis.attribution import (
    LEAST_PART,
    NODE,
    NONE,
    Resource,
    TimeEstimate,
    exact,
    less,
)
from headgate.diagnosis.causes import LEAST_SECONDS_TOLD, Cause, Name, part_of, sentence
from headgate.diagnosis.convergence import Ceased
from headgate.diagnosis.neighbours import (
    alone_first,
    alone_once,
    costly,
    doubt,
    doubtful,
    may_be,
    neighbours,
    on_fewer,
)
from headgate.diagnosis.own_causes import MORE_READERS, fewer_threads, more_cores
from headgate.diagnosis.own_steps import Part
from headgate.diagnosis.what_if import Buyable
from headgate.model.jobs import MOST_PRIORITY
from headgate.model.reason_text import NEXT
from headgate.model.units import say_bytes, say_seconds

_LEAST_STARTING = 0.2
"""Every job has to start: only a start that takes this part of the time is worth a verdict."""
_LONGEST_FAILURE = 120
"""Characters of why a job failed."""
_UNTOLD = 0.1
"""Part of a job's elapsed time: where that much is unexplained, it is not called healthy."""
_MANY_THREADS = 0.8
"""Threads that wait on average beyond those that the cores could run: from here on, there are too
many.
"""


_BEHIND: Mapping[Name, tuple[Buyable, ...]] = {
    "own-cap": ("cores",),
    "input": ("loader", "disk"),
    "disk": ("disk",),
    "communication": ("network", "servers"),
    "network": ("network", "servers"),
    "loader": ("loader",),
    "decoding": ("cores",),
    "servers": ("servers", "network"),
}
"""More of what may help against a cause."""
_TWICE: Mapping[Buyable, str] = {
    "cores": "cores",
    "network": "NIC's rate",
    "disk": "disk's rate",
    "loader": "loader workers",
    "servers": "servers",
    "gpu": "GPU's speed",
}


class Verdict(NamedTuple):
    """What held a job back most.

    Args:
        name: One of `NAMES`; docs/explain.md has a section for each.
        why: A sentence.
        next: What to do about it, if possible as a command or a line to paste; empty if there is
            nothing to do.
        low: Seconds that it cost, at the least.
        high: Seconds that it cost, at the most.
        seconds: Seconds that it cost; 0 if that is not known, and of a job that is healthy or
            failed.
        culprit: The neighbour that cost it most, a job's name or `others`; empty if no neighbour
            did.
        order: The jobs that `next` puts in order, which all of them are told alike; empty if it
            tells of none.
    """

    name: Name
    why: str
    next: str
    low: float
    high: float
    seconds: float = 0.0
    culprit: str = ""
    order: tuple[str, ...] = ()


def verdict(account: Account) -> Verdict:
    """How a job failed, if it did. Else the cause that cost it most; `healthy` if none cost much,
    `not-known` if too much is unexplained.
    """
    if account.failure:
        return _failed(account)
    if account.skipped:
        return Verdict("waiting", f"{account.job} was skipped: {account.skipped}.", "", 0.0, 0.0)
    result, unsure = _of_its_time(account), doubtful(account)
    if (
        unsure is not None
        and result.name not in ("healthy", "not-known")
        and may_be(unsure) > result.low
    ):
        result = result._replace(why=f"{result.why} {doubt(unsure, account)}")
    grant = costly(account)
    if (
        grant is not None
        and result.name not in ("healthy", "not-known")
        and grant.may_have_lost > result.high
    ):
        result = result._replace(why=f"{result.why} {on_fewer(grant, account)}")
    if result.name == "healthy" and account.grant is not None and account.grant.source is not None:
        result = result._replace(why=f"{result.why} {on_fewer(account.grant, account)}")
    return result


def _failed(account: Account) -> Verdict:
    reason, _, cure = account.failure.partition(NEXT)
    if not cure:
        reason = textwrap.shorten(
            reason.partition(". ")[0].rstrip("."), _LONGEST_FAILURE, placeholder=" …"
        )
    following = f"{sentence(cure)}." if cure else f"`headgate logs {account.job}` shows its output."
    return Verdict(
        "failed", f"{account.job} {reason}.", following, account.elapsed, account.elapsed
    )


def _of_its_time(account: Account) -> Verdict:
    elapsed = account.elapsed
    unexplained = account.parts["unexplained"]
    learned = _ceased(account, account.ceased) if account.ceased is not None else None
    if learned is not None and learned.name == "diverged":
        return learned
    if account.lacks or (elapsed > 0.0 and unexplained.seconds > MOST_UNEXPLAINED * elapsed):
        worst = max(_causes(account), key=lambda cause: cause.cost.low, default=None)
        least = max(
            LEAST_SECONDS_TOLD, unexplained.seconds, account.may_have_lost, LEAST_PART * elapsed
        )
        if worst is None or worst.cost.low < least:
            return Verdict(
                "not-known", _unknown(account), _to_know(account), unexplained.low, elapsed
            )
    causes = list(_causes(account))
    told = [
        cause
        for cause in causes
        if cause.cost.seconds >= max(cause.least * elapsed, LEAST_SECONDS_TOLD)
    ]
    # A start is paid for once, and what holds steps back as long as it runs: in a short run it may
    # be less than a second.
    held = [cause for cause in told if cause.name != "starting"]
    if told and not held:
        held = [
            cause
            for cause in causes
            if cause.name != "starting" and cause.cost.low >= LEAST_PART * elapsed
        ]
    worst = max(held, key=lambda cause: cause.cost.seconds, default=None)
    if worst is not None and (learned is None or worst.cost.seconds >= learned.low):
        return _given(worst, account)
    if learned is not None:
        return learned
    if account.excess_threads >= _MANY_THREADS:
        return _too_many_threads(account)
    if told:
        return _given(told[0], account)
    if (unsure := doubtful(account)) is not None:
        return Verdict(
            "not-known", doubt(unsure, account), alone_first(account), 0.0, unsure.lost.high
        )
    if (grant := costly(account)) is not None:
        return Verdict(
            "not-known", on_fewer(grant, account), alone_once(account), 0.0, grant.may_have_lost
        )
    if (
        unexplained.seconds >= max(_UNTOLD * elapsed, LEAST_SECONDS_TOLD)
        and unexplained.low >= LEAST_PART * elapsed
    ):
        return Verdict(
            "not-known", _unknown(account), _to_know(account), unexplained.low, unexplained.high
        )
    lost = sum(cause.cost.seconds for cause in _causes(account))
    if account.asked_to_wait >= elapsed > 0.0:
        why = (
            f"{account.job} waited for its start, as its `at:` or `after:` says, and did not begin."
        )
        return Verdict("healthy", why, "", 0.0, 0.0)
    own = (
        f"{say_seconds(account.parts['compute'].seconds)} of " if lost >= LEAST_SECONDS_TOLD else ""
    )
    why = (
        f"{account.job} spent {own}its {say_seconds(elapsed - account.asked_to_wait)} on "
        "its own work."
    )
    return Verdict("healthy", why, "", 0.0, lost)


def _with_fewer(account: Account) -> str:
    """What its own limit of cores may have cost a job beyond what throttled it."""
    cap = account.parts["cap"]
    if cap.high - cap.seconds < max(LEAST_PART * account.elapsed, cap.seconds / 4.0):
        return ""
    return (
        " It had fewer threads for that as well: if more bring it something, that cost up "
        f"to {say_seconds(cap.high)}."
    )


def _given(cause: Cause, account: Account) -> Verdict:
    start, why = account.parts["starting"].seconds, cause.why
    if cause.name != "starting" and start > max(cause.cost.seconds, account.elapsed / 2.0):
        why += f" It took {part_of(start, account.elapsed)} to start, which a longer run does once."
    cost = cause.cost
    return Verdict(
        cause.name,
        why,
        _next(cause, account),
        cost.low,
        cost.high,
        cost.seconds,
        cause.culprit,
        cause.order,
    )


def _causes(account: Account) -> Iterator[Cause]:
    yield from neighbours(account)
    yield from _within(account)
    parts, job = account.parts, account.job

    def part(name: Part) -> str:
        return part_of(parts[name].seconds, account.elapsed)

    yield Cause(
        "own-cap",
        parts["cap"],
        (
            f"Its own `{account.cores_setting or 'limits'}` held {job} back for "
            f"{part('cap')}.{_with_fewer(account)}"
        ),
        f"{sentence(more_cores(account.cores_setting))}.",
    )
    yield Cause(
        "own-tasks",
        parts["itself"],
        f"The tasks of {job} share cores: they kept each other waiting for {part('itself')}.",
        _fewer(account, account.fewer_workers, account.with_fewer) or _more_cores(account),
    )
    yield Cause(
        "hypervisor",
        parts["hypervisor"],
        f"The hypervisor kept cores from the node: that cost {job} {part('hypervisor')}.",
        "Ask the owner of the machine for cores that are not oversubscribed.",
    )
    yield from _waits(account)
    yield Cause(
        "checkpoints",
        parts["checkpoints"],
        f"{job} saved checkpoints for {part('checkpoints')}.",
        "Save less often.",
    )
    yield Cause(
        "faults",
        parts["faults"],
        f"Faults cost {job} {part('faults')}: it was started again, or did steps again.",
        f"`headgate logs {job}` shows what happened.",
    )
    waited = max(parts["waiting"].seconds - account.asked_to_wait, 0.0)
    priority = min(2.0 * max(account.priority, 1.0), MOST_PRIORITY)
    first = (
        f"; `priority: {priority:g}` of the job lets it go first"
        if priority > account.priority
        else ""
    )
    waits = f", {account.waited_for}" if account.waited_for else ""
    yield Cause(
        "waiting",
        exact(waited),
        f"{job} waited to start for {part_of(waited, account.elapsed)}{waits}.",
        f"`headgate status` shows what it waited for{first}.",
    )
    store, turn = "repare the data once and store it.", account.turns.get(job)
    goes_on = turn is not None and turn.goes_on  # how long it will be is not known
    yield Cause(
        "starting",
        parts["starting"],
        (
            f"{job} took {part('starting')} to start: imports, data, and what comes before its "
            "first step."
        ),
        f"P{store}"
        if goes_on
        else f"Start one longer run instead of several short ones, or p{store}",
        _LEAST_STARTING,
    )


def _next(cause: Cause, account: Account) -> str:
    """What to do about a cause, and what that buys if it is known."""
    bought = _bought(cause.name, account)
    if account.one_worker and cause.name in ("communication", "network", "servers"):
        return f"{account.one_worker} Else {(more := bought or cause.next)[0].lower()}{more[1:]}"
    if bought and cause.name in ("input", "loader"):
        return f"{bought} Or prepare the data once and store it."
    if bought and cause.name in ("communication", "network"):
        return f"{bought} Else {cause.next[0].lower()}{cause.next[1:]}"
    if bought and cause.name == "servers" and account.servers == 1 and not account.roles:
        return bought  # one more is twice as many
    return " ".join(filter(None, (bought, cause.next)))


def _bought(name: Name, account: Account) -> str:
    """What twice as much of the resource behind a cause would buy; empty if that is not known or
    not worth it.
    """
    more = account.more
    known = {
        resource: figure["x2"]
        for resource in _BEHIND.get(name, ())
        if (figure := more.figures.get(resource))
    }
    sure = {
        resource: each.speedup
        for resource, each in known.items()
        if each is not None and each.low > 1.0
    }
    if not sure:
        return ""
    resource = max(sure, key=lambda one: sure[one])
    if resource == "loader" and more.loader_workers is not None:
        now = more.loader_workers
        what = (
            f"`num_workers={2 * now}` instead of {now}"
            if now
            else "a loader worker (`num_workers=1`)"
        )
    elif resource == "servers" and account.servers and not account.roles:
        what = f"`--servers {2 * account.servers}` instead of {account.servers}"
    else:
        what = f"twice the {_TWICE[resource]}"
    return f"{sentence(what)}: {sure[resource]:.1f} times the speed."


def _waits(account: Account) -> Iterator[Cause]:
    """Causes of waiting: devices, memory, and input and communication unless a cause within the job
    accounts for them.
    """
    job, known = account.job, {cause.part for cause in account.own}
    disk, waits = _divided(account, "input", "disk")
    nic, exposed = _divided(account, "communication", "network")
    yield from _devices(account, disk, NONE if "communication" in known else nic)
    if "input" not in known:
        readers = account.more.loader_workers
        stacks = (
            f"`headgate stacks {job} --all` shows for what its {readers} loader workers "
            "wait, while the job runs."
        )
        yield Cause(
            "input",
            waits,
            f"{job} waited for its input for {part_of(waits.seconds, account.elapsed)}"
            f"{_besides(account, disk, 'the disk')}.",
            stacks if readers else f"{MORE_READERS}, or prepare the data once.",
        )
    if "communication" not in known:
        yield Cause(
            "communication",
            exposed,
            f"{job} waited for its other tasks for {part_of(exposed.seconds, account.elapsed)}"
            f"{_besides(account, nic, 'its own traffic')}.",
            _other_plans(account),
        )


def _devices(account: Account, disk: TimeEstimate, nic: TimeEstimate) -> Iterator[Cause]:
    """What its own traffic cost it on the disk and on its NIC, and what its own limit of memory
    did.
    """
    job = account.job
    blocked = f"{job} was blocked on the disk for {part_of(disk.seconds, account.elapsed)}"
    if account.disk_unsure > disk.seconds / 2:
        yield Cause(
            "disk",
            disk,
            f"{blocked}. Others moved more bytes meanwhile than it did, and nothing tells what "
            "that cost it: it did"
            " not read without them, and the disk's rate is not known.",
            "`headgate calibrate` measures that rate: the next run then tells who was to blame.",
        )
    else:
        yield Cause(
            "disk",
            disk,
            (
                f"{blocked}: it read what was not in memory. A second pass over data that fits "
                "into "
                "memory would not wait."
            ),
            (
                "Read the data into memory beforehand: `cat DATA > /dev/null`. Or store it once in "
                "a smaller form."
            ),
        )
    yield Cause(
        "network",
        nic,
        (
            f"{job} waited for its own traffic, which needs "
            f"{part_of(nic.seconds, account.elapsed)} at the NIC's rate."
        ),
        _other_plans(account),
    )
    cost, limit = account.parts["memory"], account.memory_limit
    full, more = (say_bytes(limit), say_bytes(2 * limit).replace(" ", "")) if limit else ("", "...")
    yield Cause(
        "own-memory",
        cost,
        f"Its own limit of memory, {full}, held {job} back for "
        f"{part_of(cost.seconds, account.elapsed)}: pages that it"
        " needed were dropped and read again.",
        f"Raise it: `limits: {{memory: {more}}}` of the job.",
    )


def _other_plans(account: Account) -> str:
    """How to find a plan that exchanges less."""
    if account.plan_command:
        return (
            f"`{account.plan_command}`{account.there} shows whether fewer workers, or other "
            "nodes, are faster."
        )
    stacks = f"`headgate stacks {account.job} --all` shows for what they wait, while the job runs."
    fewer = _fewer(account, account.half_workers, account.with_half)
    return f"{fewer} `headgate compare RUN RUN` shows which is faster." if fewer else stacks


def _fewer(account: Account, count: int, command: str) -> str:
    """So many workers; if it has no more, fewer servers, or none. Empty if it has none of these, or
    if they are roles, which no plan changes.
    """
    if account.roles:
        return ""
    if count < account.workers:
        run = f"`{command}`{account.there}, or " if command else ""
        return f"Fewer workers: {run}`workers: {count}` below `plan:` of the job."
    if account.servers and account.alone:
        return (
            f"One worker needs no server: `{account.alone}`, or `strategy: single` below "
            "`plan:` of the job."
        )
    return (
        f"Fewer servers: `servers: {account.servers // 2}` below `plan:`."
        if account.servers > 1
        else ""
    )


def _besides(account: Account, lost: TimeEstimate, what: str) -> str:
    """The rest of a part of the account, which has a cause of its own, where it is worth a word."""
    return (
        f", besides {say_seconds(lost.seconds)} for {what}"
        if lost.seconds >= LEAST_PART * account.elapsed
        else ""
    )


def _more_cores(account: Account) -> str:
    fewer = (
        "fewer tasks: a lower `count:` of one of its roles" if account.roles else "one task less"
    )
    if account.cores_setting.startswith("share"):
        return f"{sentence(more_cores(account.cores_setting))}, or {fewer}."
    return (
        f"Give it more cores than the {account.cores:g} that its {account.tasks} tasks "
        f"share, or {fewer}."
    )


def _divided(account: Account, part: Part, resource: Resource) -> tuple[TimeEstimate, TimeEstimate]:
    """Divide a part into what was lost through a device with nobody to blame, and the rest: neither
    takes anything of the other, so that each stands beside what neighbours cost for what it is.
    """
    through = next(
        (loss.lost for loss in account.losses if (loss.to, loss.resource) == (NODE, resource)), NONE
    )
    return through, less(account.parts[part], through.seconds)


def _within(account: Account) -> Iterator[Cause]:
    """Causes within the job: see `headgate.diagnosis.own_causes`."""
    for cause in account.own:
        why = f"{cause.why}: that cost {part_of(cause.cost.seconds, account.elapsed)}."
        yield Cause(cause.name, cause.cost, why, cause.next)


def _too_many_threads(account: Account) -> Verdict:
    """The cost of too many threads cannot be counted, so this verdict comes only if nothing else is
    found.
    """
    high = account.parts["compute"].seconds / 2
    waiting = f"{account.excess_threads:.1f} threads of {account.job} waited"
    # without the loader, its threads would fit
    if account.excess_threads - account.helper_cores < _MANY_THREADS:
        why = (
            f"{waiting}: its loader's workers want {account.helper_cores:.1f} of the cores "
            "that its training wants."
        )
        once = f"Decode the data once and store it, or {more_cores(account.cores_setting)}."
        return Verdict("decoding", why, once, 0.0, high)
    waiting = f"{waiting}: it has more threads than cores"
    return Verdict(
        "own-threads",
        f"{waiting}.",
        fewer_threads(account.threads, account.told_threads),
        0.0,
        high,
    )


def _ceased(account: Account, ceased: Ceased) -> Verdict:
    """Where the loss has converged, a schedule might still help: half of the time since then counts
    as lost.
    """
    since = max(account.elapsed - ceased.since, 0.0)
    why = f"{ceased.why}: the last {say_seconds(since)} changed nothing."
    low = since if ceased.name == "diverged" else since / 2.0
    return Verdict(ceased.name, why, ceased.next, low, since, (low + since) / 2.0)


def _unknown(account: Account) -> str:
    if not account.read:
        return (
            f"{account.job} ended after {say_seconds(account.elapsed)}, before enough was "
            "read of it."
        )
    if account.lacks:
        return (
            f"Headgate cannot tell what held {account.job} back: the run lacks "
            f"{' and '.join(account.lacks)}."
        )
    part = part_of(account.parts["unexplained"].seconds, account.elapsed)
    return (
        f"For {part}, {account.job} neither computed nor waited for anything that Headgate reads."
    )


def _to_know(account: Account) -> str:
    """What would let Headgate tell more of a job."""
    if not account.read:
        return ""
    if not account.reports and account.pattern:
        return (
            "The `pattern` of its `progress` found no step: name the step in it, `(?P<step>\\d+)`."
            f" `headgate logs {account.job}` shows its lines."
        )
    if not account.reports:
        return (
            "Print a line for each step, such as `step 5 loss 0.31`, or name the pattern of "
            "its own lines:"
            " `progress: {pattern: ...}` in its job."
        )
    if account.may_have_lost:
        return alone_first(account)
    if account.lacks:
        return "`headgate doctor` shows how to turn these readings on."
    stacks = f"`headgate stacks {account.job} --all` shows where it stands, while it runs."
    return (
        f"{stacks} With `headgate.torch`, `headgate.keras` or `headgate.jax` its steps tell more."
    )
