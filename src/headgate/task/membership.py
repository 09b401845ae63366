"""A task's place in its job, and how it finds the other tasks."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from headgate.task.channel import Channel
from headgate.task.file_writes import file_writes
from headgate.task.stop import PeerLost, Stop

WELCOME_SECONDS = 60.0
"""Longest wait for the engine's greeting."""
START_SECONDS = 300
"""Longest wait of a job's tasks for each other to start."""
JOIN_SECONDS = 600.0
"""Longest wait of a joining worker for the others' state, and of the others for it."""
GOODBYE_SECONDS = 10.0
"""After a failed step, longest wait for the news that another worker is gone."""
LOOPBACK = "127.0.0.1"
_CLUSTERS = (
    *("TF_CONFIG", "MASTER_ADDR", "WORLD_SIZE", "RANK", "LOCAL_RANK"),
    *(
        "JAX_COORDINATOR_ADDRESS",
        "JAX_COORDINATOR_BIND_ADDRESS",
        "JAX_NUM_PROCESSES",
        "JAX_PROCESS_ID",
    ),
)
"""Environment variables that tell a script of other processes to train with: TensorFlow's,
torchrun's and JAX's.
"""
_ONE_PROCESS = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
"""The variables of a group of one process. Without `MASTER_ADDR` they make nothing connect. With
it, PyTorch's env:// would listen at the same port in each worker.
"""
_SHOWN = 60


class ClusterError(RuntimeError):
    """A job's tasks are not the processes that Headgate started: their environment describes
    another cluster, or a task has several processes. The message names the cause and the remedy.
    """


def cluster_variables(variables: Mapping[str, str]) -> str:
    """The environment variables that describe another cluster's processes, with their values; empty
    if there are none.

    A script that follows them would wait for other processes, or connect to the job's tasks in a
    way unknown to Headgate.
    """
    named = {name: variables[name] for name in _CLUSTERS if variables.get(name)}
    if named.get("WORLD_SIZE") == "1" and named.items() <= _ONE_PROCESS.items():
        return ""
    return ", ".join(f"{name}={value[:_SHOWN]}" for name, value in named.items())


def named_cluster(variables: Mapping[str, str], tasks: int) -> str:
    """Why a job of `tasks` tasks cannot run with these environment variables; empty if it can.

    Headgate itself tells its tasks of each other.
    """
    cluster = cluster_variables(variables)
    if not cluster:
        return ""
    return (
        f"found {cluster} in the environment, but Headgate tells the {tasks} tasks of this job of "
        "each other by itself; unset it, or run with --strategy single"
    )


def plan_of(channel: Channel) -> Mapping[str, Any]:
    """The plan that this task is part of; empty if it is alone.

    Raises:
        RuntimeError: The engine did not answer.
        ClusterError: The environment describes another cluster, or another process of this task is
            connected already.
    """
    if not channel.connected and channel.refused is None:
        return {}
    answered = channel.wait_for(
        lambda: bool(channel.welcome) or channel.refused is not None, WELCOME_SECONDS
    )
    if channel.refused is not None:
        raise ClusterError(_second_process_reason(channel.refused, os.environ))
    if not answered and channel.connected:
        raise RuntimeError(
            f"Headgate did not say within {WELCOME_SECONDS:g} s what part this task has in its "
            "job; see `headgate doctor`, or run the script without Headgate"
        )
    plan: Mapping[str, Any] = channel.welcome.get("plan") or {}
    alone = plan.get("strategy", "single") == "single" or (
        plan["strategy"] == "allreduce" and plan["workers"] == 1
    )
    if alone:
        file_writes.ignore()
        return {}
    refusal = named_cluster(os.environ, plan["workers"] + plan["servers"])
    if refusal:
        raise ClusterError(refusal)
    return plan


def own_address(channel: Channel) -> str:
    """The address on which this task listens for the others: its node's address, or the loopback
    address on a single machine. NCCL selects interfaces, so it is told the interface of this
    address.
    """
    address = str(channel.welcome["address"])
    if address == LOOPBACK:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    return address


def _second_process_reason(first: int, variables: Mapping[str, str]) -> str:
    """Why a second process of a task is refused."""
    started = "torchrun" if "TORCHELASTIC_RUN_ID" in variables else "what started this one"
    workers = variables.get("WORLD_SIZE", "2")
    return (
        f"process {first} of this task trains with Headgate already, and a task has one; leave out "
        f"{started}, and have Headgate start workers: headgate run --strategy allreduce --workers "
        f"{workers} {sys.argv[0]}"
    )


def bound(address: str) -> socket.socket:
    """A socket bound to a free port of this node's address."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    made.bind((address, 0))
    return made


def free_ports(address: str, count: int) -> list[int]:
    """Free ports, for programs that cannot inherit a bound socket."""
    holders = [bound(address) for _ in range(count)]
    ports = [int(holder.getsockname()[1]) for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def listening_at(address: str, ports: Sequence[int]) -> dict[str, Any]:
    """The message that tells the job's other tasks the addresses of this one."""
    host = f"[{address}]" if ":" in address else address
    return {"type": "listening", "endpoints": [f"tcp://{host}:{port}" for port in ports]}


def endpoint_of(channel: Channel, role: str, index: int, number: int = 0) -> str:
    """Where a task of the job listens, as `host:port`; empty until it is known."""
    for member in channel.peers.get("members", ()):
        if (
            member["role"] == role
            and member["index"] == index
            and len(member["endpoints"] or ()) > number
        ):
            return str(member["endpoints"][number]).removeprefix("tcp://")
    return ""


def first_endpoint(channel: Channel, error: Callable[[str], Exception] = RuntimeError) -> str:
    """Wait until worker 0 of the job listens; its address, as `host:port`.

    Args:
        error: Makes the exception for a worker 0 that does not listen in time, from a message.

    Raises:
        Stop: This task was asked to end while it waited.
    """
    if not channel.wait_for(lambda: bool(endpoint_of(channel, "worker", 0)), START_SECONDS):
        if channel.stopping:
            raise Stop
        raise error(f"worker 0 of this job did not listen within {START_SECONDS} s; see its log")
    return endpoint_of(channel, "worker", 0)


def state_to_join(channel: Channel) -> str:
    """The checkpoint from which a joining worker starts; empty if this one does not join.

    Raises:
        Stop: The other workers gave no checkpoint, or this one was asked to stop while it waited.
            They continue without it.
    """
    if not channel.welcome.get("joins"):
        return ""
    channel.send({"type": "joining"})
    if not channel.wait_for(lambda: bool(channel.state), JOIN_SECONDS):
        if not channel.stopping:
            text = (
                f"the other workers sent no state to this joining worker within "
                f"{JOIN_SECONDS:g} s; they continue without it"
            )
            channel.send({"type": "note", "text": text})
            channel.flush(2.0)
        raise Stop
    return channel.state


def workers_gone(channel: Channel, workers: int) -> list[int]:
    """Indices of the job's workers, out of `workers`, that the engine no longer lists."""
    if not channel.peers:
        return []
    present = {member["index"] for member in channel.peers["members"] if member["role"] == "worker"}
    return [index for index in range(workers) if index not in present]


def end_failed(
    channel: Channel,
    workers: int,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    *,
    of_a_step: bool,
    of_peers: bool = False,
) -> None:
    """End this process after an exception of its script, which may be due to the loss of another
    worker.

    The engine gets time to report who is gone, or to stop this worker. Then this end does not count
    as a fault of the script. The process ends at once, because exit handlers of frameworks wait
    minutes for lost workers.

    Args:
        of_a_step: Whether the framework raised the exception in a joint operation of workers, so
            that one may be gone.
        of_peers: Whether the exception is one that the framework raises when workers did not hear
            of each other.
    """
    code = 1
    if of_a_step:
        channel.wait_for(lambda: bool(workers_gone(channel, workers)), GOODBYE_SECONDS)
    gone = ", ".join(f"worker-{index}" for index in workers_gone(channel, workers))
    if gone or (of_peers and not channel.stopping):
        text = (
            f"{gone or 'another worker'} is gone in the middle of a step; this worker cannot "
            "go on without it"
        )
        print(f"headgate: {text}", file=sys.stderr)
        channel.send({"type": "note", "text": text})
        code = PeerLost.STATUS
    elif channel.stopping:
        code = 0
    else:
        sys.__excepthook__(kind, error, trace)
    channel.flush(2.0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
