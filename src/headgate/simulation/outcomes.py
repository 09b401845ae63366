"""Inputs of a simulation besides its trace, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.model.cluster import Node
from headgate.model.profiles import Profile
from headgate.planning.interference import Interference
from headgate.simulation.modelled import Modelled
from headgate.simulation.speeds import Speeds
from headgate.simulation.traces import TraceJob

LARGEST_ERROR = 10.0
"""Largest prediction error; one case in three is then off by a factor above 20,000."""
LONGEST = 1e9
"""Longest accepted seconds; sums of longer ones are meaningless."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions where the trace says nothing.

    Args:
        profiles: Profiles by the jobs' names for them. The cost model gives the speed of these
            jobs, and `speeds` does not apply.
        measured_on: The node that they were measured on; None: unknown.
        speeds: Speeds of the others.
        restart_seconds: Cost of a preemption and restart, at the job's own speed.
        prediction_error: Standard deviation of the logarithm of predicted over true remaining work,
            for jobs that are not `foretold`; 0: it is known exactly.
        startup_core_seconds: Work of a job on one core before its first report (importing its
            framework), in addition to its work. Until then nothing is predicted and no losses are
            reported.
        report_seconds: Interval at which a job that shares its resources reports use and loss, and
            its remaining work is predicted; 0: never. None: `Trace.report_seconds`. A policy gets
            at most ten rounds in an interval.
        share_gpus: Whether jobs start at once and share GPUs, without a queue.
        seed: Seed of all random draws.

    Raises:
        ValueError: `prediction_error` is not from 0 to 10, or seconds are not from 0 to 1e9.
    """

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    measured_on: Node | None = None
    speeds: Speeds = field(default_factory=Speeds)
    interference: Interference = field(default_factory=Interference)
    restart_seconds: float = 30.0
    prediction_error: float = 0.0
    startup_core_seconds: float = 0.0
    report_seconds: float | None = None
    share_gpus: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, largest in (
            ("prediction_error", LARGEST_ERROR),
            ("restart_seconds", LONGEST),
            ("startup_core_seconds", LONGEST),
            ("report_seconds", LONGEST),
        ):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= largest:
                raise ValueError(f"Assumptions.{name} is {value!r}; expected 0 to {largest:g}")


@dataclass(slots=True)
class JobOutcome:
    """The outcome of a job; times on the trace's clock, None: never reached.

    Args:
        startup_core_seconds: Work that it had to do in addition.
    """

    job: TraceJob
    startup_core_seconds: float = 0.0
    started: float | None = None
    ended: float | None = None
    state: str = "waiting"
    starts: int = 0


@dataclass(slots=True)
class Outcome:
    """The outcome of a policy on a trace.

    Args:
        order: The order of jobs that wait for GPUs or memory; empty: none waits.
        as_live: Whether a live hub decides the same. A live hub never preempts a job with whole
            GPUs.
        busy: Times, and the number of busy GPUs (cores, if no job has GPUs) from then on.
        capacity: Number of these.
        cores: Number of cores.
        modelled: Speeds of the jobs with a profile.
        events: Number of events sent to the controller.
        wall_seconds: Real time of the simulation.
        warnings: Warnings of the controller, and notes on the policy.
    """

    policy: str
    order: str
    as_live: bool
    jobs: list[JobOutcome]
    busy: list[tuple[float, float]]
    capacity: float
    cores: float
    events: int
    wall_seconds: float
    warnings: list[str]
    modelled: Modelled | None = None
