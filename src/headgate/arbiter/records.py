"""What hubs and the arbiter of a machine tell each other, and what the arbiter keeps.

A hub states all that it runs and wants in each message, so a message may be lost or sent twice.
Nothing here names a path, a script or a log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Literal, NamedTuple

from headgate.controller.free_resources import ResourceRequest
from headgate.controller.gpu_memory import GpuRequest, WorkerSlot
from headgate.model.sharing import Amounts

VERSION = 1
"""Of the messages; another one is not understood. Fields that are new do not change it."""


_ATTEMPT = "#"
"""Comes before the number of an attempt, in a hub's id of a job."""


class Hub(NamedTuple):
    """A hub of a user; a user may have several, one for each allocation.

    Args:
        user: The user, as the kernel tells it of the connection, not as the hub says.
        name: What the hub calls itself; it only tells this user's hubs apart.
    """

    user: str
    name: str = ""


class MachineJob(NamedTuple):
    """A job of a hub, by the id that the hub gives this attempt of it."""

    hub: Hub
    id: str

    @property
    def of_all_attempts(self) -> MachineJob:
        return MachineJob(self.hub, self.id.rpartition(_ATTEMPT)[0] or self.id)

    @property
    def attempt(self) -> int | None:
        """The attempt of the job that it is; None: its hub does not say."""
        number = self.id.rpartition(_ATTEMPT)[2]
        return int(number) if number.isdecimal() else None


class Span(NamedTuple):
    """Seconds that a job takes or has left: likely, least, most."""

    likely: float
    least: float
    most: float


_MOST_CORES, _MOST_GPUS, _MOST_WORKERS = 65_536, 1_024, 256
_MOST_BYTES, _MOST_SECONDS = 1 << 60, 1e9
MOST_LETTERS = 200
"""Of the id and the name of a job, and of the name of a hub."""
MOST_JOBS = 2_000
"""Most jobs that a hub may state, that wait of a user, and that run of a user. A hub keeps others
to itself until these have ended.
"""


class Resumes(StrEnum):
    """From where a job goes on if it is ended now; the first loses least."""

    FROM_NOW = "from-now"
    """It saves a checkpoint as it ends."""
    FROM_EARLIER = "from-earlier"
    """From what its script saved by itself."""
    NO = "no"


@dataclass(frozen=True, slots=True)
class JobDemand:
    """What a job needs before it can start; all its workers at once.

    Args:
        id: The hub's id of the job.
        cores: Cores that it can put to good use.
        workers: Number of workers.
        memory_bytes: Memory of each worker; 0: not known.
        gpus: GPUs of each worker.
        gpu_memory_bytes: Memory that each worker needs on each GPU; None: it needs whole GPUs.
        left: Seconds that it takes or has left; None: not known.
        name: What others see of it.
        private: Others see only whose job it is.
        resumes: From where it goes on if it is ended now; None: its hub does not say, as one of an
            earlier version, which gives nothing back.
    """

    id: str
    cores: float = 1.0
    workers: int = 1
    memory_bytes: int = 0
    gpus: int = 0
    gpu_memory_bytes: int | None = None
    left: Span | None = None
    name: str = ""
    private: bool = False
    resumes: Resumes | None = None

    def __post_init__(self) -> None:
        numbers = (
            ("cores", self.cores, _MOST_CORES),
            ("workers", self.workers - 1, _MOST_WORKERS - 1),
            ("memory_bytes", self.memory_bytes, _MOST_BYTES),
            ("gpus", self.gpus, _MOST_GPUS),
            ("gpu_memory_bytes", self.gpu_memory_bytes or 0, _MOST_BYTES),
        )
        for name, number, bound in numbers:
            if not 0 <= number <= bound:  # `nan` is neither
                raise ValueError(f"found {name} {getattr(self, name)!r}; expected at most {bound}")
        if max(len(self.id), len(self.name)) > MOST_LETTERS:
            raise ValueError(f"expected an id and a name of at most {MOST_LETTERS} letters")
        if self.left is not None:
            likely, least, most = self.left
            if not 0 <= least <= likely <= most <= _MOST_SECONDS:
                raise ValueError(f"found {self.left}; expected least <= likely <= most")

    @property
    def needs(self) -> tuple[object, ...]:
        """All that decides whether it has room."""
        return self.id, self.workers, self.memory_bytes, self.gpus, self.gpu_memory_bytes

    @property
    def all_memory_bytes(self) -> int:
        return self.workers * self.memory_bytes

    @property
    def all_gpus(self) -> int:
        return self.workers * self.gpus

    def ends(self, now: float) -> float:
        """When it has surely ended if it runs from now on; infinite: not known."""
        return now + self.left.most if self.left is not None else math.inf

    def lasts(self, which: Literal["likely", "most"]) -> float | None:
        """Seconds that it takes or has left; None: not known."""
        return getattr(self.left, which) if self.left is not None else None

    def request(self, node: str) -> ResourceRequest:
        """The same as a request to a machine of this name. Workers that share no GPU are taken as
        one, which has all GPUs.
        """
        return _request(node, self.workers, self.memory_bytes, self.gpus, self.gpu_memory_bytes)


@lru_cache(maxsize=4 * MOST_JOBS)
def _request(
    node: str, workers: int, memory_bytes: int, gpus: int, gpu_memory_bytes: int | None
) -> ResourceRequest:
    if gpus and gpu_memory_bytes is not None:
        on_gpus = GpuRequest(gpu_memory_bytes, gpus)
        return ResourceRequest(workers, 0, memory_bytes, (node,) * workers, None, on_gpus)
    whole = GpuRequest(0, workers * gpus, alone=True) if gpus else None
    return ResourceRequest(1, 0, workers * memory_bytes, (node,), None, whole)


@dataclass(frozen=True, slots=True)
class Demand:
    """All that a hub runs and wants.

    Args:
        hub: The hub.
        waiting: Its jobs that wait, in the order in which it would start them.
        running: Its jobs that were granted and have not ended.
    """

    hub: Hub
    waiting: tuple[JobDemand, ...] = ()
    running: tuple[JobDemand, ...] = ()

    def __post_init__(self) -> None:
        if len(self.waiting) + len(self.running) > MOST_JOBS:
            raise ValueError(f"expected at most {MOST_JOBS:,} jobs")


@dataclass(frozen=True, slots=True)
class ResourceGrant:
    """What a job got; it holds that until its hub no longer runs it.

    Args:
        job: The job.
        demand: What it asked for.
        slots: The place of each worker, with its GPUs; of whole GPUs one place for all workers.
        since: When it was granted.
        ends: When it has surely ended, as last stated; infinite: not known.
        stated_end: The same as stated at its start.
    """

    job: MachineJob
    demand: JobDemand
    slots: tuple[WorkerSlot, ...]
    since: float
    ends: float = math.inf
    stated_end: float = math.inf

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted({gpu for slot in self.slots for gpu in slot.gpus}))


class WaitKind(StrEnum):
    """Why a job waits."""

    NO_ROOM = "no-room"
    OTHERS_FIRST = "others-first"
    """There is room, but the job would delay one before it, or a reservation."""
    TAKING_BACK = "taking-back"
    """What others have of its user's part is being taken back for it."""
    OWN_LIMIT = "own-limit"
    OWES = "owes"
    """Its user has not given back in time what is the part of another."""
    HELD = "held"
    TOO_LARGE = "too-large"


WAIT_FOR_ROOM = (WaitKind.NO_ROOM, WaitKind.OTHERS_FIRST, WaitKind.TAKING_BACK)


@dataclass(frozen=True, slots=True)
class JobWaits:
    """Why a job waits.

    Args:
        job: The job.
        kind: Why.
        delays: The job that it would delay; None: none, or a reservation.
        at: When that is likely to be over; None: not known.
    """

    job: MachineJob
    kind: WaitKind
    delays: MachineJob | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class StartPromise:
    """A waiting job, and when it starts at the latest if running jobs end as they surely do; jobs
    of unknown length may end at any moment.
    """

    job: MachineJob
    at: float


@dataclass(frozen=True, slots=True)
class StartExpected:
    """The expected start of a waiting job.

    Args:
        job: The job.
        at: When, if jobs take as long as is likely; None: it depends on the `unknown` jobs.
        latest: When, if they take as long as they surely do at most.
        unknown: Jobs of unknown length that would have to end first.
    """

    job: MachineJob
    at: float | None
    latest: float | None
    unknown: tuple[MachineJob, ...] = ()


@dataclass(frozen=True, slots=True)
class Booking:
    """Resources reserved for a user.

    Args:
        id: Its number.
        user: The user.
        demand: What is reserved.
        begin: From when, in seconds.
        end: Until when.
    """

    id: int
    user: str
    demand: JobDemand
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class UserPart:
    """A user's part of the machine: of all the user's hubs together.

    Args:
        user: The user.
        cores: Cores that the user's jobs can expect.
        weight: CPU weight of the user's cgroup.
        most_cores: The most cores that it may use; None: no limit.
        memory_bytes: Memory granted to the user's jobs, which others cannot take.
        most_memory_bytes: The most memory that they may use: the rest is granted to others, or
            above the user's largest part.
        processes: Processes and threads that it may have; None: a third of the machine's.
        hub_cores: Cores of each hub, by its name, where several hubs of the user have jobs.
    """

    user: str
    cores: float
    weight: float
    most_cores: float | None
    memory_bytes: int
    most_memory_bytes: int
    processes: int | None = None
    hub_cores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessMoved:
    """Bytes that a process moved on disks since the last reading.

    Args:
        pid: Its number.
        began: Its start, in clock ticks since the boot: a number comes again, and in a container
            it means another process.
        read: Bytes read.
        written: Bytes written.
    """

    pid: int
    began: int
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class DiskMoved:
    """What processes of all users moved on disks: only root may read it.

    Args:
        processes: Those that moved much since the reading before.
        seconds: Time since that reading; 0: there was none.
    """

    processes: tuple[ProcessMoved, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class HoldAsked:
    """Another user's hub wants a job held for a moment, for a proof. The job's hub decides.

    Args:
        job: The job.
        by: The hub that asks.
        number: Of the question, for the answer.
        seconds: For how long.
    """

    job: MachineJob
    by: Hub
    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class JobHeld:
    """The answer of a job's hub: from when to when the job stood still, on the machine's clock.

    Args:
        by: The hub that asked.
        number: Of the question.
        begin: When the job stood still from.
        end: When it went on.
        why: Why it was not held; empty: it was.
    """

    by: Hub
    number: int
    begin: float = 0.0
    end: float = 0.0
    why: str = ""

    def __post_init__(self) -> None:
        if len(self.why) > MOST_LETTERS:
            raise ValueError(f"expected at most {MOST_LETTERS} letters")


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job as another user may see it.

    Args:
        user: Its user.
        name: Its name; None: it is private.
        demand: What it needs, without id and name.
        gpus: GPUs that it holds.
        since: Since when it runs; None: it waits.
        waits: Why it waits; None: it runs.
        at: When it is expected to start; None: it runs, or that is not known.
        latest: When at the latest, as `StartExpected` has it.
        job: The job; None: whoever looks may not act on it.
        gives_to: The user to whom it gives back what it has; empty: nobody.
    """

    user: str
    name: str | None
    demand: JobDemand
    gpus: tuple[int, ...] = ()
    since: float | None = None
    waits: WaitKind | None = None
    at: float | None = None
    latest: float | None = None
    job: MachineJob | None = None
    gives_to: str = ""


@dataclass(frozen=True, slots=True)
class ArbiterState:
    """What an arbiter keeps across a restart.

    Args:
        grants: What jobs hold.
        bookings: The reservations.
        past: The mean part of the machine that each user had.
        held: Jobs that an administrator holds.
        first: Jobs that an administrator lets go first.
        drained: An administrator lets nothing start.
        limits: The most that administrators leave to users.
        uids: Numbers of the users whose jobs hold something.
    """

    grants: tuple[ResourceGrant, ...] = ()
    bookings: tuple[Booking, ...] = ()
    past: Mapping[str, float] = field(default_factory=dict)
    held: frozenset[MachineJob] = frozenset()
    first: frozenset[MachineJob] = frozenset()
    drained: bool = False
    limits: Mapping[str, Amounts] = field(default_factory=dict)
    uids: Mapping[str, int] = field(default_factory=dict)


NOTHING_KEPT = ArbiterState()
