"""Readings that are missing, and figures that cannot be given, as sentences."""

from __future__ import annotations

from headgate.diagnosis.findings import MissingKind, MissingReading
from headgate.diagnosis.steps_to_replay import NoFigure
from headgate.diagnosis.what_if import Speedups
from headgate.model.units import say_percent, say_seconds
from headgate.reports.words import culprit_named


def missing_reading(missing: MissingReading) -> str:
    """A reading that an account lacks, in words."""
    used = f"{culprit_named(missing.culprit)} used it for {say_seconds(missing.seconds)}"
    if missing.kind is MissingKind.GPU_ALONE:
        return f"some seconds with the GPU for itself (it was full, and {used})"
    if missing.kind is MissingKind.GPU_OF_SEVERAL_TASKS:
        return f"what each of its tasks lost on a GPU that was not theirs alone ({used})"
    return _MISSING[missing.kind]


def no_figure(reason: NoFigure, speedups: Speedups) -> str:
    """Why there is no figure for more of a resource, in words."""
    if reason is NoFigure.REPLAY_OFF:
        error = speedups.replay_error or 0.0
        more = f"{say_percent(abs(error))} {'more' if error > 0.0 else 'less'} time than"
        if error >= _FAR:
            more = f"{error + 1.0:.0f} times as long as"
        longer = f"{more} the measured ones"
        steps = f"its {speedups.replayed_steps} replayed steps"
        return f"{steps} take {longer}, which is too far off"
    if reason is NoFigure.READERS_TAKE_TURNS:
        workers = f"its {speedups.loader_workers} loader workers"
        return f"{workers} do no more than one would: they may wait for each other"
    return _NO_FIGURE[reason]


_FAR = 1.0
"""A replay that takes longer than its steps by at least this part is told as so many times."""
_MISSING = {
    MissingKind.CORE_WAITS: "time that threads waited for a core (schedstat)",
    MissingKind.STEPS: "steps (it reports none, and none was read from its output)",
    MissingKind.DISK_WAITS: ("time that it was blocked on a disk (PSI, or kernel.task_delayacct)"),
}
_NO_FIGURE = {
    NoFigure.FEW_STEPS: "it reported fewer than two steps",
    NoFigure.ENDED_EARLY: "too little was read of it",
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
