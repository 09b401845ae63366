"""The most that a job may take."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from headgate.model.declarations import CommandOption, Kind, declared, documented, is_number
from headgate.model.plans import Plan


@documented
@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a job may take; None: no limit."""

    cores: float | None = field(
        default=None,
        metadata=declared(
            "The most CPU cores that the job may use; fractions are allowed; without it, no limit.",
            above=0,
            option=CommandOption("Most cores for each script: 2, or 0.5."),
        ),
    )
    memory_bytes: int | None = field(
        default=None,
        metadata=declared(
            "The most memory, in bytes or with a unit such as `2GiB`; a job that takes more is "
            "ended.",
            key="memory",
            kind=Kind.MEMORY,
            option=CommandOption("Most memory for each script: 2GiB."),
        ),
    )
    gpus: int | None = field(
        default=None,
        metadata=declared(
            "How many GPUs the job gets to see.",
            least=0,
            option=CommandOption("GPUs for each script: 1. With 0 it sees none.", "N"),
        ),
    )
    workers: tuple[int, int | None] = field(
        default=(1, None),
        metadata=declared(
            "The fewest and the most workers that a plan may have: `4`, `1..8` or `2..`.",
            kind=Kind.WORKERS,
        ),
    )
    gpu_memory_bytes: int | None = field(
        default=None,
        metadata=declared(
            "The memory that each worker is expected to hold on each of its GPUs; the job waits "
            "until it is free.",
            key="gpu_memory",
            kind=Kind.MEMORY,
            option=CommandOption("Memory that each script is expected to hold on its GPU: 10GiB."),
        ),
    )
    exclusive: bool = field(
        default=False,
        metadata=declared(
            "Whether no other job of Headgate's may compute on its GPUs; without `gpus` it has "
            "one.",
            option=CommandOption("No other job of Headgate's on the GPUs of each script."),
        ),
    )

    def __post_init__(self) -> None:
        sizes = (
            ("cores", self.cores),
            ("memory_bytes", self.memory_bytes),
            ("gpu_memory_bytes", self.gpu_memory_bytes),
        )
        for name, number in (*sizes, ("gpus", self.gpus)):
            if number is not None and not is_number(number):
                raise TypeError(
                    f"Limits.{name} is {number!r}; expected a number, or None for no limit"
                )
        for name, value in sizes:
            if value is not None and not 0 < value < math.inf:
                raise ValueError(
                    f"Limits.{name} is {value!r}; expected a positive number, or None for no limit"
                )
        if self.gpus is not None and self.gpus < 0:
            raise ValueError(
                f"Limits.gpus is {self.gpus!r}; expected 0 or more, or None for no limit"
            )
        if self.gpus == 0 and self.gpu_memory_bytes is not None:
            raise ValueError("Limits.gpu_memory_bytes is given with gpus 0; leave one of them out")
        if not isinstance(self.exclusive, bool):
            raise TypeError(f"Limits.exclusive is {self.exclusive!r}; expected True or False")
        if self.gpus == 0 and self.exclusive:
            raise ValueError("Limits.exclusive is given with gpus 0; leave one of them out")
        fewest, most = self.workers
        if fewest < 1 or (most is not None and most < fewest):
            raise ValueError(
                f"Limits.workers is {self.workers!r}; expected the fewest, at least 1, and the "
                "most or None"
            )


def against_plan(
    plan: Plan, limits: Limits, allow: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Conflicts between a plan and its job: the plan's field, what was found, and the cure."""
    fewest, most = limits.workers
    if plan.workers < fewest or (most is not None and plan.workers > most):
        wanted = f"{fewest}.." if most is None else f"{fewest}..{most}"
        if fewest == most:
            wanted = f"{fewest}"
        yield (
            "workers",
            f"found {plan.workers} workers, the job's limits say {wanted}",
            "change one of them",
        )
    if not plan.synchronous and "async" not in allow:
        cure = "add `allow: [async]` to the job, which says that its mathematics may change"
        yield "synchronous", "found an asynchronous plan", cure
