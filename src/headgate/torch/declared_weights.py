"""Weights of a backward's gradients that the script declares, before or after the backward."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from headgate.torch import gradient_hooks
from headgate.torch.control_vector import ReduceError

Tables = Mapping[int, "tuple[torch.Tensor, torch.Tensor | None]"]
"""Weights that live on servers, and their gradients before a backward, by `id`."""


class WeightTarget(enum.Enum):
    """The backward that a declared weight belongs to."""

    NEXT = enum.auto()
    """The next backward."""
    ENDED = enum.auto()
    """The last backward, whose gradients wait for the weight."""
    EXCHANGED = enum.auto()
    """The last backward, whose gradients were exchanged without the weight."""


@dataclass(frozen=True)
class KeptBackward:
    """A backward before the exchange of its gradients.

    Args:
        gradients: Gradient of each parameter.
        arrived: The order in which they arrived, by `id`.
        tables: Gradients of weights on servers.
        earlier: Gradients accumulated before, by `id`.
    """

    gradients: Sequence[tuple[torch.Tensor, torch.Tensor | None]]
    arrived: Mapping[int, int]
    tables: Tables
    earlier: Mapping[int, torch.Tensor]


class DeclaredWeights:
    """Decides which backward a weight belongs to, and keeps gradients until the weight is declared.

    Args:
        parameters: Parameters whose gradients are averaged; may grow.

    Attributes:
        waits: Whether the script declares the weight after each backward.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self.waits = False
        self._says_before = False
        # gradients that wait for their weight, and their versions
        self._pending: list[tuple[torch.Tensor, int]] | None = None
        self._written: list[tuple[torch.Tensor, int]] = []  # the same of the latest round
        self._kept: KeptBackward | None = None
        self._stepped = False
        self._unsaid = False

    def backward_begins(self) -> None:
        """
        Raises:
            ReduceError: The gradients of the last backward still wait for their weight.
        """
        if self._pending is not None:
            raise ReduceError(
                "a backward began before report(weight=...) said what the one before weighs; call "
                "it between each backward and the next, or before each"
            )

    def backward_ended(self) -> bool:
        """Whether the gradients of the backward that has ended wait for their weight."""
        if self.waits:
            self._pending = self._versions()
        return self.waits

    def said(self, fetched: bool) -> WeightTarget:
        """Take a declared weight. It belongs to the last backward if no step was taken since,
        otherwise to the next one.

        Args:
            fetched: Whether a batch was read, or may have been, that has no backward yet.

        Raises:
            ReduceError: The weight comes too late.
        """
        if self._pending is not None:
            self._check_untouched()
            return WeightTarget.ENDED
        if self._says_before or (fetched and not self._unsaid):
            self._says_before = True
            return WeightTarget.NEXT
        if self._kept is not None:
            self._check_untouched()
            return WeightTarget.EXCHANGED
        raise ReduceError(
            "report(weight=...) came after optimizer.step(), or after backward only in a later "
            "step; call it before optimizer.step() from the first step on, best before backward"
        )

    def put_back(self) -> KeptBackward:
        """Restore the parameters' gradients as the latest backward left them. From now on, weights
        are declared after a backward.

        Raises:
            ReduceError: A hook has used the gradients already.
        """
        assert self._kept is not None
        self.waits = True
        for parameter, gradient in self._kept.gradients:
            parameter.grad = gradient
        if any(gradient_hooks.runs_after(parameter) for parameter in self._parameters):
            raise ReduceError(
                "report(weight=...) came after a backward whose gradients a hook has taken already "
                "(register_post_accumulate_grad_hook); call it before backward"
            )
        return self._kept

    def exchanges(
        self,
        summed: bool,
        arrived: Mapping[int, int],
        tables: Tables,
        earlier: Mapping[int, torch.Tensor],
    ) -> None:
        """Note that gradients are about to be exchanged, and changed by it. Before the first step a
        copy is kept, because their weight may still be declared.

        Args:
            summed: Whether no weight is declared, because the loss is a sum.
            arrived: As of `KeptBackward`.
            tables: As of `KeptBackward`.
            earlier: As of `KeptBackward`.
        """
        self._pending = None
        if self.waits or self._stepped or summed or self._says_before:
            return
        held = [*self._parameters, *(weight for weight, _ in tables.values())]
        gradients = [
            (p, None if p.grad is None else p.grad.detach().clone())
            for p in held
            if p.requires_grad
        ]
        self._kept = KeptBackward(gradients, dict(arrived), dict(tables), dict(earlier))

    def exchanged(self) -> None:
        """Note that the exchange is over."""
        self._unsaid = True
        self._written = self._versions() if self._kept is not None else []

    def step_begins(self) -> None:
        """Note that an optimizer begins its step.

        Raises:
            ReduceError: Gradients that wait for their weight were changed.
        """
        if self._pending is not None:
            self._check_untouched()

    def stepped(self) -> None:
        """Note that the optimizer has read the gradients. A weight declared from now on belongs to
        the next backward.
        """
        self._stepped, self._unsaid, self._kept = True, False, None

    def _versions(self) -> list[tuple[torch.Tensor, int]]:
        return [
            (p, -1 if p.grad is None else p.grad._version)
            for p in self._parameters
            if p.requires_grad
        ]

    def _check_untouched(self) -> None:
        """
        Raises:
            ReduceError: Gradients were changed after their backward.
        """
        before = self._written if self._pending is None else self._pending
        if any((-1 if p.grad is None else p.grad._version) != version for p, version in before):
            raise ReduceError(
                "gradients were changed, as by clipping, between backward and report(weight=...); "
                "call it right after backward, or before it"
            )
