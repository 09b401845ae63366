"""Sentences for findings: why a job was held back. A template or a writer for each kind."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping

from headgate.diagnosis.account import Account
from headgate.diagnosis.attribution import OTHERS, Resource
from headgate.diagnosis.findings import (
    LEAST_SECONDS_TOLD,
    BesidesFacts,
    CapFacts,
    CreepFacts,
    DoubtfulLoss,
    FailureFacts,
    Finding,
    FindingKind,
    HealthyFacts,
    LongStart,
    NeighbourFacts,
    PlateauFacts,
    ServerFacts,
    SlowerFacts,
    SlowNicFacts,
    SlowNodeFacts,
    StepFacts,
    StragglerFacts,
    ThreadFacts,
    UnknownFacts,
    WaitedFacts,
)
from headgate.diagnosis.granted import Source, ThreadGrant
from headgate.model.job_states import NAMED_BY_REASON
from headgate.model.reason_text import in_words, what_happened, what_to_do
from headgate.model.reasons import ReasonKind
from headgate.model.units import counted, say_bits, say_bytes, say_percent, say_seconds
from headgate.reports.missing import missing_reading
from headgate.reports.remedies import setting_in_words
from headgate.reports.words import culprit_named, said_neighbour, say, say_ways

_LONGEST_FAILURE = 120
"""Most characters of a failure reason."""
_HOUR = 3600.0
_MOST_DIFFERENCES = 4
_COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}
_THROUGH: Mapping[Resource, str] = {
    "cores": "the cores they share",
    "memory": "caches and memory bandwidth",
    "disk": "the disk they share",
    "network": "the NIC they share",
    "gpu": "the GPU they share",
}
_TOLD_BY: Mapping[Source, str] = {
    "own-steps": "its own steps tell",
    "trial": "a trial of some seconds told",
    "profile": "its profile tells",
    "runs-alone": "runs of it alone tell",
    "like-job": "another job of its script tells",
}
_PROGRAMS, _OTHER_RUNS = "Programs outside Headgate", "Other runs, or programs outside Headgate,"

_UNNAMED: Mapping[Resource, str] = {
    "disk": (
        " Which ones is not known: the kernel shows only root what other users' programs read and "
        "write, and no arbiter told."
    ),
    "gpu": " Which ones is not known: the driver names none of their processes.",
    "network": " Which ones is not known: the kernel counts a NIC's bytes for no program.",
}
"""Why programs outside Headgate have no names."""

Why = Callable[[Finding, Account], str]


def why(finding: Finding, account: Account) -> str:
    """What held a job back, in one or a few sentences."""
    write = WHY[finding.kind]
    if isinstance(write, str):
        text = write.format(job=account.job, cost=_cost(finding, account))
    else:
        text = write(finding, account)
    return " ".join([text, *(_note(note, account) for note in finding.notes)])


def _part(seconds: float, account: Account) -> str:
    if account.elapsed <= 0.0:
        return say_seconds(seconds)
    return f"{say_seconds(seconds)} ({say_percent(seconds / account.elapsed)} of its time)"


def _cost(finding: Finding, account: Account) -> str:
    return _part(finding.cost.seconds, account)


# --- notes ----------------------------------------------------------------------------------------


def _note(note: DoubtfulLoss | LongStart | ThreadGrant, account: Account) -> str:
    if isinstance(note, LongStart):
        return f"It took {_part(note.seconds, account)} to start, which a longer run does once."
    return _doubt(note, account) if isinstance(note, DoubtfulLoss) else _on_fewer(note, account)


def _doubt(doubt: DoubtfulLoss, account: Account) -> str:
    who = _PROGRAMS if doubt.culprit == OTHERS else said_neighbour(doubt.culprit)
    return (
        f"{who} may have slowed {account.job} through {_THROUGH[doubt.resource]}, or not: "
        f"that cost 0 to {say_seconds(doubt.most)}."
    )


def _on_fewer(grant: ThreadGrant, account: Account) -> str:
    """The jobs beside which it had fewer cores than alone, the gain from more, and its evidence."""
    named = list(grant.beside[:2])
    if more_jobs := len(grant.beside) - 2 if len(grant.beside) > 2 else 0:
        names = f"{', '.join(named)} and {more_jobs} others"
    else:
        names = " and ".join(named)
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


# --- why ------------------------------------------------------------------------------------------


def _neighbour(finding: Finding, account: Account) -> str:
    facts: NeighbourFacts = finding.facts
    who = _outside(facts) if finding.culprit == OTHERS else said_neighbour(finding.culprit)
    slowed = say_percent(facts.slowed) if facts.slowed is not None else ""
    through = " and ".join(_THROUGH[resource] for resource in facts.through)
    cost = f"that cost {say_seconds(facts.lost)}"
    text = f"{who} slowed {account.job} by {slowed} through {through}: {cost}"
    unnamed = ""
    if finding.culprit == OTHERS and not facts.programs and not facts.runs:
        unnamed = _UNNAMED.get(facts.through[0], "")
    if not facts.others:
        return f"{text}.{unnamed}"
    is_outside = facts.others == (OTHERS,)
    others = "programs outside it" if is_outside else said_neighbour(facts.others[0])
    others = f"{len(facts.others)} others" if len(facts.others) > 1 else others
    return f"{text}. Together with {others} that is {_cost(finding, account)}.{unnamed}"


def _outside(facts: NeighbourFacts) -> str:
    """Programs outside Headgate as the subject of a sentence, naming the one that used most."""
    if not facts.programs:
        return _OTHER_RUNS if facts.runs else _PROGRAMS
    most = facts.programs[0]
    more = " and others" if facts.programs[1:] else ""
    who = "Other runs, or programs outside Headgate" if facts.runs else _PROGRAMS
    return f"{who} ({most.command} of user {most.user}{more})"


def _own_cap(finding: Finding, account: Account) -> str:
    facts: CapFacts = finding.facts
    setting = setting_in_words(facts.setting) if facts.setting is not None else "`limits`"
    text = f"Its own {setting} held {account.job} back for {_cost(finding, account)}."
    if facts.fewer_threads is None:
        return text
    return (
        f"{text} It had fewer threads for that as well: if more bring it something, that cost "
        f"up to {say_seconds(facts.fewer_threads)}."
    )


def _own_memory(finding: Finding, account: Account) -> str:
    limit = finding.facts.limit
    full = say_bytes(limit) if limit else ""
    cost = _cost(finding, account)
    return (
        f"Its own limit of memory, {full}, held {account.job} back for {cost}: pages that it "
        "needed were dropped and read again."
    )


def _memory_creeps(finding: Finding, account: Account) -> str:
    facts: CreepFacts = finding.facts
    task = account.job if len(account.record.tasks) == 1 else facts.task
    of_step = f"{say_bytes(facts.bytes_per_step)} a step, " if facts.bytes_per_step else ""
    an_hour = f"{say_bytes(_HOUR * facts.bytes_per_second)} an hour"
    of_gpu = finding.kind is FindingKind.GPU_MEMORY_CREEPS
    text = f"The {'GPU ' if of_gpu else ''}memory of {task} creeps up by {of_step}{an_hour}"
    if facts.seconds_left is None:
        return f"{text}."
    limit = f"its limit of {say_bytes(facts.limit)}" if facts.limit else "the memory of its node"
    if of_gpu and facts.limit:
        limit = f"the GPU memory of {say_bytes(facts.limit)}"
    seconds = say_seconds(facts.seconds_left)
    if account.record.ended is not None:
        return f"{text}: {limit} would have been full {seconds} later."
    return f"{text}: {limit} is full in about {seconds}."


def _slower(finding: Finding, account: Account) -> str:
    facts: SlowerFacts = finding.facts
    unit = "sample" if facts.per_sample else "step"
    runs = f"run {facts.runs[0]} of the same script"
    if len(facts.runs) > 1:
        runs = f"the last {len(facts.runs)} runs of the same script"
    longer = f"{say_percent(facts.times - 1.0)} longer"
    text = f"A {unit} of {account.job} takes {longer} than in {runs}"
    if not facts.differs:
        return f"{text}. Nothing that is recorded differs."
    named = [
        f"{differ.what} {differ.first or 'none'} → {differ.second or 'none'}"
        for differ in facts.differs[:_MOST_DIFFERENCES]
    ]
    left = len(facts.differs) - len(named)
    return f"{text}. What differs: {'; '.join(named)}{f', and {left} more' if left else ''}."


def _own_threads(finding: Finding, account: Account) -> str:
    facts: StepFacts | ThreadFacts = finding.facts
    if isinstance(facts, ThreadFacts):
        waited = f"{facts.waited:.1f} threads of {account.job} waited"
        return f"{waited}: it has more threads than cores."
    busy = f"{facts.cores:.1f} cores are busy and do little"
    rest = "the rest is Python, and threads that spin meanwhile"
    return f"{busy}: {_takes(facts, account)}; {rest}{_that_cost(finding, account)}"


def _small_steps(finding: Finding, account: Account) -> str:
    takes = _takes(finding.facts, account)
    return f"Steps are too small for the machine: {takes}{_that_cost(finding, account)}"


def _takes(facts: StepFacts, account: Account) -> str:
    step = "a step" if facts.batches == 1 else f"each of the {facts.batches} batches of a step"
    takes = f"{say_seconds(facts.seconds)}, arithmetic alone {say_seconds(facts.useful)}"
    return f"{step} of {account.job}{say_ways(account.record.cost)} takes {takes}"


def _that_cost(finding: Finding, account: Account) -> str:
    return f": that cost {_cost(finding, account)}."


def _input(finding: Finding, account: Account) -> str:
    waited = f"{account.job} waited for its input for {_cost(finding, account)}"
    return f"{waited}{_besides(finding, 'the disk')}."


def _communication(finding: Finding, account: Account) -> str:
    waited = f"{account.job} waited for its other tasks for {_cost(finding, account)}"
    return f"{waited}{_besides(finding, 'its own traffic')}."


def _besides(finding: Finding, device: str) -> str:
    facts: BesidesFacts = finding.facts
    return f", besides {say_seconds(facts.device)} for {device}" if facts.device is not None else ""


def _disk(finding: Finding, account: Account) -> str:
    blocked = f"{account.job} was blocked on the disk for {_cost(finding, account)}"
    if finding.facts.unsure:
        mover = finding.facts.mover
        most = f", most of all {culprit_named(mover)}," if mover else ""
        return (
            f"{blocked}. Others{most} moved more bytes meanwhile than it did. The cost is unknown: "
            "it never read without them, and the disk's rate is not known."
        )
    return (
        f"{blocked}: it read what was not in memory. A second pass over data that fits into "
        "memory would not wait."
    )


def _between_steps(finding: Finding, account: Account) -> str:
    spends = f"{account.job} spends {say_percent(finding.facts.part)} of each step"
    outside = "outside its model, optimizer and loader: on its loss, metrics, logs or copies"
    return f"{spends} {outside}{_that_cost(finding, account)}"


def _loader(finding: Finding, account: Account) -> str:
    facts = finding.facts
    if facts.used is None:
        reads = f"{account.job} reads its input in its training process, between the steps"
        return f"{reads}{_that_cost(finding, account)}"
    waited = f"{account.job} waited for its loader, whose workers are busy"
    idle = f"while {facts.cores - facts.used:.1f} of {facts.cores:g} cores are idle"
    return f"{waited}, {idle}{_that_cost(finding, account)}"


def _decoding(finding: Finding, account: Account) -> str:
    facts = finding.facts
    if isinstance(facts, ThreadFacts):
        return (
            f"{facts.waited:.1f} threads of {account.job} waited: its loader's workers want "
            f"{facts.helper_cores:.1f} of the cores that its training wants."
        )
    waited = f"{account.job} waited for its loader, whose workers have no core left"
    used = f"{facts.used:.1f} of {facts.cores:g} are in use"
    return f"{waited}: {used}{_that_cost(finding, account)}"


def _servers(finding: Finding, account: Account) -> str:
    facts: ServerFacts = finding.facts
    if facts.nic is not None:
        full = f"own traffic is {say(facts.nic, '%')} of its NIC's rate"
    else:
        full = f"cores are {say(facts.cores, '%')} in use"
    waits = f"The workers of {account.job} wait for {facts.task}, whose {full}"
    return f"{waits}{_that_cost(finding, account)}"


def _straggler(finding: Finding, account: Account) -> str:
    facts: StragglerFacts = finding.facts
    more = ", and its batches may be larger than theirs" if facts.larger_batches else ""
    return (
        f"All workers of {account.job} wait for {facts.task}, which takes "
        f"{_own_parts(facts.own, facts.usual)}; most of that is in {facts.span}{more}"
        f"{_that_cost(finding, account)}"
    )


def _own_parts(own: float, usual: float) -> str:
    return f"{say_seconds(own)} for its own part of a step, the others {say_seconds(usual)}"


def _slow_node(finding: Finding, account: Account) -> str:
    facts: SlowNodeFacts = finding.facts
    cores = f" ({counted(facts.cores, 'core', 'g')})" if facts.cores else ""
    if facts.limited:
        own, usual = say_percent(facts.own), say_percent(facts.usual)
        held = f"held it back for {own} of the time, the others for {usual}"
        reason = f"a limit on its CPU time {held}"
    else:
        reason = f"it takes {_own_parts(facts.own, facts.usual)}"
    waits = f"All workers of {account.job} wait for {facts.task}"
    slow = f"because its node {facts.node}{cores} is slow"
    return f"{waits}, {slow}: {reason}{_that_cost(finding, account)}"


def _slow_nic(finding: Finding, account: Account) -> str:
    facts: SlowNicFacts = finding.facts
    usual = f"{say_bits(facts.usual_rate)} or more" if facts.usual_rate else "no limit"
    exchange = f"All workers of {account.job} exchange at the rate of {facts.node}'s NIC"
    rates = f"{say_bits(facts.rate)}, the others' {usual}"
    return f"{exchange}: {rates}{_that_cost(finding, account)}"


def _dense_pulls(finding: Finding, account: Account) -> str:
    touched = f"a step touches {say_percent(finding.facts.touched, 1)} of them"
    return f"{account.job} exchanges whole tables, and {touched}{_that_cost(finding, account)}"


def _waiting(finding: Finding, account: Account) -> str:
    facts: WaitedFacts = finding.facts
    if facts.skipped is not None:
        return f"{account.job} was skipped: {in_words(facts.skipped)}."
    waited = f"{account.job} waited to start for {_cost(finding, account)}"
    if facts.waited_for is not None:
        waited += f", {in_words(facts.waited_for)}"
    if facts.overtaken_by:
        names = ", ".join(facts.overtaken_by)
        waited += f"; {names} went better beside those that ran, and started first"
    return f"{waited}."


def _learned(finding: Finding, account: Account) -> str:
    facts: PlateauFacts = finding.facts
    since = f"the last {say_seconds(facts.since)} changed nothing"
    return f"The loss of {account.job} has converged at {facts.loss:.4g}: {since}."


def _diverged(finding: Finding, account: Account) -> str:
    facts: PlateauFacts = finding.facts
    where = f" since step {facts.step}" if facts.step is not None else ""
    since = f"the last {say_seconds(facts.since)} changed nothing"
    return f"The loss of {account.job} is no number{where}: {since}."


def _failed(finding: Finding, account: Account) -> str:
    facts: FailureFacts = finding.facts
    text = what_happened(facts.reason).rstrip(".")
    # The last line of a script is as long as it likes. What an earlier version wrote stays whole.
    if facts.reason.kind is not ReasonKind.TEXT and not what_to_do(facts.reason):
        text = textwrap.shorten(text, _LONGEST_FAILURE, placeholder=" …")
    if facts.state not in NAMED_BY_REASON:
        text = f"{facts.state}: {text}"
    return f"{account.job} {'' if facts.state == 'failed' else 'was '}{text}."


def _healthy(finding: Finding, account: Account) -> str:
    facts: HealthyFacts = finding.facts
    if not facts.began:
        asked = "as its `at:` or `after:` says"
        return f"{account.job} waited for its start, {asked}, and did not begin."
    own = f"{say_seconds(facts.own)} of " if facts.lost else ""
    return f"{account.job} spent {own}its {say_seconds(facts.elapsed)} on its own work."


def _not_known(finding: Finding, account: Account) -> str:
    facts: UnknownFacts | DoubtfulLoss | ThreadGrant = finding.facts
    if not isinstance(facts, UnknownFacts):
        return _note(facts, account)
    if facts.ended_early and account.record.ended is None:
        since = say_seconds(account.elapsed)
        return f"{account.job} was submitted {since} ago, and too little was read of it yet."
    if facts.ended_early:
        ended = f"{account.job} ended after {say_seconds(account.elapsed)}"
        return f"{ended}, before enough was read of it."
    if facts.missing:
        lacks = " and ".join(missing_reading(missing) for missing in facts.missing)
        return f"Headgate cannot tell what held {account.job} back: the run lacks {lacks}."
    part = _part(facts.unexplained, account)
    return (
        f"For {part}, {account.job} neither computed nor waited for anything that Headgate reads."
    )


WHY: Mapping[FindingKind, Why | str] = {
    FindingKind.NEIGHBOUR_CORES: _neighbour,
    FindingKind.NEIGHBOUR_MEMORY: _neighbour,
    FindingKind.NEIGHBOUR_DISK: _neighbour,
    FindingKind.NEIGHBOUR_NETWORK: _neighbour,
    FindingKind.NEIGHBOUR_GPU: _neighbour,
    FindingKind.OWN_CAP: _own_cap,
    FindingKind.OWN_MEMORY: _own_memory,
    FindingKind.OWN_TASKS: (
        "The tasks of {job} share cores: they kept each other waiting for {cost}."
    ),
    FindingKind.MEMORY_CREEPS: _memory_creeps,
    FindingKind.GPU_MEMORY_CREEPS: _memory_creeps,
    FindingKind.SLOWER_THAN_BEFORE: _slower,
    FindingKind.OWN_THREADS: _own_threads,
    FindingKind.HYPERVISOR: "The hypervisor kept cores from the node: that cost {job} {cost}.",
    FindingKind.INPUT: _input,
    FindingKind.DISK: _disk,
    FindingKind.COMMUNICATION: _communication,
    FindingKind.NETWORK: "{job} waited for its own traffic, which needs {cost} at the NIC's rate.",
    FindingKind.CHECKPOINTS: "{job} saved checkpoints for {cost}.",
    FindingKind.EVALUATION: "{job} evaluated instead of training: that cost {cost}.",
    FindingKind.GARBAGE_COLLECTION: (
        "Python collected garbage while {job} waited: that cost {cost}."
    ),
    FindingKind.COPIES: "The GPU of {job} waited for copies of its batches: that cost {cost}.",
    FindingKind.BETWEEN_STEPS: _between_steps,
    FindingKind.LOADER: _loader,
    FindingKind.DECODING: _decoding,
    FindingKind.SERVERS: _servers,
    FindingKind.STRAGGLER: _straggler,
    FindingKind.SLOW_NODE: _slow_node,
    FindingKind.SLOW_NIC: _slow_nic,
    FindingKind.DENSE_PULLS: _dense_pulls,
    FindingKind.SMALL_STEPS: _small_steps,
    FindingKind.FAULTS: "Faults cost {job} {cost}: it was started again, or did steps again.",
    FindingKind.STARTING: (
        "{job} took {cost} to start: imports, data, and what comes before its first step."
    ),
    FindingKind.LEARNED: _learned,
    FindingKind.DIVERGED: _diverged,
    FindingKind.FAILED: _failed,
    FindingKind.WAITING: _waiting,
    FindingKind.HEALTHY: _healthy,
    FindingKind.NOT_KNOWN: _not_known,
}
