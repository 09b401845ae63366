"""Sentences about a run besides its jobs' states: notes, warnings and faults.

`model.reason_text` uses these templates and writers.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping

from headgate.model.endings import OutsideFiles
from headgate.model.reasons import Facts, StartOver
from headgate.model.reasons import ReasonKind as Kind
from headgate.model.units import counted, say_bytes, say_first, say_samples, say_seconds

NEXT = ". Next: "
"""Separates a reason from what to do about it."""
_FILES = 5
"""Most files named in a sentence."""

_ACTS = {
    "hold": "{by} (administrator) holds it: it does not start until it is released",
    "release": "{by} (administrator) leaves it to its turn again",
    "first": "{by} (administrator) lets it start before all others",
    "stop": "{by} (administrator) stops it",
    "drain": "{by} (administrator) lets no job start on this machine any more",
    "undrain": "{by} (administrator) lets jobs start on this machine again",
    "limit": "{by} (administrator) limits what you may have of this machine",
    "unlimit": "{by} (administrator) leaves you what the rules of this machine say",
}


def _slurm_share(facts: Facts) -> str:
    parts = [_counted(facts["cores"], "CPU")] if "cores" in facts else []
    parts += [f"{say_bytes(facts['memory_bytes'])} of memory"] if "memory_bytes" in facts else []
    parts += [_counted(facts["gpus"], "GPU")] if "gpus" in facts else []
    text = f"Slurm job {facts['job']}" + (f": {', '.join(parts)} on this node" if parts else "")
    if not facts["here"]:
        text += (
            f"; this shell is not on its nodes ({facts['nodes']}): run headgate there, by sbatch "
            "or srun --pty"
        )
    elif facts["count"] > 1:
        text += (
            f"; of its {facts['count']} nodes ({facts['nodes']}) Headgate uses this one: to use "
            "all, start a cluster on them by srun, and name its engine by --engine"
        )
    return text


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _runs_deleted(facts: Facts) -> str:
    return (
        "deleted the oldest runs, which were short and had no checkpoints: "
        f"{say_first(facts['runs'], 1)}; "
        f"HEADGATE_KEEP_RUNS ({facts['keep']}) says how many runs are kept"
    )


def _files_edited(facts: Facts) -> str:
    files, since = facts["files"], "its last start" if facts["again"] else "the job was submitted"
    return (
        f"{say_first(files, _FILES)} {'were' if files[1:] else 'was'} edited since {since}: it "
        "runs as it is now, and the run records the commit of before"
    )


def _resumes_with(facts: Facts) -> str:
    text = f"it is started with {facts.get('arguments')}"
    if "path" in facts:
        text = f"its script looks for its checkpoint by itself; newest whole: {facts['path']}"
    text += f", which its script saved at step {facts['step']}" if "step" in facts else ""
    text += f"; it had come to step {facts['came']}" if "came" in facts else ""
    if "later" in facts:
        text += f"; it may take {facts['later']} instead, which was not seen whole: move that away"
    return text


def _starts_over(facts: Facts) -> str:
    saved = f", which its script saved at step {facts['step']}" if "step" in facts else ""
    why = _WHY_OVER[facts["cause"]].format(
        checkpoint=f"{facts['path']}{saved}", node=facts.get("node", "")
    )
    return f"it starts from its beginning: {why}"


_WHY_OVER: Mapping[str, str] = {
    StartOver.UNASKED: (
        "nothing tells how it resumes from {checkpoint}; say so with `resume_with: --resume "
        "{{checkpoint}}`, or with `resumes: true` if it looks for it by itself"
    ),
    StartOver.DAMAGED: "none of its checkpoints is whole (damaged: {checkpoint})",
    StartOver.WRITTEN_ANEW: "none of its checkpoints is whole (being written: {checkpoint})",
    StartOver.GONE: "none of its checkpoints is left (gone: {checkpoint})",
    StartOver.ELSEWHERE: "only node {node} has {checkpoint}",
}


def _too_few_samples(facts: Facts) -> str:
    batch, workers = facts["batch"], facts["workers"]
    empty = workers - batch
    return (
        f"job {facts['job']}: a step has {batch} {'sample' if batch == 1 else 'samples'}, as its "
        f"profile says, for {workers} workers: {empty} of them "
        f"{'gets' if empty == 1 else 'get'} nothing; if its items are ready-made batches, have the "
        "loader take them as they are (batch_size=None), else make batches larger, or workers fewer"
    )


def _moved(facts: Facts) -> str:
    text = (
        f"moved to {facts['plan']}: {say_samples(facts['expected'])} expected, "
        f"{say_samples(facts['measured'])} measured under {facts['before']}; saves "
        f"{say_seconds(facts['saves_seconds'])} of {say_seconds(facts['left_seconds'])}, for a "
        f"restart of {say_seconds(facts['restart_seconds'])}"
    )
    return f"{text}{facts.get('note', '')}"


def _tried_with_more(facts: Facts) -> str:
    beside, seconds = facts["beside"], say_seconds(facts["seconds"])
    lent = f"which {', '.join(beside)} {'lend' if len(beside) > 1 else 'lends'} it"
    cores = counted(facts["cores"], "core", "g")
    return f"tried on {cores} for {seconds}, {lent}: nothing tells yet what they bring"


def _gpu_shared(facts: Facts) -> str:
    gpus = " and ".join(f"GPU {gpu}" for gpu in facts["gpus"])
    place = f"with {', '.join(facts['beside'])} on {gpus}"
    together, keeps, by_turns = facts["together"], facts["keeps"], facts["by_turns"]
    own = f"it has {keeps:.2f} of its rate alone"
    if facts["side_by_side"]:
        return (
            f"side by side {place}, which together bring {together:.2f} times as much as turns: "
            f"{own}, by turns {by_turns:.2f}"
        )
    own = f"it would have {keeps:.2f} of its rate alone, by turns {by_turns:.2f}"
    return f"by turns {place}: side by side bring {together:.2f} times as much, and {own}"


def _at_once_measured(facts: Facts) -> str:
    jobs = facts.get("jobs")
    if jobs is None:
        return "neither steps nor ends tell how many jobs at once bring most: as the cores are for"
    of = f"sweep {facts['sweep']}" if "sweep" in facts else "this run"
    text = f"1 job of {of} runs at once" if jobs == 1 else f"{jobs} jobs of {of} run at once"
    if "rate" in facts:
        text += f": they make {facts['rate']:.3g} steps a second together"
    return f"{text}, {facts['more']} make {facts['rate_of_more']:.3g}" if "more" in facts else text


def _no_turns(facts: Facts) -> str:
    gpus = " and ".join(f"GPU {gpu}" for gpu in facts["gpus"])
    cure = (
        "leave out `observe: false`"
        if facts.get("unobserved")
        else "train by what Headgate observes (docs/script.md), or use headgate.torch, "
        "headgate.keras or headgate.jax"
    )
    return (
        f"no turns on {gpus} with {', '.join(facts['beside'])}: nothing tells where its steps end, "
        f"so the GPU's driver divides the time{NEXT}{cure}; or have the GPU for one job "
        "(`exclusive: true`, --exclusive)"
    )


def _steps_unseen(facts: Facts) -> str:
    return (
        f"only what it prints tells its steps: nothing that it calls of "
        f"{', '.join(facts['frameworks'])} does, so its threads stay, and the parts of a step are "
        f"unknown{NEXT}see what is observed (docs/script.md), or use headgate.torch, "
        "headgate.keras or headgate.jax"
    )


def _complaint(facts: Facts, text: str) -> str:
    return f"{text}; further such warnings are left out" if facts.get("is_last") else text


def _wrote_outside(facts: Facts) -> str:
    """A warning about files that a task wrote only to its container."""
    files = OutsideFiles(**facts)
    more = f" and {files.count - 1} more" if files.count > 1 else ""
    size = f"{say_bytes(files.size)} and more" if files.unsized else say_bytes(files.size)
    where = f"{files.paths[0]}{more} ({size})"
    folder = os.path.dirname(files.paths[0])
    cure = (
        f'to keep such files where they belong: `mounts: ["{folder}:rw"]`, or --mount {folder}:rw'
    )
    if not files.kept:
        return f"it wrote {where} to its container alone: that is gone with it; {cure}"
    part = "" if files.copied == files.count else f" of {files.copied}, {_why_not_all(files)},"
    return f"it wrote {where} to its container alone: copies{part} are in {files.kept}; {cure}"


def _why_not_all(files: OutsideFiles) -> str:
    why = []
    if files.links:
        links = (
            f"{files.astray[0]} is a link that leads"
            if files.links == 1
            else f"{files.links} are links that lead"
        )
        why.append(f"since {links} elsewhere")
    if files.unsized:
        why.append(f"since {files.unsized} are too many to look at")
    elif files.copied + files.links < files.count:
        why.append("for want of room")
    return " and ".join(why)


def _left_shared_memory(facts: Facts) -> str:
    files = facts["files"]
    paths = " ".join(shlex.quote(f"/dev/shm/{name}") for name in files[:_FILES])
    return (
        f"left in /dev/shm: {say_first(files, _FILES)}; that takes {say_bytes(facts['bytes'])} of "
        f"memory until it is removed: `rm {paths}`"
    )


def _processes_killed(facts: Facts) -> str:
    count = facts["count"]
    were = f"{count} of its processes were" if count > 1 else "one of its processes was"
    cure = (
        "have fewer or smaller processes, or raise its limit of memory (`memory`, --memory) where "
        "it has one"
    )
    text = f"{were} killed: {facts['shortage']}; {cure}"
    return f"{text}; a process that waits for it may wait in vain" if facts["waits"] else text


def _killed_outside(facts: Facts) -> str:
    count, processes = facts["count"], facts.get("processes", ())
    programs = "a program" if count == 1 else f"{count} programs"
    text = f"the kernel killed {programs} outside Headgate's jobs for want of memory"
    if processes:
        is_sure = all(process["sure"] for process in processes)
        text += f": {'' if is_sure else 'probably '}{'; '.join(map(_process, processes))}"
    else:
        text += "; which one is not known: the kernel's log tells it to root (`dmesg`)"
    return (
        f"{text}{NEXT}state what each job needs (`limits: {{memory: …}}` or --memory), so that "
        "fewer run at once"
    )


def _process(killed: Facts) -> str:
    of = f" of {killed['user']}" if killed["user"] else ""
    held = killed["held_bytes"]
    size = f", which held {say_bytes(held)}" if held is not None else ""
    return f"{killed['name']} (process {killed['pid']}{of}){size}"


def _ended(facts: Facts) -> str:
    return ": it is stopped, as this machine's rules say" if facts.get("ends") else ""


NOTICES: Mapping[Kind, str | Callable[[Facts], str]] = {
    Kind.HAS_NAMESAKE: (
        "its own environment has another package `headgate` ({path}): it is run and measured "
        "without ours, and its steps are read from its output alone"
    ),
    Kind.GPU_NEED_UNKNOWN: "its GPU memory is not known: {text}",
    Kind.LEVERS_MISSING: (
        "only approximate or missing here: {levers:list}; `headgate doctor` says why and what to do"
    ),
    Kind.VARIABLES_NOT_SENT: (
        "these variables of your environment are not sent to nodes: {variables:list}; name those "
        "that jobs need in {variable}"
    ),
    Kind.SLURM_SHARE: _slurm_share,
    Kind.CORES_SHARED: (
        "the hub of another allocation of yours ({allocation}; process {pid}) has tasks on CPUs "
        "{cpus} too: these CPUs are oversubscribed"
    ),
    Kind.NO_RUN_DELETED: "no old run was deleted: {error}",
    Kind.RUNS_DELETED: _runs_deleted,
    Kind.GPUS_NOT_SEEN: "{text}",
    Kind.GPU_MISSING: "{text}",
    Kind.OUT_OF_REACH: (
        "the hub was started elsewhere and may not give its tasks {lacks:list}; end that hub "
        "first, or set HEADGATE_HOME to another folder, which has a hub of its own"
    ),
    Kind.GUESTS_EMULATED: "{jobs:list}: {text}",
    Kind.INPUT_ENDS_EARLY: (
        "the terminal that gave it its standard input is gone: its input may end too early"
    ),
    Kind.CLIENT_SAYS: "{text}",
    Kind.HOLDS_IDLE_GPUS: lambda facts: f"nobody has computed on its GPUs for long{_ended(facts)}",
    Kind.HELD_FOR_PROOF: (
        "it is held for moments, at most 2 % of its time, for a proof of {user}: "
        "prove_for_others is on"
    ),
    Kind.HOLDS_IDLE_MEMORY: lambda facts: (
        f"it holds memory, and no job of its user has computed for long{_ended(facts)}"
    ),
    Kind.ADMINISTRATOR: lambda facts: _ACTS[facts["act"]].format(by=facts["by"]),
    Kind.ARBITER_AWAY: (
        "the arbiter that divides this machine between its users gives no answer, so no job starts "
        "until it does: {text}"
    ),
    Kind.FILES_EDITED: _files_edited,
    Kind.RESUMES_WITH: _resumes_with,
    Kind.STARTS_OVER: _starts_over,
    Kind.TOO_FEW_SAMPLES: _too_few_samples,
    Kind.PLANNED: "{text}",
    Kind.MOVED: _moved,
    Kind.NO_PLAN: "{refusal}{text}",
    Kind.TRIED_WITH_MORE: _tried_with_more,
    Kind.VERIFIED: "{text}",
    Kind.PROVED: "proved: {text}",
    Kind.NOT_PROVED: "{text}",
    Kind.NOT_PAUSED: "it could not be paused: {text}",
    Kind.GPU_SHARED: _gpu_shared,
    Kind.NO_TURNS: _no_turns,
    Kind.AT_ONCE_MEASURED: _at_once_measured,
    Kind.TASK_READY: "{task} is ready",
    Kind.JOINED: "{task} has joined at step {step}",
    Kind.TASK_SAYS: "{text}",
    Kind.PROCESSES_KILLED: _processes_killed,
    Kind.UNCONTROLLED: lambda facts: (
        f"{' '.join(facts[name] for name in ('lever', 'value', 'scope') if name in facts)}: "
        f"{facts['text']}"
    ),
    Kind.SHARE_NOT_SET: "{text}",
    Kind.RUNS_ALREADY: "it runs already, and was not started a second time",
    Kind.OTHER_PYTHON: "node {node} has no {program}; it runs under {python}",
    Kind.BOX_LEFT: "its box could not be removed in time",
    Kind.OUTPUT_LOST: "{text}",
    Kind.OUTPUT_WRITTEN: "its output is written again",
    Kind.MESSAGE_NOT_TAKEN: "the task did not take the message {type!r}",
    Kind.MESSAGE_FLOOD: (
        "it sends more than {most} messages a second up the task channel; the rest waits"
    ),
    Kind.MESSAGE_TOO_LONG: lambda facts: (
        f"it sent a message of more than {say_bytes(facts['most_bytes'])}; its channel is closed, "
        "and it runs on alone"
    ),
    Kind.CANNOT_CONNECT: "a task cannot connect for now: {error}; it is tried again",
    Kind.MANY_STRANGERS: (
        "more than {most} connections to the task channel sent no hello; the oldest are closed"
    ),
    Kind.SOCKET_GONE: (
        "cannot make {path}, which is gone: {error}; tasks that start now cannot connect"
    ),
    Kind.ENGINE_SAYS: "{text}",
    Kind.ENGINE_HOLDS: "it waits {text}",
    Kind.RECOVERED: "{task}: {text}",
    Kind.CAUGHT_UP: "at step {step} again, as before its tasks were lost",
    Kind.NO_STEP: lambda facts: (
        f"no step {'and hardly any CPU used ' if facts['is_idle'] else ''}for "
        f"{say_seconds(facts['seconds'])}{'' if facts['is_idle'] else ', far longer than usual'}: "
        f"{facts['where']}"
    ),
    Kind.STEPS_AGAIN: "it makes steps again, after {seconds:seconds} without one",
    Kind.LOSS_NOT_A_NUMBER: lambda facts: (
        f"its loss is no longer a number: {facts['loss']}"
        + (f" at step {facts['step']}" if "step" in facts else "")
    ),
    Kind.METRICS_LEFT_OUT: "it tells of more than {most} metrics; the rest is left out",
    Kind.STEPS_UNSEEN: _steps_unseen,
    Kind.METRIC_MISSING: "{text}",
    Kind.PATTERN_TOO_SLOW: "{text}",
    Kind.LINE_UNREADABLE: lambda facts: _complaint(
        facts, f"a line of its output could not be read: {facts['line']!r} ({facts['error']})"
    ),
    Kind.MESSAGE_UNREADABLE: lambda facts: _complaint(
        facts, f"a message that is no JSON object was left out: {facts['line']!r}"
    ),
    Kind.MESSAGE_SENSELESS: lambda facts: _complaint(
        facts, f"a message that makes no sense was left out: {facts['error']}"
    ),
    Kind.UNCONNECTED: (
        "its script imports one of Headgate's libraries and has not connected, so it cannot be "
        "asked for checkpoints: it calls nothing of the library, or what starts it takes "
        "Headgate's variables away (`python -E`, `PYTHONPATH=…`, `env -i`)"
    ),
    Kind.OPEN_ENDPOINTS: (
        "its tasks listen without a key ({endpoints:list}): whoever reaches these addresses can "
        "read and change the training"
    ),
    Kind.OPEN_MEETING: (
        "its workers meet at {address} without a key: whoever reaches that can read and change the "
        "training"
    ),
    Kind.CHECKPOINT_NOT_SAVED: "no checkpoint was saved: {error}",
    Kind.CHECKPOINTS_AGAIN: "checkpoints are saved again, after {failed} that could not be",
    Kind.PROFILE_NOT_STORED: "the profile was not stored: {error}",
    Kind.FILE_WRITTEN_TWICE: (
        "{tasks[0]} and {tasks[1]} both write {path}: what is left is of the last of them, or of "
        "both; let one write files, under `if hg.is_main():`"
    ),
    Kind.WROTE_OUTSIDE: _wrote_outside,
    Kind.LEFT_SHARED_MEMORY: _left_shared_memory,
    Kind.KILLED_OUTSIDE: _killed_outside,
    Kind.NODE_JOINED: lambda facts: (
        f"node {facts['node']} has come, with {counted(facts['cores'], 'core', 'g')}"
    ),
    Kind.NODE_LEFT: lambda facts: (
        f"node {facts['node']} is gone{': ' + facts['text'] if 'text' in facts else ''}"
    ),
    Kind.NODE_SAYS: "node {node}: {text}",
    Kind.NODE_LEFT_OUT: "node {node} is left out: {error}",
    Kind.NODE_CUT_OFF: "node {node} is cut off: its NIC has no link",
    Kind.NODE_LINKED: "node {node} is no longer cut off, after {seconds:seconds}",
    Kind.NODE_SLOW: (
        "node {node} is slow: its {task} takes {own_seconds:seconds} for its own part of a step, "
        "the others {others_seconds:seconds}"
    ),
    Kind.NODE_NOT_SLOW: "node {node} is no longer slow",
    Kind.FOLDER_GONE: (
        "its folder {folder} is gone, with its records and checkpoints; nothing is kept from now "
        "on: stop it and run it again"
    ),
    Kind.HUB_CAME_AGAIN: lambda facts: (
        f"no hub was there for {say_seconds(facts['seconds'])}: what jobs used then is not known"
    ),
    Kind.SOCKET_MADE_AGAIN: "somebody removed {path}; it is made again",
    Kind.STORE_FAILS: "{text}",
    Kind.STORE_WRITES: "the store is written again",
    Kind.TRACKER_FAILS: "{tracker} takes no figures: {error}; they are kept, and sent again",
    Kind.TRACKER_WRITES: "{tracker} takes figures again",
    Kind.TRACKER_MISSES: lambda facts: (
        f"{facts['tracker']} did not get the last figures{': ' if facts.get('error') else ''}"
        f"{facts.get('error', '')}; send them again: headgate export {facts['run']} --to "
        f"{facts['tracker'].partition('=')[0]}"
    ),
    Kind.NOTICE_MISSED: "{recipient} did not get a message: {error}; try it: headgate config test",
    Kind.INTERNAL_ERROR: "{text}: {error}",
}
