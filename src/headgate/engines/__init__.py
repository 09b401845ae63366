"""What starts tasks: this machine, or a cluster of others."""

from __future__ import annotations

from pathlib import Path

from headgate import registry
from headgate.engines.base import LOCAL, Engine, EngineSpec


def make(spec: EngineSpec, home: Path) -> Engine:
    """An engine that starts tasks elsewhere, Headgate's own or one that registered under `headgate.engines`; not yet
    open. That of this machine is made by the hub, of what the hub has.

    Args:
        spec: Which.
        home: Headgate's folder, for what it learns of a cluster.

    Raises:
        UsageError: None is so called.
        MissingExtraError: What it needs is not installed.
    """
    if spec.name == "ray":
        from headgate.engines.ray import RayEngine

        ray: Engine = RayEngine(spec.address, shared_files=spec.shared_files, speeds=home / "ray-speeds.json")
        return ray
    return registry.make("headgate.engines", Engine, spec.name, (LOCAL.name, "ray"), lambda factory: factory(spec))


__all__ = ["LOCAL", "Engine", "EngineSpec", "make"]
