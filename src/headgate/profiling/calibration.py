"""Measurements of nodes, cached between runs and repeated when hardware changes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from headgate.engines.base import Engine
from headgate.machine import core_speed
from headgate.model.cluster import Cluster, GpuLink, Node
from headgate.model.errors import HeadgateError, writing_cure
from headgate.model.paths import write_whole
from headgate.profiling import kernels, links
from headgate.profiling.links import Between, MeasuredLink
from headgate.sampling.machine import ALL_REDUCE

_AS_STATED = 0.1  # of a NIC's rate: one that was measured so near is the stated one
_FOLDER = "calibrations"
_RATES = (
    "core_gflops",
    "core_convolution_gflops",
    "core_copy_bytes_per_second",
    "disk_bytes_per_second",
)


@dataclass(frozen=True, slots=True)
class CalibratedMachine:
    """The measurements of a machine.

    Args:
        rates: Rates by field of a `Node`, and the rate of its GPUs in an all-reduce, if there are
            several.
        gpus: GFLOP/s and bytes per second of each kind of GPU, by name.
        notes: What could not be measured, and why.
    """

    rates: dict[str, float]
    gpus: dict[str, dict[str, float]]
    notes: tuple[str, ...]


def machine(node: Node, home: Path, *, again: bool = False) -> CalibratedMachine:
    """Measure this machine, in seconds, or read the cached measurements. `machine.detect` uses
    them.

    Args:
        node: The machine as detected. With another CPU, number of cores or kind of GPU it is
            measured again.
        home: Headgate's folder. The measurements are kept in its `node.json`.
        again: Measure even if it is cached.

    Raises:
        HeadgateError: The speed of a core, or the disk, cannot be measured.
    """
    cache = home / "node.json"
    of = _machine(core_speed.known(cache, node.cpu_model, node.cores), node)
    if of is not None and not again:
        return of
    measures = measure(bool(node.gpus), str(home))
    by_name = {
        gpu.name: measures.gpus[gpu.name]["gflops"]
        for gpu in node.gpus
        if gpu.name in measures.gpus
    }
    measured = {**measures.rates, "gpus": by_name, "calibration": asdict(measures)}
    core_speed.keep(cache, node.cpu_model, node.cores, measured)
    return measures


def measure(with_gpus: bool, folder: str | None = None) -> CalibratedMachine:
    """Measure the machine of this process.

    Args:
        with_gpus: Whether to measure its GPUs.
        folder: A folder on the disk to measure; None: that of temporary files.

    Raises:
        HeadgateError: The speed of a core, or the disk, cannot be measured.
    """
    rates, notes = kernels.core(), []
    rates["disk_bytes_per_second"] = kernels.disk(Path(folder or tempfile.gettempdir()))
    of_gpus: dict[str, dict[str, float]] = {}
    if with_gpus:
        try:
            of_gpus = kernels.gpus()
        except HeadgateError as error:
            notes.append(f"GPUs were not measured, their makers' peaks count: {error}")
        else:
            notes += _all_reduce(rates)
    return CalibratedMachine(rates, of_gpus, tuple(notes))


def _all_reduce(rates: dict[str, float]) -> list[str]:
    """Add the rate of an all-reduce among GPUs. Returns why it could not be measured."""
    try:
        rate = kernels.all_reduce()
    except HeadgateError as error:
        return [f"the link between GPUs was not measured, its stated rate counts: {error}"]
    if rate is not None:
        rates[ALL_REDUCE] = rate
    return []


def _machine(known: Mapping[str, Any], node: Node) -> CalibratedMachine | None:
    try:
        calibration = known["calibration"]
        rates = {str(name): float(rate) for name, rate in calibration["rates"].items()}
        of_gpus = {str(name): dict(gpu_rates) for name, gpu_rates in calibration["gpus"].items()}
        notes = tuple(map(str, calibration["notes"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if not notes and {gpu.name for gpu in node.gpus} != set(of_gpus):
        return None
    return CalibratedMachine(rates, of_gpus, notes)


# --- nodes of a cluster


def machines(
    engine: Engine,
    cluster: Cluster,
    home: Path,
    *,
    again: bool = False,
    progress: Callable[[Node], None] = lambda _: None,
) -> dict[tuple[str, ...], CalibratedMachine]:
    """Measure the machines of an engine's cluster, one of each kind, or read the cached
    measurements.

    Args:
        engine: An open engine.
        cluster: Its nodes.
        home: Headgate's folder.
        again: Measure even if it is cached.
        progress: Called with each measured node.

    Returns:
        Measurements by the names of the nodes of a kind.

    Raises:
        HeadgateError: A machine cannot be measured, or the measurements cannot be written.
    """
    name, nodes = engine.called(), cluster.nodes
    known_kinds = {} if again else _kinds(name, nodes, home)
    for node in nodes:
        if _machine_kind(node) not in known_kinds:
            try:
                known_kinds[_machine_kind(node)] = engine.ask(node.name, measure, bool(node.gpus))
            except HeadgateError as error:
                raise HeadgateError(f"node {node.name} cannot be measured: {error}") from error
            progress(node)
    _write_cache(
        name,
        home,
        machines={kind: asdict(machine_of_kind) for kind, machine_of_kind in known_kinds.items()},
    )
    return {
        tuple(node.name for node in nodes if _machine_kind(node) == kind): machine_of_kind
        for kind, machine_of_kind in known_kinds.items()
    }


def network(
    name: str,
    cluster: Cluster,
    home: Path,
    *,
    again: bool = False,
    progress: Callable[[MeasuredLink], None] = lambda _: None,
    between: Between = links.in_lab,
) -> tuple[MeasuredLink, ...]:
    """Measure the links between the nodes of a cluster, or read the cached measurements. Empty for
    one node.

    Args:
        name: Name of the lab, or the engine's name of its cluster.
        cluster: Its nodes. With other nodes, addresses or stated rates it is measured again.
        home: Headgate's folder.
        again: Measure even if it is cached.
        progress: Called with each measured link.
        between: Measures a link.

    Raises:
        HeadgateError: A link cannot be measured, or the measurements cannot be written.
    """
    if len(cluster.nodes) < 2:
        return ()
    same, before = _links(name, cluster.nodes, home)
    if before and len(same) == len(cluster.nodes) and not again:
        return before
    measured_links = links.measure(cluster.nodes, progress, between)
    _write_cache(
        name, home, nodes=_link_key(cluster.nodes), links=[asdict(link) for link in measured_links]
    )
    return measured_links


def calibrated(name: str, cluster: Cluster, measured_node: Node, home: Path) -> Cluster:
    """The nodes of a lab with this machine's core measurements and the measured links, as in
    `known`.
    """
    of_lab = (
        replace(
            node,
            core_gflops=measured_node.core_gflops,
            core_convolution_gflops=measured_node.core_convolution_gflops,
            core_copy_bytes_per_second=measured_node.core_copy_bytes_per_second,
        )
        for node in cluster.nodes
    )
    return known(name, Cluster(tuple(of_lab)), home)


def known(name: str, cluster: Cluster, home: Path) -> Cluster:
    """The nodes of a cluster with the measurements of nodes and links.

    A NIC that was measured within a tenth of its stated rate gets the stated rate. All nodes get
    the same round trip, the median. So nodes of one kind stay equal.
    """
    _, between = _links(name, cluster.nodes, home)
    trip = median(link.round_trip_seconds for link in between) if between else None
    kinds = _kinds(name, cluster.nodes, home)
    return Cluster(
        tuple(
            replace(
                _with_machine(node, kinds.get(_machine_kind(node))),
                nic_bytes_per_second=_nic(node, between),
                round_trip_seconds=trip,
            )
            for node in cluster.nodes
        )
    )


def _with_machine(node: Node, machine: CalibratedMachine | None) -> Node:
    if machine is None:
        return node
    rates: dict[str, Any] = {name: rate for name, rate in machine.rates.items() if name in _RATES}
    all_reduce = machine.rates.get(ALL_REDUCE)
    link = GpuLink(all_reduce, "measured") if all_reduce and len(node.gpus) > 1 else node.gpu_link
    gpus = (
        replace(gpu, gflops=machine.gpus.get(gpu.name, {}).get("gflops", gpu.gflops))
        for gpu in node.gpus
    )
    return replace(node, gpus=tuple(gpus), gpu_link=link, **rates)


def _nic(node: Node, between: Sequence[MeasuredLink]) -> float | None:
    stated = node.nic_bytes_per_second
    rates = [link.bytes_per_second for link in between if node.name in (link.sender, link.receiver)]
    if not rates or (stated is not None and max(rates) >= stated * (1 - _AS_STATED)):
        return stated
    return float(f"{max(rates):.1e}")


# --- the cache


def _write_cache(name: str, home: Path, **parts: object) -> None:
    """Write parts of a cluster's cache, and keep the others."""
    path = _path(name, home)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps({**_content(name, home), **parts}, indent=2) + "\n")
    except OSError as error:
        raise HeadgateError(
            f"cannot write {path}: {error.strerror}; {writing_cure(error)}"
        ) from error


def _links(
    name: str, nodes: Sequence[Node], home: Path
) -> tuple[frozenset[str], tuple[MeasuredLink, ...]]:
    """The names of nodes that are unchanged since they were measured, and their measured links."""
    content = _content(name, home)
    try:
        before = dict(content.get("nodes", {}))
        same = frozenset(
            source for source, facts in _link_key(nodes).items() if before.get(source) == facts
        )
        measured_links = tuple(MeasuredLink(**link) for link in content.get("links", ()))
    except (TypeError, ValueError):
        return frozenset(), ()
    return same, tuple(link for link in measured_links if {link.sender, link.receiver} <= same)


def _kinds(name: str, nodes: Sequence[Node], home: Path) -> dict[str, CalibratedMachine]:
    """The cached measurements of machines of these nodes' kinds."""
    content = _content(name, home).get("machines")
    if not isinstance(content, dict):
        return {}
    machines_of_kinds = {
        _machine_kind(node): _machine({"calibration": content.get(_machine_kind(node))}, node)
        for node in nodes
    }
    return {
        kind: machine_of_kind
        for kind, machine_of_kind in machines_of_kinds.items()
        if machine_of_kind is not None
    }


def _content(name: str, home: Path) -> dict[str, Any]:
    try:
        content = json.loads(_path(name, home).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _path(name: str, home: Path) -> Path:
    return home / _FOLDER / f"{name}.json"


def _link_key(nodes: Sequence[Node]) -> dict[str, list[Any]]:
    """The properties of nodes that their links depend on."""
    return {node.name: [node.address, node.nic_bytes_per_second, node.cores] for node in nodes}


def _machine_kind(node: Node) -> str:
    """A key that is equal for machines of a kind."""
    return " + ".join([f"{node.cpu_model} x {node.cores:g}", *(gpu.name for gpu in node.gpus)])
