"""Jobs as users submit them: a command, with optional limits."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from headgate.model import roles, units
from headgate.model.declarations import CommandOption, Kind, declared, documented
from headgate.model.identifiers import FIRST_WORKER, TaskName
from headgate.model.job_checks import (
    check_together,
    check_types,
    check_values,
    destinations,
    normalize,
    recipients,
)
from headgate.model.job_choices import Allowed, BatchRule, Contract, Launched, VerifyRule
from headgate.model.limits import Limits
from headgate.model.mounts import Mount
from headgate.model.plans import Plan
from headgate.model.progress_rule import ProgressRule
from headgate.model.recipients import Recipient
from headgate.model.roles import Role
from headgate.model.shares import slice_of
from headgate.model.stop_signals import signal_name
from headgate.model.sweeps import SweepTrial

MOST_PRIORITY: float = 100
"""Highest priority in a job file."""


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
            "The job's name, unique in its file; without it, the script's name.", kind=Kind.NAME
        )
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
            "of `script` and `run`."
        ),
    )
    args: tuple[str, ...] = field(
        default=(),
        metadata=declared("Arguments of the script or command.", example="['--epochs', '5']"),
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
        metadata=declared("The folder that the job runs in, relative to the file.", kind=Kind.PATH),
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
        default=Limits(), metadata=declared("Limits of cores, memory, GPUs and workers.")
    )
    allow: frozenset[Allowed] = field(
        default=frozenset(),
        metadata=declared("Changes to the mathematics that a plan may make: `async`, `weak`."),
    )
    progress: ProgressRule = field(
        default=ProgressRule(),
        metadata=declared("Which metric shows the job's progress, and how it is read."),
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
            "Whether one more task, TensorFlow's `evaluator`, evaluates what the workers save."
        ),
    )
    resumes: bool = field(
        default=False,
        metadata=declared(
            "Whether the script resumes from its own checkpoint when it is restarted."
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
        metadata=declared("How the job is laid out in tasks; without it, as one task."),
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
            "most a second at a time."
        ),
    )
    pausable: bool = field(
        default=True,
        metadata=declared(
            "Whether the job may be frozen: for such moments, by `headgate pause`, or for an "
            "urgent job."
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
            "command, a URL, or an address of Apprise."
        ),
    )

    def __post_init__(self) -> None:
        for path in ("script", "python", "workdir"):
            if isinstance(value := getattr(self, path), os.PathLike):
                object.__setattr__(self, path, os.fspath(value))
        check_types(self)
        for many in ("args", "roles"):
            object.__setattr__(self, many, tuple(getattr(self, many)))
        if not isinstance(self.after, str | None):  # a single name is not in a list
            names = tuple(dict.fromkeys(self.after))
            object.__setattr__(self, "after", names if len(names) > 1 else next(iter(names), None))
        object.__setattr__(self, "allow", frozenset(self.allow))
        object.__setattr__(self, "mounts", tuple(str(Mount.of(mount)) for mount in self.mounts))
        object.__setattr__(self, "track", destinations(self))
        object.__setattr__(self, "notify", recipients(self))
        if isinstance(self.run, Sequence) and not isinstance(self.run, str):
            object.__setattr__(self, "run", tuple(self.run))
        check_values(self)
        normalize(self, "stop_signal", signal_name)
        normalize(self, "at_once", units.at_once)
        check_together(self)

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
