"""Gradients in the models at a checkpoint that belong to a later step.

They are left over if batches do not fill a step, or accumulated when a checkpoint is requested.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from headgate.torch.backend import REMOTE
from headgate.torch.control_vector import ReduceError

_SMALL = 1 << 16
"""Elements of the largest gradient that is checked, if there are gradients this small."""
_ALIKE = 1e-9


class _AfterStep(NamedTuple):
    """A gradient after a step.

    Args:
        parameter: Its parameter.
        gradient: A weak reference to it, so that a script which drops its gradients frees their
            memory at once.
        version: How often it had been changed.
    """

    parameter: torch.Tensor
    gradient: weakref.ref[torch.Tensor]
    version: int

    @property
    def stands(self) -> bool:
        """Whether it is unchanged: no backward has come since."""
        gradient = self.parameter.grad
        return (
            gradient is not None
            and gradient is self.gradient()
            and gradient._version == self.version
        )


class Gradients:
    """Tells gradients that are left over from those that the last step has used."""

    def __init__(self) -> None:
        self._after: dict[int, list[_AfterStep]] = {}
        self._drops: dict[int, bool] = {}

    def begins(self, optimizer: Any) -> None:
        """Check, before a step of an optimizer, whether the script drops gradients between two
        steps.
        """
        before = self._after.get(id(optimizer))
        if before:
            self._drops[id(optimizer)] = all(_is_dropped(state) for state in before)

    def stepped(self, optimizer: Any) -> None:
        """Note the end of an optimizer's step."""
        held = self._after.get(id(optimizer))
        if held and all(after_step.parameter.grad is not None for after_step in held):
            parameters = [after_step.parameter for after_step in held]
        else:
            parameters = _small(optimizer)
        self._after[id(optimizer)] = [
            _AfterStep(parameter, weakref.ref(gradient), gradient._version)
            for parameter in parameters
            if (gradient := parameter.grad) is not None
        ]

    def forget(self, optimizer: Any) -> None:
        """Forget an optimizer that is gone."""
        self._after.pop(id(optimizer), None)
        self._drops.pop(id(optimizer), None)

    def left_over(self, models: Sequence[nn.Module]) -> list[dict[str, torch.Tensor]]:
        """Left-over gradients of each model, by parameter name. Empty if no later step can need
        them.
        """
        used = bool(self._after) and all(
            after and self._drops.get(number, False) and all(gradient.stands for gradient in after)
            for number, after in self._after.items()
        )
        if used:
            return []
        left = [
            {
                name: p.grad
                for name, p in model.named_parameters()
                if p.grad is not None and not hasattr(p, REMOTE)
            }
            for model in models
        ]
        return left if any(left) else []


def _is_dropped(after: _AfterStep) -> bool:
    """Whether the script has dropped a gradient since the step."""
    gradient = after.gradient()
    return gradient is None or gradient is not after.parameter.grad


def put_back(models: Sequence[nn.Module], saved: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Set the models' gradients to those that `left_over` returned. Other gradients are removed."""
    for model, gradients in zip(models, saved):
        for name, parameter in model.named_parameters():
            gradient = gradients.get(name)
            if gradient is not None:
                parameter.grad = gradient.to(parameter.device, parameter.dtype, copy=True)
            elif not hasattr(parameter, REMOTE):
                parameter.grad = None


@torch.no_grad()
def check_same(optimizer: Any, add_up: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Check that gradients that were not exchanged are the same in all workers, before a step. All
    workers call this.

    Args:
        optimizer: The optimizer of the step.
        add_up: Sums a tensor over all workers.

    Raises:
        ReduceError: The gradients differ between workers.
    """
    gradients = [
        parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
        for group in getattr(optimizer, "param_groups", ())
        for parameter in group["params"]
        if parameter.grad is not None and not hasattr(parameter, REMOTE)
    ]
    numbers = torch.zeros(5, dtype=torch.float64)
    numbers[0] = 1.0
    for gradient in gradients:
        flat = (
            (torch.view_as_real(gradient) if gradient.is_complex() else gradient)
            .reshape(-1)
            .double()
        )
        ramp = torch.linspace(1.0, 2.0, flat.numel(), dtype=flat.dtype, device=flat.device)
        numbers[1] += flat.abs().sum().cpu()
        numbers[3] += (flat * ramp).sum().cpu()
    numbers[2], numbers[4] = numbers[1] ** 2, numbers[3] ** 2
    workers, *sums = add_up(numbers).tolist()
    size = workers * sums[1]
    if any(workers * squares - total**2 > _ALIKE * size for total, squares in (sums[:2], sums[2:])):
        raise ReduceError(
            f"the optimizer {type(optimizer).__name__} takes a step with gradients that no "
            "backward made, as torch.autograd.grad gives them: they are of this worker's samples "
            "alone. Call backward() on the loss, or run with --strategy single"
        )


def check_averaged(
    optimizer: Any, is_averaged: Callable[[torch.Tensor], bool], tensors: bool = True
) -> None:
    """Check that all gradients of a step were averaged.

    Args:
        optimizer: The optimizer of the step.
        is_averaged: Whether a parameter's gradient is averaged over the workers.
        tensors: Whether to also check tensors that are no parameters of a module.

    Raises:
        ReduceError: The optimizer is about to step a parameter whose gradient was not averaged.
    """
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            if parameter.grad is None or is_averaged(parameter) or hasattr(parameter, REMOTE):
                continue
            if tensors or isinstance(parameter, nn.Parameter):
                raise ReduceError(
                    f"the optimizer {type(optimizer).__name__} steps a parameter of shape "
                    f"{tuple(parameter.shape)} that no prepared model had when it was prepared: "
                    "its gradients are of this worker alone. Put parameters and layers in place "
                    "before headgate.torch.prepare, or prepare the model that has them as well"
                )


def _small(optimizer: Any) -> list[torch.Tensor]:
    """Some of the optimizer's parameters with small gradients. If none is small, the smallest."""
    candidates = [
        parameter
        for group in getattr(optimizer, "param_groups", ())
        for parameter in group["params"]
        if parameter.grad is not None and not hasattr(parameter, REMOTE)
    ]
    small = [parameter for parameter in candidates if parameter.numel() <= _SMALL]
    if not small:
        return sorted(candidates, key=torch.Tensor.numel)[:1]
    last = len(small) - 1
    return [small[place] for place in sorted({0, last // 2, last})]
