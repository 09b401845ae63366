"""What a simulation is told beside its trace, and what it comes to."""

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
"""Predictions that are off by a factor of 20,000 in one of three cases say nothing."""
LONGEST = 1e9
"""Seconds; sums of longer ones mean nothing."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is assumed where the trace says nothing.

    Args:
        profiles: By what jobs call them: the cost model says how fast such a job is, and nothing of
            `speeds` counts.
        measured_on: The node that they were measured on; None: not known.
        speeds: Of the others.
        restart_seconds: What it costs a job to be stopped and started again, at its own speed.
        prediction_error: Standard deviation of the logarithm of what is predicted to remain of a
            job over what does, of jobs that are not `foretold`; 0: all is known of them.
        startup_core_seconds: What a job does on one core before it has anything to say (it imports
            its framework): it takes that beside its work, and nothing is predicted of it, nor are
            losses told, until it is done.
        report_seconds: How often a job that shares what it runs on says what it uses and what its
            loss is, and what is left of it is predicted; 0: never. None: `Trace.report_seconds`. A
            policy that asks for rounds more often than ten times between two reports has ten.
        share_gpus: Whether jobs start at once and share GPUs, as they do without a queue.
        seed: Of all that is drawn by chance.

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
    """What became of a job; times on the trace's clock, None where it never came to that.

    Args:
        startup_core_seconds: That it had to do beside its work.
    """

    job: TraceJob
    startup_core_seconds: float = 0.0
    started: float | None = None
    ended: float | None = None
    state: str = "waiting"
    starts: int = 0


@dataclass(slots=True)
class Outcome:
    """What a policy made of a trace.

    Args:
        order: The order of jobs that wait for GPUs or memory; empty where none waits.
        as_live: Whether a live hub decides the same way. None stops a job that has whole GPUs for
            another.
        busy: Times, and how many GPUs (cores, where no job has GPUs) were busy from then on.
        capacity: How many there are.
        cores: How many cores there are.
        modelled: How fast the jobs with a profile are.
        events: Told to the controller.
        wall_seconds: That it took to simulate.
        warnings: Of the controller, and what has to be known of the policy.
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
