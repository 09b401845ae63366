"""What the parts of a lab are called on this machine.

Names hold the lab, the node, and six characters that stand for `$HEADGATE_HOME`: labs of different
homes never meet.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps named network namespaces."""
WIRE = "eth0"
"""Interface of a node that has its address."""
UNDERLAY = "under0"
"""Interface that its overlay goes over, where there is one."""
BRIDGE = "br0"

_INTERFACE_LETTERS = 15


class Names:
    """The names of one lab; those of its nodes never look like those of another lab.

    Args:
        lab: Name of the lab.
        home: Headgate's folder.
    """

    def __init__(self, lab: str, home: Path) -> None:
        self.tag = f"{lab}.{_letters(home)}"
        self.switch = f"hg-{self.tag}"
        """Network namespace of the bridge: neither its interfaces nor its packets meet the
        machine's own.
        """
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
    """Labs of a home that have a network namespace, whether their records are there or not."""
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
