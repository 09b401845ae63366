"""What happens on a shared machine, and what its arbiter answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.arbiter.acts import Act
from headgate.arbiter.records import (
    Booking,
    Demand,
    Hub,
    JobWaits,
    MachineJob,
    ResourceGrant,
    UserPart,
)
from headgate.model.sharing import Amounts, SharingRules


@dataclass(frozen=True, slots=True)
class HubJoined:
    """A hub has connected; `groups` are those of its user, and `uid` is the user's number."""

    hub: Hub
    groups: frozenset[str] = frozenset()
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class HubLeft:
    """A hub is gone, and `emptied` tells that no process of its jobs is left."""

    hub: Hub
    emptied: bool = False


@dataclass(frozen=True, slots=True)
class RulesRead:
    """The administrator's file was read."""

    rules: SharingRules


@dataclass(frozen=True, slots=True)
class Booked:
    """A user who may reserve wants to."""

    booking: Booking


@dataclass(frozen=True, slots=True)
class Unbooked:
    """A reservation was given up."""

    id: int


@dataclass(frozen=True, slots=True)
class JobOrdered:
    """An administrator holds a job, lets it go first, or leaves it to its turn."""

    job: MachineJob
    held: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True)
class Drained:
    """An administrator lets nothing start any more, or everything again."""

    drained: bool


@dataclass(frozen=True, slots=True)
class UserLimited:
    """An administrator limits a user; None: no longer."""

    user: str
    largest: Amounts | None


@dataclass(frozen=True, slots=True)
class StoreWritable:
    """The arbiter's file can be written again, or cannot: nothing starts, and the grants that could
    not be kept are void.
    """

    writable: bool
    unkept: tuple[MachineJob, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuBytes:
    """Memory of a GPU in use, and by jobs with a grant, at most what is granted."""

    used: float
    held: float


@dataclass(frozen=True, slots=True)
class UserUsed:
    """What a user's cgroup used since the last reading: cores on average, and the GPUs on which its
    processes computed.
    """

    cores: float
    busy_gpus: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MachineUsed:
    """A reading of the machine.

    Args:
        free_bytes: Memory that is still available.
        held_bytes: Memory that jobs with a grant hold, at most what is granted.
        gpus: The same of each GPU that was read.
        outside: GPUs on which programs compute that have no grant.
        users: What each user's jobs used.
    """

    free_bytes: float
    held_bytes: float
    gpus: Mapping[int, GpuBytes]
    outside: frozenset[int] = frozenset()
    users: Mapping[str, UserUsed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobReleased:
    """What a job held is free."""

    job: MachineJob


@dataclass(frozen=True, slots=True)
class JobIdles:
    """A job holds GPUs that it does not compute on since a time, or `memory` while no job of its
    user computes; `ends`: its hub has to end it.
    """

    job: MachineJob
    since: float
    ends: bool = False
    memory: bool = False


@dataclass(frozen=True, slots=True)
class BookingAnswered:
    """A reservation is kept; `fits` False: it does not fit beside those that were made before."""

    booking: Booking
    fits: bool


@dataclass(frozen=True, slots=True)
class JobTakenBack:
    """A job has to give back what it holds. That is kept and told as an act."""

    job: MachineJob
    act: Act


ArbiterEvent = (
    Demand
    | HubJoined
    | HubLeft
    | RulesRead
    | Booked
    | Unbooked
    | JobOrdered
    | Drained
    | UserLimited
    | StoreWritable
    | MachineUsed
)
ArbiterAction = (
    BookingAnswered | JobIdles | ResourceGrant | JobReleased | JobTakenBack | JobWaits | UserPart
)
