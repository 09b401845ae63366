"""CPU time, duration and memory of finished jobs, as a forecast for the next jobs of the same
script.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
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


class LengthEstimate(NamedTuple):
    """The most likely value of a figure of a whole job, and a band that holds nine of ten."""

    likely: float
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


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """What earlier runs of a job took, or, where there are none, what other jobs of its script did.

    Args:
        took: What each took, the latest last.
        same: They are of the job itself, with the same arguments.
    """

    took: tuple[Took, ...]
    same: bool

    @classmethod
    def read(cls, folder: Path, script: str, job: str) -> EarlierRuns:
        """Read what is kept of a job.

        Args:
            folder: Where it is kept.
            script: Key of the script, without arguments.
            job: Key of the job.
        """
        of_script = _read(folder / f"{script}.json")
        of_job = tuple(took for took in of_script if took.job == job)
        return cls(of_job or tuple(of_script), bool(of_job))

    def work(self) -> LengthEstimate | None:
        """Core-seconds of the whole job; None: no run is known."""
        return self._estimate([took.work for took in self.took], _ALIKE)

    def seconds(self) -> LengthEstimate | None:
        """Seconds from begin to end, whatever ran beside them; None: no run is known."""
        return self._estimate([took.seconds for took in self.took], _BESIDE)

    def memory_bytes(self) -> int | None:
        """Peak memory of a worker in earlier runs of the job; None: unknown.

        Other jobs of its script do not count, because with other arguments it may be a multiple.
        """
        return int(max(took.memory_bytes for took in self.took)) or None if self.same else None

    def gpu_memory_bytes(self) -> int | None:
        """Peak memory of a worker on one GPU in earlier runs of the job; None: unknown."""
        return int(max(took.gpu_memory_bytes for took in self.took)) or None if self.same else None

    def used_no_gpu(self) -> bool:
        """Whether an earlier run of the job was long enough to be seen, and held no GPU memory."""
        return self.same and all(
            not took.gpu_memory_bytes and took.seconds >= _SEEN_SECONDS for took in self.took
        )

    def _estimate(self, values: list[float], alike: float) -> LengthEstimate | None:
        around = alike if self.same else _RELATED
        if not values:
            return None
        return LengthEstimate(median(values), min(values) / around, max(values) * around)


def remember(folder: Path, script: str, took: Took) -> None:
    """Save the resources of a job. The latest twenty of a script are kept.

    Raises:
        OSError: They cannot be written.
    """
    path = folder / f"{script}.json"
    known = [*_read(path), took][-_KEPT:]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps(known))


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
