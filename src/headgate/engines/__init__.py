"""Engines start tasks: on this machine, or on a cluster of others.

Names of the contract are imported lazily, because help only needs the engines' declarations.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.engines.engine_options import declared

if TYPE_CHECKING:
    from headgate.engines.base import LOCAL, Engine, EngineSpec

__all__ = ["LOCAL", "Engine", "EngineSpec", "make"]


def make(spec: EngineSpec, home: Path) -> Engine:
    """Make an engine for other machines: Headgate's own, or one registered under
    `headgate.engines`. It is not open yet.

    The hub itself makes the engine of this machine.

    Args:
        spec: The engine.
        home: Headgate's folder, for what the engine learns about a cluster.

    Raises:
        UsageError: There is no engine of that name.
        MissingExtraError: A package that it needs is not installed.
    """
    from headgate.engines.base import LOCAL, Engine
    from headgate.model import registry

    if (ours := declared().get(spec.name)) is not None:
        return ours.make(spec, home)
    return registry.make(
        "headgate.engines", Engine, spec.name, (LOCAL.name, *declared()), lambda make: make(spec)
    )


def __getattr__(name: str) -> Any:
    if name in __all__:
        from headgate.engines import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
