"""Sentences for findings: why a job was held back, and what to do next. One writer for each
kind.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping

from headgate.diagnosis.accounts import Account
from headgate.diagnosis.attribution import OTHERS, Resource
from headgate.diagnosis.findings import (
    LEAST_SECONDS_TOLD,
    AloneFacts,
    BesidesFacts,
    CapFacts,
    DoubtfulLoss,
    FailureFacts,
    Finding,
    FindingKind,
    HealthyFacts,
    LongStart,
    MissingKind,
    MissingReading,
    NeighbourFacts,
    NodesFacts,
    OrderFacts,
    PlateauFacts,
    ProgramFacts,
    Remedy,
    RemedyKind,
    ResourceFacts,
    ServerFacts,
    SlowNicFacts,
    SlowNodeFacts,
    StacksFacts,
    StepFacts,
    StragglerFacts,
    TasksFacts,
    ThreadFacts,
    ThreadSetting,
    UnknownFacts,
    WaitedFacts,
)
from headgate.diagnosis.granted import Source, ThreadGrant
from headgate.diagnosis.what_if import NoFigure, Speedups
from headgate.model.events import NAMED_BY_REASON
from headgate.model.reason_text import in_words, what_happened, what_to_do
from headgate.model.reasons import ReasonKind
from headgate.model.units import say_bits, say_bytes, say_percent, say_seconds
from headgate.recorded.jobs import CoresSetting
from headgate.reports.commands import (
    location_hint,
    plan_command,
    rerun_command,
    single_worker_command,
    with_workers_command,
)
from headgate.reports.words import say

_LONGEST_FAILURE = 120
"""Most characters of a failure reason."""
_NAMED = 8
"""Most jobs named in an advice."""
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
_TWICE: Mapping[Resource, str] = {
    "cores": "cores",
    "network": "NIC's rate",
    "disk": "disk's rate",
    "loader": "loader workers",
    "servers": "servers",
    "gpu": "GPU's speed",
}
_PROGRAMS, _OTHER_RUNS = "Programs outside Headgate", "Other runs, or programs outside Headgate,"

Why = Callable[[Finding, Account], str]
Advice = Callable[[Remedy, Finding, Account], str]


def why(finding: Finding, account: Account) -> str:
    """What held a job back, in one or a few sentences."""
    notes = (_note(note, account) for note in finding.notes)
    return " ".join((WHY[finding.kind](finding, account), *notes))


def next_step(finding: Finding, account: Account) -> str:
    """What to do about a finding; empty: nothing."""
    if isinstance(finding.facts, FailureFacts) and (cure := what_to_do(finding.facts.reason)):
        return f"{_sentence(cure)}."
    return _sentence(_advice(finding.remedy, finding, account))


def missing_reading(missing: MissingReading) -> str:
    """A reading that an account lacks, in words."""
    if missing.kind is not MissingKind.GPU_ALONE:
        return _MISSING[missing.kind]
    who = "programs outside Headgate" if missing.culprit == OTHERS else missing.culprit
    used = f"it was full, and {who} used it for {say_seconds(missing.seconds)}"
    return f"some seconds with the GPU for itself ({used})"


def no_figure(reason: NoFigure, speedups: Speedups) -> str:
    """Why there is no figure for more of a resource, in words."""
    if reason is NoFigure.REPLAY_OFF:
        error = speedups.replay_error or 0.0
        more = f"{say_percent(abs(error))} {'more' if error > 0.0 else 'less'}"
        longer = f"{more} time than the measured ones"
        steps = f"its {speedups.replayed_steps} replayed steps"
        return f"{steps} take {longer}, which is too far off"
    if reason is NoFigure.READERS_TAKE_TURNS:
        workers = f"its {speedups.loader_workers} loader workers"
        return f"{workers} do no more than one would: they may wait for each other"
    return _NO_FIGURE[reason]


_MISSING = {
    MissingKind.CORE_WAITS: "time that threads waited for a core (schedstat)",
    MissingKind.STEPS: "steps (it reports none, and none was read from its output)",
    MissingKind.DISK_WAITS: ("time that it was blocked on a disk (PSI, or kernel.task_delayacct)"),
}
_NO_FIGURE = {
    NoFigure.FEW_STEPS: "it reported fewer than two steps",
    NoFigure.ENDED_EARLY: "it ended before enough was read of it",
    NoFigure.NO_CORE_WAITS: "how long its threads waited for a core is not known (schedstat)",
    NoFigure.ONE_THREAD: "it had one compute thread, and nothing tells what a second would bring",
    NoFigure.NO_DISK_WAITS: "how long it was blocked on a disk is not known (PSI)",
    NoFigure.NO_SPANS: "its steps tell no spans, so its waiting for input is not known",
    NoFigure.NOT_SAMPLED: "it has several tasks, and none of their steps was sampled",
    NoFigure.NO_NIC_RATE: (
        "the rate of its nodes' NICs is not known: state it in the cluster file (`nic: 10Gbit`)"
    ),
    NoFigure.READERS_NOT_KNOWN: "how many processes its loader has is not known",
}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


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
    who = _PROGRAMS if doubt.culprit == OTHERS else doubt.culprit
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
    who = _outside(facts) if finding.culprit == OTHERS else finding.culprit
    slowed = say_percent(facts.slowed) if facts.slowed is not None else ""
    through = " and ".join(_THROUGH[resource] for resource in facts.through)
    cost = f"that cost {say_seconds(facts.lost)}"
    text = f"{who} slowed {account.job} by {slowed} through {through}: {cost}"
    if not facts.others:
        return f"{text}."
    others = "programs outside it" if facts.others == (OTHERS,) else facts.others[0]
    others = f"{len(facts.others)} others" if len(facts.others) > 1 else others
    return f"{text}. Together with {others} that is {_cost(finding, account)}."


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
    setting = _setting(facts.setting) if facts.setting is not None else "`limits`"
    text = f"Its own {setting} held {account.job} back for {_cost(finding, account)}."
    if facts.fewer_threads is None:
        return text
    return (
        f"{text} It had fewer threads for that as well: if more bring it something, that cost "
        f"up to {say_seconds(facts.fewer_threads)}."
    )


def _setting(setting: CoresSetting) -> str:
    """A setting as in a job file."""
    value = f"{setting.value:g}" if isinstance(setting.value, float) else setting.value
    place, _, name = setting.field.rpartition(".")
    if place == "limits":
        return f"`limits: {{{name}: {value}}}`"
    return f"`{name}: {value}`" + (f" of role `{setting.role}`" if setting.role else "")


def _own_memory(finding: Finding, account: Account) -> str:
    limit = finding.facts.limit
    full = say_bytes(limit) if limit else ""
    cost = _cost(finding, account)
    return (
        f"Its own limit of memory, {full}, held {account.job} back for {cost}: pages that it "
        "needed were dropped and read again."
    )


def _own_tasks(finding: Finding, account: Account) -> str:
    cost = _cost(finding, account)
    return f"The tasks of {account.job} share cores: they kept each other waiting for {cost}."


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
    takes = f"{step} of {account.job} takes {say_seconds(facts.seconds)}"
    return f"{takes}, arithmetic alone {say_seconds(facts.useful)}"


def _that_cost(finding: Finding, account: Account) -> str:
    return f": that cost {_cost(finding, account)}."


def _hypervisor(finding: Finding, account: Account) -> str:
    cost = _cost(finding, account)
    return f"The hypervisor kept cores from the node: that cost {account.job} {cost}."


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
        return (
            f"{blocked}. Others moved more bytes meanwhile than it did, and nothing tells what "
            "that cost it: it did not read without them, and the disk's rate is not known."
        )
    return (
        f"{blocked}: it read what was not in memory. A second pass over data that fits into "
        "memory would not wait."
    )


def _network(finding: Finding, account: Account) -> str:
    cost = _cost(finding, account)
    return f"{account.job} waited for its own traffic, which needs {cost} at the NIC's rate."


def _checkpoints(finding: Finding, account: Account) -> str:
    return f"{account.job} saved checkpoints for {_cost(finding, account)}."


def _evaluation(finding: Finding, account: Account) -> str:
    return f"{account.job} evaluated instead of training{_that_cost(finding, account)}"


def _garbage_collection(finding: Finding, account: Account) -> str:
    waited = f"Python collected garbage while {account.job} waited"
    return f"{waited}{_that_cost(finding, account)}"


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
    cores = f" ({facts.cores:g} cores)" if facts.cores else ""
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


def _faults(finding: Finding, account: Account) -> str:
    cost = _cost(finding, account)
    return f"Faults cost {account.job} {cost}: it was started again, or did steps again."


def _starting(finding: Finding, account: Account) -> str:
    took = f"{account.job} took {_cost(finding, account)} to start"
    return f"{took}: imports, data, and what comes before its first step."


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


WHY: Mapping[FindingKind, Why] = {
    FindingKind.NEIGHBOUR_CORES: _neighbour,
    FindingKind.NEIGHBOUR_MEMORY: _neighbour,
    FindingKind.NEIGHBOUR_DISK: _neighbour,
    FindingKind.NEIGHBOUR_NETWORK: _neighbour,
    FindingKind.NEIGHBOUR_GPU: _neighbour,
    FindingKind.OWN_CAP: _own_cap,
    FindingKind.OWN_MEMORY: _own_memory,
    FindingKind.OWN_TASKS: _own_tasks,
    FindingKind.OWN_THREADS: _own_threads,
    FindingKind.HYPERVISOR: _hypervisor,
    FindingKind.INPUT: _input,
    FindingKind.DISK: _disk,
    FindingKind.COMMUNICATION: _communication,
    FindingKind.NETWORK: _network,
    FindingKind.CHECKPOINTS: _checkpoints,
    FindingKind.EVALUATION: _evaluation,
    FindingKind.GARBAGE_COLLECTION: _garbage_collection,
    FindingKind.BETWEEN_STEPS: _between_steps,
    FindingKind.LOADER: _loader,
    FindingKind.DECODING: _decoding,
    FindingKind.SERVERS: _servers,
    FindingKind.STRAGGLER: _straggler,
    FindingKind.SLOW_NODE: _slow_node,
    FindingKind.SLOW_NIC: _slow_nic,
    FindingKind.DENSE_PULLS: _dense_pulls,
    FindingKind.SMALL_STEPS: _small_steps,
    FindingKind.FAULTS: _faults,
    FindingKind.STARTING: _starting,
    FindingKind.LEARNED: _learned,
    FindingKind.DIVERGED: _diverged,
    FindingKind.FAILED: _failed,
    FindingKind.WAITING: _waiting,
    FindingKind.HEALTHY: _healthy,
    FindingKind.NOT_KNOWN: _not_known,
}


# --- what to do -----------------------------------------------------------------------------------


def _advice(remedy: Remedy, finding: Finding, account: Account) -> str:
    """A remedy and its alternative, each in lower case where possible."""
    write = NEXT_STEPS[remedy.kind]
    text = write if isinstance(write, str) else write(remedy, finding, account)
    if remedy.otherwise is None or remedy.kind is RemedyKind.ADD_LOADER_WORKERS:
        return text
    otherwise = _advice(remedy.otherwise, finding, account)
    link = _link(remedy, finding)
    return f"{text} {link} {otherwise}" if link else f"{text} {_sentence(otherwise)}"


def _link(remedy: Remedy, finding: Finding) -> str:
    """The words between a remedy and its alternative; empty: two sentences."""
    if remedy.kind is RemedyKind.RAISE_SHARE:
        return "Or else:"
    if remedy.kind is RemedyKind.SINGLE_WORKER and remedy.speedup is not None:
        return "Else"
    if remedy.kind is not RemedyKind.ADD_RESOURCE:
        return ""
    if finding.kind in (FindingKind.COMMUNICATION, FindingKind.NETWORK):
        return "Else"
    return "Or" if finding.kind in (FindingKind.INPUT, FindingKind.LOADER) else ""


def _more_cores(setting: CoresSetting | None) -> str:
    if setting is None:
        return "give the job more cores"
    return f"raise or drop {_setting(setting)} of the job"


def _add_cores(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"{_more_cores(remedy.facts.setting)}."


def _add_cores_or_remove_tasks(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: TasksFacts = remedy.facts
    role = "fewer tasks: a lower `count:` of one of its roles"
    fewer = role if facts.roles else "one task less"
    if facts.setting is not None:
        return f"{_more_cores(facts.setting)}, or {fewer}."
    tasks = f"the {facts.cores:g} that its {facts.tasks} tasks share"
    return f"give it more cores than {tasks}, or {fewer}."


def _add_loader_workers(remedy: Remedy, finding: Finding, account: Account) -> str:
    now = remedy.facts.now
    if now == 0:
        return "`DataLoader(..., num_workers=1)` reads beside it."
    if now:
        return f"more loader workers: `num_workers={2 * now}` instead of {now}."
    otherwise = ", or prepare the data once" if remedy.otherwise is not None else ""
    workers = "`DataLoader(..., num_workers=2)`, or twice as many as there are"
    return f"more loader workers: {workers}{otherwise}."


def _add_resource(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: ResourceFacts = remedy.facts
    if facts.now is None:
        twice = f"twice the {_TWICE[facts.resource]}"
    elif facts.resource == "servers":
        twice = f"`--servers {2 * facts.now}` instead of {facts.now}"
    elif facts.now:
        twice = f"`num_workers={2 * facts.now}` instead of {facts.now}"
    else:
        twice = "a loader worker (`num_workers=1`)"
    return f"{twice}: {remedy.speedup:.1f} times the speed."


def _add_server(remedy: Remedy, finding: Finding, account: Account) -> str:
    if remedy.facts is not None:
        return f"add one: a higher `count:` of its role `{remedy.facts.role}`."
    servers = remedy.settings["plan.servers"]
    return f"add a server: `--servers {servers}`, or `servers: {servers}` below `plan:`."


def _ask_owner(remedy: Remedy, finding: Finding, account: Account) -> str:
    program = remedy.facts.program
    return (
        f"ask {program.user}, whose {program.command} it is (process {program.pid}), or run the "
        "job when that has ended."
    )


def _end_program(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: ProgramFacts = remedy.facts
    ends = f"end {facts.program.command} (process {facts.program.pid})"
    if facts.renice:
        return f"{ends}, or lower its priority: `renice 19 -p {facts.program.pid}`."
    return f"{ends}, or run the job when that has ended."


def _decode_once(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"decode the data once and store it, or {_more_cores(remedy.facts.setting)}."


def _enlarge_steps(remedy: Remedy, finding: Finding, account: Account) -> str:
    cores = remedy.settings.get("limits.cores")
    frees = f"; `limits: {{cores: {cores}}}` frees them" if cores else ""
    return f"use a larger batch or `torch.compile`. More cores do not help{frees}."


def _leave_node_out(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: NodesFacts = remedy.facts
    workers = remedy.settings.get("plan.workers")
    if facts.listed:
        batch = ", its part out of `batch_per_worker:`" if facts.parts else ""
        return (
            f"take it out of `worker_nodes:`{batch}, and have `workers: {workers}`, below `plan:`."
        )
    fewer = f" --workers {workers}" if workers else ""
    return f"`--nodes {','.join(facts.nodes)}{fewer}` leaves that node out."


def _leave_together(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: OrderFacts = remedy.facts
    stay = (
        "keep running them together. One after the other would be no faster on average: "
        f"{_brings(facts)}"
    )
    if not remedy.job:
        return stay
    first = facts.order[0]
    setting = f"give {remedy.job} `after: {first}`{_in_place(facts)}"
    return f"{stay} If {first} matters more: in a job file, {setting}."


def _run_in_turn(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: OrderFacts = remedy.facts
    brings = _brings(facts)
    then = f" Then {brings}" if brings else ""
    first, second, *others = facts.order
    if others:
        names = ", ".join(facts.order[:_NAMED])
        names += f" and {len(facts.order) - _NAMED} more" if len(facts.order) > _NAMED else ""
        chain = "In a job file, give each `after:` with the name of the one before it."
        shortest = ", the shortest first" if brings else ""
        return f"run them one after the other{shortest}: {names}. {chain}{then}"
    shorter = ", which is shorter" if facts.shorter else ""
    setting = f"in a job file, give it `after: {first}`{_in_place(facts)}"
    return f"run {second} after {first}{shorter}: {setting}.{then}"


def _in_place(facts: OrderFacts) -> str:
    return f", in place of `after: {facts.replaced}`" if facts.replaced else ""


def _brings(facts: OrderFacts) -> str:
    """The completion time of each job; empty: unknown, or too many jobs."""
    if not facts.ends or len(facts.ends) > _NAMED:
        return ""
    changes = [
        f"{end.job}{'' if index else ' would be done'} after {say_seconds(end.alone)} instead of "
        f"{say_seconds(end.elapsed)}"
        for index, end in enumerate(facts.ends)
    ]
    return f"{', '.join(changes[:-1])} and {changes[-1]}."


def _lower_learning_rate(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"{_stops(account, '. ')}A lower learning rate or clipped gradients may help."


def _stop(remedy: Remedy, finding: Finding, account: Account) -> str:
    goal = remedy.settings["progress.goal"]
    stated = f"{goal:.4g}" if isinstance(goal, float) else "..."
    return f"{_stops(account, '; ')}`progress: {{goal: {stated}}}` would have ended it there."


def _stops(account: Account, end: str) -> str:
    if account.record.ended is not None:
        return ""
    return f"`headgate stop {account.job}` ends it{end}"


def _name_step(remedy: Remedy, finding: Finding, account: Account) -> str:
    return (
        "the `pattern` of its `progress` found no step: name the step in it, `(?P<step>\\d+)`. "
        f"`headgate logs {account.job}` shows its lines."
    )


def _raise_memory(remedy: Remedy, finding: Finding, account: Account) -> str:
    limit = remedy.settings.get("limits.memory")
    memory = say_bytes(limit).replace(" ", "") if isinstance(limit, float) else "..."
    return f"raise it: `limits: {{memory: {memory}}}` of the job."


def _raise_share(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"raise or drop {_setting(remedy.facts.setting)} of {account.job}."


def _reduce_servers(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"fewer servers: `servers: {remedy.settings['plan.servers']}` below `plan:`."


def _reduce_threads(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: ThreadSetting = remedy.facts
    count = facts.threads
    if not remedy.settings:
        limits = f"`torch.set_num_threads({count})`, or fewer loader workers"
        already = f"its `OMP_NUM_THREADS` is {facts.stated} already"
        return f"{already}, so the script starts more itself: {limits}."
    return (
        f'fewer threads: `env: {{OMP_NUM_THREADS: "{count}"}}` in its job, unless the script '
        "sets their number itself."
    )


def _reduce_workers(remedy: Remedy, finding: Finding, account: Account) -> str:
    count, job = remedy.settings["plan.workers"], account.record
    command = with_workers_command(job, count)
    run = f"`{command}`{location_hint(job)}, or " if command else ""
    return f"fewer workers: {run}`workers: {count}` below `plan:` of the job."


def _run_alone(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: AloneFacts = remedy.facts
    once = f"run {account.job} alone once"
    if not facts.threads:
        only = "If only jobs of Headgate are beside it"
        prove = f" {only}, `headgate explain --prove {account.job}` tells it."
        return f"{once}.{prove if facts.provable else ''}"
    rerun = rerun_command(account.record)
    command = f", `{rerun}`" if rerun else ""
    fixed = " No trial tells it while it runs, as its threads stay as they began."
    return (
        f"{once}{command}: Headgate then tells it, of this run too.{fixed if facts.fixed else ''}"
    )


def _run_apart(remedy: Remedy, finding: Finding, account: Account) -> str:
    return f"run {remedy.facts.run} went on beside it: start one after the other."


def _see_logs(remedy: Remedy, finding: Finding, account: Account) -> str:
    failed = finding.kind is FindingKind.FAILED
    return f"`headgate logs {account.job}` shows {'its output' if failed else 'what happened'}."


def _see_plans(remedy: Remedy, finding: Finding, account: Account) -> str:
    command = f"`{plan_command(account.record)}`{location_hint(account.record)}"
    return f"{command} shows whether fewer workers, or other nodes, are faster."


def _see_stacks(remedy: Remedy, finding: Finding, account: Account) -> str:
    facts: StacksFacts = remedy.facts
    if not facts.every_thread:
        return f"`headgate stacks {account.job}` shows where it stands, while the job runs."
    stacks = f"`headgate stacks {account.job} --all` shows"
    if facts.libraries:
        libraries = "`headgate.torch`, `headgate.keras` or `headgate.jax`"
        return f"{stacks} where it stands, while it runs. With {libraries} its steps tell more."
    they = "they" if facts.readers is None else f"its {facts.readers} loader workers"
    return f"{stacks} for what {they} wait, while the job runs."


def _see_status(remedy: Remedy, finding: Finding, account: Account) -> str:
    priority = remedy.settings.get("priority")
    first = f"; `priority: {priority:g}` of the job lets it go first" if priority else ""
    return f"`headgate status` shows what it waited for{first}."


def _single_worker(remedy: Remedy, finding: Finding, account: Account) -> str:
    job, setting = account.record, "`strategy: single` below `plan:` of the job"
    command = single_worker_command(job)
    if remedy.speedup is None:
        return f"one worker needs no server: `{command}`, or {setting}."
    how = f"`{command}`{location_hint(job)}" if command else setting
    return f"one worker waits for no other: {how}, has {remedy.speedup:.1f} times the speed."


NEXT_STEPS: Mapping[RemedyKind, Advice | str] = {
    RemedyKind.ADD_CORES: _add_cores,
    RemedyKind.ADD_CORES_OR_REMOVE_TASKS: _add_cores_or_remove_tasks,
    RemedyKind.ADD_LOADER_WORKERS: _add_loader_workers,
    RemedyKind.ADD_RESOURCE: _add_resource,
    RemedyKind.ADD_SERVER: _add_server,
    RemedyKind.ASK_FOR_CORES: (
        "ask the owner of the machine for cores that are not oversubscribed."
    ),
    RemedyKind.ASK_OWNER: _ask_owner,
    RemedyKind.CACHE_DATA: (
        "read the data into memory beforehand: `cat DATA > /dev/null`. Or store it once in a "
        "smaller form."
    ),
    RemedyKind.CALIBRATE: (
        "`headgate calibrate` measures that rate: the next run then tells who was to blame."
    ),
    RemedyKind.COMPARE_RUNS: "`headgate compare RUN RUN` shows which is faster.",
    RemedyKind.DECODE_ONCE: _decode_once,
    RemedyKind.END_OTHER_PROGRAMS: "`top` shows what else runs; end it.",
    RemedyKind.END_PROGRAM: _end_program,
    RemedyKind.ENLARGE_STEPS: _enlarge_steps,
    RemedyKind.EVALUATE_LESS: (
        "evaluate less often or on fewer samples, or in a job of its own that runs `after:` "
        "this one."
    ),
    RemedyKind.EXCHANGE_ROWS: (
        "set `sparse=True` in its `nn.Embedding` or `nn.EmbeddingBag`: then only the rows in "
        "use move."
    ),
    RemedyKind.FREEZE_GARBAGE: (
        "call `gc.freeze()` once the data is there, or `gc.disable()` while the job trains."
    ),
    RemedyKind.LEAVE_NODE_OUT: _leave_node_out,
    RemedyKind.LEAVE_TOGETHER: _leave_together,
    RemedyKind.LONGER_RUNS: (
        "start one longer run instead of several short ones, or prepare the data once and store it."
    ),
    RemedyKind.LOWER_LEARNING_RATE: _lower_learning_rate,
    RemedyKind.NAME_STEP: _name_step,
    RemedyKind.NONE: "",
    RemedyKind.PREPARE_DATA: "prepare the data once and store it.",
    RemedyKind.PRINT_STEPS: (
        "print a line for each step, such as `step 5 loss 0.31`, or name the pattern of its own "
        "lines: `progress: {pattern: ...}` in its job."
    ),
    RemedyKind.RAISE_MEMORY: _raise_memory,
    RemedyKind.RAISE_SHARE: _raise_share,
    RemedyKind.REDUCE_SERVERS: _reduce_servers,
    RemedyKind.REDUCE_THREADS: _reduce_threads,
    RemedyKind.REDUCE_WORKERS: _reduce_workers,
    RemedyKind.RUN_ALONE: _run_alone,
    RemedyKind.RUN_APART: _run_apart,
    RemedyKind.RUN_FEWER: (
        "run fewer of these jobs at a time: in a job file, `after:` has one wait for another."
    ),
    RemedyKind.RUN_IN_TURN: _run_in_turn,
    RemedyKind.SAVE_LESS: "save less often.",
    RemedyKind.SEE_LOGS: _see_logs,
    RemedyKind.SEE_PLANS: _see_plans,
    RemedyKind.SEE_STACKS: _see_stacks,
    RemedyKind.SEE_STATUS: _see_status,
    RemedyKind.SINGLE_WORKER: _single_worker,
    RemedyKind.STOP: _stop,
    RemedyKind.TURN_ON_READINGS: "`headgate doctor` shows how to turn these readings on.",
    RemedyKind.USE_ONE_HUB: (
        "that is another hub: submit its jobs to this one (same HEADGATE_HOME), or run this when "
        "they have ended."
    ),
    RemedyKind.WAIT_FOR_ENDS: (
        "once these jobs have ended, `headgate explain` says what it would bring to run them one "
        "after the other."
    ),
}
