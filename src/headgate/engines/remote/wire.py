"""The messages between hub, bridge and agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headgate.engines.base import Slot
from headgate.isolation.base import Launch
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import TaskId
from headgate.model.reasons import Reason
from headgate.model.shares import Share, Uncontrolled
from headgate.sampling.columns import Column

# --- commands: hub to bridge, these on to the agent of a node


@dataclass(frozen=True, slots=True)
class StartLaunch:
    launch: Launch
    share: Share


@dataclass(frozen=True, slots=True)
class ApplyShare:
    task: TaskId
    share: Share


@dataclass(frozen=True, slots=True)
class Send:
    task: TaskId
    message: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class EndTask:
    task: TaskId
    grace: float


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve what tasks take; `key` is unique to the reservation."""

    key: str
    slots: Mapping[TaskId, Slot]


@dataclass(frozen=True, slots=True)
class Release:
    """Give back what is reserved under a key, for some of its tasks or all."""

    key: str
    tasks: tuple[TaskId, ...]


Command = StartLaunch | ApplyShare | Send | EndTask | Reserve | Release


@dataclass(frozen=True, slots=True)
class To:
    """A command for the agent of a node."""

    node: str
    command: Command


HERE = "here"
"""As an address: the cluster on which the bridge itself is a job."""


@dataclass(frozen=True, slots=True)
class Open:
    """The first request to the bridge.

    Args:
        address: HOST:PORT of the cluster's head. Empty: start a cluster on this machine. `HERE`:
            the cluster on which the bridge is a job.
        shared: Whether the nodes see the files of this machine under the same paths.
        speeds: Measured GFLOP/s of a core, by `speeds.key`; nodes of other kinds are measured.
    """

    address: str
    shared: bool
    speeds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the agent of a node to call a function of Headgate's. The answer is a `Returned`."""

    number: int
    node: str
    function: Callable[..., object]
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """End every task, give everything back, then end."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a `FileAsked`; `error` says in words why it failed."""

    number: int
    value: object
    error: str = ""


@dataclass(frozen=True, slots=True)
class AgentCall:
    """A call of an agent at the other end of a connection.

    Args:
        number: Tells its answer from others.
        lane: As of `link.Lane`.
        method: A method of `agent.Agent`, or `open`, which makes the agent.
        arguments: Its arguments.
    """

    number: int
    lane: str
    method: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """What a call returned, or why it failed.

    Args:
        number: That of the call.
        value: What it returned.
        error: Why it failed, in words.
        os_error: Number, words and file of an `OSError`; empty: it was another one, or none.
    """

    number: int
    value: object = None
    error: str = ""
    os_error: tuple[object, ...] = ()


Request = Open | To | Reserve | Release | Ask | Answered | Close | AgentCall


# --- events: agent to bridge and on to the hub


@dataclass(frozen=True, slots=True)
class Started:
    task: TaskId
    pid: int


@dataclass(slots=True)
class Output:
    """Bytes of a task's output, all of them in order."""

    task: TaskId
    data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class TaskMessage:
    task: TaskId
    message: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CheckpointMessage:
    """A message that names a file or folder, `name`, in the job's folder of checkpoints on the
    node. It has to go to that folder on the hub's machine.
    """

    task: TaskId
    message: Mapping[str, object]
    name: str


@dataclass(frozen=True, slots=True)
class ResultReady:
    """A call has left its result in a file on the node. It has to go to its job's folder of
    checkpoints on the hub's machine.
    """

    task: TaskId
    path: str


@dataclass(frozen=True, slots=True)
class Exited:
    task: TaskId
    exit: Exit


@dataclass(frozen=True, slots=True)
class Warned:
    task: TaskId | None
    what: Reason | str


@dataclass(frozen=True, slots=True)
class SampledUsage:
    target: str
    reading: Mapping[Column, float]


@dataclass(frozen=True, slots=True)
class Granted:
    """A reservation can be used.

    Args:
        gpus: The cluster's names of the GPUs of each task that has some: numbers, or names of parts
            of a GPU.
    """

    key: str
    gpus: Mapping[TaskId, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReservationWaits:
    """A reservation has to wait; `text` says for what, as of `Listener.waits`."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """A reservation is impossible."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Joined:
    node: Node


Event = (
    Started
    | Output
    | TaskMessage
    | CheckpointMessage
    | ResultReady
    | Exited
    | Warned
    | SampledUsage
    | Granted
    | ReservationWaits
    | Impossible
    | Joined
)


# --- what the bridge adds


@dataclass(frozen=True, slots=True)
class Opened:
    """The bridge is connected.

    Args:
        address: The address at which the cluster's head was reached.
        head: The address of the head as the cluster knows it.
        nodes: The nodes whose agents answer.
        uncontrolled: As `Engine.uncontrolled`.
    """

    address: str
    head: str
    nodes: tuple[Node, ...]
    uncontrolled: tuple[Uncontrolled, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The bridge cannot connect, and ends. `exit_code`: that of the error."""

    text: str
    exit_code: int = HeadgateError.exit_code


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node is gone, with all that ran there."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The answer to an `Ask`: what the function returned; `error` says in words why it failed."""

    number: int
    value: object
    error: str = ""


@dataclass(frozen=True, slots=True)
class FileAsked:
    """A bridge on another machine needs a file of the hub's: an operation of `files.Files`."""

    number: int
    operation: str
    arguments: tuple[object, ...]


Report = Event | Opened | Refused | NodeGone | Returned | FileAsked | CallAnswered
