"""CPU time, duration and memory of finished jobs, as a forecast for the next jobs of the same
script.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import NamedTuple

from headgate.model.paths import write_whole

_KEPT = 20
_SEEN_SECONDS = 10.0
"""In jobs shorter than this, GPU memory may have been missed."""
_ALIKE = 1.25
"""Factor of the forecast for the same job. The band reaches from the least value divided by it to
the largest times it, and holds nine of ten.
"""
_BESIDE = 2.0
"""As `_ALIKE`, for the duration, which depends on what runs beside the job."""
_RELATED = 4.0
"""As `_ALIKE`, for jobs of the same script with other arguments."""


class WorkEstimate(NamedTuple):
    """Core-seconds of a whole job: the most likely value, and a band that holds nine of ten."""

    work: float
    low: float
    high: float


class Took(NamedTuple):
    """The resources that a whole job took.

    Args:
        job: Key of the job.
        work: Core-seconds.
        seconds: Time from its beginning to its end.
        memory_bytes: Peak memory of one of its workers; 0: unknown.
        gpu_memory_bytes: Peak memory of one of its workers on a GPU; 0: unknown.
    """

    job: str
    work: float
    seconds: float
    memory_bytes: float = 0.0
    gpu_memory_bytes: float = 0.0


def recall(folder: Path, script: str, job: str) -> WorkEstimate | None:
    """The expected work of a job, from its earlier runs, or otherwise from others of its script.
    None without any.

    Args:
        script: Key of the script, without arguments.
        job: Key of the job.
    """
    known, same = _earlier_runs(folder, script, job)
    works, around = [took.work for took in known], _ALIKE if same else _RELATED
    return WorkEstimate(median(works), min(works) / around, max(works) * around) if works else None


def seconds(folder: Path, script: str, job: str) -> float | None:
    """The expected duration of a job in seconds, from its earlier runs, or otherwise from other
    jobs of its script, whatever ran beside them. None without any.
    """
    known = [took.seconds for took in _earlier_runs(folder, script, job)[0]]
    return median(known) if known else None


def span(folder: Path, script: str, job: str) -> tuple[float, float, float] | None:
    """The same with a band: likely, least, most seconds."""
    runs, same = _earlier_runs(folder, script, job)
    known, around = [took.seconds for took in runs], _BESIDE if same else _RELATED
    return (median(known), min(known) / around, max(known) * around) if known else None


def memory_bytes(folder: Path, script: str, job: str) -> int | None:
    """Peak memory of a worker in earlier runs of the job; None: unknown.

    Other jobs of its script do not count, because with other arguments it may be a multiple.
    """
    known, same = _earlier_runs(folder, script, job)
    return int(max(took.memory_bytes for took in known)) or None if same else None


def gpu_memory_bytes(folder: Path, script: str, job: str) -> int | None:
    """Peak memory of a worker on one GPU in earlier runs of the job; None: unknown."""
    known, same = _earlier_runs(folder, script, job)
    return int(max(took.gpu_memory_bytes for took in known)) or None if same else None


def used_no_gpu(folder: Path, script: str, job: str) -> bool:
    """Whether an earlier run of the job was long enough to be seen, and held no GPU memory."""
    known, same = _earlier_runs(folder, script, job)
    return same and all(
        not took.gpu_memory_bytes and took.seconds >= _SEEN_SECONDS for took in known
    )


def remember(folder: Path, script: str, took: Took) -> None:
    """Save the resources of a job. The latest twenty of a script are kept.

    Raises:
        OSError: They cannot be written.
    """
    path = folder / f"{script}.json"
    known = [*_read(path), took][-_KEPT:]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps(known))


def _earlier_runs(folder: Path, script: str, job: str) -> tuple[list[Took], bool]:
    """The earlier runs of a job, and True; without any, those of all jobs of its script, and
    False.
    """
    known = _read(folder / f"{script}.json")
    same = [took for took in known if took.job == job]
    return same or known, bool(same)


def _read(path: Path) -> list[Took]:
    try:
        tooks = [
            Took(str(key), *map(float, figures)) for key, *figures in json.loads(path.read_bytes())
        ]
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
