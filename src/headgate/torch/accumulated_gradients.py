"""Gradients that parameters already had before a backward whose contribution alone is exchanged.

These are accumulated gradients, and gradients that the script's hooks change.
"""

from __future__ import annotations

import torch

from headgate.torch import gradient_hooks


class AccumulatedGradients:
    """Accumulated gradients, by `id` of the parameter, until the contribution of backward is
    written back.
    """

    def __init__(self) -> None:
        self._apart: set[int] = set()
        self.earlier: dict[int, torch.Tensor] = {}

    def __contains__(self, parameter: torch.Tensor) -> bool:
        """Whether only the contribution of a backward to this parameter's gradient is exchanged."""
        return id(parameter) in self._apart

    def keep_apart(self, parameter: torch.Tensor) -> None:
        """From now on exchange only the contribution of a backward to this parameter's gradient."""

        def about_to_arrive(gradient: torch.Tensor) -> None:
            self.keep(parameter)

        self._apart.add(id(parameter))
        gradient_hooks.register_hook(parameter, about_to_arrive)

    def keep(self, parameter: torch.Tensor) -> None:
        """Keep the present gradient: backward is about to add to it, in this worker or another."""
        if parameter.grad is not None:
            self.earlier[id(parameter)] = parameter.grad.detach().clone()

    def fresh(self, parameter: torch.Tensor) -> torch.Tensor:
        """The gradient to exchange: the contribution of backward alone."""
        assert parameter.grad is not None
        gradient = parameter.grad.detach()
        earlier = self.earlier.get(id(parameter))
        return gradient if earlier is None else gradient - earlier

    def put(self, parameter: torch.Tensor, fresh: torch.Tensor) -> None:
        """Set the gradient to the accumulated one plus the contribution of backward, as changed by
        the script's hooks.
        """
        gradient = gradient_hooks.changed(parameter, fresh)
        earlier = self.earlier.get(id(parameter))
        if earlier is not None:
            gradient = earlier + gradient
        if parameter.grad is None or parameter.grad.is_sparse or gradient.is_sparse:
            parameter.grad = gradient
        elif gradient is not parameter.grad:
            parameter.grad.detach().copy_(gradient)
