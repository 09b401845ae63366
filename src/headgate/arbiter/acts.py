"""What administrators do on a shared machine, or its arbiter by their rules. Each act is kept, and
told to whom it concerns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headgate.model.sharing import Amounts


class ActKind(StrEnum):
    """What is done with a job, a user or the machine."""

    HOLD = "hold"
    RELEASE = "release"
    FIRST = "first"
    STOP = "stop"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    LIMIT = "limit"
    UNLIMIT = "unlimit"
    TAKE_BACK = "take-back"
    """The arbiter takes back what is another user's part."""


@dataclass(frozen=True, slots=True)
class Act:
    """An act of an administrator, or of the arbiter.

    Args:
        at: When, in seconds since the epoch.
        by: The administrator; the user for whom something is taken back.
        kind: What was done.
        user: The user whom it concerns; empty: everybody.
        job: The hub's id of the job; empty: it concerns no single job.
        largest: The most that the user may have from then on, of a limit.
        waited: Seconds that the other user's job had waited when this was taken back.
        ends: The job that gives back is ended for good.
    """

    at: float
    by: str
    kind: ActKind
    user: str = ""
    job: str = ""
    largest: Amounts | None = None
    waited: float | None = None
    ends: bool = False
