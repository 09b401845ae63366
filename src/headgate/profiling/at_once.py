"""How many jobs of a script at once made the most steps a second together, on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from headgate.model.paths import write_whole

STORED = "at_once.json"
"""File name of the table in Headgate's folder."""
_KEPT = 500


def recall(home: Path, script: str) -> int | None:
    """The number for a script; None: not known.

    Args:
        home: Headgate's folder.
        script: Its key, which covers the kind of machine.
    """
    return _read(home / STORED).get(script)


def remember(home: Path, script: str, jobs: int) -> None:
    """Save the number for a script. The latest 500 are kept.

    Raises:
        OSError: It cannot be written.
    """
    known = _read(home / STORED)
    known.pop(script, None)
    rows = [*known.items(), (script, jobs)][-_KEPT:]
    write_whole(home / STORED, json.dumps(dict(rows)))


def _read(path: Path) -> dict[str, int]:
    try:
        rows = dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):  # there is none, or none that can be read
        return {}
    return {key: jobs for key, jobs in rows.items() if isinstance(jobs, int) and jobs > 0}
