"""Names of a lab's parts on this machine.

A name holds the lab, the node, and six characters for `$HEADGATE_HOME`, so that labs of different
homes never collide.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

NAMESPACES = Path("/run/netns")
"""The folder of `ip netns` for named network namespaces."""
WIRE = "eth0"
"""A node's interface with its address."""
UNDERLAY = "under0"
"""The interface below its overlay, if it has one."""
BRIDGE = "br0"

_INTERFACE_LETTERS = 15


class Names:
    """The names of one lab. Those of its nodes never equal those of another lab.

    Args:
        lab: Name of the lab.
        home: Headgate's folder.
    """

    def __init__(self, lab: str, home: Path) -> None:
        self.tag = f"{lab}.{_letters(home)}"
        self.switch = f"hg-{self.tag}"
        """Network namespace of the bridge, apart from the machine's own interfaces and packets."""
        self.group = f"headgate-lab-{self.tag}"
        """Folder of the cgroups of its nodes."""

    def namespace(self, node: str) -> str:
        """Network namespace of a node."""
        return f"{self.switch}.{node}"

    def nodes_found(self) -> list[str]:
        """Nodes that have a network namespace."""
        prefix = f"{self.switch}."
        try:
            return sorted(
                name.removeprefix(prefix)
                for name in os.listdir(NAMESPACES)
                if name.startswith(prefix)
            )
        except FileNotFoundError:  # no namespace was ever made
            return []

    def switch_found(self) -> bool:
        return path(self.switch).exists()


def labs_found(home: Path) -> list[str]:
    """Labs of a home with a network namespace, even without a record."""
    ours = re.compile(rf"hg-(.+?)\.{_letters(home)}(\..*)?")
    try:
        return sorted(
            {match[1] for name in os.listdir(NAMESPACES) if (match := ours.fullmatch(name))}
        )
    except FileNotFoundError:  # no namespace was ever made
        return []


def _letters(home: Path) -> str:
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:6]


def path(namespace: str) -> Path:
    return NAMESPACES / namespace


def port(node: str) -> str:
    """The switch's end of a node's wire."""
    name = f"to-{node}"
    if len(name) <= _INTERFACE_LETTERS:
        return name
    return f"to-{node[:5]}-{hashlib.sha256(node.encode()).hexdigest()[:6]}"
