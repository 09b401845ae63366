"""Detect a diverged or converged loss: the job has long stopped learning.

Reports are averaged in blocks to suppress batch noise; the rest of it shows as scatter of the
blocks. A straight line is fitted through the blocks from each one on. The loss has converged from
the first block whose line falls neither beyond the scatter nor by more than a hundredth of all
progress.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headgate.diagnosis.findings import FindingKind
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.usage import Array

_BLOCKS = 24
_LEAST_REPORTS, _LEAST_LOSSES = 2 * _BLOCKS, 4 * _BLOCKS
"""Least reports and losses of a run; one report may be the mean of several losses."""
_LEAST_PART = 0.5
"""Least fraction of the reports after convergence: a shorter one may be a passing plateau."""
_LEARNED = 6.0
"""The loss has improved if it fell by this many deviations of a block."""
_MOST_LEFT = 0.01
"""Fraction of all progress that may still be gained over the same time again."""
_SPREAD = 2.0


_LOST_REPORTS = 2
"""A single NaN report may be the mean of nothing; this many count."""


class Plateau(NamedTuple):
    """The point after which a job learned nothing.

    Args:
        kind: `LEARNED`: its loss has converged; `DIVERGED`: it is not finite.
        since: Seconds of the run.
        loss: Its final value; None: not finite.
        step: The first step with a non-finite loss; None: unknown, or converged.
    """

    kind: FindingKind
    since: float
    loss: float | None = None
    step: int | None = None


def plateau(job: RecordedJob) -> Plateau | None:
    """Where a job's loss converged or became non-finite; None: neither."""
    return _diverged(job) or _converged(job)


def _diverged(job: RecordedJob) -> Plateau | None:
    lost, t, step = job.progress.not_number > 0.0, job.progress.t, job.progress.step
    numbers = np.flatnonzero(np.isfinite(job.progress.loss) & ~lost)
    reports = np.flatnonzero(lost)
    reports = reports[reports > numbers[-1]] if len(numbers) else reports
    if len(reports) < _LOST_REPORTS:
        return None
    first = int(reports[0])
    at = round(float(step[first])) if np.isfinite(step[first]) else None
    return Plateau(FindingKind.DIVERGED, float(t[first]), step=at)


def _converged(job: RecordedJob) -> Plateau | None:
    known = np.isfinite(job.progress.loss)
    t, losses, counts = job.progress.t[known], job.progress.loss[known], job.progress.count[known]
    if len(losses) < _LEAST_REPORTS or counts.sum() < _LEAST_LOSSES:
        return None
    edges = np.linspace(0, len(losses), _BLOCKS + 1).astype(int)
    blocks = np.array([np.average(losses[a:b], weights=counts[a:b]) for a, b in pairwise(edges)])
    first = float(losses[: max(len(losses) // 200, 1)].mean())
    for start in range(1, int(_BLOCKS * (1.0 - _LEAST_PART)) + 1):
        if _is_flat(blocks[start:], first):
            loss = float(blocks[start:].mean())
            return Plateau(FindingKind.LEARNED, float(t[edges[start]]), loss=loss)
    return None


def _is_flat(blocks: Array, first: float) -> bool:
    at = np.arange(len(blocks), dtype=float)
    slope, level = np.polyfit(at, blocks, 1)
    scatter = float(np.std(blocks - (slope * at + level), ddof=2))
    learned = first - float(blocks.mean())
    if learned <= max(_LEARNED * scatter, 0.0):
        return False
    error = scatter / float(np.sqrt(np.sum((at - at.mean()) ** 2)))
    # the possible further fall over the same time again
    most = max(-(slope - _SPREAD * error), 0.0) * len(blocks)
    return bool(abs(slope) <= _SPREAD * error and most <= _MOST_LEFT * learned)
