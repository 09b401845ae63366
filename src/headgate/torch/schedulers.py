"""Learning-rate schedulers that depend on a metric: they step on its mean over the workers."""

from __future__ import annotations

import inspect
from typing import Any, Callable

_MARK = "_headgate_steps_on_mean"
"""Attribute of the class of such a scheduler."""
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def steps_on_mean(scheduler: Any, mean: Callable[[Any], Any]) -> None:
    """Make `step(metric)`, as of `ReduceLROnPlateau`, use the mean over the workers. Other
    schedulers are left as they are.

    Args:
        scheduler: Its class is replaced by a subclass with another `step`, because an attribute of
            its own would be saved with its state.
        mean: Averages a number over the workers.
    """
    kind = type(scheduler)
    if hasattr(kind, _MARK):
        return
    parameters = list(inspect.signature(scheduler.step).parameters.values())
    if (
        not parameters
        or parameters[0].default is not inspect.Parameter.empty
        or parameters[0].kind in _MANY
    ):
        return
    metric = parameters[0].name

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (mean(args[0]), *args[1:])
        elif metric in kwargs:
            kwargs[metric] = mean(kwargs[metric])
        return kind.step(self, *args, **kwargs)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    scheduler.__class__ = type(kind.__name__, (kind,), {**names, "step": step, _MARK: True})
