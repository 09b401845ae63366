"""Hypothetical clusters: other rates, more or fewer nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from headgate.model import units
from headgate.model.cluster import Cluster, GpuLink, Node
from headgate.model.errors import UsageError
from headgate.planning.kinds import kinds

_EXPECTED = (
    "expected nic=10Gbit, cores=8, memory=32GiB, gpu_link=nvlink, the same of one kind "
    "(a.nic=10Gbit), or '+2 node of kind a'"
)
_SETTING = re.compile(r"(?:([\w-]+)\.)?(nic|cores|memory|gpu_link)=(.+)")
_HOWS: Mapping[str, Literal["nvlink", "pcie", "host"]] = {
    "nvlink": "nvlink",
    "pcie": "pcie",
    "host": "host",
}
_NODES = re.compile(r"([+-]\d+) nodes? of kind ([\w-]+)")


def changed(cluster: Cluster, text: str) -> Cluster:
    """A cluster with one change.

    Args:
        cluster: The present cluster.
        text: A change of all nodes (`nic=10Gbit`, `cores=8`, `memory=32GiB`), or of the nodes with
            kind or name `a` (`a.nic=10Gbit`). `gpu_link=nvlink` (or `pcie`, `host`) sets the link
            with its usual rate, and `gpu_link=50GB/s` its rate alone. `+2 node of kind a` and `-1
            node of kind a` change the number of nodes.

    Raises:
        UsageError: The text has another form, the kind is unknown, or no node has several GPUs to
            link.
    """
    if (setting := _SETTING.fullmatch(text.strip())) is not None:
        return _set(cluster, setting[1], setting[2], setting[3])
    if (more := _NODES.fullmatch(" ".join(text.split()))) is not None:
        return _count(cluster, int(more[1]), more[2])
    raise UsageError(f"found --what-if {text!r}; {_EXPECTED}")


def _set(cluster: Cluster, of: str | None, key: str, value: str) -> Cluster:
    chosen = {node.name for node in cluster.nodes if of in (None, node.kind, node.name)}
    if not chosen:
        raise _unknown(cluster, of or "")
    if key == "gpu_link":
        return _link(cluster, chosen, value)
    change: Mapping[str, Any]
    try:
        match key:
            case "nic":
                change = {"nic_bytes_per_second": units.rate(value)}
            case "cores":
                change = {"cores": float(value)}
            case _:
                change = {"memory_bytes": units.size(value)}
    except ValueError as error:
        expected = str(error) if key != "cores" else "expected a number such as 8"
        raise UsageError(f"--what-if {key}: found {value!r}; {expected}") from None
    if not all(0 < entry < float("inf") for entry in change.values()):
        raise UsageError(f"--what-if {key}: found {value!r}; expected more than 0")
    return Cluster(
        tuple(replace(node, **change) if node.name in chosen else node for node in cluster.nodes)
    )


def _link(cluster: Cluster, chosen: Collection[str], value: str) -> Cluster:
    """Change the GPU links of the chosen nodes with several GPUs."""
    several = {node.name for node in cluster.nodes if node.name in chosen and len(node.gpus) > 1}
    if not several:
        raise UsageError(
            f"--what-if gpu_link: found {value!r}; expected nodes with two GPUs or more, "
            "there are none"
        )
    how = _HOWS.get(value.strip().lower())
    rate = None
    if how is None:
        expected = "expected nvlink, pcie, host, or a rate above 0 such as 50GB/s"
        try:
            rate = units.rate(value)
        except ValueError:
            raise UsageError(f"--what-if gpu_link: found {value!r}; {expected}") from None
        if rate <= 0:
            raise UsageError(f"--what-if gpu_link: found {value!r}; {expected}")

    def joined(node: Node) -> Node:
        as_it_is = node.gpu_link.how if node.gpu_link is not None else None
        return replace(node, gpu_link=GpuLink(rate, how or as_it_is))

    return Cluster(tuple(joined(node) if node.name in several else node for node in cluster.nodes))


def _count(cluster: Cluster, by: int, name: str) -> Cluster:
    alike: list[Node] = [node for node in cluster.nodes if name in (node.kind, node.name)]
    if not alike:
        raise _unknown(cluster, name)
    if by < 0:
        gone = {node.name for node in alike[by:]}
        if -by > len(alike) or len(gone) == len(cluster.nodes):
            raise UsageError(
                f"--what-if: cannot remove {-by} nodes of kind {name}: there are {len(alike)}, "
                "and a node has to stay"
            )
        return Cluster(tuple(node for node in cluster.nodes if node.name not in gone))
    taken, number = {node.name for node in cluster.nodes}, 0
    added: list[Node] = []
    while len(added) < by:
        number += 1
        if (fresh := f"{name}-new-{number}") not in taken:
            added.append(replace(alike[-1], name=fresh))
    return Cluster((*cluster.nodes, *added))


def _unknown(cluster: Cluster, name: str) -> UsageError:
    known = ", ".join(dict.fromkeys(kind.in_words for kind in kinds(cluster.nodes)))
    return UsageError(f"--what-if: found kind {name!r}; expected one of {known}")
