"""Changes of a live job by its user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from headgate.model import units
from headgate.model.errors import UsageError
from headgate.model.jobs import Job


@dataclass(frozen=True, slots=True)
class Changes:
    """New values of a job's fields; None: unchanged."""

    workers: int | None = None
    cores: float | None = None
    priority: float | None = None
    at_once: int | Literal["auto"] | None = None

    @classmethod
    def of(cls, values: object) -> Changes:
        """Parse changes from values by name, as numbers or texts.

        Raises:
            UsageError: There is none, a value is not a number, or a field cannot be changed.
        """
        kinds: dict[str, Callable[[str], Any]] = {field.name: float for field in fields(cls)}
        kinds |= {"workers": int, "at_once": units.at_once}
        expected = "`workers`, `cores`, `priority` or `at_once`"
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
                expected = str(error) if name == "at_once" else "expected a number"
                raise UsageError(f"found {name} {value!r:.80}; {expected}") from None
        return cls(**numbers)

    def plain(self) -> dict[str, float | str]:
        """The changed values by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
            for name, value in self.plain().items()
        )

    def applied(self, job: Job) -> Job:
        """The changed job; its number of workers is part of its plan.

        Raises:
            UsageError: A value is out of its bounds.
        """
        cores = job.limits.cores if self.cores is None else self.cores
        priority = job.priority if self.priority is None else self.priority
        at_once = job.at_once if self.at_once is None else self.at_once
        try:
            limits = replace(job.limits, cores=cores)
            return replace(job, limits=limits, priority=priority, at_once=at_once)
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None
