"""Optimizers that evaluate the loss during a step, such as LBFGS. Their decisions need the loss of
the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
"""Arguments of a call of `step`, the optimizer first."""


def closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """The closure given to a step; None if there is none."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    return closure if callable(closure) else None


def averaged(
    args: Sequence[Any], kwargs: Mapping[str, Any], mean: Callable[[float], float]
) -> Arguments | None:
    """The arguments of a step, with a closure that returns the mean loss of all workers. None
    without a closure.

    Args:
        args: Positional arguments of the step.
        kwargs: Keyword arguments of the step.
        mean: The mean of this worker's loss and the others'. All workers call it.
    """
    closure = closure_of(args, kwargs)
    if closure is None:
        return None

    def of_all() -> Any:
        loss = closure()
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            return torch.full_like(loss.detach(), mean(float(loss.detach())))
        return mean(loss) if isinstance(loss, float) else loss

    if len(args) > 1:
        return (args[0], of_all, *args[2:]), kwargs
    return args, {**kwargs, "closure": of_all}
