"""What was measured of nodes, kept from run to run and measured again when hardware changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from headgate.cluster import Cluster, Node
from headgate.errors import HeadgateError
from headgate.profiling import kernels, links
from headgate.profiling.links import Link
from headgate.telemetry import speed

_AS_STATED = 0.1  # of a NIC's rate: one that was measured so near is the stated one
_FOLDER = "calibrations"


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, measured.

    Args:
        rates: By the names of a `Node`'s fields.
        gpus: GFLOP/s and bytes a second of each kind of GPU, by name.
        notes: What could not be measured, and why.
    """

    rates: dict[str, float]
    gpus: dict[str, dict[str, float]]
    notes: tuple[str, ...]


def machine(node: Node, home: Path, *, again: bool = False) -> Machine:
    """Measure this machine, in seconds, or read what is known of it; `machine.detect` uses what was measured.

    Args:
        node: It, as detected: another CPU, number of cores or kind of GPU has it measured again.
        home: Headgate's folder; what is measured is kept in its `node.json`.
        again: Measure, though it is known.

    Raises:
        HeadgateError: The speed of a core, or the disk, cannot be measured.
    """
    cache = home / "node.json"
    of = _machine(speed.known(cache, node.cpu_model, node.cores), node)
    if of is not None and not again:
        return of
    rates, notes = kernels.core(), []
    rates["disk_bytes_per_second"] = kernels.disk(home)
    of_gpus: dict[str, dict[str, float]] = {}
    if node.gpus:
        try:
            of_gpus = kernels.gpus()
        except HeadgateError as error:
            notes.append(f"GPUs were not measured, their makers' peaks count: {error}")
    found = Machine(rates, of_gpus, tuple(notes))
    by_name = {gpu.name: of_gpus[gpu.name]["gflops"] for gpu in node.gpus if gpu.name in of_gpus}
    speed.keep(cache, node.cpu_model, node.cores, {**rates, "gpus": by_name, "calibration": asdict(found)})
    return found


def _machine(known: dict[str, Any], node: Node) -> Machine | None:
    try:
        found = known["calibration"]
        rates = {str(name): float(rate) for name, rate in found["rates"].items()}
        of_gpus = {str(name): dict(each) for name, each in found["gpus"].items()}
        notes = tuple(map(str, found["notes"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if not notes and {gpu.name for gpu in node.gpus} != set(of_gpus):
        return None
    return Machine(rates, of_gpus, notes)


# --- nodes of a cluster


def network(
    name: str,
    cluster: Cluster,
    home: Path,
    *,
    again: bool = False,
    told: Callable[[Link], None] = lambda _: None,
) -> tuple[Link, ...]:
    """Measure the links between the nodes of a lab, or read what is known of them; none where there is one node.

    Args:
        name: Of the lab.
        cluster: Its nodes; other nodes, addresses or stated rates have it measured again.
        home: Headgate's folder.
        again: Measure, though it is known.
        told: Called with each link as it is measured.

    Raises:
        HeadgateError: A link cannot be measured, or what was cannot be written.
    """
    if len(cluster.nodes) < 2:
        return ()
    if not again and (known := _links(name, cluster.nodes, home)):
        return known
    found = links.measure(cluster.nodes, told)
    content = {"nodes": _print(cluster.nodes), "links": [asdict(link) for link in found]}
    path = home / _FOLDER / f"{name}.json"
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_text(json.dumps(content, indent=2) + "\n")
        fresh.replace(path)
    except OSError as error:
        raise HeadgateError(f"cannot write {path}: {error.strerror}; free some space there") from error
    return found


def calibrated(name: str, cluster: Cluster, here: Node, home: Path) -> Cluster:
    """The nodes of a lab with what is known of this machine's cores and was measured of their links.

    A NIC that was measured within a tenth of its stated rate has that; all nodes have the same round trip, the median:
    nodes that are alike stay of one kind.
    """
    known = _links(name, cluster.nodes, home)
    trip = median(link.round_trip_seconds for link in known) if known else None
    return Cluster(
        tuple(
            replace(
                node,
                core_gflops=here.core_gflops,
                core_convolution_gflops=here.core_convolution_gflops,
                core_copy_bytes_per_second=here.core_copy_bytes_per_second,
                nic_bytes_per_second=_nic(node, known),
                round_trip_seconds=trip,
            )
            for node in cluster.nodes
        )
    )


def _nic(node: Node, known: Sequence[Link]) -> float | None:
    stated = node.nic_bytes_per_second
    rates = [link.bytes_per_second for link in known if node.name in (link.sender, link.receiver)]
    if not rates or (stated is not None and max(rates) >= stated * (1 - _AS_STATED)):
        return stated
    return float(f"{max(rates):.1e}")


def _links(name: str, nodes: Sequence[Node], home: Path) -> tuple[Link, ...]:
    """What was measured of these nodes as they are; where only some of them are asked for, of those."""
    try:
        content = json.loads((home / _FOLDER / f"{name}.json").read_text())
        if not _print(nodes).items() <= content["nodes"].items():
            return ()
        names = {node.name for node in nodes}
        found = tuple(Link(**link) for link in content["links"])
        return tuple(link for link in found if {link.sender, link.receiver} <= names)
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return ()


def _print(nodes: Sequence[Node]) -> dict[str, list[Any]]:
    """What a node's links hang on."""
    return {node.name: [node.address, node.nic_bytes_per_second, node.cores] for node in nodes}
