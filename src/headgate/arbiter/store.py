"""What the arbiter keeps: grants, orders and acts, past use, and use by day, in one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import NamedTuple

from headgate.arbiter.acts import Act
from headgate.arbiter.records import ArbiterState, MachineJob, ResourceGrant
from headgate.arbiter.usage import DayUse
from headgate.model import records
from headgate.model.errors import StorageError

VERSION = 1
_MOST_ACTS = 10_000
_TABLES = """
CREATE TABLE IF NOT EXISTS grants (
    user TEXT, hub TEXT, id TEXT, boot TEXT, grant TEXT, PRIMARY KEY (user, hub, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (key INTEGER PRIMARY KEY CHECK (key = 0), value TEXT);
CREATE TABLE IF NOT EXISTS usage (
    user TEXT, day INTEGER, core_seconds REAL, gpu_seconds REAL, idle_gpu_seconds REAL,
    memory_byte_seconds REAL, PRIMARY KEY (user, day)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS acts (number INTEGER PRIMARY KEY, user TEXT, act TEXT);
"""


class _UsageRow(NamedTuple):
    user: str
    day: int
    core_seconds: float
    gpu_seconds: float
    idle_gpu_seconds: float
    memory_byte_seconds: float


class ArbiterStore:
    """The arbiter's file. Whatever is written survives the end of the arbiter at any moment.

    Args:
        path: The file, made if missing; only its owner may read it.
        boot: Id of this boot of the machine. Grants of another one are void: no job is left.

    Raises:
        StorageError: The file cannot be opened, is damaged, or is of a newer version.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self._path, self._boot = path, boot
        self._written: dict[MachineJob, ResourceGrant] = {}
        self._state = ""
        with self._told():
            path.touch(mode=0o600)
            self._db = sqlite3.connect(path, isolation_level=None)
            # What the kernel has outlives the arbiter; no job outlives the kernel.
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            [version] = self._db.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise StorageError(
                    f"{path} was written by a newer Headgate (version {version}, this one reads "
                    f"{VERSION}); install that one, or move the file away"
                )
            self._db.executescript(_TABLES)
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def state(self) -> ArbiterState:
        """What the last arbiter kept.

        Raises:
            StorageError: The file is damaged.
        """
        with self._told():
            rows = self._db.execute("SELECT grant FROM grants WHERE boot = ?", (self._boot,))
            grants = tuple(records.read(ResourceGrant, text) for (text,) in rows)
            row = self._db.execute("SELECT value FROM state").fetchone()
            kept = records.read(ArbiterState, row[0]) if row is not None else ArbiterState()
        self._written = {grant.job: grant for grant in grants}
        return replace(kept, grants=grants)

    def keep(
        self, state: ArbiterState, usage: Mapping[tuple[str, int], DayUse] | None = None
    ) -> None:
        """Write all that has changed, or nothing.

        Args:
            state: What the next arbiter is to go on with.
            usage: Changed rows of use, by user and day.

        Raises:
            StorageError: It cannot be written; the disk may be full.
        """
        grants = {grant.job: grant for grant in state.grants}
        text = records.text_of(replace(state, grants=()))
        with self._told(), self._whole():
            for job in self._written.keys() - grants.keys():
                self._db.execute(
                    "DELETE FROM grants WHERE user = ? AND hub = ? AND id = ?", (*job.hub, job.id)
                )
            for job, grant in grants.items():
                before = self._written.get(job)
                if before is None or before.demand.needs != grant.demand.needs:
                    self._db.execute(
                        "INSERT OR REPLACE INTO grants VALUES (?, ?, ?, ?, ?)",
                        (*job.hub, job.id, self._boot, records.text_of(grant)),
                    )
            if text != self._state:
                self._db.execute("INSERT OR REPLACE INTO state VALUES (0, ?)", (text,))
            for key, use in (usage or {}).items():
                self._db.execute(
                    "INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?)", (*key, *astuple(use))
                )
        self._written, self._state = grants, text

    def has(self, job: MachineJob) -> bool:
        """Whether a job's grant is written."""
        return job in self._written

    def usage(self, since: int) -> dict[tuple[str, int], DayUse]:
        """Use by user and day, from a day on (its number since the epoch, UTC).

        Raises:
            StorageError: The file is damaged.
        """
        with self._told():
            rows = self._db.execute("SELECT * FROM usage WHERE day >= ?", (since,)).fetchall()
            read = [records.parse(_UsageRow, row) for row in rows]
        return {(row.user, row.day): DayUse(*row[2:]) for row in read}

    def record(self, act: Act) -> None:
        """Keep an administrator's act; the oldest of very many goes.

        Raises:
            StorageError: It cannot be written.
        """
        with self._told(), self._whole():
            self._db.execute(
                "INSERT INTO acts (user, act) VALUES (?, ?)", (act.user, records.text_of(act))
            )
            oldest = "(SELECT max(number) FROM acts) - ?"
            self._db.execute(f"DELETE FROM acts WHERE number <= {oldest}", (_MOST_ACTS,))

    def acts(self, user: str | None, most: int) -> tuple[Act, ...]:
        """The latest acts, the latest last.

        Args:
            user: Only those about this user or the machine; None: all.
            most: At most so many.

        Raises:
            StorageError: The file is damaged.
        """
        query = "SELECT act FROM acts WHERE ? IS NULL OR user IN ('', ?) ORDER BY number DESC"
        with self._told():
            rows = self._db.execute(f"{query} LIMIT ?", (user, user, most)).fetchall()
            return tuple(records.read(Act, text) for (text,) in reversed(rows))

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise StorageError(
                f"cannot use {self._path}: {error}; free some space, or move a damaged file away"
            ) from error
        except ValueError as error:
            raise StorageError(
                f"cannot read {self._path}: {error}; move the damaged file away"
            ) from error
