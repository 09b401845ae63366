"""Gradients that stand in the models at a checkpoint, and are part of a later step: left over where
batches do not fill a step, or accumulated when a checkpoint is asked for.
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
"""Elements of the largest gradient that is looked at, where there are so small ones."""
_ALIKE = 1e-9


class _AfterStep(NamedTuple):
    """A gradient as a step left it.

    Args:
        parameter: Whose it is.
        gradient: It; weak, so that a script which drops its gradients has their memory at once.
        version: How often it had been changed.
    """

    parameter: torch.Tensor
    gradient: weakref.ref[torch.Tensor]
    version: int

    @property
    def stands(self) -> bool:
        """Whether it is the same still: no backward has come since."""
        gradient = self.parameter.grad
        return (
            gradient is not None
            and gradient is self.gradient()
            and gradient._version == self.version
        )


class Gradients:
    """Knows whether gradients are left over, or only those that the last step has used."""

    def __init__(self) -> None:
        self._after: dict[int, list[_AfterStep]] = {}
        self._drops: dict[int, bool] = {}

    def begins(self, optimizer: Any) -> None:
        """An optimizer is about to take a step: does the script drop gradients between two of
        them?
        """
        before = self._after.get(id(optimizer))
        if before:
            self._drops[id(optimizer)] = all(_is_dropped(state) for state in before)

    def stepped(self, optimizer: Any) -> None:
        """It has taken one."""
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
        """It is gone."""
        self._after.pop(id(optimizer), None)
        self._drops.pop(id(optimizer), None)

    def left_over(self, models: Sequence[nn.Module]) -> list[dict[str, torch.Tensor]]:
        """By model the gradients by parameter's name; empty where no later step can need them."""
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
    """Let models have the gradients that `left_over` found; others are gone."""
    for model, gradients in zip(models, saved):
        for name, parameter in model.named_parameters():
            gradient = gradients.get(name)
            if gradient is not None:
                parameter.grad = gradient.to(parameter.device, parameter.dtype, copy=True)
            elif not hasattr(parameter, REMOTE):
                parameter.grad = None


@torch.no_grad()
def check_same(optimizer: Any, add_up: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """An optimizer is about to take a step with gradients that were not exchanged; all workers call
    this alike.

    Args:
        optimizer: It.
        add_up: Adds up a tensor over all workers.

    Raises:
        ReduceError: They are not the same in all workers.
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
    """
    Args:
        optimizer: Is about to take a step.
        is_averaged: Whether the gradient of this parameter is averaged over the workers.
        tensors: Whether it is looked at tensors that are no parameters of a module too.

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
    """Some parameters of an optimizer that have small gradients; where none is small, the
    smallest.
    """
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
