"""Changes of a live job by its user."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from headgate.model import units
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.reason_text import say_changes


@dataclass(frozen=True, slots=True)
class Changes:
    """New values of a job's fields; None: unchanged."""

    workers: int | None = None
    cores: float | None = None
    priority: float | None = None
    at_once: int | Literal["auto"] | None = None
    memory: int | None = None
    timeout: float | None = None

    @classmethod
    def of(cls, values: object) -> Changes:
        """Parse changes from values by name, as numbers or texts.

        Raises:
            UsageError: There is none, a value is not a number, or a field cannot be changed.
        """
        kinds: dict[str, Callable[[str], Any]] = {
            "workers": int,
            "cores": _above_0,
            "priority": _above_0,
            "at_once": units.at_once,
            "memory": units.memory,
            "timeout": _duration,
        }
        expected = "`workers`, `cores`, `priority`, `at_once`, `memory` or `timeout`"
        if not values or not isinstance(values, Mapping):
            raise UsageError(f"found nothing to change; expected {expected}")
        numbers = dict[str, Any]()
        for name, value in values.items():
            if name not in kinds:
                raise UsageError(
                    f"found {name!r}; expected {expected}. Nothing else of a job changes before it "
                    "ends: stop it, and run it again with other settings"
                )
            try:
                numbers[name] = kinds[name](str(value))
            except ValueError as error:
                expected = "expected a whole number" if name == "workers" else str(error)
                raise UsageError(f"found {name} {value!r:.80}; {expected}") from None
        return cls(**numbers)

    def plain(self) -> dict[str, float | str]:
        """The changed values by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return say_changes(self.plain())

    def applied(self, job: Job) -> Job:
        """The changed job; its number of workers is part of its plan.

        Raises:
            UsageError: A value is out of its bounds.
        """
        cores = job.limits.cores if self.cores is None else self.cores
        priority = job.priority if self.priority is None else self.priority
        at_once, trial = self.at_once or job.at_once, job.trial
        if self.at_once is not None and trial is not None and trial.at_once is not None:
            at_once, trial = job.at_once, replace(trial, at_once=self.at_once)
        try:
            limits = replace(job.limits, cores=cores)
            if self.memory is not None:
                limits = replace(limits, memory_bytes=self.memory)
            timeout = job.timeout if self.timeout is None else self.timeout
            job = replace(job, limits=limits, priority=priority, at_once=at_once, timeout=timeout)
            return replace(job, trial=trial)
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None


def _above_0(text: str) -> float:
    """A number that is more than 0.

    Raises:
        ValueError: It is none.
    """
    with suppress(ValueError):
        if 0.0 < (number := float(text)) < math.inf:
            return number
    raise ValueError("expected a number above 0")


def _duration(text: str) -> float:
    """Seconds, more than 0.

    Raises:
        ValueError: The text has another form, or is 0.
    """
    if (seconds := units.seconds(text)) > 0.0:
        return seconds
    raise ValueError("expected a time above 0, such as 30s, 5m or 2h")
