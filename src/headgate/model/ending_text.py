"""Sentences for how a job ended."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.model.endings import Checkpoint, Doubt, Saved, StopAnswer
from headgate.model.reasons import Facts
from headgate.model.units import say_first, say_seconds

_COMMANDS = 3
"""Most commands named in a sentence."""
_LETTERS = 60
"""Most letters of each command."""


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
    names = [name if len(name) <= _LETTERS else f"{name[:_LETTERS]}…" for name in commands]
    if len(commands) == 1:
        return f"a process behind, which was ended with it: {names[0]}"
    return (
        f"{len(commands)} processes behind, which were ended with it: {say_first(names, _COMMANDS)}"
    )


def how_to_end_plainly(facts: Facts) -> str:
    """How to avoid an unclear end the next time; empty: nothing."""
    match facts["ending"].get("doubt"):
        case Doubt.LEFT_PROCESSES:
            return "have its command wait for them (`wait`)"
        case Doubt.FAILURE_IN_OUTPUT:
            return (
                "have its command end with the status of what failed (`set -e -o pipefail` in bash)"
            )
    return ""


def finished(facts: Facts) -> str:
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


def in_doubt(facts: Facts) -> str:
    return f"its end is in doubt: {ending_in_words(facts['ending'])}"


def skipped_in_doubt(facts: Facts) -> str:
    doubt = ending_in_words(facts["ending"])
    return f"{facts['job']}, which it comes after, ended in doubt: {doubt}"


def resume(facts: Facts) -> str:
    text, plainer = (
        f"look at its log, then: headgate resume {facts['run']}",
        how_to_end_plainly(facts),
    )
    return f"{text}; next time, {plainer}" if plainer else text
