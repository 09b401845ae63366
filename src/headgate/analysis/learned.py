"""Whether a job's loss has converged: the job has learned, and has long learned nothing more.

Reports are averaged in blocks. That averages out the noise from batch to batch; the rest of it shows as the scatter of
the blocks. A straight line is fitted through the blocks from each one on. The loss has converged from the first
block on whose line falls neither beyond the scatter nor by more than a hundredth of all that was learned.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headgate.analysis.jobs import RecordedJob
from headgate.analysis.usage import Array

_BLOCKS = 24
_LEAST_REPORTS, _LEAST_LOSSES = 2 * _BLOCKS, 4 * _BLOCKS
"""Of a run: one report may be the mean of several losses."""
_LEAST_PART = 0.5
"""Part of the reports: a shorter rest may be a plateau."""
_LEARNED = 6.0
"""The loss has learned something if it fell by so many deviations of a block."""
_MOST_LEFT = 0.01
"""Part of all that was learned that may still be gained over as long again."""
_SPREAD = 2.0


class Converged(NamedTuple):
    """A loss that has converged.

    Args:
        since: Seconds of the run at which it had.
        loss: Its mean since.
    """

    since: float
    loss: float


def converged(job: RecordedJob) -> Converged | None:
    """Where its loss has converged; None if the loss still falls, never fell, or was not reported often enough."""
    known = np.isfinite(job.progress.loss)
    t, losses, counts = job.progress.t[known], job.progress.loss[known], job.progress.count[known]
    if len(losses) < _LEAST_REPORTS or counts.sum() < _LEAST_LOSSES:
        return None
    edges = np.linspace(0, len(losses), _BLOCKS + 1).astype(int)
    blocks = np.array([np.average(losses[a:b], weights=counts[a:b]) for a, b in pairwise(edges)])
    first = float(losses[: max(len(losses) // 200, 1)].mean())
    for start in range(1, int(_BLOCKS * (1.0 - _LEAST_PART)) + 1):
        if _is_flat(blocks[start:], first):
            return Converged(float(t[edges[start]]), float(blocks[start:].mean()))
    return None


def _is_flat(blocks: Array, first: float) -> bool:
    at = np.arange(len(blocks), dtype=float)
    slope, level = np.polyfit(at, blocks, 1)
    scatter = float(np.std(blocks - (slope * at + level), ddof=2))
    learned = first - float(blocks.mean())
    if learned <= max(_LEARNED * scatter, 0.0):
        return False
    error = scatter / float(np.sqrt(np.sum((at - at.mean()) ** 2)))
    most = max(-(slope - _SPREAD * error), 0.0) * len(blocks)  # that it may fall by over as long again
    return bool(abs(slope) <= _SPREAD * error and most <= _MOST_LEFT * learned)
