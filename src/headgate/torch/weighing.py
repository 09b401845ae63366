"""What a worker's gradients weigh among those of all: what the loss of its part of a batch is a mean over."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from headgate.torch.dealing import Dealt
from headgate.torch.loss_mean import LossReading, read

_MOST_RATIOS = 3
"""Between the terms of a loss: a script may have several losses, and each its own."""

_SAME = 4
"""Steps in a row in which a sum is divided by the same number, after which that is taken for a constant."""


@dataclass(frozen=True)
class Weight:
    """What this worker's gradients count in a round.

    Args:
        samples: Samples that they are of; 0: none that count.
        factor: What they are multiplied with where the loss is a sum.
        over: What the loss is a mean over; None: over the samples.
    """

    samples: float
    factor: float
    over: float | None = None

    @property
    def counts(self) -> float:
        """What gradients of a mean are multiplied with."""
        return self.samples if self.over is None else self.over


class Weighing:
    """What losses are means over: as the script says it, by batch or backward; else as their graphs show it.

    Args:
        note: Tells the user something, once.

    Attributes:
        by_batch: The script's function of a batch; None: it gave none.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self.by_batch: Callable[[Any], Any] | None = None
        self._said: float | None = None
        self._of_batches: dict[int, float] = {}
        self._seen = LossReading()
        self._divisor = 0.0
        self._divided: list[int] = []  # samples of the latest parts whose sum was divided by that
        self._ratios: list[tuple[float, ...]] = []
        self._doubt = ""

    def fetched(self, loader: int, batch: Any) -> None:
        """The loader of this number has given a batch to train on."""
        if self.by_batch is not None:
            self._of_batches[loader] = _number(self.by_batch(batch), "the function loss_reduction=")

    def say(self, value: Any) -> None:
        """The script says it of one backward.

        Raises:
            ValueError: It is no weight.
        """
        self._said = _number(value, "report(weight=)")

    def sees(self, roots: Sequence[torch.Tensor]) -> None:
        """A backward begins with these losses."""
        self._seen = read(roots)

    def weigh(self, weight: Weight, loader: int | None, dealt: Dealt | None) -> Weight:
        """The weight of a backward's gradients.

        Args:
            weight: By samples.
            loader: Number of the loader that fed it; None: none did since the backward before.
            dealt: This worker's part of its batch; None: all have the same.
        """
        said, self._said = self._said, None
        seen, self._seen = self._seen, LossReading()
        if loader is not None:
            said = self._of_batches.get(loader) if said is None else said
            self._of_batches = {}
        doubt, self._doubt = self._doubt, ""
        if doubt and said is None:
            self._tell(doubt)
        if not weight.samples:
            return weight
        if said is None:  # it may be said after backward: then this is asked once more
            self._doubt = self._doubted(seen, dealt)
        over = seen.over if said is None else said
        return weight if over is None else replace(weight, over=over)

    def _doubted(self, seen: LossReading, dealt: Dealt | None) -> str:
        """Why the gradients of a loss may not be those of one process; empty: nothing speaks for that."""
        if seen.doubt:
            return seen.doubt
        terms = seen.terms
        if len(terms) > 1 and all(terms):
            ratios = tuple(term / terms[0] for term in terms)
            if not any(len(r) == len(ratios) and all(map(math.isclose, r, ratios)) for r in self._ratios):
                self._ratios.append(ratios)
            if len(self._ratios) > _MOST_RATIOS:
                del self._ratios[0]
                return "its terms are means over different numbers, as tokens and samples are"
        return self._divided_by_other(seen, dealt) if dealt is not None and seen.elements and seen.over else ""

    def _divided_by_other(self, seen: LossReading, dealt: Dealt) -> str:
        """Why the number that a sum is divided by may not be of this worker's part; empty: nothing speaks for that."""
        over, elements, whole, taken = seen.over or 0.0, seen.elements, dealt.whole, dealt.taken
        if over != self._divisor:
            self._divisor, self._divided = over, []
        self._divided = [*self._divided, taken][-_SAME:]
        if over == elements:
            return ""
        if whole and whole != taken and (over == whole or over * taken == elements * whole):
            return f"it is a sum divided by {over:g}, the samples of all workers"
        follows = taken and not (over % taken and over % elements)  # as of a mean that is accumulated
        if len(set(self._divided)) > 1 or (len(self._divided) == _SAME and not follows):
            return f"it is a sum divided by {over:g}, which is the same in each step"
        return ""

    def _tell(self, doubt: str) -> None:
        self._note(
            f"the loss of a batch may be no mean that several workers can weigh: {doubt}. Gradients then differ from "
            "those of one process. Say what each batch weighs, by hg.report(weight=...) before backward or "
            "prepare(loss_reduction=function), or that the loss is a sum, by prepare(loss_reduction='sum')"
        )


def _number(value: Any, where: str) -> float:
    """
    Raises:
        ValueError: It is no number that can be a weight.
    """
    try:
        weight = float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{where} gave a {type(value).__name__}; expected a number, or a tensor of one") from None
    if not math.isfinite(weight) or weight < 0:
        raise ValueError(f"{where} gave {weight:g}; expected a number of at least 0, as the tokens of the batch")
    return weight
