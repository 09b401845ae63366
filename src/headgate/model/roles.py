"""Jobs made of roles: a server and its clients, or a master with workers and a driver.

Each role has a command and a number of tasks. Tasks find each other by variables and by
placeholders in their commands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from headgate.model.declarations import Kind, declared, documented
from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan

ROLE_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,31}")
"""Valid role names: they start the names of the role's tasks."""
READY_SECONDS = 60.0
"""Default seconds until a role has to be ready."""
_PLACEHOLDER = re.compile(
    r"(?<!\$)\{(?:(?P<role>[a-z][a-z0-9_-]*)(?:\.(?P<index>\d+))?\.)?"
    r"(?P<what>host|port|address|hosts|addresses|index)\}"
)
"""`{server.port}`, `{server.1.host}`, `{server.addresses}`, and the task's own `{port}`. `${port}`
belongs to the shell.
"""
_LISTS = frozenset({"hosts", "addresses"})


@documented
@dataclass(frozen=True, slots=True)
class Ready:
    """When a task of a role is ready: exactly one of `port` and `line` is given."""

    port: int | bool = field(
        default=False,
        metadata=declared(
            "The port at which the task's program then listens; true: the port that Headgate chose "
            "for it."
        ),
    )
    line: str | None = field(
        default=None,
        metadata=declared(
            "A regular expression that then matches in a line of its output.", kind=Kind.EXPRESSION
        ),
    )
    timeout: float = field(
        default=READY_SECONDS,
        metadata=declared(
            "How long the task may take to be ready, in seconds or with a unit such as `2m`; "
            "then the job fails.",
            kind=Kind.SECONDS,
            above=0,
        ),
    )

    def in_words(self, port: int) -> str:
        """The awaited event of a task with this port."""
        if self.line is not None:
            return f"no line of its output matches {self.line!r}"
        return f"nothing listens at its port {port if self.port is True else int(self.port)}"


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The tasks of a job that run one command; exactly one of `script` and `run` is given."""

    name: str = field(
        metadata=declared(
            "The role's name, unique in its job; its tasks are called `NAME-0`, `NAME-1` and so on."
        )
    )
    script: str | None = field(
        default=None,
        metadata=declared(
            "A Python script, relative to the job's `workdir`; give either this or `run`.",
            kind=Kind.PATH,
        ),
    )
    run: str | tuple[str, ...] | None = field(
        default=None,
        metadata=declared(
            "A command: text goes to `/bin/sh`, a list of words is started as it is; give either "
            "this or `script`.",
            kind=Kind.COMMAND,
        ),
    )
    args: tuple[str, ...] = field(
        default=(), metadata=declared("Arguments of the script or command.")
    )
    python: str | None = field(
        default=None,
        metadata=declared(
            "The Python interpreter of `script`; without it, that of the job.", kind=Kind.PATH
        ),
    )
    env: Mapping[str, str] = field(
        default_factory=dict, metadata=declared("Variables that are added to the job's.")
    )
    count: int = field(default=1, metadata=declared("How many tasks the role has."))
    cores: float | None = field(
        default=None,
        metadata=declared(
            "The most CPU cores of each task; fractions are allowed; without it, no limit."
        ),
    )
    memory_bytes: int | None = field(
        default=None,
        metadata=declared(
            "The most memory of each task, in bytes or with a unit such as `2GiB`.",
            key="memory",
            kind=Kind.MEMORY,
        ),
    )
    gpus: int | None = field(
        default=None, metadata=declared("How many GPUs each task gets to see.")
    )
    nic_bytes_per_second: float | None = field(
        default=None,
        metadata=declared(
            "What each task needs of its node's NIC, with a unit such as `100Mbit`; it counts "
            "where tasks are placed.",
            key="nic",
            kind=Kind.RATE,
        ),
    )
    nodes: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            "The names of the nodes that its tasks go to, in turn; empty: Headgate places them."
        ),
    )
    ready: Ready | None = field(
        default=None,
        metadata=declared("When a task is ready; without it, as soon as it has started."),
    )
    after: tuple[str, ...] = field(
        default=(),
        metadata=declared("The roles that have to be ready before its tasks are started."),
    )
    ends: bool = field(
        default=False,
        metadata=declared(
            "Whether the job ends when all tasks of this role have ended; without it anywhere, "
            "the last role does that."
        ),
    )

    def tasks(self) -> list[TaskName]:
        """The names of its tasks."""
        return [TaskName(f"{self.name}-{i}") for i in range(self.count)]

    def texts(self) -> tuple[str, ...]:
        """Texts that may contain placeholders."""
        words = (self.run,) if isinstance(self.run, str) else self.run or ()
        return (*words, *self.args, *self.env.values())


Problem = tuple[int | None, str, str, str]
"""The role's index in the list (None: the list), its field, what was found, and the cure."""


def problems(roles: Sequence[Role]) -> Iterator[Problem]:
    """Problems of a job's roles, one by one and together."""
    names = [role.name for role in roles]
    for i, role in enumerate(roles):
        if not ROLE_PATTERN.fullmatch(role.name):
            yield (
                i,
                "name",
                f"found {role.name!r}",
                "use small letters, digits, '_' and '-', at most 32, a letter first",
            )
        elif role.name in names[:i]:
            yield i, "name", f"found {role.name!r} twice", "give each role its own"
        if (role.script is None) == (role.run is None):
            fault = (
                "neither `script` nor `run`" if role.script is None else "both `script` and `run`"
            )
            yield i, "script", f"found {fault}", "give exactly one of them"
        yield from ((i, *against_number) for against_number in _against_numbers(role))
        for other in role.after:
            if other not in names or other == role.name:
                yield (
                    i,
                    "after",
                    f"found {other!r}",
                    f"name other roles of the job: {_others(names, role.name)}",
                )
        for text in role.texts():
            yield from (
                (i, *against_placeholder)
                for against_placeholder in _against_placeholders(text, roles)
            )
    if (cycle := _cycle(roles)) is not None:
        yield None, "roles", f"found a cycle: {' after '.join(cycle)}", "break it"
    if len(ending := [role.name for role in roles if role.ends]) > 1:
        yield None, "roles", f"found `ends` of {' and '.join(ending)}", "the job ends with one role"


def against_others(job: Any) -> Iterator[tuple[str, str, str]]:
    """Fields that conflict with the roles of a job or of a job file's entry: field, what was found,
    and the cure.
    """
    has_roles = job.roles or getattr(job, "spark", None)
    for field_name in ("args", "plan", "batch", "launch", "evaluator") if has_roles else ():
        if getattr(job, field_name):
            yield (
                field_name,
                f"found `{field_name}` beside `roles`",
                "leave it out; each role has a command of its own",
            )
    limits = job.limits
    if has_roles and (
        getattr(limits, "gpu_memory", None) or getattr(limits, "gpu_memory_bytes", None)
    ):
        yield (
            "limits",
            "found `gpu_memory` beside `roles`",
            "leave it out; roles do not wait for the memory of GPUs",
        )


def _against_numbers(role: Role) -> Iterator[tuple[str, str, str]]:
    for field_name, value, fits, expected in (
        ("count", role.count, 1 <= role.count <= 1000, "1 to 1000"),
        ("cores", role.cores, role.cores is None or 0 < role.cores < math.inf, "more than 0"),
        (
            "memory",
            role.memory_bytes,
            role.memory_bytes is None or role.memory_bytes > 0,
            "more than 0 bytes",
        ),
        ("gpus", role.gpus, role.gpus is None or role.gpus >= 0, "0 or more"),
        (
            "nic",
            (nic := role.nic_bytes_per_second),
            nic is None or 0 < nic < math.inf,
            "more than 0",
        ),
    ):
        if not fits:
            yield field_name, f"found {value!r}", f"expected {expected}"
    ready = role.ready
    if ready is not None and (ready.port is False) == (ready.line is None):
        yield (
            "ready",
            f"found {'neither' if ready.line is None else 'both'} `port` and `line`",
            "give one of them",
        )
    if ready is not None and ready.port is not True and not 0 <= ready.port < 1 << 16:
        yield (
            "ready",
            f"found port {ready.port}",
            "give a number up to 65535, or true for the one that Headgate chooses",
        )


def _against_placeholders(text: str, roles: Sequence[Role]) -> Iterator[tuple[str, str, str]]:
    counts = {role.name: role.count for role in roles}
    for match in _PLACEHOLDER.finditer(text):
        name, index, attribute = match["role"], match["index"], match["what"]
        if name is not None and name not in counts:
            yield (
                "run",
                f"found {match[0]}, and no role is called {name!r}",
                f"name one of {', '.join(counts)}",
            )
        elif name is not None and index is not None and int(index) >= counts[name]:
            yield (
                "run",
                f"found {match[0]}, and role {name} has {counts[name]} tasks",
                "count them from 0",
            )
        elif (attribute in _LISTS and (name is None or index is not None)) or (
            attribute == "index" and name is not None
        ):
            yield (
                "run",
                f"found {match[0]}",
                "expected {ROLE.host}, {ROLE.port}, {ROLE.address} or {ROLE.addresses}",
            )


def _others(names: Sequence[str], but: str) -> str:
    return ", ".join(name for name in names if name != but) or "there is none"


def _cycle(roles: Sequence[Role]) -> list[str] | None:
    """A cycle of roles, each to be started after the next."""
    try:
        TopologicalSorter({role.name: role.after for role in roles}).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # it orders each before the next
    return None


def ending(roles: Sequence[Role]) -> Role:
    """The role that ends the job: the one that says so, or the last."""
    return next((role for role in roles if role.ends), roles[-1])


def task_names(roles: Sequence[Role]) -> list[TaskName]:
    """All tasks, in the order of the roles, as in a plan's nodes."""
    return [name for role in roles for name in role.tasks()]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the tasks of an attempt.

    Args:
        hosts: The address of each task's node.
        ports: A free port of each task.
    """

    hosts: Mapping[TaskName, str]
    ports: Mapping[TaskName, int]

    @classmethod
    def of(
        cls, roles: Sequence[Role], plan: Plan, ports: Sequence[int], host: Callable[[str], str]
    ) -> Addresses:
        """Addresses of the tasks of a plan; `host` gives a node's address by its name."""
        names = task_names(roles)
        return cls(dict(zip(names, map(host, plan.worker_nodes))), dict(zip(names, ports)))

    def _of(self, name: TaskName, what: str) -> str:
        host, port = self.hosts[name], str(self.ports[name])
        return {"host": host, "port": port, "address": f"{host}:{port}"}[what]

    def _all(self, role: str, what: str) -> str:
        hosts = [name for name in self.hosts if name.role == role]
        return ",".join(
            self._of(name, what.removesuffix("es") if what == "addresses" else "host")
            for name in hosts
        )

    def fill(self, text: str, own: TaskName) -> str:
        """Replace the placeholders in a text of a task's command."""

        def value(match: re.Match[str]) -> str:
            role, attribute = match["role"], match["what"]
            if attribute == "index":
                return str(own.index)
            if role is None:
                return self._of(own, attribute)
            return (
                self._all(role, attribute)
                if attribute in _LISTS
                else self._of(_name(role, match["index"]), attribute)
            )

        return _PLACEHOLDER.sub(value, text)

    def variables(self, own: TaskName) -> dict[str, str]:
        """Variables that tell a task about itself and the others."""
        variables = {
            "HEADGATE_ROLE": own.role,
            "HEADGATE_INDEX": str(own.index),
            "HEADGATE_HOST": self._of(own, "host"),
            "HEADGATE_PORT": self._of(own, "port"),
        }
        for role in dict.fromkeys(name.role for name in self.hosts):
            prefix = f"HEADGATE_{role.upper().replace('-', '_')}"
            variables[f"{prefix}_HOST"] = self._of(_name(role, None), "host")
            variables[f"{prefix}_PORT"] = self._of(_name(role, None), "port")
            variables[f"{prefix}_ADDRESSES"] = self._all(role, "addresses")
        return variables


def _name(role: str, index: str | None) -> TaskName:
    return TaskName(f"{role}-{index or 0}")


def held_back(roles: Sequence[Role], ready: Collection[TaskName]) -> frozenset[str]:
    """Names of the roles that still wait for others, given the ready tasks."""
    names = {role.name for role in roles if set(role.tasks()) <= set(ready)}
    return frozenset(role.name for role in roles if not set(role.after) <= names)
