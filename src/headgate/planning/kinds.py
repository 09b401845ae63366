"""Group equal nodes into kinds: the cost of a plan depends on kinds and not on names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.model.cluster import Node


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes that are equal in all that matters to a plan.

    Args:
        name: Name shared by kinds of equal speed.
        node: The node with the least memory among them.
        names: Names of the nodes, in the order of the cluster.
    """

    name: str
    node: Node
    names: tuple[str, ...]

    @property
    def in_words(self) -> str:
        """Its name for people: from the cluster file, or else that of its first node."""
        return self.node.kind or self.names[0]


def name_of(node: Node) -> str:
    """A name shared by kinds of equal speed: the kind in the cluster file, or the GPUs, or the CPU
    and its speed.
    """
    gpus = "+".join(sorted(gpu.name for gpu in node.gpus))
    return node.kind or f"{gpus or node.cpu_model} {node.core_gflops or ''}".strip()


def kinds(nodes: Sequence[Node]) -> tuple[NodeKind, ...]:
    """The kinds of nodes, in the order of their first nodes."""
    nodes_by_class: dict[object, list[Node]] = {}
    for node in nodes:
        gpus = tuple((gpu.name, gpu.memory_bytes) for gpu in node.gpus)
        # equal machines report slightly different amounts
        memory = f"{node.memory_bytes:.1e}"
        key = (
            node.kind,
            node.cores,
            memory,
            node.core_gflops,
            node.nic_bytes_per_second,
            gpus,
            node.gpu_link,
        )
        core = (node.cpu_model, node.core_convolution_gflops, node.core_copy_bytes_per_second)
        nodes_by_class.setdefault((*key, *core), []).append(node)
    return tuple(
        NodeKind(
            name_of(alike[0]),
            min(alike, key=lambda node: node.memory_bytes),
            tuple(node.name for node in alike),
        )
        for alike in nodes_by_class.values()
    )
