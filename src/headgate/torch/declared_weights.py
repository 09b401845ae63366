"""What the gradients of a backward weigh, where the script says so: before the backward, or after
it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from headgate.torch import gradient_hooks
from headgate.torch.control_vector import ReduceError

Tables = Mapping[int, "tuple[torch.Tensor, torch.Tensor | None]"]
"""Weights that live on servers, and the gradients that they had before a backward, by `id`."""


class WeightTarget(enum.Enum):
    """Which backward a weight is of that is said now."""

    NEXT = enum.auto()
    """The next one."""
    ENDED = enum.auto()
    """The one that has ended, whose gradients wait for it."""
    EXCHANGED = enum.auto()
    """The one that has ended, whose gradients were exchanged without it."""


@dataclass(frozen=True)
class KeptBackward:
    """A backward as it was before its gradients were exchanged.

    Args:
        gradients: Of each parameter.
        arrived: In which order they came, by `id`.
        tables: Those of weights on servers.
        earlier: What parameters had accumulated before, by `id`.
    """

    gradients: Sequence[tuple[torch.Tensor, torch.Tensor | None]]
    arrived: Mapping[int, int]
    tables: Tables
    earlier: Mapping[int, torch.Tensor]


class DeclaredWeights:
    """Knows which backward a weight is of, and keeps what is exchanged once it is said.

    Args:
        parameters: Those whose gradients are averaged; may grow.

    Attributes:
        waits: Whether the script says after each backward what its gradients weigh.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self.waits = False
        self._says_before = False
        # gradients that wait for it, and their versions
        self._pending: list[tuple[torch.Tensor, int]] | None = None
        self._written: list[tuple[torch.Tensor, int]] = []  # the same of the latest round
        self._kept: KeptBackward | None = None
        self._stepped = False
        self._unsaid = False

    def backward_begins(self) -> None:
        """
        Raises:
            ReduceError: The gradients of the one before wait for their weight still.
        """
        if self._pending is not None:
            raise ReduceError(
                "a backward began before report(weight=...) said what the one before weighs; call "
                "it between each backward and the next, or before each"
            )

    def backward_ended(self) -> bool:
        """Whether its gradients wait for their weight."""
        if self.waits:
            self._pending = self._versions()
        return self.waits

    def said(self, fetched: bool) -> WeightTarget:
        """The script says a weight. It is of the backward that has ended, if no step was taken
        since, and otherwise of the next one.

        Args:
            fetched: Whether a batch was fetched, or may have been, that no backward has come of
                yet.

        Raises:
            ReduceError: It comes too late.
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
        """Let parameters have the gradients of the latest backward again; from now on the script
        says weights after it.

        Raises:
            ReduceError: A hook has taken them already.
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
        """Gradients are exchanged now, and are changed by that. Before the first step they are kept
        as they are here: their weight may be said yet.

        Args:
            summed: Whether none is said, as a loss is a sum.
            arrived: As of `KeptBackward`; so are `tables` and `earlier`.
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
        """They were."""
        self._unsaid = True
        self._written = self._versions() if self._kept is not None else []

    def step_begins(self) -> None:
        """An optimizer begins its step.

        Raises:
            ReduceError: Gradients that wait for their weight were changed.
        """
        if self._pending is not None:
            self._check_untouched()

    def stepped(self) -> None:
        """It has what it needs: a weight that is said from now on is of the next backward."""
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
