"""Changes of a live job by its user."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from headgate.model import units
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.reason_text import say_changes

if TYPE_CHECKING:
    from headgate.hub.state.job import LiveJob


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


def check_resize(run: str, live: LiveJob, workers: int, at_most: int) -> None:
    """Check that a job of a run can continue with this many workers. `at_most`: its nodes take
    so many tasks of one job.

    Raises:
        UsageError: It cannot.
    """
    job = live.spec.name
    plan = live.current.plan if live.current is not None else None
    fewest, most = live.spec.limits.workers
    if live.state != "running" or plan is None:
        raise UsageError(f"job {job!r} is {live.state}; only a running one can be resized")
    if plan.strategy == "roles":
        raise UsageError(
            f"job {job!r} is made of roles; set their `count` in its job file, and run it again"
        )
    if plan.strategy == "single" and live.spec.contract is None and live.facts.shares_nothing:
        raise UsageError(
            f"job {job!r} runs as a single task: its script trains in one process, and more "
            "workers would each train the whole job"
        )
    if plan.strategy == "single":
        from headgate.scripts.launchers import options_of_several

        options = options_of_several(live.spec, live.facts)
        raise UsageError(
            f"job {job!r} runs as a single task; to have it run as several stop it, then: headgate "
            f"resume {run} --workers {workers}{options}"
        )
    goes_on = live.spec.resumes or live.checkpoint is not None
    if live.spec.contract is not None and not goes_on:
        raise UsageError(
            f"job {job!r} would begin anew: its script saves no checkpoint with Headgate; if "
            "it goes on from its own, say `resumes: true` in its job file"
        )
    if isinstance(plan.batch_per_worker, tuple):
        raise UsageError(
            f"job {job!r} has a batch for each of its workers; stop it, and resume it by "
            "another plan"
        )
    if live.own_states:
        raise UsageError(
            f"job {job!r} cannot be resized: its checkpoint holds what is each worker's own "
            f"(hg.keep), and only {plan.workers} workers can go on from it"
        )
    if workers <= plan.backup_workers:
        raise UsageError(
            f"found {workers} workers; expected more than its {plan.backup_workers} backup workers"
        )
    if workers < fewest or (most is not None and workers > most):
        limits = f"{fewest}..{'' if most is None else most}"
        raise UsageError(f"found {workers} workers; the limits of job {job!r} say {limits}")
    if workers < live.least_workers:
        raise UsageError(
            f"found {workers} workers; job {job!r} ran out of memory with fewer than "
            f"{live.least_workers}"
        )
    if workers > at_most:
        raise UsageError(
            f"found {workers} workers; the nodes of job {job!r} take at most {at_most:,} "
            "tasks of one job"
        )
