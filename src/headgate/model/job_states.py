"""The states of a job."""

from __future__ import annotations

from typing import Literal

JobState = Literal[
    "waiting",
    "running",
    "paused",
    "stopping",
    "done",
    "failed",
    "stopped",
    "killed",
    "skipped",
    "interrupted",
]
ENDED: frozenset[JobState] = frozenset(
    {"done", "failed", "stopped", "killed", "skipped", "interrupted"}
)
FAULTS: frozenset[JobState] = frozenset({"failed", "killed", "interrupted"})
"""States of a job, and kinds of events, that mean a fault."""
NAMED_BY_REASON: frozenset[JobState] = frozenset({"stopped", "killed"})
"""States that the job's reason already names: "stopped by its user"."""
TRIAL = "trial"
"""Kind of a recorded event: a job tries more cores for some seconds."""


def state_in_words(state: str, reason: str) -> str:
    """A job's state, or another kind of event, with its reason as one phrase."""
    if not reason or reason == state:
        return state
    return reason if state in NAMED_BY_REASON else f"{state}, {reason}"
