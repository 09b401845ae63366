"""CPU time and seconds that jobs took from their beginning to their end, for the next ones of the same script."""

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
    known, same = _of(folder, script, job)
    works, around = [work for work, _ in known], _ALIKE if same else _RELATED
    return Length(median(works), min(works) / around, max(works) * around) if works else None


def seconds(folder: Path, script: str, job: str) -> float | None:
    """How long a job is expected to run for, by how long it did before, or else others of its script did, whatever they
    ran beside; None: none did."""
    known = [took for _, took in _of(folder, script, job)[0]]
    return median(known) if known else None


def remember(folder: Path, script: str, job: str, core_seconds: float, seconds: float) -> None:
    """Note what a job took; the latest twenty of a script are kept.

    Raises:
        OSError: It cannot be written.
    """
    path = folder / f"{script}.json"
    known = [*_read(path), (job, core_seconds, seconds)][-_KEPT:]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = folder / f"{script}.{os.getpid()}"
    fresh.write_text(json.dumps(known))
    fresh.replace(path)


def _of(folder: Path, script: str, job: str) -> tuple[list[tuple[float, float]], bool]:
    """Core-seconds and seconds of a job, and True; or else of all jobs of its script, and False."""
    known = _read(folder / f"{script}.json")
    same = [(work, seconds) for key, work, seconds in known if key == job]
    return same or [(work, seconds) for _, work, seconds in known], bool(same)


def _read(path: Path) -> list[tuple[str, float, float]]:
    try:
        found = [(str(key), float(work), float(seconds)) for key, work, seconds in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError):  # there is none, or none that can be read
        return []
    return [took for took in found if all(0.0 < each < float("inf") for each in took[1:])]
