"""Sentences for why no plan is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from headgate.model.reasons import Facts, Refusal, RefusalKind
from headgate.model.units import counted, say_bytes, say_seconds


def refusal_in_words(refusal: Refusal) -> str:
    """A refusal as a phrase for people, without a full stop."""
    words = _REFUSALS[refusal.kind]
    if isinstance(words, str):
        return _TEMPLATES.vformat(words, (), refusal.facts)
    return words(refusal.facts)


class Templates(Formatter):
    """Fills in templates such as `{after:seconds}` and `{names:list}`, and refusals within. A
    missing fact becomes empty.
    """

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "")

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Refusal):
            return refusal_in_words(value)
        if value == "" or format_spec == "list":
            return ", ".join(value)
        return say_seconds(value) if format_spec == "seconds" else format(value, format_spec)


_TEMPLATES = Templates()


def _no_room_left(facts: Facts) -> str:
    lacks = dict.fromkeys(_SIZES[lack["resource"]](lack) for lack in facts["lacks"])
    has = f"node {facts['node']} has" if "node" in facts else "no node has"
    return (
        f"job {facts['job']!r}: {has} {', '.join(lacks)} left for {facts['task']}, beside its "
        "other tasks; ask for less, have fewer tasks, or add nodes"
    )


_SIZES: Mapping[str, Callable[[Facts], str]] = {
    "gpus": lambda lack: counted(lack["count"], "GPU", ""),
    "memory": lambda lack: f"{say_bytes(lack['bytes'])} of memory",
    "nic": lambda lack: f"{say_bytes(lack['bytes'])}/s of its NIC",
}


def _too_little_gpu_memory(facts: Facts) -> str:
    asked, gpus, count = say_bytes(facts["asked_bytes"]), facts["gpus"], facts["count"]
    if "has_bytes" not in facts:
        has = counted(gpus, "GPU", "")
        return f"{facts['node']} has {has}, {asked} of GPU memory are asked for"
    whose = "its GPUs have" if count > 1 or gpus == 1 else "its largest GPU has"
    asked += f" on each of {count} GPUs" if count > 1 else ""
    has = say_bytes(facts["has_bytes"])
    return f"{facts['node']}: {whose} {has} of memory, {asked} are asked for"


def _no_room_for_step(facts: Facts) -> str:
    workers = "a worker" if facts["workers"] == 1 else f"{facts['workers']} workers"
    return f"there is no room for {workers} and a step of {counted(facts['batch'], 'sample', '')}"


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
        f"{facts['node']} has {counted(facts['has'], 'GPU', '')}, "
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
        lambda facts: (
            f"{counted(facts['workers'], 'worker', '')} are asked for, a step has "
            f"{counted(facts['batch'], 'sample', '')} to divide"
        )
    ),
    RefusalKind.TRAINS_ALONE: "{workers} workers are asked for, it trains in one task: {text}",
    RefusalKind.NO_ROOM_FOR_STEP: _no_room_for_step,
}


def _each(refusals: Sequence[Refusal]) -> str:
    return "; ".join(map(refusal_in_words, refusals))


def _size(facts: Facts) -> str:
    cores = counted(facts["cores"], "core", "g")
    return cores if facts["nodes"] == 1 else f"{facts['nodes']} nodes with {cores}"
