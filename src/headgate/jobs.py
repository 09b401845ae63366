"""What the user hands in: a command, and whatever limits they care to state."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a job may be called: it names a folder and a cgroup."""

_LOWER_IS_BETTER = ("loss", "err", "ppl", "perplexity", "mae", "mse", "nll")

Allowed = Literal["async", "weak"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a job may take; None: no limit.

    Args:
        cores: CPU cores, fractions allowed.
        memory_bytes: Resident memory of a task.
        gpus: Number of GPUs.
        workers: Fewest and most workers.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    workers: tuple[int, int | None] = (1, None)

    def __post_init__(self) -> None:
        for name, value in (("cores", self.cores), ("memory_bytes", self.memory_bytes)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Limits.{name} is {value!r}; expected a positive number, or None for no limit")
        if self.gpus is not None and self.gpus < 0:
            raise ValueError(f"Limits.gpus is {self.gpus!r}; expected 0 or more, or None for no limit")
        fewest, most = self.workers
        if fewest < 1 or (most is not None and most < fewest):
            raise ValueError(
                f"Limits.workers is {self.workers!r}; expected the fewest, at least 1, and the most or None"
            )


@dataclass(frozen=True, slots=True)
class ProgressRule:
    """How a job's progress is read: the metric, a regular expression with a named group for it (and optionally `step`
    and `epoch`), and the value at which the job is as good as done."""

    metric: str = "loss"
    pattern: str | None = None
    goal: float | None = None

    def reached(self, value: float) -> bool:
        """Whether a value is as good as the goal: at most it for losses and errors (by the metric's name), at least it
        otherwise."""
        if self.goal is None or not math.isfinite(value):
            return False
        lower = any(word in self.metric.lower() for word in _LOWER_IS_BETTER)
        return value <= self.goal if lower else value >= self.goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job: a script or any command, and what it may take.

    Args:
        name: Unique in its run.
        script: A Python script; exactly one of `script` and `run` is given.
        run: Any command: a string for the shell, or an argument vector.
        args: Arguments for the script or command.
        python: Interpreter for `script`; None: the first `python` on the PATH.
        env: Variables added to the environment.
        workdir: Folder to run in.
        at: Seconds after submission at which to start.
        after: Name of a job that has to have finished well first; `at` then counts from that moment.
        priority: Relative claim on what is contended, 1 by default; 2 is twice as much.
        limits: The most it may take.
        allow: What may change the mathematics: `async`, `weak`.
        progress: How progress is read.
        retries: How often a failed attempt is started again, from its last checkpoint.
        timeout: Most seconds that an attempt may run.
    """

    name: str
    script: str | None = None
    run: str | tuple[str, ...] | None = None
    args: tuple[str, ...] = ()
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "."
    at: float = 0.0
    after: str | None = None
    priority: float = 1.0
    limits: Limits = Limits()
    allow: frozenset[Allowed] = frozenset()
    progress: ProgressRule = ProgressRule()
    retries: int = 0
    timeout: float | None = None

    def __post_init__(self) -> None:
        if not NAME_PATTERN.fullmatch(self.name):
            raise ValueError(
                f"job name {self.name!r}: expected letters, digits, '.', '_' and '-', at most 64, "
                "the first a letter or digit"
            )
        if (self.script is None) == (self.run is None):
            raise ValueError(f"job {self.name!r}: expected exactly one of `script` and `run`")
        for what, value, fits, expected in (
            ("at", self.at, 0 <= self.at < math.inf, "0 or more seconds"),
            ("priority", self.priority, 0 < self.priority < math.inf, "a positive number"),
            ("retries", self.retries, self.retries >= 0, "0 or more"),
            ("timeout", self.timeout, self.timeout is None or 0 < self.timeout < math.inf, "positive seconds, or None"),
        ):
            if not fits:
                raise ValueError(f"job {self.name!r}: `{what}` is {value!r}; expected {expected}")
