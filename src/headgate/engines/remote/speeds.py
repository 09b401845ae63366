"""Keeps the measured speeds of the cores of a cluster's nodes from one connection to the next."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from headgate.model.cluster import Node


def key(cpu_model: str, cores: float) -> str:
    """The key under which the measured speed of a core is kept."""
    return f"{cpu_model} x {cores:g}"


class CoreSpeeds:
    """GFLOP/s of a core by `key`, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def known(self) -> dict[str, float]:
        """The speeds measured before; empty if the file cannot be read."""
        try:
            speeds = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return (
            {str(key): float(value) for key, value in speeds.items()}
            if isinstance(speeds, dict)
            else {}
        )

    def keep(self, nodes: Iterable[Node]) -> None:
        """Add the speeds that nodes measured."""
        speeds_by_kind = {
            key(node.cpu_model, node.cores): node.core_gflops
            for node in nodes
            if node.core_gflops is not None
        }
        with contextlib.suppress(OSError):  # they are measured again
            self._path.write_text(json.dumps(self.known() | speeds_by_kind, indent=2) + "\n")
