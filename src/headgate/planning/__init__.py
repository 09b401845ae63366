"""Make a plan from a job and a cluster."""

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
    from importlib import import_module  # imported late: their numerics take half a second

    return getattr(import_module(f"headgate.planning.{_HOMES[name]}"), name)
