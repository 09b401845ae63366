"""Sentences for reasons: the only place where a `Reason` becomes words.

It lies as low as reasons do, because hub, simulator, `reports` and `cli` use it and may not import
each other. Nothing here decides, and no code reads these sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from headgate.model.endings import Checkpoint, Doubt, Exit, Saved, StopAnswer
from headgate.model.notice_text import NEXT, NOTICES
from headgate.model.reasons import (
    CureKind,
    Facts,
    KeepsRoom,
    PauseKind,
    Reason,
    Refusal,
    RefusalKind,
)
from headgate.model.reasons import ReasonKind as Kind
from headgate.model.units import say_bytes, say_seconds, say_time

_COMMANDS = 3
"""Most commands named in a sentence."""
_LETTERS = 60
"""Most letters of each command."""
_NAMED = 3
"""Most jobs named in a sentence."""


def in_words(reason: Reason) -> str:
    """A reason as a phrase for people, without a full stop: what happened, and what to do."""
    cure = what_to_do(reason)
    return f"{what_happened(reason)}{NEXT}{cure}" if cure else what_happened(reason)


def what_happened(reason: Reason) -> str:
    """A reason as a phrase, without what to do about it."""
    words = _WORDS[reason.kind]
    return (
        _TEMPLATES.vformat(words, (), reason.facts)
        if isinstance(words, str)
        else words(reason.facts)
    )


def what_to_do(reason: Reason) -> str:
    """What to do about a reason, or about its cause; empty: nothing is known."""
    cure = _TO_DO[reason.kind](reason.facts) if reason.kind in _TO_DO else ""
    inner = (fact for fact in reason.facts.values() if isinstance(fact, Reason))
    return cure or next(filter(None, map(what_to_do, inner)), "")


def refusal_in_words(refusal: Refusal) -> str:
    """A refusal as a phrase for people, without a full stop."""
    words = _REFUSALS[refusal.kind]
    if isinstance(words, str):
        return _TEMPLATES.vformat(words, (), refusal.facts)
    return words(refusal.facts)


class _Templates(Formatter):
    """Fills in templates such as `{after:seconds}` and `{names:list}`, and reasons within reasons.
    A missing fact becomes empty.
    """

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "")

    def format_field(self, value: Any, format_spec: str) -> str:
        match value:
            case Reason():
                return what_happened(value)
            case Refusal():
                return refusal_in_words(value)
        if value == "" or format_spec == "list":
            return ", ".join(value)
        return say_seconds(value) if format_spec == "seconds" else format(value, format_spec)


_TEMPLATES = _Templates()


# --- a waiting job --------------------------------------------------------------------------------


def _needs_room(facts: Facts) -> str:
    """What the job waits for, how many jobs are ahead of it, and until when."""
    lacks, holders = facts["lacks"], facts.get("holders", ())
    text = f"for {shortage_in_words(lacks)}"
    if facts.get("is_too_large"):
        return f"{text}, more than the nodes have now"
    if holders:
        text += _said_holders(lacks, holders)
    for job, why in facts.get("kept", {}).items():
        text += f"; {job} {_KEEPS[KeepsRoom(why)]}"
    if ahead := facts.get("ahead"):
        text += f"; {ahead} before it"
    if lacks["kind"] == "gpu-unseen":
        return text  # the job starts before any of them ends
    if unknown := facts.get("unknown", ()):
        takes = "take" if len(unknown) > 1 else "takes"
        text += f"; nothing tells yet how long {_names(unknown)} {takes}"
    if (at := facts.get("expected_at")) is not None:
        text += f"; expected to start at about {say_time(at)}"
    return text


_KEEPS: Mapping[KeepsRoom, str] = {
    KeepsRoom.NOT_PAUSABLE: "may not be paused (pausable: false)",
    KeepsRoom.NO_CHECKPOINT: "would begin anew, as no checkpoint of it is known",
    KeepsRoom.URGENT: "is urgent too",
}


def _said_holders(lacks: Facts, holders: Sequence[str]) -> str:
    many, names = len(holders) > 1, _names(holders)
    if lacks["kind"] in ("gpu-unseen", "gpu-alone"):
        return f"; {names} {'are' if many else 'is'} there"
    has = "have" if many else "has"
    if "free_bytes" in lacks:
        return f"; {names} {has} some of it"
    return f", which {names} {has}"


def _names(jobs: Sequence[str]) -> str:
    more = len(jobs) - _NAMED
    named = ", ".join(jobs[:_NAMED])
    return named if more <= 0 else f"{named} and {more} more"


_BOUNDED = {"slots": "", "slots-of-run": "of its run ", "slots-of-sweep": "of its sweep "}
_TURNS = {
    "others-first": ": there is room, but it would delay a job before it, or a reservation",
    "own-limit": ": with it you would have more than you may",
    "held": ": an administrator holds it, or lets nothing start",
    "too-large": ": it needs more than the machine has",
}


def shortage_in_words(lacks: Facts) -> str:
    """What a job that waits for room lacks, from the facts of its `Shortage`."""
    kind, count = lacks["kind"], lacks.get("count", 1)
    if kind == "gpus":
        return "1 GPU" if count == 1 else f"{count} GPUs"
    if kind == "memory":
        return _memory(lacks, count)
    if kind == "grant":
        where = f"node {lacks['node']}" if "node" in lacks else "the machine"
        return f"its turn on {where}, which users share{_TURNS.get(lacks.get('why', ''), '')}"
    if kind == "probe":
        return "the memory that the first job of its script takes"
    if kind in _BOUNDED:
        jobs = "1 job" if count == 1 else f"{count} jobs"
        return f"a slot: at most {jobs} {_BOUNDED[kind]}at once"
    gpus = f"GPU {', '.join(map(str, lacks.get('gpus', ())))} of node {lacks.get('node', '')}"
    if kind == "gpu-unseen":
        return f"a GPU: what the jobs on {gpus} hold of it is not seen yet"
    if kind == "gpu-alone":
        return f"a GPU that no other job uses: there are some on {gpus}"
    need = say_bytes(lacks["needs_bytes"])
    need += "" if lacks["is_known"] else " or so (it is not known)"
    need += f" for each of {count} tasks and GPUs" if count > 1 else ""
    if "free_bytes" not in lacks:
        return f"{need} of GPU memory"
    free, where = say_bytes(lacks["free_bytes"]), f"GPU {lacks.get('gpu')} of node {lacks['node']}"
    text = f"GPU memory: needs {need}, {free} free on {where}"
    if "others_bytes" in lacks:
        others = say_bytes(lacks["others_bytes"])
        text += f", where programs that nothing is kept for use {others}"
    return text


def _memory(lacks: Facts, count: int) -> str:
    text = f"{say_bytes(count * lacks['needs_bytes'])} of memory"
    text += "" if lacks["is_known"] else " until its need is seen"
    if "free_bytes" not in lacks or "others_bytes" not in lacks:
        return text
    free, others = say_bytes(lacks["free_bytes"]), say_bytes(lacks["others_bytes"])
    where = f"{free} free on node {lacks['node']}"
    return f"{text}: {where}, where other programs and Headgate hold {others}"


def _tried_again(facts: Facts) -> str:
    text = f"{_after(facts)}; tried again in {say_seconds(facts['seconds'])}"
    left = facts["retries_left"]
    return f"{text} ({left} retries left)" if left > 1 else text


# --- a running job --------------------------------------------------------------------------------


def _lost_with_hub(facts: Facts) -> str:
    text = (
        f"its task was lost {'when this machine stopped' if facts['rebooted'] else 'with its hub'}"
    )
    again = (
        f"; run it again from its beginning with: headgate resume {facts.get('run')} --from-scratch"
    )
    return text + (again if "run" in facts else "")


def _started(facts: Facts) -> str:
    text = f"going on from {facts['resumed_from']}" if "resumed_from" in facts else "started"
    text += f" (attempt {facts['attempt']})" if facts["attempt"] > 1 else ""
    text += " as an urgent job" if facts.get("is_urgent") else ""
    if "overtook" in facts:
        beside = ", ".join(facts["beside"][:_NAMED])
        beside += " and others" if len(facts["beside"]) > _NAMED else ""
        text += (
            f" before {facts['overtook']}, for it goes better beside {beside}: each keeps "
            f"{facts['keeps']:.2f} of its rate on average, not {facts['would_keep']:.2f}"
        )
    return text


def _resized(facts: Facts) -> str:
    text = f"resized from {facts['before']} to {facts['workers']} workers"
    tasks = facts.get("tasks", ())
    if not tasks:
        return text
    verb = "leave" if facts["workers"] < facts["before"] else "join"
    verb += "s" if len(tasks) == 1 else ""
    return f"{text}: {', '.join(tasks)} {verb}"


# --- why a job or a task is ended -----------------------------------------------------------------


def _node_came(facts: Facts) -> str:
    text = f"node {facts['node']} has come, and"
    if "nodes" in facts:
        return f"{text} there is room on {', '.join(facts['nodes'])} together"
    return f"{text} is free"


def _workers_ended(facts: Facts) -> str:
    if "seconds" in facts:
        return f"its workers ended {say_seconds(facts['seconds'])} ago"
    return "its workers have ended"


# --- how a task ended, or was lost ----------------------------------------------------------------


def _exit(facts: Facts) -> str:
    return Exit(facts.get("code"), facts.get("signal"), reason=facts.get("text")).in_words()


def _out_of_gpu_memory(facts: Facts) -> str:
    kept = facts.get("kept_bytes")
    text = f"its need was {'not known' if kept is None else f'taken to be {say_bytes(kept)}'}"
    if held := facts.get("held_bytes"):
        on_each = f" on each of {facts['gpu_count']} GPUs" if facts["gpu_count"] > 1 else ""
        need = f"It held {say_bytes(held)}{on_each}, and {text}"
    else:
        need = f"I{text[1:]}"
    gpus = ", ".join(map(str, facts.get("gpus", ())))
    where = f"GPU {gpus} of node {facts['node']}" if gpus else f"the GPUs of node {facts['node']}"
    names = [
        f"{other.get('job', 'programs outside Headgate')} had {say_bytes(other['bytes'])}"
        for other in facts.get("others", ())
    ]
    who = f"On {where}, {' and '.join(names) or 'no other job had memory'}"
    return f"{what_happened(facts['exit']).rstrip('.')}. {need}. {who}"


def _ready_late(facts: Facts) -> str:
    printed = " | ".join(facts.get("printed", ()))
    said = f"it printed last: {printed}" if printed else "it printed nothing"
    return f"not ready within {say_seconds(facts['seconds'])}: {facts['text']}; {said}"


def _outgrew_workers(facts: Facts) -> str:
    workers = facts["workers"]
    held_by = "1 worker" if workers == 1 else f"{workers} workers"
    return f"{what_happened(facts['exit'])}; it needs more than {held_by} to hold its model"


# --- the consequence for its job ------------------------------------------------------------------


def _others_go_on(facts: Facts) -> str:
    if facts.get("is_replaced"):
        return f"{_after(facts)}; the others go on, and it is started again to join them"
    return f"{_after(facts)}; the others go on without it"


def _task_replaced(facts: Facts) -> str:
    where = f" on {facts['node']}" if "node" in facts else ""
    return f"{_after(facts)}; it is started again{where}"


def _job_restarted(facts: Facts) -> str:
    if "resumed_from" in facts:
        where = f"from {facts['resumed_from']}"
    elif facts.get("resumes"):
        where = "from what its script saved"
    else:
        where = "from the beginning, because there is no checkpoint"
    which = "all tasks are" if facts["tasks"] > 1 else "it is"
    return f"{_after(facts)}; {which} started again {where}"


def _cannot_go_on(facts: Facts) -> str:
    why = "none of its nodes is left"
    if "faults" in facts:
        why = f"{facts['faults']} times since its last checkpoint"
    return f"{_after(facts)}; the job cannot go on: {why}"


def _memory_advice(facts: Facts) -> str:
    text = _after(facts)
    if "held_bytes" in facts:
        text += f"; held {say_bytes(facts['held_bytes'])}"
    if "limit_bytes" in facts:
        text += f"; its limit is {say_bytes(facts['limit_bytes'])}"
    return text


def _cures(cures: Sequence[Facts]) -> str:
    words = [_CURES[cure["kind"]](cure) for cure in cures]
    return (
        "; or ".join(words) if cures[0]["kind"] == CureKind.LESS_GPU_MEMORY else ", or ".join(words)
    )


def _other_nodes(cure: Facts) -> str:
    size, nodes = say_bytes(cure["bytes"]), ",".join(cure["nodes"])
    return f"leave out {cure['node']}, which has {size} of memory (`--nodes {nodes}`)"


def _state_gpu_memory(cure: Facts) -> str:
    what = "state what it needs"
    if "least_bytes" in cure:
        what = f"state at least {say_bytes(cure['least_bytes'])}"
    elif "more_than_bytes" in cure:
        what = f"state more than {say_bytes(cure['more_than_bytes'])}"
    where = "(`limits: {gpu_memory: …}` or --gpu-memory)"
    return f"{what} {where}, and it waits until that is free"


def _other_gpu(cure: Facts) -> str:
    where = f"GPU {cure['gpu']} of node {cure['node']}"
    return f"{where} has {say_bytes(cure['free_bytes'])} free, and it is tried there once"


_CURES: Mapping[str, Callable[[Facts], str]] = {
    CureKind.SMALLER_BATCH: lambda _: "make its batch smaller",
    CureKind.LESS_GPU_MEMORY: lambda _: (
        "make its batch smaller, compute in bfloat16, or keep fewer activations (checkpointing)"
    ),
    CureKind.HIGHER_LIMIT: lambda _: "raise its limit of memory (`limits: {memory: …}`, --memory)",
    CureKind.OTHER_NODES: _other_nodes,
    CureKind.DIVIDE_MODEL: lambda _: (
        "divide the model over several workers by FSDP or DeepSpeed ZeRO, as DDP gives each a "
        "whole one"
    ),
    CureKind.SEVERAL_WORKERS: lambda _: (
        "give it several workers (--workers N), which divide the model"
    ),
    CureKind.MORE_NODES: lambda _: (
        "give it more or larger nodes: no more workers have room on these"
    ),
    CureKind.GIVE_BACK: lambda cure: (
        "have freed tensors given back at once, which costs CPU time (`env: "
        f'{{{cure["variable"]}: "{cure["value"]}"}}`)'
    ),
    CureKind.STATE_GPU_MEMORY: _state_gpu_memory,
    CureKind.OTHER_GPU: _other_gpu,
}

# --- how a job ended ------------------------------------------------------------------------------


def ending_in_words(ending: Facts) -> str:
    """What an `Ending` adds to the reason of an end, as the rest of a sentence; empty: nothing."""
    match ending.get("doubt"):
        case Doubt.LEFT_PROCESSES:
            return f"left {_said_processes(ending['left'])}"
        case Doubt.FAILURE_IN_OUTPUT:
            return f"its output ends with a failure: {ending['failure']}"
    unanswered = ""
    if ending.get("answer") == StopAnswer.NONE:
        seconds = say_seconds(ending.get("grace_seconds") or 0.0)
        unanswered = f"it did not answer within {seconds}"
    return "; ".join(filter(None, [unanswered, _said_saved(ending)]))


def _said_saved(ending: Facts) -> str:
    checkpoint = ending.get("checkpoint")
    where = Checkpoint(**checkpoint).where if checkpoint is not None else ""
    match ending.get("saved"):
        case Saved.THEN:
            return f"last checkpoint: {where}, saved as it ended"
        case Saved.BEFORE:
            return f"last checkpoint: {where}, saved before it was asked to end"
        case Saved.BY_ITSELF:
            return "last checkpoint: its script's own"
        case Saved.NOTHING:
            return "last checkpoint: none"
    return ""


def _said_processes(commands: Sequence[str]) -> str:
    names = [
        name if len(name) <= _LETTERS else f"{name[:_LETTERS]}…" for name in commands[:_COMMANDS]
    ]
    more = f" and {len(commands) - _COMMANDS} more" if len(commands) > _COMMANDS else ""
    if len(commands) == 1:
        return f"a process behind, which was ended with it: {names[0]}"
    return f"{len(commands)} processes behind, which were ended with it: {', '.join(names)}{more}"


def _plainer(facts: Facts) -> str:
    """How to avoid an unclear end the next time; empty: nothing."""
    match facts["ending"].get("doubt"):
        case Doubt.LEFT_PROCESSES:
            return "have its command wait for them (`wait`)"
        case Doubt.FAILURE_IN_OUTPUT:
            what = "(`set -e -o pipefail` in bash)"
            return f"have its command end with the status of what failed {what}"
    return ""


def _finished(facts: Facts) -> str:
    text = "finished"
    if copies := facts.get("copies"):
        why = "because none uses headgate.torch, .keras or .jax"
        text += f", {copies} times over: its workers shared nothing, {why}"
    if kills := facts.get("kills"):
        were = "were" if kills > 1 else "was"
        text += f", but {kills} of its processes {were} killed for want of memory"
    if "ending" in facts:
        text += f", but {ending_in_words(facts['ending'])}"
    return text


def _in_doubt(facts: Facts) -> str:
    return f"its end is in doubt: {ending_in_words(facts['ending'])}"


def _skipped_in_doubt(facts: Facts) -> str:
    doubt = ending_in_words(facts["ending"])
    return f"{facts['job']}, which it comes after, ended in doubt: {doubt}"


def _resume(facts: Facts) -> str:
    text, plainer = f"look at its log, then: headgate resume {facts['run']}", _plainer(facts)
    return f"{text}; next time, {plainer}" if plainer else text


def _no_nodes(facts: Facts) -> str:
    before = f"{_after(facts)}; the job cannot go on: " if "after" in facts else ""
    return f"{before}none of its nodes is there: {', '.join(facts['nodes'])}"


# --- a job's share --------------------------------------------------------------------------------


def _place(facts: Facts) -> str:
    """A job's rank in the order of its policy."""
    if ahead := facts["ahead"]:
        return f"{ahead} before it"
    return "shortest" if facts.get("is_shortest") else "first"


def _growth(facts: Facts) -> str:
    others = ", ".join(f"{name} {value:.3g}" for name, value in facts.get("others", {}).items())
    of_all = f" of {facts['total']:.3g}" if "total" in facts else ""
    text = f"{facts['placed']}, growth efficiency {facts['efficiency']:.3g}{of_all}"
    return f"{text} ({others})" if others else text


# --- warnings -------------------------------------------------------------------------------------


def _goal_in_doubt(facts: Facts) -> str:
    metric, value, goal = facts["metric"], facts["value"], facts["goal"]
    if facts.get("is_first"):
        return (
            f"{metric} is {value:g} in its first report, which meets its goal of {goal:g}: is the "
            "goal meant so? The job goes on; it ends by this goal only after a report that does "
            "not meet it"
        )
    return (
        f"{metric} is {value:g}, which meets its goal of {goal:g} only if one is a fraction and "
        "the other in percent; give the goal as the script tells the metric"
    )


# --- why no plan is made --------------------------------------------------------------------------


def _no_room_left(facts: Facts) -> str:
    lacks = dict.fromkeys(_SIZES[lack["resource"]](lack) for lack in facts["lacks"])
    has = f"node {facts['node']} has" if "node" in facts else "no node has"
    return (
        f"job {facts['job']!r}: {has} {', '.join(lacks)} left for {facts['task']}, beside its "
        "other tasks; ask for less, have fewer tasks, or add nodes"
    )


_SIZES: Mapping[str, Callable[[Facts], str]] = {
    "gpus": lambda lack: f"{lack['count']} GPUs",
    "memory": lambda lack: f"{say_bytes(lack['bytes'])} of memory",
    "nic": lambda lack: f"{say_bytes(lack['bytes'])}/s of its NIC",
}


def _too_little_gpu_memory(facts: Facts) -> str:
    asked, gpus, count = say_bytes(facts["asked_bytes"]), facts["gpus"], facts["count"]
    if "has_bytes" not in facts:
        return f"{facts['node']} has {gpus} GPUs, {asked} of GPU memory are asked for"
    whose = "its GPUs have" if count > 1 or gpus == 1 else "its largest GPU has"
    asked += f" on each of {count} GPUs" if count > 1 else ""
    has = say_bytes(facts["has_bytes"])
    return f"{facts['node']}: {whose} {has} of memory, {asked} are asked for"


def _no_room_for_step(facts: Facts) -> str:
    workers = "a worker" if facts["workers"] == 1 else f"{facts['workers']} workers"
    return f"there is no room for {workers} and a step of {facts['batch']} samples"


def _whose(facts: Facts) -> str:
    return f"job {facts['job']!r}: " if "job" in facts else ""


_REFUSALS: Mapping[RefusalKind, str | Callable[[Facts], str]] = {
    RefusalKind.NO_SUCH_JOB: "no such job is there",
    RefusalKind.NO_SHARE: "{error}",
    RefusalKind.TOO_MANY_TASKS: lambda facts: (
        f"job {facts['job']!r} asks for {facts['tasks']:,} tasks; at most {facts['most']:,} of a "
        f"job run on {_size(facts)}; ask for fewer workers"
    ),
    RefusalKind.NOT_IN_GUESTS: "job {job!r}: {text}",
    RefusalKind.NODES_TAKEN: lambda facts: (
        f"{_whose(facts)}other jobs use all {facts['nodes']} nodes; wait, or add nodes"
    ),
    RefusalKind.UNKNOWN_NODE: lambda facts: (
        f"job {facts['job']!r}: role {facts['role']} names node {facts['node']!r}; expected "
        f"{', '.join(facts['nodes'])}"
        if "role" in facts
        else f"job {facts['job']!r}: its plan names node {facts['node']!r}; expected one of "
        f"{', '.join(facts['nodes'])}"
    ),
    RefusalKind.NODE_TOO_SMALL: "job {job!r}: {lacks}; lower its limits, or name another node",
    RefusalKind.NO_NODE_FITS: lambda facts: (
        f"job {facts['job']!r} fits on no node: {_each(facts['lacks'])}; lower its limits"
    ),
    RefusalKind.NO_ROOM_LEFT: _no_room_left,
    RefusalKind.NO_LAYOUT: lambda facts: (
        f"job {facts['job']!r}: no plan can run: {_each(facts['lacks'])}; change its limits, its "
        "batch or the cluster"
    ),
    RefusalKind.TOO_FEW_GPUS: lambda facts: (
        f"{facts['node']} has {facts['has']} GPUs, "
        + (f"{facts['asked']} are" if "asked" in facts else "one without other jobs is")
        + " asked for"
    ),
    RefusalKind.TOO_LITTLE_MEMORY: lambda facts: (
        f"{facts['node']} has {say_bytes(facts['has_bytes'])} of memory, "
        f"{say_bytes(facts['asked_bytes'])} are asked for"
    ),
    RefusalKind.TOO_LITTLE_GPU_MEMORY: _too_little_gpu_memory,
    RefusalKind.KIND_TAKEN: "{node}: other jobs use all {nodes}",
    RefusalKind.MODEL_TOO_LARGE: lambda facts: (
        f"{facts['node']} allows {say_bytes(facts['most_bytes'])} of memory, a worker needs "
        f"{say_bytes(facts['needs_bytes'])}"
    ),
    RefusalKind.BATCH_TOO_SMALL: (
        "{workers} workers are asked for, a step has {batch} samples to divide"
    ),
    RefusalKind.TRAINS_ALONE: "{workers} workers are asked for, it trains in one task: {text}",
    RefusalKind.NO_ROOM_FOR_STEP: _no_room_for_step,
}


def _each(refusals: Sequence[Refusal]) -> str:
    return "; ".join(map(refusal_in_words, refusals))


def _size(facts: Facts) -> str:
    cores = f"{facts['cores']:g} cores"
    return cores if facts["nodes"] == 1 else f"{facts['nodes']} nodes with {cores}"


# --- all of them ----------------------------------------------------------------------------------


def _after(facts: Facts) -> str:
    return what_happened(facts["after"])


def say_changes(changes: Mapping[str, Any]) -> str:
    """New values of a job's fields by name, as a list in words."""
    say: dict[str, Callable[[Any], str]] = {
        "memory": say_bytes,
        "timeout": say_seconds,
        "at_once": str,
    }
    return ", ".join(
        f"{name} {say[name](value) if name in say else format(value, 'g')}"
        for name, value in changes.items()
    )


def _stopped_early(facts: Facts) -> str:
    metric, by_rule = facts["metric"], "ended early by the rule of its sweep"
    if "value" not in facts:
        return f"{by_rule}: its {metric} is no number"
    value, step = f"{metric} {facts['value']:.6g}", f"step {facts['step']:.0f}"
    it_has = {
        "asha": f"it has {value} at {step}",
        "median": f"it has {value} at best by {step}",
        "predicted": f"it is predicted to end with {value} at best",
    }
    jobs = f"{facts['compared']} {'job' if facts['compared'] == 1 else 'jobs'}"
    needs = f"needs {facts['best']:.6g} to be kept, by the rule `{facts['rule']}` and {jobs}"
    return f"{by_rule}: {it_has[facts['rule']]}, and {needs}"


def _paused(facts: Facts) -> str:
    by = f"for urgent job {facts['urgent']}" if facts.get("urgent") else "by its user"
    match PauseKind(facts["keeps"]):
        case PauseKind.FROZEN:
            return f"{by}; it keeps its memory"
        case PauseKind.RELEASED:
            where = facts.get("resumes_from")
            again = f"goes on from {where}" if where else "begins again where its script resumes"
            return f"{by}; it gave back memory and GPUs, and {again}"
        case PauseKind.HELD_BACK:
            return f"{by}; it keeps its place in the queue"


_WORDS: Mapping[Kind, str | Callable[[Facts], str]] = {
    Kind.TEXT: "{text}",
    Kind.BEING_PLANNED: "being planned",
    Kind.BEING_STARTED: "being started",
    Kind.AFTER_JOBS: "for {jobs:list} to finish",
    Kind.STARTS_IN: "starts in {seconds:seconds}",
    Kind.NEEDS_ROOM: _needs_room,
    Kind.AWAITS_NODES: lambda facts: f"for node {' or '.join(facts['nodes'])} to come back",
    Kind.AWAITS_ENGINE: "{text}",
    Kind.LOST_WITH_HUB: _lost_with_hub,
    Kind.STARTED_AGAIN: "{after}; started again",
    Kind.TRIED_AGAIN: _tried_again,
    Kind.TRIED_AS_ONE_TASK: "{after}; before its first report, so tried again as one task",
    Kind.GIVEN_WORKERS: "{after}; started again with {workers}",
    Kind.STARTED: _started,
    Kind.TAKEN_UP: "went on without a hub, and is taken up again",
    Kind.RESIZED: _resized,
    Kind.CHANGED_BY_USER: lambda facts: f"changed by its user: {say_changes(facts)}",
    Kind.UNPAUSED: lambda facts: (
        f"unpaused after {say_seconds(facts['seconds'])}" if facts.get("seconds") else "unpaused"
    ),
    Kind.PAUSES: "to pause; it gives back its memory",
    Kind.PAUSED: _paused,
    Kind.EVALUATING: "its evaluator has {seconds:seconds} to end",
    Kind.WORKERS_APART: lambda facts: (
        f"the {facts['workers']} workers of job {facts['job']} share nothing: "
        f"{facts.get('script', 'its command')} does not use headgate.torch, headgate.keras or "
        "headgate.jax; each trains the whole job"
    ),
    Kind.USER_ASKED: "as its user asked",
    Kind.STOPPED_BY_USER: "stopped by its user",
    Kind.KILLED_BY_USER: "killed by its user",
    Kind.STOPPED_BEFORE_START: lambda facts: (
        f"stopped before {'it was tried again' if facts['attempt'] else 'it started'}"
    ),
    Kind.STOPPED_DIFFERS: (
        "stopped because its workers do not train what one does (`verify: strict`)"
    ),
    Kind.STOPPED_EARLY: _stopped_early,
    Kind.GOAL_REACHED: "reached its goal: {metric} {value:.6g}, asked for {goal:g}",
    Kind.TIMED_OUT: "over its timeout of {seconds:seconds}",
    Kind.MAKES_ROOM: "makes room for {job}",
    Kind.MADE_ROOM: "made room for {job}",
    Kind.BETTER_PLAN: "moved to a better plan",
    Kind.NODE_CAME: _node_came,
    Kind.TRAINING_OVER: "the training is over",
    Kind.WORKERS_ENDED: _workers_ended,
    Kind.EXIT: _exit,
    Kind.OF_TASK: "{task}: {reason}",
    Kind.OUT_OF_GPU_MEMORY: _out_of_gpu_memory,
    Kind.TASK_LOST: "{task} was lost: {exit}",
    Kind.NODE_GONE: "{task} was lost: its node {node} is gone",
    Kind.FELL_BEHIND: "{task} fell too far behind the others",
    Kind.LOST_TOUCH: "{task} could not go on: it lost touch with another task",
    Kind.PORT_TAKEN: "{task} found that {text}",
    Kind.NOT_READY: "ended before it was ready",
    Kind.READY_LATE: _ready_late,
    Kind.READY_UNREADABLE: "the expression {pattern!r} of its `ready` {error}",
    Kind.CHECKPOINT_LOST: "{text}",
    Kind.OUTGREW_WORKERS: _outgrew_workers,
    Kind.LOST_AT_END: "{after}; the training was over",
    Kind.OTHERS_GO_ON: _others_go_on,
    Kind.TASK_REPLACED: _task_replaced,
    Kind.JOB_RESTARTED: _job_restarted,
    Kind.JOB_WIDENED: (
        "{after}, and is started again with {workers}; where each has a batch of its own, a step "
        "has more samples"
    ),
    Kind.CANNOT_GO_ON: _cannot_go_on,
    Kind.MEMORY_ADVICE: _memory_advice,
    Kind.FINISHED: _finished,
    Kind.ENDED_AS_ASKED: lambda facts: f"{_after(facts)}; {ending_in_words(facts['ending'])}",
    Kind.NO_ANSWER: lambda facts: f"killed: {ending_in_words(facts['ending'])}",
    Kind.IN_DOUBT: _in_doubt,
    Kind.SKIPPED: "{job}, which it comes after, ended as {state}",
    Kind.SKIPPED_IN_DOUBT: _skipped_in_doubt,
    Kind.NO_CHECKPOINT_LEFT: "{after}, and its run has none before it to go on from",
    Kind.NO_NODES: _no_nodes,
    Kind.NO_END: "no end was recorded",
    Kind.NO_PLACE: "{refusal}",
    Kind.NO_POLICY: "no policy",
    Kind.LEFT_BY_OTHERS: "what others leave",
    Kind.PINNED: "pinned to {share} of its nodes",
    Kind.LIFTED: "lifted to its floor",
    Kind.EQUAL_SHARE: "equal share, priority {priority:g}",
    Kind.WORK_LEFT: lambda facts: (
        f"{_place(facts)}: {facts['core_seconds']:.3g} core-seconds left ({facts['low']:.3g} to "
        f"{facts['high']:.3g})"
    ),
    Kind.WORK_UNKNOWN: lambda facts: (
        f"{_place(facts)}: {'it says no end' if facts['has_curve'] else 'nothing predicted yet'}, "
        f"{facts['used_core_seconds']:.3g} core-seconds used"
    ),
    Kind.ENDS_LATE: "would otherwise end later than {rho:g} times its fair time",
    Kind.DIVERGES: "its loss diverges, so it comes last",
    Kind.STALLED: "it has stalled, so it comes last",
    Kind.LEAST_SERVICE: "queue {queue}, {used_core_seconds:.3g} core-seconds used",
    Kind.FAIRNESS: lambda facts: (
        f"rho {facts['rho']:.2f}, {'served' if facts['is_served'] else 'not behind'}"
    ),
    Kind.LOSS_DROP: "a drop of {part:.2g} of the largest drop expected of it",
    Kind.NO_CURVE: "no curve yet: an equal share",
    Kind.GROWTH: _growth,
    Kind.LIMITED_BY_GROWTH: ("{placed}: it hardly learns by these resources, so they are limited"),
    Kind.ALL_COMPLETING: "all jobs are completing",
    Kind.ON_TRIAL: "tried on two cores for {seconds:g} s, to see what they bring it",
    Kind.LENDS_CORES: "{job} is tried on two cores",
    Kind.CORES_BUY_STEPS: (
        "{cores:.2g} cores would bring it {times:.2g} times as many steps as now; {rank}"
    ),
    Kind.FEW_CORES_DO: "its steps are as fast as they can be on {cores:.2g} cores; {rank}",
    Kind.BY_POLICY: "{text}",
    Kind.GOAL_IN_DOUBT: _goal_in_doubt,
    Kind.POLICY_FAILED: "policy {policy!r} failed, shares stay as they are: {error}",
    Kind.SHARE_DROPPED: "policy {policy!r}: its share for {job} is dropped: {refusal}",
    **NOTICES,
}

_TO_DO: Mapping[Kind, Callable[[Facts], str]] = {
    Kind.EXIT: lambda facts: facts.get("cure", ""),
    Kind.OUT_OF_GPU_MEMORY: lambda facts: _cures(facts["cures"]),
    Kind.MEMORY_ADVICE: lambda facts: _cures(facts["cures"]),
    Kind.IN_DOUBT: _plainer,
    Kind.SKIPPED_IN_DOUBT: _resume,
}
