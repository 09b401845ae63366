"""What jobs keep of their rates side by side on a GPU, for their next runs on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from headgate.model.events import KeptSideBySide
from headgate.model.paths import write_whole

STORED = "gpu_neighbours.json"
"""File name of the table in Headgate's folder."""
_KEPT = 500


def recall(home: Path, key: str) -> tuple[KeptSideBySide, ...]:
    """What was measured of a job and others.

    Args:
        home: Headgate's folder.
        key: Key of the job.
    """
    return tuple(measured for measured in _read(home / STORED) if key in measured.jobs)


def remember(home: Path, measured: KeptSideBySide) -> None:
    """Save a measurement in place of an earlier one. The latest 500 are kept.

    Raises:
        OSError: It cannot be written.
    """
    others = [
        known
        for known in _read(home / STORED)
        if (known.place, known.jobs) != (measured.place, measured.jobs)
    ]
    rows = [[known.place, known.jobs, known.kept] for known in [*others, measured][-_KEPT:]]
    write_whole(home / STORED, json.dumps(rows))


def _read(path: Path) -> list[KeptSideBySide]:
    try:
        rows = [
            KeptSideBySide(str(place), tuple(map(str, jobs)), tuple(map(float, kept)))
            for place, jobs, kept in json.loads(path.read_bytes())
        ]
    except (OSError, ValueError, TypeError):  # there is none, or none that can be read
        return []
    return [
        row
        for row in rows
        if len(row.jobs) == len(row.kept) and all(0 <= kept <= 1 for kept in row.kept)
    ]
