"""The cluster that a run's jobs may use besides this machine, by what its user calls it.

Labs, and the files that describe them, are imported only where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headgate.cluster import Node
from headgate.errors import HeadgateError, UsageError


def reach(cluster: str, names: Sequence[str] | None = None) -> tuple[str, tuple[Node, ...]]:
    """Name and nodes of a lab that is up.

    Args:
        cluster: Its name, or its file.
        names: Only these of its nodes; None: all.

    Raises:
        HeadgateError: There is none such, or it is a cluster of other machines.
    """
    from headgate import clusterfile, lab

    name = cluster
    if Path(cluster).suffix in (".yaml", ".yml"):
        file = clusterfile.read(cluster)
        if not file.lab:
            machines = ", ".join(node.name for node in file.cluster.nodes)
            raise UsageError(
                f"{cluster} describes other machines ({machines}), which engine `local` cannot reach; expected a lab: "
                "a file with `lab: true`, brought up by headgate lab up"
            )
        name = file.name
    known = {node.name: node for node in lab.nodes(name).nodes}
    for each in names or ():
        if each not in known:
            raise UsageError(f"cluster {name} has no node {each!r}; expected some of {', '.join(known)}")
    return name, tuple(known[each] for each in (known if names is None else dict.fromkeys(names)))


def there(cluster: str) -> frozenset[str]:
    """Names of the nodes of a lab that are there, and are not being taken away."""
    from headgate.lab import record

    try:
        known = record.read(cluster)
    except HeadgateError:
        known = None
    if known is None or not known.complete:
        return frozenset()
    made = [name for name, each in known.nodes.items() if each.stage != "making"]
    return frozenset(name for name in made if Path(known.place(name).namespace).exists())
