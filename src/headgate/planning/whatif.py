"""Clusters as they might be: other rates, more nodes or fewer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headgate import units
from headgate.cluster import Cluster, Node
from headgate.errors import UsageError
from headgate.planning.kinds import kinds

_EXPECTED = "expected nic=10Gbit, cores=8, memory=32GiB, the same of one kind (a.nic=10Gbit), or '+2 node of kind a'"
_SETTING = re.compile(r"(?:([\w-]+)\.)?(nic|cores|memory)=(.+)")
_NODES = re.compile(r"([+-]\d+) nodes? of kind ([\w-]+)")


def changed(cluster: Cluster, text: str) -> Cluster:
    """A cluster with one change.

    Args:
        cluster: As it is.
        text: `nic=10Gbit`, `cores=8` or `memory=32GiB` of all nodes; `a.nic=10Gbit` of the nodes of kind (or with the
            name) `a`; `+2 node of kind a`, `-1 node of kind a`.

    Raises:
        UsageError: It is none of these, or there is no such kind.
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
    if not all(0 < each < float("inf") for each in change.values()):
        raise UsageError(f"--what-if {key}: found {value!r}; expected more than 0")
    return Cluster(tuple(replace(node, **change) if node.name in chosen else node for node in cluster.nodes))


def _count(cluster: Cluster, by: int, name: str) -> Cluster:
    alike: list[Node] = [node for node in cluster.nodes if name in (node.kind, node.name)]
    if not alike:
        raise _unknown(cluster, name)
    if by < 0:
        gone = {node.name for node in alike[by:]}
        if -by > len(alike) or len(gone) == len(cluster.nodes):
            raise UsageError(f"--what-if: {-by} nodes of kind {name} are to go, of {len(alike)}; expected some to stay")
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
