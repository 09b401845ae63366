"""What the user hands in: a command, and whatever limits they care to state."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from headgate.model import goals, roles
from headgate.model.identifiers import FIRST_WORKER, TaskName
from headgate.model.mounts import Mount, against_isolation
from headgate.model.plans import Plan
from headgate.model.roles import Role
from headgate.model.shares import FRACTIONS, is_fraction, slice_of

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a job may be called: it names a folder and a cgroup."""

Allowed = Literal["async", "weak"]

Contract = Literal["torchrun", "deepspeed", "tensorflow", "jax", "mpi"]
"""A contract by which the processes of a script find each other: the variables that a launcher
gives each of them.
"""
Launched = Literal["torchrun", "deepspeed", "tensorflow", "jax", "mpi", "none"]
"""What a job's `launch` may be: a contract, or none besides Headgate's own."""
BatchRule = Literal["per-worker", "global"]
VerifyRule = Literal["auto", "strict", "off"]
"""What a script of another launcher does with its batch under several workers: each has the whole
of it, or a part.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a job may take; None: no limit.

    Args:
        cores: CPU cores, fractions allowed.
        memory_bytes: Resident memory of a task.
        gpus: Number of GPUs.
        gpu_memory_bytes: Memory of each of its GPUs that a worker is expected to hold.
        workers: Fewest and most workers.
        exclusive: No other job of Headgate computes on its GPUs; where no number is given it has
            one.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    workers: tuple[int, int | None] = (1, None)
    gpu_memory_bytes: int | None = None
    exclusive: bool = False

    def __post_init__(self) -> None:
        sizes = (
            ("cores", self.cores),
            ("memory_bytes", self.memory_bytes),
            ("gpu_memory_bytes", self.gpu_memory_bytes),
        )
        for what, number in (*sizes, ("gpus", self.gpus)):
            if number is not None and not _is_number(number):
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


@dataclass(frozen=True, slots=True)
class ProgressRule:
    """How a job's progress is read: the metric, a regular expression with a named group for it (and
    optionally `step` and `epoch`), the value at which the job is as good as done, and after how
    long without a gain its script ends by itself: in epochs, or in steps where it tells none; a
    gain counts from `min_delta` on. `better` says whether less or more of the metric is better
    where its name does not. `told` is what the script says of patience and gain itself while it
    runs; it counts where `patience` is not given.
    """

    metric: str = "loss"
    pattern: str | None = None
    goal: float | None = None
    patience: int | None = None
    min_delta: float = 0.0
    better: goals.Better | None = None
    told: tuple[int, float] | None = None

    @property
    def stopping(self) -> tuple[int, float] | None:
        """Patience, and the least gain that counts; None where the script is not known to end by
        itself.
        """
        if self.patience is not None:
            return self.patience, self.min_delta
        return (self.told[0], self.min_delta or self.told[1]) if self.told is not None else None

    @property
    def rising(self) -> bool:
        """Whether more of the metric is better: as it says, by the metric's name, or, where neither
        tells, yes.
        """
        return (self.better or goals.direction(self.metric) or "higher") == "higher"

    def watch(self) -> goals.GoalWatch | None:
        """What tells when its goal is reached, from all that the job reports; None: it has none."""
        return (
            goals.GoalWatch(self.metric, self.goal, rising=self.rising)
            if self.goal is not None
            else None
        )

    def told_of(self, loss: float | None, metrics: Mapping[str, float]) -> float | None:
        """What a report tells of the metric."""
        return metrics.get(self.metric, loss if self.metric == "loss" else None)

    def of(self, loss: float | None, metrics: Mapping[str, float]) -> float | None:
        """The same on the scale of the goal: a percentage is a fraction where the goal is one."""
        value = self.told_of(loss, metrics)
        return (
            goals.scaled(value, self.metric, self.goal, self.rising) if value is not None else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job: a script or any command, and what it may take.

    Args:
        name: Unique in its run.
        script: A Python script; exactly one of `script`, `run` and `roles` is given.
        run: Any command: a string for the shell, or an argument vector.
        roles: Its tasks, where they run several commands.
        args: Arguments for the script or command; a list will do.
        python: Interpreter for `script`; None: the first `python` on the PATH.
        env: Variables added to the environment.
        workdir: Folder to run in.
        at: Seconds after submission at which to start.
        after: Name of a job that has to have finished well first; `at` then counts from that
            moment.
        priority: Relative claim on what is contended, 1 by default; what 2 comes to, as twice the
            share, is the policy's.
        share: The slice of its nodes that it has, whatever else runs and whatever the policy:
            `1/3`; None: the policy decides.
        limits: The most it may take.
        allow: What may change the mathematics: `async`, `weak`.
        progress: How progress is read.
        retries: How often a failed attempt is started again, from its last checkpoint.
        timeout: Most seconds that an attempt may run.
        stop_signal: What asks it to end where it uses no library of Headgate's: name or number of a
            signal.
        tty: Whether its tasks print to a pseudo-terminal.
        grace: Seconds that its tasks have to save once they are asked to end, where they can.
        moves: How often it may be moved to a better plan while it runs, where Headgate chose the
            one it has.
        launch: The contract by which its workers find each other, where that is not Headgate's own;
            `none`: no other; None: what its command or its script says.
        evaluator: Whether one more task of TensorFlow's evaluates what the workers save.
        resumes: Whether its script goes on from a checkpoint of its own when it is started again.
        batch: What a script of another launcher does with its batch under several workers:
            `per-worker`, each has the whole of it, so that the global batch grows; `global`, the
            script divides it among them. None: not said, and Headgate chooses one worker.
        parameters: How many parameters it trains, where its user says so; each counts as four
            bytes.
        plan: How it is laid out, where its user says so; None: Headgate decides.
        encrypt: Whether what its tasks send each other is encrypted, which costs about 2 CPU
            seconds a GB.
        isolation: What its tasks are boxed in: `process`, `container`, `vm`, `vm+container`, or a
            plug-in's; None: `process`.
        image: What its containers are made of: an image that is on the machine; None, `host`: what
            the machine has installed.
        runtime: What its containers are run with, by the name that the Docker daemon has for it,
            such as `runsc`; None: the daemon's default.
        mounts: What its containers see besides its folder: `PATH`, under the same path, or
            `PATH:OTHER`, under another; with `:rw` to be written.
        prove: Whether it is proved who slows it, by holding each neighbour for short moments.
        pausable: Whether it may be held so itself.
        verify: Whether what several workers train is compared with what one does: `off`, never;
            `strict`, and the job is stopped where it differs.

    Raises:
        TypeError: A field is of another kind.
        ValueError: A value makes no sense.
    """

    name: str
    script: str | None = None
    run: str | tuple[str, ...] | None = None
    roles: tuple[Role, ...] = ()
    args: tuple[str, ...] = ()
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "."
    at: float = 0.0
    after: str | Sequence[str] | None = None
    priority: float = 1.0
    share: str | None = None
    limits: Limits = Limits()
    allow: frozenset[Allowed] = frozenset()
    progress: ProgressRule = ProgressRule()
    retries: int = 0
    timeout: float | None = None
    stop_signal: str | int = "SIGTERM"
    tty: bool = False
    grace: float = 60.0
    moves: int = 2
    launch: Launched | None = None
    evaluator: bool = False
    resumes: bool = False
    batch: BatchRule | None = None
    parameters: int | None = None
    plan: Plan | None = None
    encrypt: bool = True
    isolation: str | None = None
    image: str | None = None
    runtime: str | None = None
    mounts: tuple[str, ...] = ()
    prove: bool = False
    pausable: bool = True
    verify: VerifyRule = "auto"

    def __post_init__(self) -> None:
        for path in ("script", "python", "workdir"):
            if isinstance(value := getattr(self, path), os.PathLike):
                object.__setattr__(self, path, os.fspath(value))
        _check_types(self)
        for many in ("args", "roles"):
            object.__setattr__(self, many, tuple(getattr(self, many)))
        if not isinstance(self.after, str | None):  # one alone is told as such
            names = tuple(dict.fromkeys(self.after))
            object.__setattr__(self, "after", names if len(names) > 1 else next(iter(names), None))
        object.__setattr__(self, "allow", frozenset(self.allow))
        object.__setattr__(self, "mounts", tuple(str(Mount.of(mount)) for mount in self.mounts))
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
        for what, value, fits, expected in (
            ("at", self.at, 0 <= self.at < math.inf, "0 or more seconds"),
            ("priority", self.priority, 0 < self.priority < math.inf, "a positive number"),
            ("share", self.share, self.share is None or is_fraction(self.share), FRACTIONS),
            ("retries", self.retries, self.retries >= 0, "0 or more"),
            ("moves", self.moves, self.moves >= 0, "0 or more"),
            (
                "parameters",
                self.parameters,
                self.parameters is None or self.parameters >= 1,
                "1 or more, or None",
            ),
            ("grace", self.grace, 0 < self.grace < math.inf, "positive seconds"),
            (
                "timeout",
                self.timeout,
                self.timeout is None or 0 < self.timeout < math.inf,
                "positive seconds, or None",
            ),
        ):
            if not fits:
                raise ValueError(f"job {self.name!r}: `{what}` is {value!r}; expected {expected}")
        try:
            object.__setattr__(self, "stop_signal", signal_name(self.stop_signal))
        except ValueError as error:
            raise ValueError(f"job {self.name!r}: `stop_signal`: {error}") from None
        for what, found, cure in (
            *_wrong_roles(self),
            *roles.against_others(self),
            *_against_launch(self),
        ):
            raise ValueError(f"job {self.name!r}: `{what}`: {found}; {cure}")
        if (
            wrong := goals.against(self.progress.metric, self.progress.goal, self.progress.better)
        ) is not None:
            raise ValueError(f"job {self.name!r}: `progress.goal`: {wrong[0]}; {wrong[1]}")
        for what, found, cure in against_isolation(
            self.isolation, self.image, self.runtime, self.mounts, self.tty
        ):
            raise ValueError(f"job {self.name!r}: `{what}`: {found}; {cure}")
        for what, found, cure in (
            against_plan(self.plan, self.limits, self.allow) if self.plan is not None else ()
        ):
            raise ValueError(f"job {self.name!r}: `{what}`: {found}; {cure}")

    @property
    def forerunners(self) -> tuple[str, ...]:
        """Names of the jobs that it comes after."""
        if self.after is None:
            return ()
        return (self.after,) if isinstance(self.after, str) else tuple(self.after)

    @property
    def contract(self) -> Contract | None:
        """The contract by which its workers find each other; None: Headgate's own, where its script
        uses that.
        """
        return None if self.launch == "none" else self.launch

    @property
    def first_task(self) -> TaskName:
        """The task that speaks for the job: its first worker, or the first of the role that it ends
        with.
        """
        return roles.ending(self.roles).tasks()[0] if self.roles else FIRST_WORKER

    def role_of(self, task: TaskName) -> Role | None:
        """The role that a task has; None: the job has none."""
        return next((role for role in self.roles if role.name == task.role), None)

    def ends_with(self, task: TaskName) -> bool:
        """Whether the job ends with this task, and others like it; the rest serve these."""
        return task.role == roles.ending(self.roles).name if self.roles else task.is_worker

    def limits_of(self, task: TaskName) -> Limits:
        """The most that a task may take."""
        if (role := self.role_of(task)) is None:
            return self.limits
        memory = role.memory_bytes if role.memory_bytes is not None else self.limits.memory_bytes
        return Limits(role.cores, memory, role.gpus if role.gpus is not None else self.limits.gpus)

    def of_role(self, role: Role) -> Job:
        """The job as one whose every task runs the command of this role."""
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
        """The fraction of its nodes that it is pinned to; None: the policy decides."""
        return slice_of(self.share) if self.share is not None else None


MOST_PRIORITY = 100.0
"""Of a job in a file."""
SIGNALS = "a signal that a script can catch, such as SIGINT, SIGUSR1 or 15"
"""What a job's `stop_signal` may be."""
_VALID = frozenset(int(valid_signal) for valid_signal in signal.valid_signals())
_NAMED = frozenset(int(each) for each in signal.Signals)
_NO_STOP = frozenset({"SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD"})


def signal_name(given: str | int) -> str:
    """The name of a signal that is given as one, with or without SIG, or by its number; of a
    real-time one the number.

    Raises:
        ValueError: A script cannot be asked to end by it, or there is none.
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
    """The number of a signal that `signal_name` names."""
    text = str(name)
    return int(text) if text.isdecimal() else signal.Signals[text].value


NO_NUL = "leave out the NUL: no program can be given one"
VARIABLES = "the name of a variable is not empty and holds no '='"


def is_variable(name: str) -> bool:
    """Whether an environment can have a variable of that name."""
    return name != "" and "=" not in name


def against_plan(
    plan: Plan, limits: Limits, allow: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """What of a plan its job does not let it have: the plan's field, what was found, and the
    cure.
    """
    fewest, most = limits.workers
    if plan.workers < fewest or (most is not None and plan.workers > most):
        wanted = (
            f"{fewest}"
            if fewest == most
            else f"{fewest}.." + (f"{most}" if most is not None else "")
        )
        yield (
            "workers",
            f"found {plan.workers} workers, the job's limits say {wanted}",
            "change one of them",
        )
    if not plan.synchronous and "async" not in allow:
        cure = "add `allow: [async]` to the job, which says that its mathematics may change"
        yield "synchronous", "found an asynchronous plan", cure


def _wrong_roles(job: Job) -> Iterator[tuple[str, str, str]]:
    for at, key, found, cure in roles.problems(job.roles):
        yield key if at is None else f"roles.{job.roles[at].name}.{key}", found, cure


def _against_launch(job: Job) -> Iterator[tuple[str, str, str]]:
    """What of a job's texts no program can be given: the field, what was found, and the cure."""
    for name in job.env:
        if not is_variable(name):
            yield "env", f"found {name!r}", VARIABLES
    words = (job.run,) if isinstance(job.run, str) else job.run or ()
    for what, texts in (
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
                yield what, f"found {text!r}", NO_NUL
            elif not _is_spellable(text):
                yield (
                    what,
                    f"found {text!r}",
                    "leave out the half of a surrogate pair: no program can be given one",
                )


def _is_spellable(text: str) -> bool:
    """Whether the system has bytes for a text; those of a file's name that is no UTF-8 are kept in
    its own way.
    """
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and _is_number(value)


def _are_texts(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


def _is_mapping_of_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for pair in value.items() for text in pair
    )


def _check_types(job: Any) -> None:
    """Whether each field is of its kind: what is written in Python has passed no job file's
    check.
    """
    allowed = get_args(Allowed)
    for what, fits, expected in (
        *((name, isinstance(getattr(job, name), str), "text") for name in ("name", "workdir")),
        *(
            (name, isinstance(getattr(job, name), str | None), "text or None")
            for name in ("script", "python", "share", "isolation", "image", "runtime")
        ),
        (
            "after",
            isinstance(job.after, str | None) or _are_texts(job.after),
            "the name of a job, a list of names, or None",
        ),
        (
            "run",
            isinstance(job.run, str | None) or (_are_texts(job.run) and len(job.run) > 0),
            "a text for the shell, or a list of the command's words",
        ),
        ("args", _are_texts(job.args), "a list of texts, such as ['--epochs', '5']"),
        (
            "roles",
            isinstance(job.roles, list | tuple)
            and all(isinstance(role, Role) for role in job.roles),
            "a list of headgate.model.roles.Role",
        ),
        ("mounts", _are_texts(job.mounts), "a list of texts, such as ['/data']"),
        (
            "env",
            _is_mapping_of_texts(job.env),
            "a mapping from text to text, such as {'SEED': '1'}",
        ),
        *(
            (name, _is_number(getattr(job, name)), "a number")
            for name in ("at", "priority", "grace")
        ),
        *((name, _is_whole(getattr(job, name)), "a whole number") for name in ("retries", "moves")),
        ("stop_signal", isinstance(job.stop_signal, str | int), "a signal, such as 'SIGINT'"),
        ("timeout", job.timeout is None or _is_number(job.timeout), "a number of seconds, or None"),
        ("limits", isinstance(job.limits, Limits), "limits, such as headgate.Limits(cores=1)"),
        (
            "allow",
            isinstance(job.allow, list | tuple | set | frozenset)
            and all(each in allowed for each in job.allow),
            f"a set of {' and '.join(allowed)}",
        ),
        ("progress", isinstance(job.progress, ProgressRule), "a ProgressRule"),
        ("plan", isinstance(job.plan, Plan | None), "a headgate.Plan, or None"),
        (
            "launch",
            job.launch is None or job.launch in get_args(Launched),
            f"one of {', '.join(get_args(Launched))}",
        ),
        (
            "batch",
            job.batch is None or job.batch in get_args(BatchRule),
            f"one of {', '.join(get_args(BatchRule))}",
        ),
        ("verify", job.verify in get_args(VerifyRule), f"one of {', '.join(get_args(VerifyRule))}"),
        (
            "parameters",
            job.parameters is None or _is_whole(job.parameters),
            "a whole number, or None",
        ),
        *(
            (name, isinstance(getattr(job, name), bool), "True or False")
            for name in ("encrypt", "evaluator", "resumes", "prove", "pausable", "tty")
        ),
    ):
        if not fits:
            raise TypeError(
                f"job {job.name!r}: `{what}` is {getattr(job, what)!r}; expected {expected}"
            )
