"""The store of a run: one SQLite file, one writer, any number of readers; readable after a kill -9.

`Recorder` writes from its own thread, about two transactions a second. On a full disk it keeps
unwritten rows (the newest 200,000), reports that once, and writes them when there is room again.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from headgate.model.errors import StorageError
from headgate.recorded.tables import INDEXES, INSERTS, TABLES, VERSION, columns_of

_KEPT_ROWS = 200_000
_COMMIT_SECONDS = 0.5
_OTHER_FAULT_SECONDS = 60.0
"""Longest that `close` retries after an error other than a full disk."""


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
        self._secures = False
        self._is_secured = False  # nothing that was written would be lost by a power cut
        self._await_disk: list[Callable[[], None]] = []
        try:
            self._db = self._connect()
            with self._db as db:
                for table, columns in TABLES.items():
                    db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")
                    has = {name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
                    for column in columns:  # an earlier version's table lacks later ones
                        if column.split()[0] not in has:
                            db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
                for index in INDEXES:
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
        self._append(table, row, secures=False)

    def add_secured(self, table: str, **row: object) -> None:
        """As `add`; who reads the row can rely on it, because it outlasts a power cut by then."""
        self._append(table, row, secures=True)

    def _append(self, table: str, row: dict[str, object], *, secures: bool) -> None:
        values = tuple(map(_plain, (row.pop(column, None) for column in columns_of(table))))
        if row:
            raise TypeError(f"table {table!r} has no {sorted(row)}")
        with self._condition:
            self._pending.append((table, values))
            self._secures = self._secures or secures

    @property
    def is_failing(self) -> bool:
        """Whether the last rows could not be written, and wait."""
        return self._failing

    def secured(self, timeout: float) -> bool:
        """Wait until all rows added so far outlast a power cut. Returns False if they do not after
        `timeout` seconds.
        """
        with self._condition:
            self._secures = True
        return self.flush(timeout)

    def when_secured(self, then: Callable[[], None]) -> None:
        """Have `then` called once all rows added so far outlast a power cut, or cannot be written
        now. The writing thread calls it, or this one; rows wait meanwhile.
        """
        with self._condition:
            if not self._failing:
                self._secures = True
                self._asked += 1
                self._await_disk.append(then)
                self._condition.notify_all()
                return
        then()

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
                    secures, self._secures = self._secures, False
                    await_disk, self._await_disk = self._await_disk, []
                written = self._commit(db, rows, secures)
                for then in await_disk:
                    then()
                with self._condition:
                    if written:
                        self._flushed = ticket
                        self._condition.notify_all()
                    else:
                        self._condition.notify_all()
                        self._secures |= secures
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

    def _commit(
        self, db: sqlite3.Connection, rows: list[tuple[str, tuple[object, ...]]], secures: bool
    ) -> bool:
        try:
            db.execute(f"PRAGMA synchronous = {'FULL' if secures else 'NORMAL'}")
            with db:
                for table, values in rows:
                    self._insert(db, table, values)
                if secures and not rows and not self._is_secured:
                    # written before; only a transaction that writes has SQLite wait for the disk
                    db.execute(f"PRAGMA user_version = {VERSION}")
        except sqlite3.Error as error:
            self._is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            if not self._failing:
                self._failing = True
                self._trouble(
                    f"cannot write {self._path}: {error}; what is measured is kept in memory "
                    "until it can"
                )
            return False
        self._is_secured = secures or (self._is_secured and not rows)
        if self._failing:
            self._failing = False
            self._trouble(None)
        return True

    def _insert(self, db: sqlite3.Connection, table: str, values: tuple[object, ...]) -> None:
        try:
            db.execute(INSERTS[table], values)
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
