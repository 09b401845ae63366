"""Reads the store of a run, while it is written or later."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, TypeVar

from headgate.model.errors import NotFoundError, StorageError
from headgate.recorded.tables import KEYS, LATE_SECONDS, TABLES, TEXTS, VERSION


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


def _is_cut_off(error: BaseException | None) -> bool:
    """Whether a store cannot be read before somebody who may write has restored it."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF == sqlite3.SQLITE_READONLY


class _Stored(Protocol):
    """A record class for rows: a dataclass with a field for each column to read."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    table: ClassVar[str]


Row = TypeVar("Row", bound=_Stored)


class RunReader:
    """Reads a run's store, also while it is written. Within its `with` block, all that is read is
    of one moment, and invalid values are reported as damage of the store.

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
        try:
            self._open()
        except StorageError as error:
            if not _is_cut_off(error.__cause__):
                raise
            self._restore()
            self._open()

    def _open(self) -> None:
        with self._reading():
            self._db = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=10
            )
        try:
            with self._reading():
                self._look()
        except StorageError:
            self._db.close()
            raise

    def _restore(self) -> None:
        """Have SQLite take back what a power cut has left half written; a reader may not."""
        with self._reading(), closing(sqlite3.connect(self._path, timeout=10)) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()

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
        with self._reading():
            # Without WAL (NFS), this would keep the hub from writing meanwhile.
            if self._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                self._db.execute("BEGIN")
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
            types = [str if name in TEXTS[table] else (int, float) for name in names]
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
        if table not in self._tables or after <= LATE_SECONDS:
            return 0
        low, high = 0, (self.tuples(f"SELECT max(rowid) FROM {table}")[0][0] or 0) + 1
        while low < high:
            middle = (low + high) // 2
            sql = (
                f"SELECT rowid, t FROM {table} WHERE rowid >= ? AND t IS NOT NULL ORDER BY "
                "rowid LIMIT 1"
            )
            tuples = self.tuples(sql, (middle,))
            if tuples and tuples[0][1] < after - LATE_SECONDS:
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
        rows = f"FROM {table} WHERE {KEYS[table]} = ? AND t >= ?"
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
        column, names = KEYS[table], list[str]()
        sql = f"SELECT min({column}) FROM {table} WHERE {column} > ?"
        while (last := self.tuples(sql, (names[-1] if names else "",))[0][0]) is not None:
            names.append(last)
        return names

    def last_row(self, table: str, until: float) -> int:
        """The rowid up to which a table has the rows until a time, with some later ones."""
        return self.first_row(table, until + 2 * LATE_SECONDS + 1.0) or sys.maxsize

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
