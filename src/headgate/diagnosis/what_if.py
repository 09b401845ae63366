"""Predict the gain from more of each resource, by replaying a job's steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from headgate.diagnosis.attribution import Resource
from headgate.diagnosis.replay import Faster, mean, step_seconds
from headgate.diagnosis.steps_to_replay import (
    NOISE,
    OF_GAIN,
    TINY,
    NoFigure,
    ReplayedJob,
    StepsToReplay,
    stretch_of_steps,
)
from headgate.recorded.jobs import RecordedJob, RecordedNode

TIMES: Mapping[str, float] = {"x1.25": 1.25, "x2": 2.0, "unlimited": math.inf}
"""Multiples of a resource."""
MOST_ERROR = 0.1
"""Largest relative error of the replay; beyond it, no figure is given."""

_MOST_SPEEDUP = 100.0
"""Upper bound of all figures: without limit, a step may take no time at all."""
_SPREAD = 1.645
_TOGETHER = 1.1
"""Two resources limit together if more of both gains this many times what more of the better one
does.
"""


class Speedup(NamedTuple):
    """Relative steps a second, with the ends of a 90 % band."""

    speedup: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Speedups:
    """The gain from more of each resource.

    Args:
        figures: By resource and multiple; None: no such number exists, as 1.25 processes. Resources
            that the job does not use, such as servers, are left out.
        together: The same for pairs of resources that limit together.
        lacks: Why there is no figure, by resource.
        replay_error: Relative error of a replayed step; None: no steps were sampled.
        loader_workers: Processes that read its input; None: unknown.
        replayed_steps: Number of replayed steps.
    """

    figures: Mapping[Resource, Mapping[str, Speedup | None]] = field(default_factory=dict)
    together: Mapping[tuple[Resource, Resource], Mapping[str, Speedup]] = field(
        default_factory=dict
    )
    lacks: Mapping[Resource, NoFigure] = field(default_factory=dict)
    replay_error: float | None = None
    loader_workers: int | None = None
    replayed_steps: int = 0

    def named(self) -> dict[str, Mapping[str, Speedup | None]]:
        """All figures: resources by name, pairs as `cores+loader`."""
        figures: dict[str, Mapping[str, Speedup | None]] = dict(self.figures.items())
        return figures | {"+".join(pair): speedups for pair, speedups in self.together.items()}

    def reasons(self) -> dict[NoFigure, list[str]]:
        """Resources without a figure, by reason."""
        resources: dict[NoFigure, list[str]] = {}
        for resource, why in self.lacks.items():
            resources.setdefault(why, []).append(resource)
        return resources


def what_more_buys(job: RecordedJob, nodes: Sequence[RecordedNode]) -> Speedups:
    """Predict the gain from more of each resource for a job that has run or runs."""
    stretch = stretch_of_steps(job)
    has: list[Resource] = ["cores", "disk", "loader"]
    has += ["network"] if len(job.nodes) > 1 else []
    has += ["servers"] if any(task.is_server for task in job.tasks) else []
    has += ["gpu"] if (job.signal("gpu_busy").maximum or 0.0) > 0.0 else []
    if stretch is None:
        return Speedups(lacks=dict.fromkeys(has, NoFigure.FEW_STEPS))
    steps = ReplayedJob(job, {node.name: node for node in nodes}, stretch).steps()
    if steps.error is not None and abs(steps.error) > MOST_ERROR:
        return Speedups(
            lacks=dict.fromkeys(has, NoFigure.REPLAY_OFF),
            replay_error=steps.error,
            loader_workers=steps.beside.readers,
            replayed_steps=len(steps.paths),
        )
    known = [resource for resource in has if resource not in steps.lacks]
    figures = {resource: _bought(steps, (resource,)) for resource in known}
    together = {
        pair: {
            name: speedup for name, speedup in _bought(steps, pair).items() if speedup is not None
        }
        for pair in itertools.combinations(known, 2)
        if _binds(steps, pair, figures)
    }
    lacks = {resource: why for resource, why in steps.lacks.items() if resource in has}
    return Speedups(figures, together, lacks, steps.error, steps.beside.readers, len(steps.paths))


def _bought(steps: StepsToReplay, resources: Sequence[Resource]) -> dict[str, Speedup | None]:
    speedups: dict[str, Speedup | None] = {}
    for name, times in TIMES.items():
        if "loader" in resources and steps.beside.readers == 0 and 1.0 < times < 2.0:
            speedups[name] = None
        else:
            speedups[name] = _speedup(steps, Faster()._replace(**dict.fromkeys(resources, times)))
    return speedups


def _speedup(steps: StepsToReplay, faster: Faster) -> Speedup:
    now = np.array([path.seconds for path in steps.paths])
    then = step_seconds(steps.paths, steps.beside, faster)
    before, after = mean(steps.paths, now), max(mean(steps.paths, then), TINY)
    speedup = min(before / after, _MOST_SPEEDUP)
    # The sampling error of the mean step, and the error of the replay.
    weights = np.array([path.weight for path in steps.paths])
    off = weights / weights.sum() * (then / after - now / before)
    apart = _SPREAD * math.sqrt(float(np.sum(np.bincount(steps.rows, off) ** 2)))
    noise = math.hypot(NOISE, steps.error or 0.0, apart)
    band = noise + OF_GAIN * abs(math.log(speedup))
    return Speedup(speedup, speedup * math.exp(-band), min(speedup * math.exp(band), _MOST_SPEEDUP))


def _binds(
    steps: StepsToReplay,
    pair: Sequence[Resource],
    figures: Mapping[Resource, Mapping[str, Speedup | None]],
) -> bool:
    """Whether twice as much of both gains clearly more than each alone."""
    alone = [
        speedup.speedup for resource in pair if (speedup := figures[resource]["x2"]) is not None
    ]
    return _speedup(steps, Faster()._replace(**dict.fromkeys(pair, 2.0))).speedup > _TOGETHER * max(
        alone
    )
