"""Rows of a run's store, as records: a job, a task, an event, a checkpoint.

What a store of an earlier version lacks is None, and so is a damaged value of any field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

from headgate.model.identifiers import TaskOfRun
from headgate.model.jobs import Job
from headgate.model.plans import APART, Plan
from headgate.model.profiles import Profile
from headgate.model.reasons import Reason, ReasonKind
from headgate.recorded.proofs import OUTCOMES, Gain, Outcome, Proof
from headgate.recorded.stored import job_or_name, plan_of, profile_of


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job; times are seconds of the run.

    Args:
        expected: While it waits for room: when it is expected to start.
        verified: JSON of whether its workers train what one does.
        reason: Why it is in its state, in words.
        why: JSON of the `Reason` that these are made of.
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
        """What was handed in; without a command where that is damaged."""
        return job_or_name(self.name, self.spec)

    def because(self) -> Reason | None:
        """Why it is in its state; of an earlier version, which kept words alone, these."""
        return _reason(self.why, self.reason)

    def attempts_span(self) -> tuple[float, float] | None:
        """From its first start to its end; None before that."""
        if self.started is None or self.ended is None:
            return None
        return self.started, self.ended

    def chosen_plan(self) -> Plan | None:
        """How it is laid out; None before that is decided."""
        return plan_of(self.plan)

    def is_apart(self) -> bool:
        """Whether its workers turned out to share nothing."""
        return bool(as_object(self.plan).get(APART))

    def cost(self) -> Profile | None:
        """What it was measured to cost; None before it was."""
        return profile_of(self.profile)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task: how its last attempt went; times are seconds of the run."""

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
        """When its last attempt started and ended; None while it runs, for then the row still has
        the end of the one before.
        """
        if self.started is None or self.ended is None or self.ended < self.started:
            return None
        return self.started, self.ended

    def counted(self, name: str) -> float | None:
        """What the kernel counted of it at its end, such as `cpu_seconds`; None: nothing."""
        count = as_object(self.exit).get(name)
        return float(count) if isinstance(count, int | float) else None

    def held_gpus(self) -> frozenset[int]:
        """Numbers of the GPUs of its node that it held memory on."""
        numbers = loads(self.gpus)
        if not isinstance(numbers, list):
            return frozenset()
        return frozenset(number for number in numbers if isinstance(number, int))


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that happened.

    Args:
        t: When, in seconds of the run.
        job: The job; None where it is the run's.
        seconds: What a fault cost, where that is known.
        steps: Steps that were done again or are lost by it.
        why: JSON of the `Reason` that `text` says in words.
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
        """Kind and facts; of an earlier version, which kept words alone, these."""
        return _reason(self.why, self.text)


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


@dataclass(frozen=True, slots=True)
class AsideRow:
    """Seconds that a task spent beside its steps since it told the last time, and on what."""

    table: ClassVar[str] = "asides"

    task: str
    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ProofRow:
    """What pauses of one job told about another."""

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
        """It as a record; None where it is damaged."""
        if None in astuple(self) or self.outcome not in OUTCOMES:
            return None
        gain = Gain(self.gain, self.low, self.high)
        return Proof(self.culprit, self.victim, self.pauses, self.seconds, gain, self.outcome)


def _reason(why: str | None, text: str | None) -> Reason | None:
    with suppress(KeyError, TypeError, ValueError):
        return Reason.read(json.loads(why or ""))
    return Reason.of(ReasonKind.TEXT, text=text) if text else None


def loads(text: str | None) -> Any:
    """A JSON value of the store; None where it is missing or damaged."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def as_object(text: str | None) -> Mapping[str, Any]:
    """A JSON object of the store; empty where it is missing or damaged."""
    value = loads(text)
    return value if isinstance(value, dict) else {}
