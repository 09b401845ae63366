"""CPU time, seconds and memory of whole jobs, as a forecast for the next jobs of the same
script.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import NamedTuple

_KEPT = 20
_SEEN_SECONDS = 10.0
"""What a job of fewer seconds held of a GPU may have been missed."""
_ALIKE = 1.25
"""What the same job takes again is between the least and the most that it took, and this factor:
the band holds nine of ten.
"""
_RELATED = 4.0
"""As `_ALIKE`, of jobs of the same script with other arguments."""


class WorkEstimate(NamedTuple):
    """Core-seconds of a whole job: the likeliest, and a band that holds nine of ten."""

    work: float
    low: float
    high: float


class Took(NamedTuple):
    """What a whole job took.

    Args:
        job: Key of the job.
        work: Core-seconds.
        seconds: From its beginning to its end.
        memory_bytes: The most that one of its workers used; 0: not known.
        gpu_memory_bytes: The same of each of its GPUs.
    """

    job: str
    work: float
    seconds: float
    memory_bytes: float = 0.0
    gpu_memory_bytes: float = 0.0


def recall(folder: Path, script: str, job: str) -> WorkEstimate | None:
    """What a job is expected to take, by how long it took before, or else others of its script did;
    None: none did.

    Args:
        script: Key of the script, without arguments.
        job: Key of the job.
    """
    known, same = _of(folder, script, job)
    works, around = [took.work for took in known], _ALIKE if same else _RELATED
    return WorkEstimate(median(works), min(works) / around, max(works) * around) if works else None


def seconds(folder: Path, script: str, job: str) -> float | None:
    """How long a job is expected to run, by how long it ran before, or else by other jobs of its
    script, whatever they ran beside. None: there were none.
    """
    known = [took.seconds for took in _of(folder, script, job)[0]]
    return median(known) if known else None


def memory_bytes(folder: Path, script: str, job: str) -> int | None:
    """The most memory that a worker of a job used before; None: that is not known. Others of its
    script say nothing of it: with other arguments it may be a multiple.
    """
    known, same = _of(folder, script, job)
    return int(max(took.memory_bytes for took in known)) or None if same else None


def gpu_memory_bytes(folder: Path, script: str, job: str) -> int | None:
    """The most memory of one GPU that a worker of a job held before; None: that is not known."""
    known, same = _of(folder, script, job)
    return int(max(took.gpu_memory_bytes for took in known)) or None if same else None


def used_no_gpu(folder: Path, script: str, job: str) -> bool:
    """Whether a job ran before for long enough to be seen, and held no memory of a GPU then."""
    known, same = _of(folder, script, job)
    return same and all(
        not took.gpu_memory_bytes and took.seconds >= _SEEN_SECONDS for took in known
    )


def remember(folder: Path, script: str, took: Took) -> None:
    """Note what a job took; the latest twenty of a script are kept.

    Raises:
        OSError: It cannot be written.
    """
    path = folder / f"{script}.json"
    known = [*_read(path), took][-_KEPT:]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = folder / f"{script}.{os.getpid()}"
    fresh.write_text(json.dumps(known))
    fresh.replace(path)


def _of(folder: Path, script: str, job: str) -> tuple[list[Took], bool]:
    """What a job took, and True; or else all jobs of its script, and False."""
    known = _read(folder / f"{script}.json")
    same = [took for took in known if took.job == job]
    return same or known, bool(same)


def _read(path: Path) -> list[Took]:
    try:
        tooks = [Took(str(key), *map(float, rest)) for key, *rest in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError):  # there is none, or none that can be read
        return []
    infinity = float("inf")
    return [
        took
        for took in tooks
        if 0 < took.work < infinity
        and 0 < took.seconds < infinity
        and 0 <= took.memory_bytes < infinity
        and 0 <= took.gpu_memory_bytes < infinity
    ]
