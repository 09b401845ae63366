"""Asks the arbiter of this machine: what runs for all users, what they had; and orders."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from headgate.arbiter.acts import ActKind
from headgate.arbiter.messages import (
    Book,
    Drain,
    LimitUser,
    Look,
    OrderJob,
    ShowUsage,
    Unbook,
    UserRequest,
)
from headgate.arbiter.records import Booking, JobDemand, MachineJob
from headgate.arbiter.seen import SeenMachine
from headgate.arbiter.usage import DayUse
from headgate.machine import arbiter_socket
from headgate.model import records
from headgate.model.errors import HubError, NotFoundError, UsageError
from headgate.model.sharing import Amounts

_SECONDS = 30.0
"""The arbiter answers at once, unless this user floods it."""


class SharedMachine:
    """The arbiter of this machine, for its users.

    Args:
        path: Its socket; None: the usual one, or that of `HEADGATE_ARBITER`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or arbiter_socket.path()

    @property
    def has_arbiter(self) -> bool:
        """Whether this machine has one, though it may not run."""
        return self._path is not None and self._path.exists()

    def look(self) -> SeenMachine:
        """What runs and waits on the machine, as this user may see it.

        Raises:
            NotFoundError: The machine has no arbiter.
            HubError: It does not answer.
        """
        return records.parse(SeenMachine, self._ask(Look()))

    def usage(self, since: int, user: str | None = None) -> dict[tuple[str, int], DayUse]:
        """What users had, by user and day.

        Args:
            since: The first day: its number since the epoch, UTC.
            user: Only this one's.

        Raises:
            HeadgateError: As `look`.
        """
        days = self._ask(ShowUsage(since, user))["days"]
        return {(day["user"], day["day"]): records.parse(DayUse, day) for day in days}

    def reserve(self, demand: JobDemand, seconds: float, begin: float | None = None) -> Booking:
        """Reserve, from now on or from a time (seconds since the epoch).

        Raises:
            UsageError: The user may not, or it does not fit.
            HeadgateError: As `look`.
        """
        return records.parse(Booking, self._ask(Book(demand, seconds, begin)))

    def cancel(self, id: int) -> None:
        """Give up a reservation.

        Raises:
            HeadgateError: As `reserve`.
        """
        self._ask(Unbook(id))

    def order(self, kind: ActKind, job: MachineJob) -> bool:
        """Hold a job of any user, release it, let it go first, or stop it. Returns whether it runs.

        Raises:
            HeadgateError: As `reserve`.
        """
        is_stop, is_held = kind is ActKind.STOP, kind is ActKind.HOLD
        answer = self._ask(OrderJob(job, is_held, kind is ActKind.FIRST, is_stop))
        return answer.get("runs") is True

    def drain(self, drained: bool) -> None:
        """Let nothing start any more, or everything again.

        Raises:
            HeadgateError: As `reserve`.
        """
        self._ask(Drain(drained))

    def limit(self, user: str, largest: Amounts | None) -> None:
        """Leave a user at most so much; None: what the rules say.

        Raises:
            HeadgateError: As `reserve`.
        """
        self._ask(LimitUser(user, largest))

    def _ask(self, request: UserRequest) -> dict[str, Any]:
        if self._path is None or not self._path.exists():
            raise NotFoundError(
                f"this machine has no arbiter (expected {self._path or 'HEADGATE_ARBITER'}), so "
                "its users do not share it through Headgate; root starts one: headgate arbiter"
            )
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_SECONDS)
                connection.connect(str(self._path))
                connection.sendall(json.dumps(records.dump(request)).encode() + b"\n")
                with connection.makefile("rb") as lines:
                    answer: dict[str, Any] = json.loads(lines.readline() or b"null") or {}
        except (OSError, ValueError) as error:
            raise HubError(
                f"the arbiter at {self._path} does not answer ({error}); jobs go on with what they "
                "have; have root look: systemctl status headgate-arbiter"
            ) from error
        if "error" in answer:
            raise UsageError(f"the arbiter refuses: {answer['error']}")
        if not answer:
            raise HubError(f"the arbiter at {self._path} closed the connection; try again")
        return answer


def named(machine: SeenMachine, name: str) -> MachineJob:
    """The job of another user that an administrator means.

    Args:
        machine: What the administrator sees.
        name: `USER:JOB` or `USER:RUN/JOB`.

    Raises:
        UsageError: It names no job, or several.
    """
    user, colon, wanted = name.partition(":")
    if not (colon and user and wanted):
        raise UsageError(f"found {name!r}; expected USER:JOB, as `headgate status --all` shows it")
    jobs = {
        seen.job: seen
        for seen in machine.jobs
        if seen.job is not None and seen.user == user and wanted in (seen.name, id_of(seen.job))
    }
    if not jobs:
        raise UsageError(f"{user} has no job {wanted!r} here; `headgate status --all` shows all")
    if len(jobs) > 1:
        ids = ", ".join(f"{user}:{id_of(job)}" for job in jobs)
        raise UsageError(f"{name} could be {ids}; name one of them")
    return next(iter(jobs))


def id_of(job: MachineJob) -> str:
    """`RUN/JOB`: the id of a job without its attempt."""
    return job.id.rpartition("#")[0] or job.id


def machine_as_json(machine: SeenMachine) -> dict[str, Any]:
    """The machine as JSON; keys are only ever added."""
    shown: dict[str, Any] = records.plain(machine)
    ahead = before(machine)
    for entry, job, number in zip(shown["jobs"], machine.jobs, ahead, strict=True):
        for key in ("id", "name"):
            del entry["demand"][key]
        entry["private"] = job.name is None or job.demand.private
        entry["before"] = number
        entry["id"] = id_of(job.job) if job.job is not None else None
        del entry["job"]
    return shown


def before(machine: SeenMachine) -> list[int | None]:
    """How many jobs wait before each one; None: it runs."""
    numbers: list[int | None] = []
    waiting = 0
    for job in machine.jobs:
        numbers.append(waiting if job.waits is not None else None)
        waiting += job.waits is not None
    return numbers
