"""Optimizers that call for the loss while they step, as LBFGS does: they decide by it, and so have
to see that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
"""Of a call of `step`: the optimizer first."""


def closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """The function that a step is given; None: it is given none."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    return closure if callable(closure) else None


def averaged(
    args: Sequence[Any], kwargs: Mapping[str, Any], mean: Callable[[float], float]
) -> Arguments | None:
    """The arguments of a step with a closure that returns the loss of all workers; None: it has no
    closure.

    Args:
        args: Of the step.
        kwargs: Of the step.
        mean: Makes it of this worker's; all workers call it alike.
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
