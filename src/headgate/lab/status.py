"""The nodes of a lab, and their usage."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from headgate.lab import limits, network, node_processes, record
from headgate.lab.names import WIRE
from headgate.lab.record import Record
from headgate.model.cluster import Cluster, Nic, Node
from headgate.model.errors import HeadgateError

LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node and its present usage.

    Args:
        lab: Name of its lab.
        node: Its resources.
        state: `ready`, `unplugged` (its NIC is disconnected), `half made` (a command was killed),
            `gone` (its namespace or its cgroup was removed). The next `up` repairs the last two.
        processes: Number of processes in it.
        cores: Cores in use.
        memory_bytes: Memory in use, without page cache.
        bytes_in: Received bytes per second.
        bytes_out: Sent bytes per second.
        cpus: The CPUs of this machine that it may use; empty: all.
    """

    lab: str
    node: Node
    state: str
    processes: int
    cores: float
    memory_bytes: int
    bytes_in: float
    bytes_out: float
    cpus: tuple[int, ...] = ()


def nodes(lab: str | None = None) -> Cluster:
    """The nodes of a running lab, by default the only one, as jobs may use them.

    Raises:
        NotFoundError: The lab does not exist.
        UsageError: No name is given, and there are several labs.
        HeadgateError: Making it was interrupted.
    """
    known = _read(lab)
    if not known.complete or any(made.stage == "making" for made in known.nodes.values()):
        raise HeadgateError(
            f"making lab {known.name!r} was interrupted; bring it up again: headgate lab up FILE"
        )
    return Cluster(
        tuple(
            replace(
                made.node,
                nics=(Nic(WIRE, made.node.nic_bytes_per_second, virtual=True),),
                place=known.place(name),
            )
            for name, made in known.nodes.items()
        )
    )


def status(lab: str | None = None) -> tuple[NodeStatus, ...]:
    """The nodes of a lab, and their usage over the next quarter of a second.

    Raises:
        NotFoundError: The lab does not exist.
        UsageError: No name is given, and there are several labs.
    """
    known = _read(lab)
    if not known.names.switch_found():
        return tuple(
            NodeStatus(known.name, made.node, "half made", 0, 0.0, 0, 0.0, 0.0)
            for made in known.nodes.values()
        )
    began, first, cpu = time.monotonic(), network.carried(known), _cpu_seconds(known)
    time.sleep(LOOK_SECONDS)
    took, second, cpu_now = time.monotonic() - began, network.carried(known), _cpu_seconds(known)
    processes = node_processes.processes(known, list(known.nodes))
    rows = []
    for name, made in known.nodes.items():
        before, after = first.get(name, (0, 0)), second.get(name, (0, 0))
        state = "ready" if made.plugged else "unplugged"
        if made.stage == "making":
            state = "half made"
        if state != "half made" and not (network.there(known, name) and limits.there(known, name)):
            state = "gone"
        rows.append(
            NodeStatus(
                lab=known.name,
                node=made.node,
                state=state,
                processes=len(processes[name]),
                cores=max(0.0, cpu_now[name] - cpu[name]) / took,
                memory_bytes=limits.used(known, name)[1],
                bytes_in=max(0, after[0] - before[0]) / took,
                bytes_out=max(0, after[1] - before[1]) / took,
                cpus=made.cpus,
            )
        )
    return tuple(rows)


def _read(lab: str | None) -> Record:
    name = record.choose(lab)
    known = record.read(name)
    if known is None:
        raise HeadgateError(
            f"lab {name!r} does not outlive a restart of this machine; bring it up again: "
            "headgate lab up FILE"
        )
    return known


def _cpu_seconds(known: Record) -> dict[str, float]:
    return {name: limits.used(known, name)[0] for name in known.nodes}
