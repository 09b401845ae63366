"""The roles of a job in its file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from headgate.config.fields import Command, Memory, Plain, Rate, Seconds, Text, Variable
from headgate.config.userfile import Entry, Number, Whole
from headgate.model.roles import READY_SECONDS, Ready, Role
from headgate.output.expressions import check_expression


def _expression(value: str) -> str:
    if (wrong := check_expression(value)) is not None:
        raise ValueError(wrong)
    return value


class ReadyEntry(Entry):
    """When a task of a role is ready; give either `port` or `line`."""

    port: Whole | bool = False
    """The port at which a program of the task listens then; true stands for the one that Headgate
    chose for it.
    """
    line: Annotated[str, AfterValidator(_expression)] | None = None
    """A regular expression that is found in a line of its output then."""
    timeout: Annotated[Seconds, Field(gt=0)] = READY_SECONDS
    """How long the task may take to be ready, in seconds or with a unit such as `2m`; then the job
    fails.
    """


class RoleEntry(Entry):
    """The tasks of a job that run one command."""

    name: Text
    """The role's name, unique in its job; its tasks are called `NAME-0`, `NAME-1` and so on."""
    script: Plain | None = None
    """A Python script, relative to the job's `workdir`; give either this or `run`."""
    run: Command | None = None
    """A command: text goes to `/bin/sh`, a list of words is started as it is; give either this or
    `script`.
    """
    args: list[Text] = []
    """Arguments of the script or command."""
    python: Plain | None = None
    """The Python interpreter of `script`; without it, that of the job."""
    env: dict[Variable, Text] = {}
    """Variables that are added to the job's."""
    count: Whole = 1
    """How many tasks the role has."""
    cores: Number | None = None
    """The most CPU cores of each task; fractions are allowed; without it, no limit."""
    memory: Memory | None = None
    """The most memory of each task, in bytes or with a unit such as `2GiB`."""
    gpus: Whole | None = None
    """How many GPUs each task gets to see."""
    nic: Rate | None = None
    """What each task needs of its node's NIC, with a unit such as `100Mbit`; it counts where tasks
    are placed.
    """
    nodes: list[str] = []
    """The names of the nodes that its tasks go to, in turn; empty: Headgate places them."""
    ready: ReadyEntry | None = None
    """When a task is ready; without it, as soon as it has started."""
    after: list[Text] = []
    """The roles that have to be ready before its tasks are started."""
    ends: bool = False
    """Whether the job ends when all tasks of this role have ended; without it anywhere, the last
    role does that.
    """

    def role(self, python: str | None) -> Role:
        """The role, with an interpreter that was found for it."""
        ready = self.ready
        return Role(
            name=self.name,
            script=self.script,
            run=self.run,
            args=tuple(self.args),
            python=python,
            env=self.env,
            count=self.count,
            cores=self.cores,
            memory_bytes=self.memory,
            gpus=self.gpus,
            nic_bytes_per_second=self.nic,
            nodes=tuple(self.nodes),
            ready=Ready(ready.port, ready.line, ready.timeout) if ready is not None else None,
            after=tuple(self.after),
            ends=self.ends,
        )
