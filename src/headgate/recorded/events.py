"""The event log of a run: the controller's input and decisions, with causes.

Runs under one controller share the numbers of their entries. An entry without a run is in the log
of the oldest run at that time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from headgate.model import records
from headgate.model.actions import (
    Action,
    MarkJob,
    Resize,
    SetShare,
    ShareGpu,
    StartTask,
    StopTask,
    TryJob,
    subject,
)
from headgate.model.errors import HeadgateError, NotFoundError
from headgate.model.events import CheckpointDone, Event, Notice
from headgate.model.identifiers import JobId, TaskId
from headgate.recorded import runs
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.reader import RunReader

Kind = Literal["event", "action", "notice"]
CONTROLLER = "controller"
"""Key in a run's `meta` for the controller behind its log."""
HUB_LOG = "events.jsonl"
"""Log of entries without a run, in a hub's folder."""
_FOLLOW_SECONDS = 0.2
_ABOUT_SHARES = (StartTask, SetShare, TryJob, ShareGpu, StopTask, Resize, CheckpointDone)
_KINDS: Mapping[Kind, tuple[type, ...]] = {
    "event": get_args(Event),
    "action": get_args(Action),
    "notice": get_args(Notice),
}
TYPES: Mapping[str, type] = MappingProxyType(
    {kind.__name__: kind for kinds in _KINDS.values() for kind in kinds}
)
"""All events, actions and notices, by name."""
_KIND_OF: Mapping[type, Kind] = {kind: name for name, kinds in _KINDS.items() for kind in kinds}
encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry of another version of Headgate, as plain JSON."""

    type: str
    fields: Mapping[str, Any]  # including its type


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An entry of the log.

    Args:
        run: Id of the run whose log it was read from; empty: the hub's log.
        id: Its position in the log of its controller.
        t: Seconds since that run began; in the hub's log since the epoch.
        now: The hub's clock as told to the controller.
        kind: `event` (input), `action` (decision) or `notice` (about the log).
        what: The event, action or notice.
        cause: Id of its cause; None: it has none.
    """

    run: str
    id: int
    t: float
    now: float
    kind: Kind
    what: Event | Action | Notice | Unreadable
    cause: int | None

    @property
    def name(self) -> str:
        """Name of its type: `TaskExited`."""
        return self.what.type if isinstance(self.what, Unreadable) else type(self.what).__name__

    @property
    def job(self) -> JobId | None:
        """The job that it is about; None: no job."""
        if isinstance(self.what, Unreadable):
            return None
        about = subject(self.what)
        return about.job if isinstance(about, TaskId) else about

    @property
    def task(self) -> TaskId | None:
        """The task that it is about; None: none, or a whole job."""
        about = None if isinstance(self.what, Unreadable) else subject(self.what)
        return about if isinstance(about, TaskId) else None

    def as_json(self) -> dict[str, Any]:
        """The entry as in `headgate events --json` and in files of recorded runs."""
        return {
            "id": self.id,
            "t": self.t,
            "now": self.now,
            "kind": self.kind,
            "cause": self.cause,
            "value": as_json(self.what),
        }


def as_json(what: Event | Action | Notice | Unreadable) -> dict[str, Any]:
    """The content of an entry, as JSON with its type."""
    return dict(what.fields) if isinstance(what, Unreadable) else records.dump(what)


def kind_of(what: Event | Action | Notice) -> Kind:
    """Whether this is an input, a decision, or about the log."""
    return _KIND_OF[type(what)]


def parse(run: str, row: Mapping[str, Any]) -> LoggedEvent:
    """Parse an entry from its JSON, or from its row of the store.

    Raises:
        KeyError, TypeError, ValueError: It is damaged.
    """
    value = row["value"]
    value = json.loads(value) if isinstance(value, str) else value
    try:
        content = records.load(value, TYPES)
    except ValueError:
        content = Unreadable(value.get(records.TYPE, "?"), value)
    times = float(row["t"]), float(row["now"])
    return LoggedEvent(run, int(row["id"]), *times, row["kind"], content, row["cause"])


def read_events(
    run: Path, job: str | None = None, follow: bool = False, after: int = 0
) -> Iterator[LoggedEvent]:
    """The entries of a run's log, in their order.

    Args:
        run: The run's folder.
        job: Only entries about this job of the run.
        follow: Go on with new entries until the run has ended.
        after: Only entries with a greater id.

    Raises:
        NotFoundError: The run has no log: an earlier version recorded it.
        StorageError: Its store cannot be read.
    """
    alive = True
    while alive:
        alive = follow and runs.alive(run)
        for event in _read(run, job, after):
            after = event.id
            yield event
        if alive:
            time.sleep(_FOLLOW_SECONDS)


def _read(run: Path, job: str | None, after: int) -> list[LoggedEvent]:
    """The present entries. The store is closed again, because a reader may take long over them."""
    alive = runs.alive(run)
    with RunReader(run / runs.STORE) as reader:
        # not yet written if the run has just begun
        if not alive and not RunDescription.read(reader).controller:
            raise NotFoundError(f"run {run.name} has no event log: its Headgate kept none")
        where = "id > ?" + ("" if job is None else " AND job = ?")
        values = (after, *([] if job is None else [job]))
        return [parse(run.name, row) for row in reader.rows("log", where, values, "id")]


def controller_of(run: Path) -> str | None:
    """Name of the controller behind a run's log; None: it has no log."""
    try:
        return runs.describe(run).controller or None
    except HeadgateError:  # it is damaged, or being deleted
        return None


def read_controller(run: Path) -> dict[int, LoggedEvent]:
    """All stored input and decisions of a run's controller, by id, from the logs of all its runs at
    that time.

    Raises:
        NotFoundError: The run has no log.
        StorageError: A store cannot be read.
    """
    entries = {entry.id: entry for entry in read_events(run)}
    controller = controller_of(run)
    for other in runs.listing():
        if other != run and controller_of(other) == controller:
            entries = {entry.id: entry for entry in read_events(other)} | entries
    return dict(sorted(entries.items()))


def read_hub_log(hub: Path) -> Iterator[LoggedEvent]:
    """The entries of a hub's own log, oldest first: about nodes, and new controllers."""
    for path in (hub / f"{HUB_LOG}.1", hub / HUB_LOG):
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            continue
        for line in lines:
            try:
                yield parse("", json.loads(line))
            except (KeyError, TypeError, ValueError):  # a partial last entry of a killed hub
                continue


def newest_decisions(run: Path, after: int, most: int) -> list[LoggedEvent]:
    """The latest decisions about tasks and shares of a run's jobs, and checkpoints that these
    saved, in their order.

    Args:
        run: The run's folder.
        after: Only entries with a greater id.
        most: Most entries.

    Raises:
        NotFoundError, StorageError: Its store is not there, or cannot be read.
    """
    names = [kind.__name__ for kind in _ABOUT_SHARES]
    sql = (
        "SELECT * FROM log WHERE id > ? AND job IS NOT NULL AND json_extract(value, '$.type') IN "
        f"({', '.join('?' * len(names))}) ORDER BY id DESC LIMIT ?"
    )
    with RunReader(run / runs.STORE) as reader:
        rows = reader.query(sql, (after, *names, most))
    return [parse(run.name, row) for row in reversed(rows)]


def decisions_after(reader: RunReader, id: int) -> tuple[dict[str, int], int]:
    """How many decisions of each kind the controller made after an entry of its log, and the last
    entry so far.
    """
    of_kinds = (
        "SELECT json_extract(value, '$.type'), count(*) FROM log WHERE id > ? AND id <= ? "
        "AND kind = 'action' GROUP BY 1"
    )
    [(last,)] = reader.tuples("SELECT coalesce(max(id), ?) FROM log", [id])
    return dict(reader.tuples(of_kinds, [id, last])), last


def chain(
    entries: Mapping[int, LoggedEvent], last: LoggedEvent, but: set[int]
) -> Iterator[LoggedEvent]:
    """An entry and what led to it, the latest first, up to the first one in `but`."""
    at: LoggedEvent | None = last
    while at is not None:
        yield at
        if at.id in but:
            return
        but.add(at.id)
        at = entries.get(at.cause) if at.cause is not None else None


def latest(entries: Mapping[int, LoggedEvent], run: str, job: str) -> list[LoggedEvent]:
    """The actions that made a job's present state and its tasks' present shares."""
    last: dict[str, LoggedEvent] = {}
    for entry in entries.values():
        if entry.job is None or (entry.job.run, entry.job.name) != (run, job):
            continue
        match entry.what:
            case MarkJob():
                last["state"] = entry
            case StartTask(task=task) | SetShare(task=task):
                last[task] = entry
    return list(last.values())
