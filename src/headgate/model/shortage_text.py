"""Sentences for what a waiting job waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.model.reasons import Facts, KeepsRoom
from headgate.model.units import counted, say_bytes, say_first, say_seconds, say_time

NAMED = 3
"""Most jobs named in a sentence."""


def needs_room(facts: Facts) -> str:
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
        text += f"; nothing tells yet how long {say_first(unknown, NAMED)} {takes}"
    if (at := facts.get("expected_at")) is not None:
        text += f"; expected to start at about {say_time(at)}"
    if (back := facts.get("given_back")) is not None:
        text += f"; what it had was {given_back(back)}"
    return text


def given_back(facts: Facts) -> str:
    """To whom a job gave back what it had of a shared machine."""
    end = ", and ended for that" if facts.get("ends") else ""
    waited = say_seconds(round(facts["waited"]))
    return f"given back to {facts['to']}, who waited {waited} for the own part{end}"


_KEEPS: Mapping[KeepsRoom, str] = {
    KeepsRoom.NOT_PAUSABLE: "may not be paused (pausable: false)",
    KeepsRoom.NO_CHECKPOINT: "would begin anew, as no checkpoint of it is known",
    KeepsRoom.URGENT: "is urgent too",
}


def _said_holders(lacks: Facts, holders: Sequence[str]) -> str:
    many, names = len(holders) > 1, say_first(holders, NAMED)
    if lacks["kind"] in ("gpu-unseen", "gpu-alone"):
        return f"; {names} {'are' if many else 'is'} there"
    has = "have" if many else "has"
    if "free_bytes" in lacks:
        return f"; {names} {has} some of it"
    return f", which {names} {has}"


_BOUNDED = {
    "slots": "",
    "slots-of-run": "of its run ",
    "slots-of-sweep": "of its sweep ",
    "slots-of-script": "of its script ",
}
_TURNS = {
    "others-first": ": there is room, but it would delay a job before it, or a reservation",
    "taking-back": ": what others have of your part is being taken back for it",
    "own-limit": ": with it you would have more than you may",
    "owes": ": first a job of yours has to give back what is another user's part",
    "held": ": an administrator holds it, or lets nothing start",
    "too-large": ": it needs more than the machine has",
}


def shortage_in_words(lacks: Facts) -> str:
    """What a job that waits for room lacks, from the facts of its `Shortage`."""
    kind, count = lacks["kind"], lacks.get("count", 1)
    if kind == "gpus":
        return counted(count, "GPU", "")
    if kind == "memory":
        return _memory(lacks, count)
    if kind == "grant":
        where = f"node {lacks['node']}" if "node" in lacks else "the machine"
        return f"its turn on {where}, which users share{_TURNS.get(lacks.get('why', ''), '')}"
    if kind == "probe":
        return "the memory that the first job of its script takes"
    if kind in _BOUNDED:
        jobs = counted(count, "job", "")
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
