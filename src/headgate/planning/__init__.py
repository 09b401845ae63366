"""From a job and a cluster to a plan."""

from typing import TYPE_CHECKING

from headgate.planning.candidates import candidates

if TYPE_CHECKING:
    from headgate.planning.planner import Planner

__all__ = ["Planner", "candidates"]


def __getattr__(name: str) -> object:
    if name != "Planner":
        raise AttributeError(f"module 'headgate.planning' has no attribute {name!r}")
    from headgate.planning.planner import Planner  # its numerics take half a second to import

    return Planner
