"""CPU time that jobs took from their beginning to their end, remembered for the next ones of the same script."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import NamedTuple

_KEPT = 20
_ALIKE = 1.25
"""What the same job takes again is between the least and the most that it took, and this factor: the band holds nine
of ten."""
_RELATED = 4.0
"""As `_ALIKE`, of jobs of the same script with other arguments."""


class Length(NamedTuple):
    """Core-seconds of a whole job: the likeliest, and a band that holds nine of ten."""

    work: float
    low: float
    high: float


def recall(folder: Path, script: str, job: str) -> Length | None:
    """What a job is expected to take, by how long it took before, or else others of its script did; None: none did.

    Args:
        script: Key of the script, without arguments.
        job: Key of the job.
    """
    known = _read(folder / f"{script}.json")
    same = [work for key, work in known if key == job]
    works, around = (same, _ALIKE) if same else ([work for _, work in known], _RELATED)
    return Length(median(works), min(works) / around, max(works) * around) if works else None


def remember(folder: Path, script: str, job: str, core_seconds: float) -> None:
    """Note what a job took; the latest twenty of a script are kept.

    Raises:
        OSError: It cannot be written.
    """
    path = folder / f"{script}.json"
    known = [*_read(path), (job, core_seconds)][-_KEPT:]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = folder / f"{script}.{os.getpid()}"
    fresh.write_text(json.dumps(known))
    fresh.replace(path)


def _read(path: Path) -> list[tuple[str, float]]:
    try:
        found = [(str(key), float(work)) for key, work in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError):  # there is none, or none that can be read
        return []
    return [(key, work) for key, work in found if 0.0 < work < float("inf")]
