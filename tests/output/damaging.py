"""What a failing disk makes of a store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def damage(path: Path, table: str) -> None:
    """Overwrite the first page of a table in a store."""
    with closing(sqlite3.connect(path)) as db:
        [[root]] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table])
        [[size]] = db.execute("PRAGMA page_size")
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
