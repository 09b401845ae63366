"""What administrators do on a shared machine; each act is kept, and told to whom it concerns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headgate.model.sharing import Amounts


class ActKind(StrEnum):
    """What an administrator does with a job, a user or the machine."""

    HOLD = "hold"
    RELEASE = "release"
    FIRST = "first"
    STOP = "stop"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    LIMIT = "limit"
    UNLIMIT = "unlimit"


@dataclass(frozen=True, slots=True)
class Act:
    """An administrator's act.

    Args:
        at: When, in seconds since the epoch.
        by: The administrator.
        kind: What was done.
        user: The user whom it concerns; empty: everybody.
        job: The hub's id of the job; empty: it concerns no single job.
        largest: The most that the user may have from then on, of a limit.
    """

    at: float
    by: str
    kind: ActKind
    user: str = ""
    job: str = ""
    largest: Amounts | None = None
