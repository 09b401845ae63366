"""Makes, changes, enters and removes a lab."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from headgate.config import clusterfile
from headgate.config.clusterfile import ClusterFile
from headgate.isolation import nsenter
from headgate.lab import limits, network, node_processes, record, tools
from headgate.lab.record import Made, Record
from headgate.machine.enclosure import cpu_list
from headgate.machine.processes import boot_id
from headgate.model.cluster import Node
from headgate.model.errors import HeadgateError, StorageError, UsageError
from headgate.model.units import say_bits, say_bytes
from headgate.sampling import machine
from headgate.sampling.gpu import gpus, open_nvml

KEPT_CORES = 0.2
"""Cores of the machine that no lab gets, for Headgate itself and for the kernel's network code."""


@dataclass(frozen=True, slots=True)
class LabChanges:
    """The result of `up`: a line for each node that was made, changed or removed, and for each
    limit that is not possible; empty if nothing changed.
    """

    lab: str
    changes: tuple[str, ...]


def up(path: str) -> LabChanges:
    """Make the lab of a cluster file, or change an existing one to match the file.

    Processes in a removed node, or in one with a new address, are ended. Limits and rates change
    while processes run.

    Raises:
        UsageError: The file cannot be read, is invalid, is no lab, or asks for more cores than
            there are.
        HeadgateError: The lab cannot be made here. Its parts are removed by the next `up` or
            `down`.
    """
    file = clusterfile.read(path)
    if not file.lab:
        raise UsageError(
            f"{path} describes a cluster, not a lab; add `lab: true` to have its nodes made on "
            "this machine"
        )
    _check_able()
    with record.locked():
        _check_cores(file.name, [node.cores for node in file.cluster.nodes], file.oversubscribe)
        outcome = _bring_up(_with_gpus(file))
        record.write_file(file.name, Path(path).read_text(encoding="utf-8"))
        return outcome


def down(lab: str | None = None) -> str:
    """Remove a lab: its processes, network, cgroups and files. By default the only lab is removed.

    A lab whose folder was deleted is removed too.

    Returns:
        Its name.

    Raises:
        NotFoundError: The lab does not exist.
        UsageError: No name is given, and there are several labs.
    """
    _check_able()
    with record.locked():
        left = record.left_behind()
        name = record.choose(lab, left)
        known = _named_only(name) if name in left else _read_or_named(name)
        if known is not None:
            _remove_all(known)
        record.remove(name)
    return name


def change(node: str, values: Mapping[str, object], plugged: bool | None = None) -> Node:
    """Change a node's resources while processes run in it.

    Args:
        node: `NODE`, or `LAB/NODE`.
        values: Fields of `Node` and their new values.
        plugged: Whether its NIC is connected; None: unchanged.

    Returns:
        The changed node.

    Raises:
        NotFoundError: The node does not exist.
        UsageError: Several labs have one, or a value is out of range.
        IsolationError: The kernel refused a limit. The node is unchanged.
    """
    _check_able()
    with record.locked():
        lab, name = record.choose_node(node)
        before = lab.nodes[name]
        after = _checked(replace(before.node, **values))  # type: ignore[arg-type]
        if after.cores > before.node.cores:
            others = [made.node.cores for other, made in lab.nodes.items() if other != name]
            _check_cores(lab.name, [*others, after.cores], lab.oversubscribe)
        cpus = _cpus(
            lab.name, {**{other: made.node for other, made in lab.nodes.items()}, name: after}
        )
        other_nodes = {other: made for other, made in lab.nodes.items() if made.stage != "making"}
        moved = {
            other: replace(made, cpus=cpus[other])
            for other, made in other_nodes.items()
            if made.cpus != cpus[other]
        }
        made = Made(after, "setting", before.plugged if plugged is None else plugged, cpus[name])
        try:
            _change(lab.with_nodes({**moved, name: made}), moved, made)
        except HeadgateError:
            _change(lab.with_nodes({name: replace(before, stage="setting")}), moved, before)
            record.write(lab)
            raise
        record.write(lab.with_nodes({**moved, name: replace(made, stage="ready")}))
        return after


def enter(node: str) -> None:
    """Move this process into a node (`NODE` or `LAB/NODE`): its cgroups, network, host name and
    `/etc/hosts`.

    Raises:
        NotFoundError: The node does not exist.
        UsageError: Several labs have a node of that name.
        HeadgateError: The node cannot be entered.
    """
    lab, name = record.choose_node(node)
    place = lab.place(name)
    try:
        limits.enter(lab, name)
        nsenter.enter(
            os.fsencode(place.namespace), os.fsencode(place.hostname), os.fsencode(place.hosts)
        )
    except OSError as error:
        cure = (
            "bring its lab up again: headgate lab up FILE" if os.geteuid() == 0 else "it needs root"
        )
        raise HeadgateError(
            f"node {name!r} cannot be entered: {error.filename}: {error.strerror}; {cure}"
        ) from error


def _change(lab: Record, confined: Iterable[str], made: Made) -> None:
    record.write(lab)
    _set(lab, made)
    for node in confined:
        limits.confine(lab, node)


def _bring_up(file: ClusterFile) -> LabChanges:
    wanted = {node.name: node for node in file.cluster.nodes}
    # A file without nodes, or with addresses too far apart, was refused when it was read.
    within = str(clusterfile.network_of([node.address for node in wanted.values()]))
    layout = limits.find()
    fresh = replace(
        _named_only(file.name),
        network=within,
        overlay=file.overlay,
        oversubscribe=file.oversubscribe,
    )
    before = _read_or_named(file.name) or fresh
    changes = []
    if (
        not before.complete
        or (before.network, before.overlay) != (within, file.overlay)
        or not before.names.switch_found()
    ):
        if _remove_all(before):
            changes.append("what was there before was removed")
        before = fresh
    kept = {
        name: made
        for name, made in before.nodes.items()
        if name in wanted and made.stage != "making" and made.node.address == wanted[name].address
        if network.there(before, name) and limits.there(before, name)
    }
    gone = [name for name in _nodes_left(before) if name not in kept]
    new = [node for name, node in wanted.items() if name not in kept]
    cpus = _cpus(file.name, wanted)
    ready = {name: Made(node, "ready", cpus=cpus[name]) for name, node in wanted.items()}
    altered = [node for name, node in wanted.items() if name in kept and kept[name] != ready[name]]
    changes += [f"{name}: removed" for name in gone if name not in wanted]
    changes += [f"{node.name}: made" for node in new]
    changes += [
        f"{node.name}: {_difference(kept[node.name], ready[node.name])}" for node in altered
    ]
    if (
        not changes
        and list(before.nodes) == list(wanted)
        and before.oversubscribe == file.oversubscribe
    ):
        return LabChanges(file.name, ())
    stages = {node.name: "making" for node in new} | {node.name: "setting" for node in altered}
    lab = replace(
        before,
        oversubscribe=file.oversubscribe,
        nodes={
            name: replace(made_node, stage=cast(record.Stage, stages.get(name, "ready")))
            for name, made_node in ready.items()
        },
    )
    record.write(lab)
    _remove(before, gone)
    limits.make(lab, new, layout.vacate)
    record.write_hosts(lab)
    network.make(lab, new)
    for node in new:
        changes += limits.put(lab, node)
    for node in altered:
        changes += _set(lab, Made(node))
    record.write(replace(lab, complete=True, nodes=ready))
    return LabChanges(file.name, tuple(changes))


def _cpus(lab: str, nodes: Mapping[str, Node]) -> dict[str, tuple[int, ...]]:
    """The CPUs for each node of a lab, given the nodes of other labs."""
    core_of_cpu = machine.core_of_cpu()
    claimed = dict.fromkeys(core_of_cpu, 0.0)
    others = [
        known
        for other in record.names()
        if other != lab and (known := record.read(other)) is not None
    ]
    for made in (made for other in others for made in other.nodes.values()):
        among = made.cpus or tuple(core_of_cpu)
        for cpu in claimed.keys() & set(among):
            claimed[cpu] += made.node.cores / len(among)
    return limits.spread({name: node.cores for name, node in nodes.items()}, core_of_cpu, claimed)


def _set(lab: Record, made: Made) -> tuple[str, ...]:
    notes = limits.put(lab, made.node)
    network.set_rates(lab, [made.node])
    network.plug(lab, made.node.name, made.plugged)
    return notes


def _read_or_named(lab: str) -> Record | None:
    """The record of a lab, or at least a default one with its names. None if it was never up since
    the machine was started.
    """
    try:
        return record.read(lab)
    except StorageError:  # whatever it says, names and places are always the same
        return _named_only(lab)


def _named_only(lab: str) -> Record:
    """A lab known only by its name."""
    layout = limits.find()
    return Record(
        name=lab,
        boot=boot_id(),
        network="",
        overlay=None,
        oversubscribe=False,
        mode="v2" if layout.mode == "v2" else "v1",
        bases={controller: str(base) for controller, base in layout.bases.items()},
    )


def _nodes_left(lab: Record) -> list[str]:
    """Nodes with remaining parts, even without a record."""
    return sorted({*lab.nodes, *lab.names.nodes_found(), *limits.nodes_found(lab)})


def _remove_all(lab: Record) -> bool:
    """Remove all parts of a lab except its folder. Returns whether there were any."""
    leftovers = _nodes_left(lab)
    if not leftovers and not lab.names.switch_found():
        return False
    record.write(
        replace(
            lab,
            complete=False,
            nodes={name: replace(made, stage="making") for name, made in lab.nodes.items()},
        )
    )
    _remove(lab, leftovers)
    network.remove_switch(lab)
    return True


def _remove(lab: Record, nodes: Iterable[str]) -> None:
    nodes = list(nodes)
    node_processes.end(lab, nodes)
    network.remove(lab, nodes)  # from now on nothing can be started there
    node_processes.end(lab, nodes)  # what a hub started since
    for node in nodes:
        limits.remove(lab, node)


def _with_gpus(file: ClusterFile) -> ClusterFile:
    """The file, with this machine's GPUs in place of their numbers."""
    if not any(node.gpus for node in file.cluster.nodes):
        return file
    gpus_by_index = {gpu.index: gpu for gpu in gpus(open_nvml())}
    for node in file.cluster.nodes:
        for gpu in node.gpus:
            if gpu.index not in gpus_by_index:
                known = ", ".join(map(str, gpus_by_index)) or "none"
                raise UsageError(
                    f"node {node.name!r} asks for GPU {gpu.index}; expected one that this "
                    f"machine has: {known}"
                )
    nodes = (
        replace(node, gpus=tuple(gpus_by_index[gpu.index] for gpu in node.gpus))
        for node in file.cluster.nodes
    )
    return replace(file, cluster=replace(file.cluster, nodes=tuple(nodes)))


def _checked(node: Node) -> Node:
    """
    Raises:
        UsageError: A value is out of the range for files.
    """
    rates = [
        rate for rate in (node.nic_bytes_per_second, node.disk_bytes_per_second) if rate is not None
    ]
    if not clusterfile.LEAST_CORES <= node.cores < math.inf:
        raise UsageError(
            f"cores: found {node.cores:g}; expected at least {clusterfile.LEAST_CORES:g}"
        )
    if any(rate < clusterfile.LEAST_RATE for rate in rates):
        raise UsageError(
            f"found a rate of {say_bits(min(rates))}; expected at least "
            f"{say_bits(clusterfile.LEAST_RATE)}"
        )
    if node.memory_bytes <= 0:
        raise UsageError(f"memory: found {node.memory_bytes}; expected more than 0")
    return node


def _check_able() -> None:
    if os.geteuid() != 0:
        raise HeadgateError(
            "a lab needs root, for network namespaces and cgroups; try it with: sudo "
            "headgate lab ..."
        )
    for tool in ("ip", "tc", "bridge"):
        tools.find(tool)


def _check_cores(lab: str, cores: Iterable[float], oversubscribe: bool) -> None:
    if oversubscribe:
        return
    have = machine.describe().cores
    others = {
        other: known
        for other in record.names()
        if other != lab and (known := record.read(other)) is not None
    }
    taken = sum(made.node.cores for other in others.values() for made in other.nodes.values())
    wanted = sum(cores)
    if wanted + taken > have - KEPT_CORES + 1e-9:
        also = f" and {', '.join(others)} {taken:g} already" if others else ""
        raise UsageError(
            f"the nodes of lab {lab!r} have {wanted:g} cores{also}; this machine has {have:g}, "
            "and Headgate "
            f"keeps {KEPT_CORES:g} for itself; give the nodes fewer, or add `oversubscribe: true`"
        )


def _difference(made: Made, wanted: Made) -> str:
    was, node = made.node, wanted.node
    differences = []
    if was.cores != node.cores:
        differences.append(f"cores {was.cores:g} -> {node.cores:g}")
    if was.memory_bytes != node.memory_bytes:
        differences.append(
            f"memory {say_bytes(was.memory_bytes)} -> {say_bytes(node.memory_bytes)}"
        )
    if was.nic_bytes_per_second != node.nic_bytes_per_second:
        differences.append(
            f"nic {_rate(was.nic_bytes_per_second)} -> {_rate(node.nic_bytes_per_second)}"
        )
    if was.disk_bytes_per_second != node.disk_bytes_per_second:
        differences.append(
            f"disk {_disk(was.disk_bytes_per_second)} -> {_disk(node.disk_bytes_per_second)}"
        )
    if not made.plugged:
        differences.append("NIC connected again")
    if not differences and made.cpus != wanted.cpus:
        differences.append(f"CPUs {cpu_list(frozenset(wanted.cpus)) or 'all'}")
    return ", ".join(differences) or "set again"


def _rate(rate: float | None) -> str:
    return "unlimited" if rate is None else say_bits(rate)


def _disk(rate: float | None) -> str:
    return "unlimited" if rate is None else f"{say_bytes(rate)}/s"
