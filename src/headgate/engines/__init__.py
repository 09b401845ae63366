"""What starts tasks: this machine, or a cluster of others.

Names of the contract are handed out lazily: help needs what engines declare, and none of that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.engines.engine_options import declared

if TYPE_CHECKING:
    from headgate.engines.base import LOCAL, Engine, EngineSpec

__all__ = ["LOCAL", "Engine", "EngineSpec", "make"]


def make(spec: EngineSpec, home: Path) -> Engine:
    """An engine that starts tasks elsewhere, Headgate's own or one that registered under
    `headgate.engines`; not yet open. That of this machine is made by the hub, of what the hub has.

    Args:
        spec: Which.
        home: Headgate's folder, for what it learns of a cluster.

    Raises:
        UsageError: None is so called.
        MissingExtraError: What it needs is not installed.
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
