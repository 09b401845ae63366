"""Gradients that parameters had before a backward, where only what it adds is exchanged: those of a
sum, and those that hooks of the script change.
"""

from __future__ import annotations

import torch

from headgate.torch import gradient_hooks


class AccumulatedGradients:
    """What parameters had accumulated, by `id`, until what backward adds is written back."""

    def __init__(self) -> None:
        self._apart: set[int] = set()
        self.earlier: dict[int, torch.Tensor] = {}

    def __contains__(self, parameter: torch.Tensor) -> bool:
        """Whether only what a backward adds to this parameter's gradient is exchanged."""
        return id(parameter) in self._apart

    def keep_apart(self, parameter: torch.Tensor) -> None:
        """From now on exchange only what a backward adds to the gradient of this parameter."""

        def about_to_arrive(gradient: torch.Tensor) -> None:
            self.keep(parameter)

        self._apart.add(id(parameter))
        gradient_hooks.register_hook(parameter, about_to_arrive)

    def keep(self, parameter: torch.Tensor) -> None:
        """Backward is about to add to a gradient, here or in another worker."""
        if parameter.grad is not None:
            self.earlier[id(parameter)] = parameter.grad.detach().clone()

    def fresh(self, parameter: torch.Tensor) -> torch.Tensor:
        """The gradient that travels."""
        assert parameter.grad is not None
        gradient = parameter.grad.detach()
        earlier = self.earlier.get(id(parameter))
        return gradient if earlier is None else gradient - earlier

    def put(self, parameter: torch.Tensor, fresh: torch.Tensor) -> None:
        """Let a gradient be what it was before, and what backward has added, as the script's hooks
        change it.
        """
        gradient = gradient_hooks.changed(parameter, fresh)
        earlier = self.earlier.get(id(parameter))
        if earlier is not None:
            gradient = earlier + gradient
        if parameter.grad is None or parameter.grad.is_sparse or gradient.is_sparse:
            parameter.grad = gradient
        elif gradient is not parameter.grad:
            parameter.grad.detach().copy_(gradient)
