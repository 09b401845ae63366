"""Rows of a run's store as records: a job, a task, an event, a checkpoint.

Fields that a store of an earlier version lacks are None, and so are damaged values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

from headgate.model.identifiers import TaskOfRun
from headgate.model.jobs import Job
from headgate.model.plans import APART, Plan
from headgate.model.profiles import Profile
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import Record, read
from headgate.recorded.proofs import OUTCOMES, Gain, Outcome, Proof

WRITING = "writing"
"""Why a checkpoint is recorded whose script has begun to write it over an earlier one."""

SCRIPT = "script"
"""Why a checkpoint is recorded that a script saved by itself."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job; times are seconds of the run.

    Args:
        expected: Predicted start while it waits for room.
        verified: JSON of the verdict whether its workers train the same as one.
        why: JSON of the `Reason` behind `reason`.
    """

    table: ClassVar[str] = "jobs"

    name: str
    spec: str | None
    state: str
    reason: str | None
    exit_code: int | None
    submitted: float | None
    started: float | None
    ended: float | None
    attempt: int | None
    plan: str | None
    profile: str | None
    expected: float | None
    ending: str | None
    verified: str | None
    waits: str | None
    why: str | None

    def job(self) -> Job:
        """The job as submitted; without a command if the record is damaged."""
        return readable(Job, self.spec) or Job(name=self.name, run="")

    def because(self) -> Reason | None:
        """The reason of its state; an earlier version's as text."""
        return _reason(self.why, self.reason)

    def attempts_span(self) -> tuple[float, float] | None:
        """First start and end; None before that."""
        if self.started is None or self.ended is None:
            return None
        return self.started, self.ended

    def chosen_plan(self) -> Plan | None:
        """Its plan; None before it is chosen."""
        return readable(Plan, self.plan)

    def is_apart(self) -> bool:
        """Whether its workers were found to share nothing."""
        return bool(as_object(self.plan).get(APART))

    def cost(self) -> Profile | None:
        """Its measured profile; None before it is measured."""
        return readable(Profile, self.profile)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task in its last attempt; times are seconds of the run."""

    table: ClassVar[str] = "tasks"

    id: str
    job: str | None
    node: str | None
    attempt: int | None
    pid: int | None
    started: float | None
    ended: float | None
    exit: str | None
    gpus: str | None

    def of_run(self) -> TaskOfRun:
        return TaskOfRun(self.id)

    def ended_attempt(self) -> tuple[float, float] | None:
        """Start and end of its last attempt; None while it runs, because the row still has the
        previous end.
        """
        if self.started is None or self.ended is None or self.ended < self.started:
            return None
        return self.started, self.ended

    def counted(self, name: str) -> float | None:
        """A kernel counter at its end, such as `cpu_seconds`; None: unknown."""
        count = as_object(self.exit).get(name)
        return float(count) if isinstance(count, int | float) else None

    def held_gpus(self) -> frozenset[int]:
        """Numbers of GPUs of its node on which it held memory."""
        numbers = loads(self.gpus)
        if not isinstance(numbers, list):
            return frozenset()
        return frozenset(number for number in numbers if isinstance(number, int))


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event.

    Args:
        t: Its time, in seconds of the run.
        job: The job; None: it concerns the run.
        seconds: Cost of a fault, if known.
        steps: Steps repeated or lost by it.
        why: JSON of the `Reason` behind `text`.
    """

    table: ClassVar[str] = "events"

    t: float
    job: str | None
    task: str | None
    kind: str
    text: str | None
    seconds: float | None = None
    steps: int | None = None
    why: str | None = None

    def reason(self) -> Reason | None:
        """Its reason; None: an earlier version recorded it, or a later one whose kind is
        unknown.
        """
        return _reason(self.why, self.text)


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """A report of a task's progress.

    Args:
        t: Its time, in seconds of the run.
        loss: Mean of `count` losses; None: not reported, or not finite.
        nan: Whether the loss was NaN or infinite.
        metrics: JSON of the other metrics.
        within: Fraction of the epoch that is done.
        steps: Number of steps in all.
        remaining: Remaining seconds, as its script says.
    """

    table: ClassVar[str] = "progress"

    t: float
    task: str
    step: int | None
    epoch: int | None
    epochs: int | None
    samples: int | None
    loss: float | None
    nan: int | None
    count: int | None
    metrics: str | None
    within: float | None
    steps: int | None
    remaining: float | None

    def metric_values(self) -> Mapping[str, float]:
        return as_object(self.metrics)


@dataclass(frozen=True, slots=True)
class ShareRow:
    """The share granted to a task; None: no limit."""

    table: ClassVar[str] = "shares"

    t: float
    task: str
    cpu_weight: float | None
    entitled_cores: float | None
    threads: int | None


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint that a task saved, or that a job resumed from; `t` in seconds of the run."""

    table: ClassVar[str] = "checkpoints"

    t: float
    task: str | None
    path: str
    step: int
    epoch: int
    position: int | None
    bytes: int | None
    seconds: float | None
    why: str | None
    own: int | None = None
    node: str | None = None

    @property
    def is_begun(self) -> bool:
        """Whether it tells only that its script began to write it."""
        return self.why == WRITING


@dataclass(frozen=True, slots=True)
class AsideRow:
    """Seconds that a task spent on an activity beside its steps since its last report."""

    table: ClassVar[str] = "asides"

    task: str
    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ProofRow:
    """What pauses of one job showed about another."""

    table: ClassVar[str] = "proofs"

    culprit: str
    victim: str
    pauses: int
    seconds: float
    gain: float
    low: float
    high: float
    outcome: Outcome

    def proof(self) -> Proof | None:
        """The row as a record; None: damaged."""
        if None in astuple(self) or self.outcome not in OUTCOMES:
            return None
        gain = Gain(self.gain, self.low, self.high)
        return Proof(self.culprit, self.victim, self.pauses, self.seconds, gain, self.outcome)


def _reason(why: str | None, text: str | None) -> Reason | None:
    return readable(Reason, why) or (Reason.of(ReasonKind.TEXT, text=text) if text else None)


def readable(kind: type[Record], text: str | None) -> Record | None:
    """A record of the store; None: missing or damaged."""
    try:
        return read(kind, text)
    except ValueError:
        return None


def loads(text: str | None) -> Any:
    """A JSON value of the store; None: missing or damaged."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def as_object(text: str | None) -> Mapping[str, Any]:
    """A JSON object of the store; empty: missing or damaged."""
    value = loads(text)
    return value if isinstance(value, dict) else {}
