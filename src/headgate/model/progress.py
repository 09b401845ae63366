"""A report of a training job's progress."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from headgate.model.identifiers import TaskId


@dataclass(frozen=True, slots=True)
class ReportPart:
    """One report within a merged progress, with its time (s)."""

    at: float
    step: int | None
    epoch: int | None
    loss: float
    within: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """What a task reported since its last progress.

    Args:
        epoch: The current epoch, counted from 1. If read from the output, as the script counts.
        loss: Mean of `count` reported losses; NaN if one of them was NaN.
        epochs: Number of epochs in all.
        within: Fraction of the epoch that is done, 0 to 1.
        steps: Number of steps in all.
        remaining: Remaining seconds, as the script says.
        covers: `epoch` or `part`: loss and metrics are means over this epoch, or over its part so
            far. Then the latest report counts. None: they are of the latest steps.
        over: Number of steps, or samples without step counts, in the mean of an epoch or part.
            None: not stated.
        mean: That mean as reported, if `loss` was converted to the latest steps.
        weight: Weight of each loss in the mean over the job's workers.
        parts: The single reports behind the mean, if known.
    """

    task: TaskId
    step: int | None
    epoch: int | None = None
    samples: int | None = None
    loss: float | None = None
    count: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int | None = None
    within: float | None = None
    steps: int | None = None
    covers: str | None = None
    over: int | None = None
    mean: float | None = None
    weight: float = 1.0
    remaining: float | None = None
    parts: tuple[ReportPart, ...] = ()

    def merged(self, later: Progress) -> Progress:
        """Merge a later progress of the same task: the mean loss of both, all else from the later.

        The later loss counts alone if one of both is not finite or is a mean over an epoch.
        """
        given = {f.name: v for f in fields(later) if (v := getattr(later, f.name)) is not None}
        if self.loss is not None:
            given |= {"loss": self.loss, "count": self.count, "weight": self.weight}
        if self.loss is not None and later.loss is not None:
            running = any(usage.covers and usage.mean is None for usage in (self, later))
            if math.isfinite(self.loss) and math.isfinite(later.loss) and not running:
                count = self.count + later.count
                weighed = self.count * self.weight, later.count * later.weight
                given |= {
                    "loss": (self.loss * weighed[0] + later.loss * weighed[1])
                    / (sum(weighed) or 1.0),
                    "count": count,
                    "weight": sum(weighed) / count,
                }
            else:
                given |= {
                    "loss": later.loss,
                    "count": later.count,
                    "weight": later.weight,
                    "covers": later.covers,
                }
        return replace(self, **{**given, "metrics": {**self.metrics, **later.metrics}})
