"""The weight of a worker's gradients in each round, from the batches that fed them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch

from headgate.torch.backend import TimedRound
from headgate.torch.gradient_weights import GradientWeights, Weight
from headgate.torch.sharding import Assigned, Slices

_MOST_PARTS = 1024
"""Most rounds that a reported loss covers. A script may report no loss, or one per epoch."""


class RoundWeights:
    """Weights the gradients of a worker, and the losses that it reports, by the first loader that
    fed the running backward. It is the `Weigher` of a `Reducer`.

    Args:
        losses: Finds the number that a loss is a mean over.
        note: Tells the user something, once.

    Attributes:
        losses: As given.
        summed: Whether the loss of a batch is the sum of its samples' losses, not their mean.
        iterated: Whether a batch of a prepared loader was read.
        batch: Number of the loader that fed the latest round, and this worker's part of its batch;
            None: all workers have the same.
    """

    def __init__(self, losses: GradientWeights, note: Callable[[str], None]) -> None:
        self.losses = losses
        self._note = note
        self._slices: Slices | None = None
        self._index = 0
        self._fed: dict[int, Assigned | None] = {}
        self._weight: Weight | None = None
        self._parts: deque[Any] = deque(maxlen=_MOST_PARTS)  # of the rounds since the latest report
        self._value_factors: deque[float] = deque(maxlen=_MOST_PARTS)  # of the same rounds
        self.summed = False
        self.iterated = False
        self.batch: tuple[int, Assigned] | None = None

    def start(self, index: int, slices: Slices) -> None:
        """Weight rounds from now on.

        Args:
            index: This worker's index.
            slices: Knows the workers that take part.
        """
        self._index, self._slices = index, slices
        self.losses.start()

    def fetched(self, loader: int, assigned: Assigned | None, batch: Any, trains: bool) -> None:
        """Note a batch of a loader. `trains`: it is no validation's."""
        self.iterated = True
        if trains:
            self._fed[loader] = assigned
            self.losses.fetched(loader, batch, 0 if assigned is None else assigned.taken)

    @property
    def awaits_backward(self) -> bool:
        """Whether a batch was read, or may have been, that has no backward yet."""
        return bool(self._fed) or not self.iterated

    def of_report(self, loss: Any) -> tuple[Any, Any]:
        """A reported loss, and its weight among those of all workers, 1 on average.

        The weight is that of the gradients in the rounds since the last report. Without a round,
        all workers weigh the same.
        """
        if not self._parts:
            return loss, 1.0
        weight = sum(self._parts) / len(self._parts)
        factor = sum(self._value_factors) / len(self._value_factors)
        self._parts.clear()
        self._value_factors.clear()
        if factor != 1.0 and isinstance(loss, (Real, torch.Tensor)):
            loss = loss * factor
        return loss, weight

    # --- a round

    def weigh(self) -> Weight:
        """The weight of the gradients of the running backward, by the first loader that fed it."""
        assert self._slices is not None
        loader: int | None = None
        if self._fed:
            loader = min(self._fed)
            assigned = self._fed[loader]
            self._fed = {}
            self.batch = self._weight = None
            if assigned is not None:
                self.batch = (loader, assigned)
                self._weight = Weight(float(assigned.taken), 1.0 if assigned.taken else 0.0)
        weight = self._weight
        # all workers train on the same data: a whole batch, or data that the script reads itself
        if weight is None:
            if not self.iterated:
                self._note("no loader was prepared: every worker trains on the same samples")
            members = self._slices.members
            weight = Weight(1.0, 1.0 / len(members)) if self._index in members else Weight(0.0, 0.0)
        if self.summed:
            return weight
        return self.losses.weigh(weight, loader, None if self.batch is None else self.batch[1])

    def head(self) -> Sequence[float]:
        """The numbers about the weight at the head of a round."""
        return self.losses.numbers()

    @property
    def asks(self) -> bool:
        """Whether this worker needs the summed head of the round."""
        return self.losses.asks and not self.summed

    def agree(self, sums: Sequence[float]) -> Weight:
        """The weight, given the summed head of the round."""
        return self.losses.agree(sums)

    def check(self, sums: Sequence[float]) -> None:
        """Check the summed head of a round that this worker did not ask for."""
        if not self.summed:
            self.losses.check(sums)

    @property
    def samples(self) -> float:
        """Samples that the gradients of the latest round are of, by its loader."""
        return 0.0 if self._weight is None else self._weight.samples

    def exchanged(self, exchange: TimedRound, part: torch.Tensor | float) -> None:
        """Note the end of a round. `part`: this worker's fraction of what counted in it."""
        part = 0.0 if self.losses.lacks else part
        self._parts.append(part * len(exchange.result.members))
        self._value_factors.append(self.losses.value_factor)
        self.losses.release()
