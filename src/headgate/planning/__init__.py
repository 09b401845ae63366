"""From a job and a cluster to a plan."""

from typing import TYPE_CHECKING

from headgate.planning.candidates import candidates

if TYPE_CHECKING:
    from headgate.planning.cost import CostModel
    from headgate.planning.planner import Planner

__all__ = ["CostModel", "Planner", "candidates"]

_HOMES = {"CostModel": "cost", "Planner": "planner"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headgate.planning' has no attribute {name!r}")
    from importlib import import_module  # their numerics take half a second to import

    return getattr(import_module(f"headgate.planning.{_HOMES[name]}"), name)
