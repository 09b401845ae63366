"""The store of a run: one SQLite file, one writer, any number of readers; readable after a kill -9.

`Recorder` writes from its own thread, about two transactions a second. On a full disk it keeps
unwritten rows (the newest 200,000), reports that once, and writes them when there is room again.
"""

from __future__ import annotations

import json
import math
import random
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, TypeVar

from headgate.model.errors import NotFoundError, StorageError
from headgate.sampling.columns import COLUMNS

VERSION = 3
_KEPT_ROWS = 200_000
_COMMIT_SECONDS = 0.5
_LATE_SECONDS = 30.0
"""How late a row may be added after one with a later time: remote tasks and long steps report
late.
"""
_OTHER_FAULT_SECONDS = 60.0
"""Longest that `close` retries after an error other than a full disk."""

# Times `t` are seconds since the run began; `meta.began` is the wall clock at that moment (seconds
# since the epoch).
TABLES: Mapping[str, tuple[str, ...]] = {
    "meta": ("key TEXT PRIMARY KEY", "value TEXT"),
    "jobs": (
        "name TEXT PRIMARY KEY",
        "position INTEGER",
        "spec TEXT",  # JSON of the Job
        "state TEXT",
        "reason TEXT",
        "exit_code INTEGER",
        "submitted REAL",
        "started REAL",
        "ended REAL",
        "attempt INTEGER",
        "plan TEXT",  # JSON of the Plan
        "profile TEXT",  # JSON of the Profile
        "expected REAL",  # predicted start while it waits for room
        # JSON of the Ending: answer to a stop request, what is saved, doubts
        "ending TEXT",
        "verified TEXT",  # JSON of the Verification: whether its workers train the same as one
        # JSON: what it waits for, as kind, facts, and jobs that hold some of it
        "waits TEXT",
        "why TEXT",  # JSON of the Reason that `reason` says in words: its kind and facts
    ),
    "tasks": (
        "id TEXT PRIMARY KEY",  # JOB/ROLE-INDEX
        "job TEXT",
        "node TEXT",
        "attempt INTEGER",
        "pid INTEGER",
        "started REAL",
        "ended REAL",
        "exit TEXT",  # JSON of the Exit
        "gpus TEXT",  # JSON: numbers of GPUs of its node on which it holds memory
    ),
    "events": (
        "t REAL",
        "job TEXT",
        "task TEXT",
        "kind TEXT",
        "text TEXT",
        "seconds REAL",  # cost of a fault, if known
        "steps INTEGER",  # steps repeated or lost by it
        "why TEXT",  # JSON of the Reason that `text` says in words
    ),
    "progress": (
        "t REAL",
        "task TEXT",
        "step INTEGER",
        "epoch INTEGER",
        "epochs INTEGER",
        "samples INTEGER",
        # NULL if none was reported or it was not finite; `nan` tells which
        "loss REAL",
        "nan INTEGER",
        "count INTEGER",
        "metrics TEXT",  # JSON object or NULL
        "within REAL",  # fraction of the epoch that is done
        "steps INTEGER",  # in all
        "remaining REAL",  # seconds, as its script says
    ),
    # a task's id, or `node:NAME`
    "usage": ("t REAL", "target TEXT", *(f"{column} REAL" for column in COLUMNS)),
    "shares": (
        "t REAL",
        "task TEXT",
        "cpu_weight REAL",
        "cpu_cap_cores REAL",  # NULL: no cap
        "entitled_cores REAL",  # cores by weight or cap when every task wants the CPU
        "memory_bytes REAL",
        "threads INTEGER",
        "reason TEXT",
        "disk_bytes_per_second REAL",  # NULL: no limit
        "gpu_fraction REAL",  # NULL: all of its time
        "why TEXT",  # JSON of the Reason that `reason` says in words
    ),
    "spans": (
        "t REAL",  # the same for all rows of one message, which comes after the step
        "task TEXT",
        "step INTEGER",
        "name TEXT",
        "seconds REAL",
        "bytes_in REAL",
        "bytes_out REAL",
        "begin REAL",  # seconds from the start of the step
        "workers REAL",  # for `input`: processes that read it beside the task; NULL: unknown
        "steps REAL",  # whose mean it is; NULL: it is that of one step
    ),
    "transfers": (  # traffic of a sampled step between two tasks; may overlap with its spans
        "t REAL",  # as of the spans in the same message
        "task TEXT",
        "step INTEGER",
        "peer TEXT",  # ROLE-INDEX of the same job
        "push_begin REAL",  # seconds from the start of the step
        "push_end REAL",
        "push_bytes REAL",
        "pull_begin REAL",
        "pull_end REAL",
        "pull_bytes REAL",
    ),
    "asides": (  # a task's time beside its steps since its last report
        "t REAL",
        "task TEXT",
        "name TEXT",
        "seconds REAL",
    ),
    "checkpoints": (
        "t REAL",
        "task TEXT",
        "path TEXT",
        "step INTEGER",
        "epoch INTEGER",
        "position INTEGER",
        "bytes INTEGER",
        "seconds REAL",
        "why TEXT",
        "own INTEGER",  # whether its script saved it by itself
        "node TEXT",  # the node that alone has it; empty: this machine sees it
    ),
    "proofs": (
        "t REAL",
        "culprit TEXT",  # the paused job
        "victim TEXT",  # the job whose steps were observed
        "pauses INTEGER",
        "seconds REAL",  # of a pause
        "gain REAL",  # how much faster the victim would be without the culprit
        "low REAL",
        "high REAL",
        "outcome TEXT",  # seen, none or open
    ),
    "trials": (  # ended jobs of sweeps that state `stop_early`
        "job TEXT PRIMARY KEY",
        "ended TEXT",  # JSON of the PastTrial that others are compared with
    ),
    "log": (  # the controller's input and decisions (docs/events.md)
        # in the order of arrival; runs of one controller share the numbers
        "id INTEGER PRIMARY KEY",
        "t REAL",
        "now REAL",  # the hub's clock as told to the controller
        "kind TEXT",  # event, action or notice
        "job TEXT",  # a job of this run; NULL: none, or of another run
        "cause INTEGER",  # id of its cause
        "value TEXT",  # JSON of the event, the action or the notice
    ),
}
_KEYS = {"usage": "target", "progress": "task"}
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS usage_target ON usage (target, t)",
    "CREATE INDEX IF NOT EXISTS progress_task ON progress (task, t)",
    # Each of very many jobs is read by itself, without reading the rows of all.
    "CREATE INDEX IF NOT EXISTS shares_task ON shares (task)",
    "CREATE INDEX IF NOT EXISTS tasks_job ON tasks (job)",
    "CREATE INDEX IF NOT EXISTS checkpoints_task ON checkpoints (task)",
    "CREATE INDEX IF NOT EXISTS asides_task ON asides (task)",
)


def _columns(table: str) -> tuple[str, ...]:
    return tuple(column.split()[0] for column in TABLES[table])


_TEXTS = {
    table: frozenset(column.split()[0] for column in columns if column.split()[1] == "TEXT")
    for table, columns in TABLES.items()
}
_INSERTS = {
    table: f"INSERT OR REPLACE INTO {table} ({', '.join(_columns(table))}) "
    f"VALUES ({', '.join('?' * len(columns))})"
    for table, columns in TABLES.items()
}


class Recorder:
    """Writes a run's store.

    Args:
        path: The file; its folder exists.
        trouble: Called from the writing thread with one line when writing fails, and with None when
            it works again.

    Raises:
        StorageError: The file cannot be made.
    """

    def __init__(self, path: Path, trouble: Callable[[str | None], None] = lambda _: None) -> None:
        self._path = path
        self._trouble = trouble
        self._pending: deque[tuple[str, tuple[object, ...]]] = deque(maxlen=_KEPT_ROWS)
        self._condition = threading.Condition()
        self._closing = False
        self._tries_until = math.inf
        self._is_full = False
        self._needs_room_from = math.inf  # after this time it waits only for a full disk
        self._flushed = 0
        self._asked = 0
        self._failing = False
        try:
            self._db = self._connect()
            with self._db as db:
                for table, columns in TABLES.items():
                    db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")
                    has = {name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
                    for column in columns:  # an earlier version's table lacks later ones
                        if column.split()[0] not in has:
                            db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
                for index in _INDEXES:
                    db.execute(index)
                db.execute(f"PRAGMA user_version = {VERSION}")
        except sqlite3.Error as error:
            raise StorageError(
                f"cannot write {path}: {error}; free some space there, or set HEADGATE_HOME"
            ) from error
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=10, check_same_thread=False)
        # Without WAL (NFS), SQLite keeps its other mode, which works.
        with suppress(sqlite3.OperationalError):
            db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        return db

    def add(self, table: str, **row: object) -> None:
        """Append a row, or replace the one with the same primary key; missing keys are NULL."""
        values = tuple(map(_plain, (row.pop(column, None) for column in _columns(table))))
        if row:
            raise TypeError(f"table {table!r} has no {sorted(row)}")
        with self._condition:
            self._pending.append((table, values))

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all rows added so far are on disk. Returns False if they are not after
        `timeout` seconds.
        """
        with self._condition:
            self._asked += 1
            ticket = self._asked
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._flushed >= ticket, timeout)

    def close(self, patience: float = 0.0) -> None:
        """Write what is left. On failure, retry for `patience` seconds, for a minute at most unless
        the disk is full. May be called twice.
        """
        with self._condition:
            self._closing = True
            self._tries_until = min(self._tries_until, time.monotonic() + patience)
            self._needs_room_from = time.monotonic() + min(patience, _OTHER_FAULT_SECONDS)
            self._condition.notify_all()
        self._thread.join()

    def hurry(self) -> None:
        """Let a running `close` retry once more at most."""
        with self._condition:
            self._tries_until = 0.0
            self._condition.notify_all()

    def _write(self) -> None:
        with closing(self._db) as db:
            while True:
                with self._condition:
                    self._condition.wait_for(
                        lambda: self._closing or self._asked > self._flushed, _COMMIT_SECONDS
                    )
                    closing_down, ticket = self._closing, self._asked
                    rows = list(self._pending)
                    self._pending.clear()
                written = self._commit(db, rows)
                with self._condition:
                    if written:
                        self._flushed = ticket
                        self._condition.notify_all()
                    else:
                        room = _KEPT_ROWS - len(self._pending)
                        self._pending.extendleft(reversed(rows[max(len(rows) - room, 0) :]))
                        until = (
                            self._tries_until
                            if self._is_full
                            else min(self._tries_until, self._needs_room_from)
                        )
                        given_up = closing_down and time.monotonic() >= until
                        if not given_up:
                            before = (closing_down, self._tries_until)
                            self._condition.wait_for(partial(self._changed_since, before), 1.0)
                if closing_down and (written or given_up):
                    # Without WAL, later readers need no files beside it; refused while a reader has
                    # it open.
                    with suppress(sqlite3.Error):
                        db.execute("PRAGMA journal_mode = DELETE")
                    return

    def _changed_since(self, before: tuple[bool, float]) -> bool:
        return (self._closing, self._tries_until) != before

    def _commit(self, db: sqlite3.Connection, rows: list[tuple[str, tuple[object, ...]]]) -> bool:
        try:
            with db:
                for table, values in rows:
                    self._insert(db, table, values)
        except sqlite3.Error as error:
            self._is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            if not self._failing:
                self._failing = True
                self._trouble(
                    f"cannot write {self._path}: {error}; what is measured is kept in memory "
                    "until it can"
                )
            return False
        if self._failing:
            self._failing = False
            self._trouble(None)
        return True

    def _insert(self, db: sqlite3.Connection, table: str, values: tuple[object, ...]) -> None:
        try:
            db.execute(_INSERTS[table], values)
        except (sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError) as error:
            # skip only this row
            self._trouble(f"a row of {table} could not be written and is left out: {error}")


def _plain(value: object) -> object:
    """Convert a value for SQLite: mappings and lists to JSON, non-finite numbers to NULL, integers
    beyond 64 bits to floats. Lone surrogates are removed from text.
    """
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value) if abs(value) < 2**1000 else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value


@contextmanager
def told_as_damage(path: Path) -> Iterator[None]:
    """Turn errors from invalid values of a store into one message: damage that SQLite does not
    detect. Use it around reading and computing, not around printing.

    Raises:
        StorageError: A value is invalid.
    """
    try:
        yield
    except UnicodeEncodeError:  # the data is valid; somebody could not print it
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StorageError(
            f"cannot read {path}, because a part of it is damaged: {error!r:.200}"
        ) from error


class _Stored(Protocol):
    """A record class for rows: a dataclass with a field for each column to read."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    table: ClassVar[str]


Row = TypeVar("Row", bound=_Stored)


class RunReader:
    """Reads a run's store, also while it is written. Within its `with` block, invalid values are
    reported as damage of the store.

    Raises:
        NotFoundError: The file does not exist.
        StorageError: It is not a store that this version reads. Any method raises it if a part is
            damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: dict[str, frozenset[str]] = {}
        if not path.is_file():
            raise NotFoundError(f"no recorded data at {path}")
        with self._reading():
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
        try:
            with self._reading():
                self._look()
        except StorageError:
            self._db.close()
            raise

    def _look(self) -> None:
        """Check that this version can read the store."""
        self._db.row_factory = sqlite3.Row
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        self._db.execute("SELECT count(*) FROM meta").fetchone()
        self._tables = {
            row[0]
            for row in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if version > VERSION:
            newer = f"store version {version}; this one reads {VERSION}"
            raise StorageError(f"{self._path} was written by a newer Headgate ({newer})")

    def __enter__(self) -> RunReader:
        self._within = ExitStack()
        self._within.callback(self.close)
        self._within.enter_context(told_as_damage(self._path))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._within.__exit__(kind, error, trace)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # its own message may be damaged too
            raise StorageError(f"cannot read {self._path}: {error}") from error

    def meta(self) -> dict[str, str]:
        with self._reading():
            rows = self._db.execute("SELECT key, value FROM meta")
            return {row["key"]: row["value"] for row in rows if isinstance(row["value"], str)}

    def rows(
        self, table: str, where: str = "", parameters: Iterable[object] = (), order: str = "rowid"
    ) -> Iterator[dict[str, Any]]:
        """Rows of a table as dictionaries, in the order of writing. Rows of an older version lack
        later columns. Damaged values are None.
        """
        return self._selected(table, "*", where, parameters, order)

    def _selected(
        self, table: str, columns: str, where: str, parameters: Iterable[object], order: str
    ) -> Iterator[dict[str, Any]]:
        if table not in TABLES:
            raise KeyError(table)
        if table not in self._tables:
            return
        condition = f"WHERE {where}" if where else ""
        with self._reading():
            cursor = self._db.cursor()
            cursor.row_factory = None
            cursor.execute(
                f"SELECT {columns} FROM {table} {condition} ORDER BY {order}", tuple(parameters)
            )
            names = [about[0] for about in cursor.description]
            types = [str if name in _TEXTS[table] else (int, float) for name in names]
            for row in cursor:
                yield {
                    name: value if value is None or isinstance(value, kind) else None
                    for name, value, kind in zip(names, row, types)
                }

    def records(
        self,
        kind: type[Row],
        where: str = "",
        parameters: Iterable[object] = (),
        order: str = "rowid",
    ) -> Iterator[Row]:
        """Rows as records of a dataclass that names its table; see `rows`."""
        names = [field.name for field in fields(kind)]
        known = self.columns(kind.table)
        columns = ", ".join(name for name in names if name in known)
        lacking = dict.fromkeys(name for name in names if name not in known)
        for row in self._selected(kind.table, columns, where, parameters, order):
            yield kind(**row, **lacking)

    def first_row(self, table: str, after: float) -> int:
        """The rowid from which on a table has the rows after a time (seconds of the run), with some
        earlier ones.

        Rows are added in the order of time, except some that come a moment late. Bisection makes
        this fast for long runs too.
        """
        if table not in self._tables or after <= _LATE_SECONDS:
            return 0
        low, high = 0, (self.tuples(f"SELECT max(rowid) FROM {table}")[0][0] or 0) + 1
        while low < high:
            middle = (low + high) // 2
            sql = (
                f"SELECT rowid, t FROM {table} WHERE rowid >= ? AND t IS NOT NULL ORDER BY "
                "rowid LIMIT 1"
            )
            tuples = self.tuples(sql, (middle,))
            if tuples and tuples[0][1] < after - _LATE_SECONDS:
                low = tuples[0][0] + 1
            else:
                high = middle
        return low

    def thinned(
        self,
        table: str,
        key: str,
        columns: str,
        *,
        after: float,
        most: int | None,
        at: Sequence[float] = (),
        in_a_row: int = 1,
    ) -> list[tuple[Any, ...]]:
        """Rows of one target or task after a time, in the order of time; if there are more than
        `most`, about that many, evenly spread.

        The time for it does not depend on the number of rows.

        Args:
            table: `usage` or `progress`, which have an index.
            key: The target or task.
            columns: SQL columns to read.
            after: Seconds of the run.
            most: About the most rows; None: all.
            at: Times whose rows are read in any case.
            in_a_row: Consecutive rows to read at each place; `most` counts them all.
        """
        rows = f"FROM {table} WHERE {_KEYS[table]} = ? AND t >= ?"
        read = f"SELECT {columns}"
        if most is not None:
            more = self.tuples(
                f"SELECT count(*) FROM (SELECT 1 {rows} LIMIT ?)", (key, after, most + 1)
            )[0][0]
            if more > most:
                first, last = (
                    self.tuples(f"SELECT {end}(t) {rows}", (key, after))[0][0]
                    for end in ("min", "max")
                )
                points = max(most // in_a_row, 2)
                # A random row of each stretch: evenly spaced rows would show only one phase of a
                # cycle.
                draw = random.Random(0)
                drawn = [
                    first + (last - first) * (index + draw.random()) / points
                    for index in range(points - 2)
                ]
                times = [first, *drawn, last, *at]
                nth = (
                    f"SELECT (SELECT rowid {rows.replace('t >= ?', 't >= value')} ORDER BY t "
                    "LIMIT 1 OFFSET ?)"
                )
                chosen = " UNION ".join([f"{nth} FROM json_each(?)"] * in_a_row)
                grid = json.dumps([max(time, after) for time in times])
                parameters = [column for index in range(in_a_row) for column in (key, index, grid)]
                return self.tuples(
                    f"{read} FROM {table} WHERE rowid IN ({chosen}) ORDER BY t, rowid", parameters
                )
        return self.tuples(f"{read} {rows} ORDER BY t, rowid", (key, after))

    def keys(self, table: str) -> list[str]:
        """Targets or tasks with rows in a table, by its index, regardless of the number of rows."""
        column, names = _KEYS[table], list[str]()
        sql = f"SELECT min({column}) FROM {table} WHERE {column} > ?"
        while (last := self.tuples(sql, (names[-1] if names else "",))[0][0]) is not None:
            names.append(last)
        return names

    def last_row(self, table: str, until: float) -> int:
        """The rowid up to which a table has the rows until a time, with some later ones."""
        return self.first_row(table, until + 2 * _LATE_SECONDS + 1.0) or sys.maxsize

    def columns(self, table: str) -> frozenset[str]:
        """Names of a table's columns; an older version's table lacks later ones."""
        if table not in self._columns:
            about = self.query(f"PRAGMA table_info({table})")
            self._columns[table] = frozenset(row["name"] for row in about)
        return self._columns[table]

    def query(self, sql: str, parameters: Iterable[object] = ()) -> list[dict[str, Any]]:
        """Rows of any read-only query."""
        with self._reading():
            return [dict(row) for row in self._db.execute(sql, tuple(parameters))]

    def tuples(self, sql: str, parameters: Iterable[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of any read-only query as plain tuples, for a day of samples a third faster."""
        with self._reading():
            cursor = self._db.cursor()
            cursor.row_factory = None
            return cursor.execute(sql, tuple(parameters)).fetchall()
