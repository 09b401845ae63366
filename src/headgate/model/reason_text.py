"""Sentences for reasons: the only place where a `Reason` becomes words.

It lies as low as reasons do, because hub, simulator, `reports` and `cli` use it and may not import
each other. Nothing here decides, and no code reads these sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.model.ending_text import (
    ending_in_words,
    finished,
    how_to_end_plainly,
    in_doubt,
    resume,
    skipped_in_doubt,
)
from headgate.model.endings import Exit
from headgate.model.notice_text import NEXT, NOTICES
from headgate.model.reasons import CureKind, Facts, PauseKind, Reason
from headgate.model.reasons import ReasonKind as Kind
from headgate.model.refusal_text import Templates
from headgate.model.shortage_text import NAMED, given_back, needs_room
from headgate.model.units import counted, say_bytes, say_seconds


class _ReasonTemplates(Templates):
    """Fills in templates that may have reasons within."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Reason):
            return what_happened(value)
        return super().format_field(value, format_spec)


_TEMPLATES = _ReasonTemplates()


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


# --- a waiting job --------------------------------------------------------------------------------


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
        beside = ", ".join(facts["beside"][:NAMED])
        beside += " and others" if len(facts["beside"]) > NAMED else ""
        text += (
            f" before {facts['overtook']}, for it goes better beside {beside}: each keeps "
            f"{facts['keeps']:.2f} of its rate on average, not {facts['would_keep']:.2f}"
        )
    return text


def _resized(facts: Facts) -> str:
    text = f"resized from {facts['before']} to {counted(facts['workers'], 'worker', '')}"
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
    last_lines = f"it printed last: {printed}" if printed else "it printed nothing"
    return f"not ready within {say_seconds(facts['seconds'])}: {facts['text']}; {last_lines}"


def _outgrew_workers(facts: Facts) -> str:
    workers = facts["workers"]
    held_by = counted(workers, "worker", "")
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
    request = "state request it needs"
    if "least_bytes" in cure:
        request = f"state at least {say_bytes(cure['least_bytes'])}"
    elif "more_than_bytes" in cure:
        request = f"state more than {say_bytes(cure['more_than_bytes'])}"
    where = "(`limits: {gpu_memory: …}` or --gpu-memory)"
    return f"{request} {where}, and it waits until that is free"


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


def _changed_by_user(facts: Facts) -> str:
    changes = {name: value for name, value in facts.items() if name != "sweep"}
    jobs = f"jobs of sweep {facts['sweep']} were " if "sweep" in facts else ""
    return f"{jobs}changed by {'their' if jobs else 'its'} user: {say_changes(changes)}"


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
    Kind.NEEDS_ROOM: needs_room,
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
    Kind.CHANGED_BY_USER: _changed_by_user,
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
    Kind.GIVES_BACK: given_back,
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
    Kind.FINISHED: finished,
    Kind.ENDED_AS_ASKED: lambda facts: f"{_after(facts)}; {ending_in_words(facts['ending'])}",
    Kind.NO_ANSWER: lambda facts: f"killed: {ending_in_words(facts['ending'])}",
    Kind.IN_DOUBT: in_doubt,
    Kind.SKIPPED: "{job}, which it comes after, ended as {state}",
    Kind.SKIPPED_IN_DOUBT: skipped_in_doubt,
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
    Kind.CORES_BUY_STEPS: lambda facts: (
        f"{counted(facts['cores'], 'core', '.2g')} would bring it {facts['times']:.2g} times as "
        f"many steps as now; {in_words(facts['rank'])}"
    ),
    Kind.FEW_CORES_DO: lambda facts: (
        f"its steps are as fast as they can be on {counted(facts['cores'], 'core', '.2g')}; "
        f"{in_words(facts['rank'])}"
    ),
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
    Kind.IN_DOUBT: how_to_end_plainly,
    Kind.SKIPPED_IN_DOUBT: resume,
}
