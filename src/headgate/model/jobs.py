"""Jobs as users submit them: a command, with optional limits."""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from headgate.model import goals, roles, units
from headgate.model.declarations import (
    CommandOption,
    Kind,
    against_bounds,
    against_kinds,
    are_texts,
    declared,
    documented,
    is_number,
)
from headgate.model.identifiers import FIRST_WORKER, TaskName
from headgate.model.mounts import Mount, against_isolation
from headgate.model.plans import Plan
from headgate.model.recipients import Recipient
from headgate.model.records import FORMER_NAME
from headgate.model.roles import Role
from headgate.model.shares import FRACTIONS, is_fraction, slice_of
from headgate.model.sweeps import Sweep, SweepTrial
from headgate.model.trackers import Destination

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Valid job names: each names a folder and a cgroup."""

MOST_PRIORITY: float = 100
"""Highest priority in a job file."""

Allowed = Literal["async", "weak"]

Contract = Literal["torchrun", "deepspeed", "tensorflow", "jax", "mpi"]
"""How the processes of a script find each other: the variables that a launcher gives each
process.
"""
Launched = Literal["torchrun", "deepspeed", "tensorflow", "jax", "mpi", "none"]
"""Valid values of a job's `launch`: a contract, or `none` for Headgate's own variables only."""
BatchRule = Literal["per-worker", "global"]
"""Whether each worker of another launcher's script takes the whole batch, or a part of it."""
VerifyRule = Literal["auto", "strict", "off"]
"""Whether to compare several workers with one: warn of a difference, stop at it, or do not
compare.
"""


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
        for what, number in (*sizes, ("gpus", self.gpus)):
            if number is not None and not is_number(number):
                raise TypeError(
                    f"Limits.{what} is {number!r}; expected a number, or None for no limit"
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


@documented
@dataclass(frozen=True, slots=True)
class ProgressRule:
    """How a job's progress is read, and when the job has converged.

    `script_stopping` is the patience and least gain that the script states while it runs; used if
    `patience` is not given.
    """

    metric: str = field(
        default="loss",
        metadata=declared(
            "The name of the metric that shows the job's progress, as the script prints or reports "
            "it.",
            kind=Kind.PATH,
        ),
    )
    pattern: str | None = field(
        default=None,
        metadata=declared(
            "A regular expression that finds the metric in a line of output; it has a group for "
            "the value.",
            kind=Kind.PATH,
        ),
    )
    better: goals.Better | None = field(
        default=None,
        kw_only=True,
        metadata=declared(
            "Whether the metric gets better as it falls (`lower`) or rises (`higher`); without it, "
            "the name decides."
        ),
    )
    goal: float | None = field(
        default=None,
        metadata=declared("The value of the metric at which the job has reached its goal."),
    )
    patience: int | None = field(
        default=None,
        metadata=declared(
            "Epochs without a gain after which the script stops by itself (early stopping).",
            above=0,
        ),
    )
    min_delta: float = field(
        default=0.0,
        metadata=declared(
            "The least change of the metric that early stopping counts as a gain.", least=0
        ),
    )
    script_stopping: tuple[int, float] | None = field(default=None, metadata={FORMER_NAME: "told"})

    @property
    def stopping(self) -> tuple[int, float] | None:
        """Patience in reports, and the least gain that counts; None: the script is not known to
        stop early.
        """
        if self.patience is not None:
            return self.patience, self.min_delta
        if self.script_stopping is None:
            return None
        patience, least_gain = self.script_stopping
        return patience, self.min_delta or least_gain

    @property
    def rising(self) -> bool:
        """Whether a greater metric is better: by `better`, else by the metric's name, else yes."""
        return (self.direction(self.metric) or "higher") == "higher"

    def direction(self, metric: str) -> goals.Better | None:
        """Which way a metric of the job improves; None: neither `better` nor its name says."""
        return (self.better if metric == self.metric else None) or goals.direction(metric)

    def against(self, sweep: Sweep) -> Iterator[tuple[str, str, str]]:
        """What is wrong with the rule of a sweep of such jobs; as of `Sweep.problems`."""
        stated = sweep.stop_early
        metric = stated.metric or self.metric if stated is not None else None
        if metric is not None and self.direction(metric) is None:
            fault = f"found metric {metric!r}, whose name does not say which way it improves"
            cure = f"state `progress: {{metric: {metric}, better: lower}}`, or `higher`"
            yield "stop_early", fault, cure

    def watch(self) -> goals.GoalWatch | None:
        """A watch for its goal, to be given all reports; None: no goal."""
        return (
            goals.GoalWatch(self.metric, self.goal, rising=self.rising)
            if self.goal is not None
            else None
        )

    def raw_value(self, loss: float | None, metrics: Mapping[str, float]) -> float | None:
        """The reported value of the metric."""
        return metrics.get(self.metric, loss if self.metric == "loss" else None)

    def value(self, loss: float | None, metrics: Mapping[str, float]) -> float | None:
        """The value on the goal's scale: percent become a fraction if the goal is a fraction."""
        value = self.raw_value(loss, metrics)
        if value is None:
            return None
        return goals.scaled(value, self.metric, self.goal, self.rising)


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job: a script or any command, with its limits.

    Exactly one of `script`, `run` and `roles` is given. None in an optional field: not stated.
    `trial` says which job of a sweep it is.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: A value is invalid.
    """

    name: str = field(
        metadata=declared(
            "The job's name, unique in its file; without it, the script's name.",
            kind=Kind.NAME,
        ),
    )
    script: str | None = field(
        default=None,
        metadata=declared(
            "A Python script, relative to `workdir`; give either this, `run` or `roles`.",
            kind=Kind.PATH,
        ),
    )
    run: str | tuple[str, ...] | None = field(
        default=None,
        metadata=declared(
            "A command: text goes to `/bin/sh`, a list of words is started as it is; instead of "
            "`script`.",
            kind=Kind.COMMAND,
        ),
    )
    roles: tuple[Role, ...] = field(
        default=(),
        metadata=declared(
            "The commands of a job that has several, such as a server and its clients; instead "
            "of `script` and `run`.",
        ),
    )
    args: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            "Arguments of the script or command.",
            example="['--epochs', '5']",
        ),
    )
    python: str | None = field(
        default=None,
        metadata=declared(
            "The Python interpreter of `script`: a name on the PATH, or a path relative to "
            "`workdir`.",
            kind=Kind.PATH,
        ),
    )
    env: Mapping[str, str] = field(
        default_factory=dict,
        metadata=declared(
            "Variables added to the environment of the user who submits the job.",
            example="{'SEED': '1'}",
        ),
    )
    workdir: str = field(
        default=".",
        metadata=declared(
            "The folder that the job runs in, relative to the file.",
            kind=Kind.PATH,
        ),
    )
    at: float = field(
        default=0.0,
        metadata=declared(
            "How long the job waits after it was submitted, or after `after` ended: seconds, or "
            "with a unit: `2m`.",
            kind=Kind.SECONDS,
            least=0,
        ),
    )
    after: str | Sequence[str] | None = field(
        default=None,
        metadata=declared(
            "The name of a job in this file that has to end well before this one starts, or a "
            "list of names.",
            kind=Kind.FORERUNNERS,
        ),
    )
    priority: float = field(
        default=1.0,
        metadata=declared(
            "The job's weight for contended resources, relative to other jobs; above 0, at most "
            "100.",
            above=0,
            most=MOST_PRIORITY,
            option=CommandOption(
                "Weight of each job for contended resources, relative to others, up to 100: 3. "
                "Default: 1.",
                "N",
            ),
        ),
    )
    share: str | None = field(
        default=None,
        metadata=declared(
            "A fixed part of the CPU and GPU time of its nodes, such as `1/3`; without it, the "
            "policy decides.",
            kind=Kind.SHARE,
        ),
    )
    limits: Limits = field(
        default=Limits(),
        metadata=declared(
            "Limits of cores, memory, GPUs and workers.",
        ),
    )
    allow: frozenset[Allowed] = field(
        default=frozenset(),
        metadata=declared(
            "Changes to the mathematics that a plan may make: `async`, `weak`.",
        ),
    )
    progress: ProgressRule = field(
        default=ProgressRule(),
        metadata=declared(
            "Which metric shows the job's progress, and how it is read.",
        ),
    )
    retries: int = field(
        default=0,
        metadata=declared(
            "How often the job is started again after it failed.",
            least=0,
            most=1000,
            option=CommandOption(
                "How often each job is started again after it failed: 2. Default: 0.", "N"
            ),
        ),
    )
    at_once: int | Literal["auto"] | None = field(
        default=None,
        metadata=declared(
            "How many jobs of this run may run at once: a number, or `auto`, as many as make the "
            "most steps a second together. Without it, as many as the cores are for.",
            kind=Kind.AT_ONCE,
            option=CommandOption(
                "Run at most N of the jobs at once: 4. auto: as many as make the most steps a "
                "second together. Default: as many as the cores are for.",
                "N",
            ),
        ),
    )
    timeout: float | None = field(
        default=None,
        metadata=declared(
            "The longest that one attempt may run, in seconds or with a unit such as `2h`.",
            kind=Kind.SECONDS,
            above=0,
            option=CommandOption(
                "Longest that an attempt of each job may run: 90m, or 2h.", "TIME"
            ),
        ),
    )
    stop_signal: str | int = field(
        default="SIGTERM",
        metadata=declared(
            "The signal that asks a script to end if it uses none of Headgate's libraries: a "
            "name or a number.",
            kind=Kind.SIGNAL,
            option=CommandOption(
                "Signal that asks a script to end if it uses no library of Headgate's: SIGINT. "
                "Default: SIGTERM.",
                "NAME",
            ),
        ),
    )
    tty: bool = field(
        default=False,
        metadata=declared(
            "Whether the job prints to a pseudo-terminal, as progress bars of Rich want; only "
            "with isolation `process`.",
            option=CommandOption("Have the jobs print to a pseudo-terminal, as bars of Rich want."),
        ),
    )
    grace: float = field(
        default=60.0,
        metadata=declared(
            "How long the job's tasks have to save after a stop request, in seconds or with a unit "
            "such as `5m`.",
            kind=Kind.SECONDS,
            above=0,
            most=3600,
        ),
    )
    moves: int = field(
        default=2,
        metadata=declared(
            "How often Headgate may restart the job under a better plan, if Headgate chose the "
            "plan.",
            least=0,
            most=1000,
            option=CommandOption(
                "Move a running job to a better plan at most N times. Default: 2.", "N"
            ),
        ),
    )
    launch: Launched | None = field(
        default=None,
        metadata=declared(
            "The launcher whose variables workers get: `torchrun`, `deepspeed`, `tensorflow`, "
            "`jax`, `mpi`; or `none`.",
            option=CommandOption(
                "Set the variables that this launcher would set: torchrun. none: only Headgate's "
                "own. Default: detected from the script."
            ),
        ),
    )
    evaluator: bool = field(
        default=False,
        metadata=declared(
            "Whether one more task, TensorFlow's `evaluator`, evaluates what the workers save.",
        ),
    )
    resumes: bool = field(
        default=False,
        metadata=declared(
            "Whether the script resumes from its own checkpoint when it is restarted.",
        ),
    )
    resume_with: str = field(
        default="",
        metadata=declared(
            "The arguments with which the script resumes from a checkpoint of its own, such as "
            "`--resume {checkpoint}`; without it, those that the script declares.",
            option=CommandOption(
                "Arguments with which a script resumes from a checkpoint of its own: "
                "'--resume {checkpoint}'. Default: read from the script.",
                "TEXT",
            ),
        ),
    )
    batch: BatchRule | None = field(
        default=None,
        metadata=declared(
            "How another launcher's script splits its batch: `per-worker`: each worker takes all "
            "of it; `global`: a part.",
            option=CommandOption(
                "How a script for another launcher splits its batch: each worker takes all of it, "
                "or a part."
            ),
        ),
    )
    parameters: int | None = field(
        default=None,
        metadata=declared(
            "How many parameters the script trains, such as `124M`; without it, as many as a "
            "profile of it saw.",
            kind=Kind.COUNT,
            least=1,
            option=CommandOption(
                "How many parameters a script for another launcher trains: 124M.", "N"
            ),
        ),
    )
    plan: Plan | None = field(
        default=None,
        metadata=declared(
            "How the job is laid out in tasks; without it, as one task.",
        ),
    )
    encrypt: bool = field(
        default=True,
        metadata=declared(
            "Whether the traffic between the job's tasks is encrypted.",
            option=CommandOption("Do not encrypt traffic between tasks: for private networks."),
        ),
    )
    isolation: str | None = field(
        default=None,
        metadata=declared(
            "What the job's tasks are boxed in: `process`, `container`, `vm`, `vm+container`, or "
            "the name of a plug-in.",
            option=CommandOption(
                "What limits tasks: process (default; cgroups), container, vm, vm+container, a "
                "plug-in's.",
                "NAME",
            ),
        ),
    )
    image: str | None = field(
        default=None,
        metadata=declared(
            "The image of the job's containers; `host` stands for what is installed on the "
            "machine.",
            option=CommandOption(
                "container, vm+container: an image, pytorch/pytorch, or host (default): what "
                "this machine has installed."
            ),
        ),
    )
    runtime: str | None = field(
        default=None,
        metadata=declared(
            "What runs the job's containers, as the Docker daemon calls it, such as `runsc`; "
            "without it, its default.",
            option=CommandOption(
                "container: what runs it, as the Docker daemon calls it, such as runsc; its "
                "default otherwise.",
                "NAME",
            ),
        ),
    )
    mounts: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            "Files and folders that the job's containers see: `/data`, `~/data:/mnt`, `/data:rw`.",
            example="['/data']",
            option=CommandOption(
                "container, vm, vm+container: also show it this folder, read-only or with :rw "
                "writable: ~/data:/mnt:rw.",
                "PATH[:OTHER][:rw]",
                name="mount",
            ),
        ),
    )
    prove: bool = field(
        default=False,
        metadata=declared(
            "Whether Headgate proves which jobs slow this one, by pausing each neighbour for at "
            "most a second at a time.",
        ),
    )
    pausable: bool = field(
        default=True,
        metadata=declared(
            "Whether the job may be frozen: for such moments, by `headgate pause`, or for an "
            "urgent job.",
        ),
    )
    urgent: bool = field(
        default=False,
        metadata=declared(
            "Whether the job goes first: it starts before all others, and jobs in its way are "
            "paused until it has ended.",
            option=CommandOption(
                "Go first: pause jobs in the way of these, as far as they allow it, until these "
                "have ended."
            ),
        ),
    )
    private: bool = field(
        default=False,
        metadata=declared(
            "Whether other users of the machine see only that it is a job of this user, and not "
            "its name.",
            option=CommandOption("Show other users of the machine no names of these jobs."),
        ),
    )
    observe: bool = field(
        default=True,
        metadata=declared(
            "Whether Headgate sees the steps of a PyTorch, Keras, TensorFlow or JAX script from "
            "within its process, if the script calls none of Headgate's libraries.",
            option=CommandOption(
                "See the steps of plain scripts only in what they print, and change no threads."
            ),
        ),
    )
    verify: VerifyRule = field(
        default="auto",
        metadata=declared(
            "Whether several workers are compared with one: `auto` warns of a difference, "
            "`strict` stops it, `off`: no.",
            option=CommandOption(
                "Compare several workers with one: warn of a difference (auto), stop the job "
                "(strict), or do not compare (off). Default: auto."
            ),
        ),
    )
    track: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            "Trackers of experiments that get the job's figures while it runs: `mlflow`, "
            "`tensorboard`, `trackio`, `wandb`.",
            kind=Kind.TRACKERS,
            example="['mlflow']",
            option=CommandOption(
                "Send figures of each job, while it runs, to mlflow, tensorboard, trackio or "
                "wandb; once for each.",
                "TRACKER[=OUTPUT]",
            ),
        ),
    )
    trial: SweepTrial | None = None

    notify: tuple[Recipient, ...] = field(
        default=(),
        metadata=declared(
            "Recipients of messages when the job ends, fails, hangs or reaches its goal: a "
            "command, a URL, or an address of Apprise.",
        ),
    )

    def __post_init__(self) -> None:
        for path in ("script", "python", "workdir"):
            if isinstance(value := getattr(self, path), os.PathLike):
                object.__setattr__(self, path, os.fspath(value))
        _check_types(self)
        for many in ("args", "roles"):
            object.__setattr__(self, many, tuple(getattr(self, many)))
        if not isinstance(self.after, str | None):  # a single name is not in a list
            names = tuple(dict.fromkeys(self.after))
            object.__setattr__(self, "after", names if len(names) > 1 else next(iter(names), None))
        object.__setattr__(self, "allow", frozenset(self.allow))
        object.__setattr__(self, "mounts", tuple(str(Mount.of(mount)) for mount in self.mounts))
        object.__setattr__(self, "track", _destinations(self))
        object.__setattr__(self, "notify", _recipients(self))
        if isinstance(self.run, Sequence) and not isinstance(self.run, str):
            object.__setattr__(self, "run", tuple(self.run))
        if not NAME_PATTERN.fullmatch(self.name):
            raise ValueError(
                f"job name {self.name!r}: expected letters, digits, '.', '_' and '-', at most 64, "
                "the first a letter or digit"
            )
        if [self.script is not None, self.run is not None, bool(self.roles)].count(True) != 1:
            raise ValueError(
                f"job {self.name!r}: expected exactly one of `script`, `run` and `roles`"
            )
        for name, value, expected in against_bounds(self):
            raise ValueError(f"job {self.name!r}: `{name}` is {value!r}; expected {expected}")
        if self.share is not None and not is_fraction(self.share):
            raise ValueError(f"job {self.name!r}: `share` is {self.share!r}; expected {FRACTIONS}")
        self._read("stop_signal", signal_name)
        self._read("at_once", units.at_once)
        for what, fault, cure in (
            *_wrong_roles(self),
            *roles.against_others(self),
            *_against_launch(self),
        ):
            raise ValueError(f"job {self.name!r}: `{what}`: {fault}; {cure}")
        if (
            wrong := goals.against(self.progress.metric, self.progress.goal, self.progress.better)
        ) is not None:
            raise ValueError(f"job {self.name!r}: `progress.goal`: {wrong[0]}; {wrong[1]}")
        for what, fault, cure in against_isolation(
            self.isolation, self.image, self.runtime, self.mounts, self.tty
        ):
            raise ValueError(f"job {self.name!r}: `{what}`: {fault}; {cure}")
        for what, fault, cure in (
            against_plan(self.plan, self.limits, self.allow) if self.plan is not None else ()
        ):
            raise ValueError(f"job {self.name!r}: `{what}`: {fault}; {cure}")

    def _read(self, field: str, read: Callable[[Any], object]) -> None:
        """Take a field's value as `read` has it."""
        if (value := getattr(self, field)) is None:
            return
        try:
            object.__setattr__(self, field, read(value))
        except ValueError as error:
            raise ValueError(f"job {self.name!r}: `{field}`: {error}") from None

    @property
    def forerunners(self) -> tuple[str, ...]:
        """Names of the jobs that must end before this one starts."""
        if self.after is None:
            return ()
        return (self.after,) if isinstance(self.after, str) else tuple(self.after)

    @property
    def contract(self) -> Contract | None:
        """How its workers find each other; None: by Headgate's own variables, if the script uses
        them.
        """
        return None if self.launch == "none" else self.launch

    @property
    def arguments(self) -> str:
        """The arguments of its script, or its command, as typed."""
        command = self.run if isinstance(self.run, str) else shlex.join(self.run or ())
        return " ".join(filter(None, [command, shlex.join(self.args)]))

    @property
    def first_task(self) -> TaskName:
        """The task that represents the job: its first worker, or the first task of the role that
        ends it.
        """
        return roles.ending(self.roles).tasks()[0] if self.roles else FIRST_WORKER

    def role_of(self, task: TaskName) -> Role | None:
        """The role of a task; None: the job has no roles."""
        return next((role for role in self.roles if role.name == task.role), None)

    def ends_with(self, task: TaskName) -> bool:
        """Whether the job ends with this task and its like; other tasks serve these."""
        return task.role == roles.ending(self.roles).name if self.roles else task.is_worker

    def limits_of(self, task: TaskName) -> Limits:
        """The most that a task may take."""
        if (role := self.role_of(task)) is None:
            return self.limits
        memory = role.memory_bytes if role.memory_bytes is not None else self.limits.memory_bytes
        return Limits(role.cores, memory, role.gpus if role.gpus is not None else self.limits.gpus)

    def of_role(self, role: Role) -> Job:
        """A copy of the job in which every task runs the command of this role."""
        return replace(
            self,
            roles=(),
            script=role.script,
            run=role.run,
            args=role.args,
            python=role.python or self.python,
            env={**self.env, **role.env},
        )

    @property
    def slice(self) -> float | None:
        """The fraction of its nodes that the job is pinned to; None: the policy decides."""
        return slice_of(self.share) if self.share is not None else None


SIGNALS = "a signal that a script can catch, such as SIGINT, SIGUSR1 or 15"
"""Valid values of a job's `stop_signal`, for messages."""
_VALID = frozenset(int(valid_signal) for valid_signal in signal.valid_signals())
_NAMED = frozenset(int(each) for each in signal.Signals)
_NO_STOP = frozenset({"SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD"})


def signal_name(given: str | int) -> str:
    """Normalize a signal: a name with or without SIG, or a number. A real-time signal stays a
    number.

    Raises:
        ValueError: The signal does not exist, or a script cannot catch it.
    """
    text = str(given).strip().upper()
    if text.isdecimal():
        number = int(text)
    else:
        known = signal.Signals.__members__
        number = int(known.get(text, known.get(f"SIG{text}", 0)))
    if isinstance(given, bool) or number not in _VALID:
        raise ValueError(f"found {given!r}; expected {SIGNALS}")
    name = signal.Signals(number).name if number in _NAMED else str(number)
    if name in _NO_STOP:
        raise ValueError(f"found {given!r}, which asks no script to end; expected {SIGNALS}")
    return name


def signal_number(name: str | int) -> int:
    """The number of a signal named as by `signal_name`."""
    text = str(name)
    return int(text) if text.isdecimal() else signal.Signals[text].value


NO_NUL = "leave out the NUL: no program can be given one"
VARIABLES = "the name of a variable is not empty and holds no '='"


def is_variable(name: str) -> bool:
    """Whether a text is a valid name of an environment variable."""
    return name != "" and "=" not in name


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


def _destinations(job: Job) -> tuple[str, ...]:
    """Where its figures go, each place once."""
    try:
        return tuple(dict.fromkeys(str(Destination.of(text)) for text in job.track))
    except ValueError as error:
        raise ValueError(f"job {job.name!r}: `track`: {error}") from None


def _recipients(job: Any) -> tuple[Recipient, ...]:
    """Recipients of its messages, each once; texts are read as in a job file."""
    given = [job.notify] if isinstance(job.notify, str | Recipient) else job.notify
    try:
        parsed = [Recipient.of(to) if isinstance(to, str) else to for to in given]
    except ValueError as error:
        raise ValueError(f"job {job.name!r}: `notify`: {error}") from None
    for recipient in parsed:
        if not isinstance(recipient, Recipient):
            raise TypeError(
                f"job {job.name!r}: `notify` has {recipient!r}; expected a text, or a "
                "headgate.model.recipients.Recipient"
            )
    return tuple(dict.fromkeys(parsed))


def _wrong_roles(job: Job) -> Iterator[tuple[str, str, str]]:
    for at, key, fault, cure in roles.problems(job.roles):
        yield key if at is None else f"roles.{job.roles[at].name}.{key}", fault, cure


def _against_launch(job: Job) -> Iterator[tuple[str, str, str]]:
    """Conflicts among a job's texts: those that no program can be given."""
    for name in job.env:
        if not is_variable(name):
            yield "env", f"found {name!r}", VARIABLES
    words = (job.run,) if isinstance(job.run, str) else job.run or ()
    for field_name, texts in (
        ("script", (job.script or "",)),
        ("run", words),
        ("args", job.args),
        ("python", (job.python or "",)),
        ("env", (*job.env, *job.env.values())),
        ("workdir", (job.workdir,)),
        ("mounts", job.mounts),
    ):
        for text in texts:
            if "\0" in text:
                yield field_name, f"found {text!r}", NO_NUL
            elif not _is_spellable(text):
                yield (
                    field_name,
                    f"found {text!r}",
                    "leave out the half of a surrogate pair: no program can be given one",
                )


def _is_spellable(text: str) -> bool:
    """Whether the system can encode a text. File names that are not UTF-8 use surrogate escapes."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _check_types(job: Any) -> None:
    """Check the type of each field: jobs written in Python have not been checked as a job file."""
    allowed = get_args(Allowed)
    for name, value, expected in against_kinds(job):
        raise TypeError(f"job {job.name!r}: `{name}` is {value!r}; expected {expected}")
    for name, fits, expected in (
        (
            "after",
            isinstance(job.after, str | None) or are_texts(job.after),
            "the name of a job, a list of names, or None",
        ),
        (
            "run",
            isinstance(job.run, str | None) or (are_texts(job.run) and len(job.run) > 0),
            "a text for the shell, or a list of the command's words",
        ),
        (
            "roles",
            isinstance(job.roles, list | tuple)
            and all(isinstance(role, Role) for role in job.roles),
            "a list of headgate.model.roles.Role",
        ),
        ("stop_signal", isinstance(job.stop_signal, str | int), "a signal, such as 'SIGINT'"),
        ("limits", isinstance(job.limits, Limits), "limits, such as headgate.Limits(cores=1)"),
        (
            "allow",
            isinstance(job.allow, list | tuple | set | frozenset)
            and all(change in allowed for change in job.allow),
            f"a set of {' and '.join(allowed)}",
        ),
        ("progress", isinstance(job.progress, ProgressRule), "a ProgressRule"),
        ("plan", isinstance(job.plan, Plan | None), "a headgate.Plan, or None"),
    ):
        if not fits:
            raise TypeError(
                f"job {job.name!r}: `{name}` is {getattr(job, name)!r}; expected {expected}"
            )
