"""The weight of a worker's gradients among all workers': the number that the loss of its part of a
batch is a mean over.

A loss with a single mean is weighted by that number. In a loss with several means over unlike
numbers, each term is weighted: its gradient is multiplied during backward. For that, workers send
each other their counts before backward, at the head of a round. In the first rounds all workers
wait for the counts, later only if they are needed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import torch

from headgate.torch import gradient_hooks, loss_terms, normalisers
from headgate.torch.control_vector import ReduceError
from headgate.torch.loss_graph import is_selected, parameter_of
from headgate.torch.loss_mean import LossReading, read
from headgate.torch.loss_terms import Summed, TermSlot
from headgate.torch.sample_comparison import SampleComparison, sorted_nodes
from headgate.torch.sharding import Assigned

_QUIET = 12
"""Rounds in a row without a need to wait, after which no worker waits for the forms of loss seen in
them.
"""
_LOOKS = 2
"""Backwards of each form of loss whose functions are checked."""
_DIGITS = 6
_COUNTING, _TAKEN, _WAITS, _NEEDS = range(4)
_FIRST = 4 + 2 * _DIGITS
NUMBERS = _FIRST + loss_terms.NUMBERS
"""Length of the head of a round."""
_SAID = "said"

Exchange = Callable[[Any], Optional[Mapping[int, Any]]]


@dataclass(frozen=True)
class Weight:
    """The weight of this worker's gradients in a round.

    Args:
        samples: Samples that the gradients are of; 0: none that count.
        factor: Factor of the gradients if the loss is a sum.
        over: The number that the loss is a mean over; None: the samples.
    """

    samples: float
    factor: float
    over: float | None = None

    @property
    def counts(self) -> float:
        """The factor of the gradients of a mean."""
        return self.samples if self.over is None else self.over


class LossError(ReduceError):
    """The loss of a batch is no mean that several workers can weight."""


class GradientWeights:
    """Finds the number that a loss is a mean over: declared by the script, by batch or backward, or
    else read from the graph.

    Args:
        name: Names a parameter.
        barrier: Exchanges a value with all workers, and returns theirs; None: the job ends
            meanwhile.
        begins: Begins the round of the running backward, if it has not begun.
        note: Tells the user something, once.
        coupled: Called once with the operation by which a loss compares samples with each other.

    Attributes:
        by_batch: The script's function of a batch; None: not given.
        lacks: Whether a term of the latest loss has nothing that counts in this worker.
        value_factor: Factor of the latest loss, so that its mean over the workers is the loss of
            the whole batch. A loss whose terms would need different factors keeps its value,
            because the values of its terms are unknown.
    """

    def __init__(
        self,
        name: Callable[[torch.Tensor], str],
        barrier: Exchange,
        begins: Callable[[], None],
        note: Callable[[str], None],
        coupled: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self._name = name
        self._barrier = barrier
        self._begins = begins
        self._note = note
        self._coupling = SampleComparison(coupled)
        self.by_batch: Callable[[Any], Any] | None = None
        self.lacks = False
        self.value_factor = 1.0
        self._said: float | None = None
        self._of_batches: dict[int, float] = {}
        self._seen = LossReading()
        self._hooks: list[Any] = []
        self._factors: dict[Any, float] = {}
        self._own: list[TermSlot] = []
        self._taken = 0.0
        self._weight = Weight(0.0, 0.0)
        self._form = self._shape = 0
        self._weighs = False  # whether losses are read for this round
        self._everybody = True  # all workers wait in each round
        self._asks = True  # this worker waits in this round
        self._needed = False
        self._quiet = 0
        self._forms: set[int] = set()
        self._looks: dict[int, int] = {}
        self._doubt = ""

    def start(self) -> None:
        """Begin to weight losses."""
        normalisers.follow()

    def state(self) -> dict[str, Any]:
        """The state that joining workers need."""
        return {
            "everybody": self._everybody,
            "needed": self._needed,
            "quiet": self._quiet,
            "forms": sorted(self._forms),
        }

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Take the state of workers that this one joins."""
        self._everybody, self._needed = state["everybody"], state["needed"]
        self._quiet, self._forms = state["quiet"], set(state["forms"])

    def fetched(self, loader: int, batch: Any, samples: int = 0) -> None:
        """Note a training batch of a loader, with its number of samples; 0: unknown."""
        self._coupling.fed(samples)
        if self.by_batch is not None:
            self._of_batches[loader] = _number(self.by_batch(batch), "the function loss_reduction=")

    def say(self, value: Any) -> None:
        """Note the weight of one backward, declared by the script.

        Raises:
            ValueError: It is no valid weight.
        """
        self._said = _number(value, "report(weight=)")
        self._doubt = ""

    def sees(self, roots: Sequence[torch.Tensor]) -> None:
        """Note the losses of a backward that begins."""
        self.release()
        if self.by_batch is None and self._said is None:
            self._seen = read(roots)
            if self._everybody or _shape(self._seen) not in self._forms:
                nodes = {node: None for term in self._seen.terms for node in (term.node,)}
                self._hooks = [node.register_prehook(self._scaled(node)) for node in nodes]
        with normalisers.aside():
            form = _shape(self._seen)
            self._coupling.sees(roots, form)
            looks = self._looks[form] = self._looks.get(form, 0) + 1
            if looks <= _LOOKS:
                gradient_hooks.compare_functions(sorted_nodes([root.grad_fn for root in roots]))
        normalisers.forget()

    def release(self) -> None:
        """Release the graph of the loss. While it is held, its parameters cannot be resized."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._own, self._factors = [], [], {}
        self._seen = LossReading()

    def settle(self) -> None:
        """Check the gradients that an optimizer is about to use.

        Raises:
            LossError: They may differ from those of one process, and the script did not declare
                their weight.
        """
        normalisers.forget(stepped=True)
        self._settle()

    def _settle(self) -> None:
        doubt, self._doubt = self._doubt, ""
        if doubt:
            raise LossError(
                f"the loss of a batch is no mean that several workers can weigh: {doubt}. "
                "Gradients would differ from those of one process. Say what each batch weighs, by "
                "hg.report(weight=...) before backward or prepare(loss_reduction=function), or "
                "that the loss is a sum, by prepare(loss_reduction='sum'); or run with --strategy "
                "single"
            )

    # --- a round ----------------------------------------------------------------------------------

    def weigh(self, weight: Weight, loader: int | None, assigned: Assigned | None) -> Weight:
        """The weight of a backward's gradients, as far as this worker knows.

        Args:
            weight: Weight by samples.
            loader: Number of the loader that fed it; None: none since the last backward.
            assigned: This worker's part of its batch; None: all workers have the same.

        Raises:
            LossError: As of `settle`, for the last backward.
        """
        stated, self._said = self._said, None
        if loader is not None:
            stated = self._of_batches.get(loader) if stated is None else stated
            self._of_batches = {}
        if stated is None:
            self._settle()
        seen, self._seen = self._seen, LossReading()
        self._shape = _shape(seen)
        self._doubt, self._own, self._factors, self.lacks = "", [], {}, False
        self.value_factor = 1.0
        self._taken = weight.samples
        self._weighs = stated is None
        self._asks = self._everybody
        if stated is not None:
            over: float | None = stated
            self._form = _mark(_SAID)
        else:
            over = seen.over
            self._asks = self._everybody or (bool(seen.terms) and self._shape not in self._forms)
            self._form = self._shape
            if weight.samples and not seen.doubt:
                self._own, self._doubt = self._slots(seen, assigned)
                if self._asks:
                    self._form = _mark([slot.form for slot in self._own])
            self._doubt = self._doubt or (seen.doubt if weight.samples else "")
        if not weight.samples:
            self._weight = weight
        elif len(self._own) > 1:
            self._weight = weight  # by samples, as long as the terms are over as many for each
        else:
            self._weight = weight if over is None else replace(weight, over=over)
        return self._weight

    def _slots(self, seen: LossReading, assigned: Assigned | None) -> tuple[list[TermSlot], str]:
        slots, doubt = loss_terms.slots(
            seen.terms, self._taken, self._origin if self._asks else lambda node: ""
        )
        if (
            not doubt
            and assigned is not None
            and assigned.whole
            and assigned.whole != assigned.taken
        ):
            whole, taken = assigned.whole, assigned.taken
            for term in seen.terms:
                over, of_all = term.count, (whole, term.elements * whole / taken if taken else 0.0)
                if term.elements and not term.counted and over != term.elements and over in of_all:
                    return slots, f"it is a sum divided by {over:g}, the samples of all workers"
        return ([], doubt) if len(slots) > loss_terms.MOST else (slots, doubt)

    def numbers(self) -> list[float]:
        """The numbers that this worker sends at the head of the round."""
        counting = self._counts
        digits = [
            float(self._form >> 4 * place & 15) if counting else 0.0 for place in range(_DIGITS)
        ]
        needs = len(self._own) > 1 and any(slot.counted for slot in self._own)
        needs |= any(slot.steps or slot.exceeds for slot in self._own)
        taken = self._taken if counting else 0.0
        head = [float(counting), taken, float(counting and self._asks), float(needs), *digits]
        numbers = [*head, *(digit * digit for digit in digits)]
        for slot in self._own:
            numbers += slot.numbers()
        return numbers + [0.0] * (NUMBERS - len(numbers))

    @property
    def asks(self) -> bool:
        """Whether this worker needs the summed head before gradients arrive."""
        return self._asks

    def agree(self, sums: Sequence[float]) -> Weight:
        """The weight of this worker's gradients, from the summed head.

        Raises:
            LossError: Other workers do not wait for it.
        """
        if sums[_WAITS] != sums[_COUNTING]:
            if self._counts:
                self._fail_apart()
            return self._weight
        alike = self._is_alike(sums)
        summed = self._summed(sums) if alike else self._united()
        self._look(summed)
        own = [(slot, summed[slot.key]) for slot in self._own if slot.key in summed]
        unlike = len(summed) > 1 and not all(term.same_rate for term in summed.values())
        if sums[_NEEDS] or not alike or unlike:
            self._needed = True
            share = self._taken / sums[_TAKEN] if sums[_TAKEN] else 1.0
            if self._weighs and self._counts:
                self._weight = replace(self._weight, over=None)
                self._factors = {
                    node: term.factor(slot, share) for slot, term in own for node in slot.nodes
                }
                factors = [term.factor(slot, share) for slot, term in own]
                if len(summed) == len(own) and all(
                    math.isclose(factor, factors[0]) for factor in factors
                ):
                    self.value_factor = factors[0]
            self.lacks = any(not slot.local for slot, _ in own)
        self._everybody, self._quiet = True, self._quiet + 1
        self._forms.add(self._shape)
        if self._needed:
            self._forms.clear()
            normalisers.follow()
        elif self._quiet >= _QUIET:
            self._everybody = False
            normalisers.leave()
        return self._weight

    def check(self, sums: Sequence[float]) -> None:
        """Check, after a round in which this worker did not wait, that it did not have to.

        Raises:
            LossError: Another worker waited.
        """
        if sums[_WAITS] and self._counts:
            self._fail_apart()
        if sums[_WAITS]:
            if sums[_WAITS] == sums[_COUNTING]:
                self.agree(sums)
        elif self._is_alike(sums):
            self._look(self._summed(sums))
        elif self._weighs:
            self._doubt = self._doubt or "it has other terms in other workers"

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _counts(self) -> bool:
        """Whether something of this worker's part counts in the round, as far as is known."""
        return bool(self._taken) and (not self._weighs or bool(self._own))

    def _origin(self, node: Any) -> str:
        parameter = parameter_of(node)
        return "parameters" if parameter is None else self._name(parameter)

    def _scaled(self, node: Any) -> Callable[[Any], Any]:
        def scale(gradients: Any) -> Any:
            self._begins()
            factor = self._factors.get(node, 1.0)
            if factor == 1.0:
                return None
            return tuple(_scaled(gradient, factor) for gradient in gradients)

        return scale

    @staticmethod
    def _is_alike(sums: Sequence[float]) -> bool:
        digits, squares = sums[4 : 4 + _DIGITS], sums[4 + _DIGITS : _FIRST]
        return all(
            sums[_COUNTING] * square == digit * digit for digit, square in zip(digits, squares)
        )

    def _summed(self, sums: Sequence[float]) -> dict[tuple[str, int], Summed]:
        size = loss_terms.NUMBERS // loss_terms.MOST
        parts = [sums[_FIRST + n * size : _FIRST + (n + 1) * size] for n in range(len(self._own))]
        return {
            slot.key: Summed.read(part, sums[_COUNTING]) for slot, part in zip(self._own, parts)
        }

    def _united(self) -> dict[tuple[str, int], Summed]:
        given = self._barrier({"slots": loss_terms.as_message(self._own), "said": not self._weighs})
        if given is None:
            return {}
        if any(answer["said"] for answer in given.values()):
            self._doubt = (
                self._doubt or "some workers state its weight by report(weight=), and others do not"
            )
        summed, doubt = loss_terms.united(given)
        self._doubt = self._doubt or doubt
        if any(len(answer["slots"]) != len(summed) for answer in given.values()):
            self._note(
                "the loss of a batch has terms in some workers that it has not in others: those "
                "are taken to have nothing of their part that counts"
            )
        return summed

    def _look(self, summed: Mapping[tuple[str, int], Summed]) -> None:
        for slot in self._own if self._weighs else ():
            if slot.key in summed and not self._doubt:
                self._doubt = loss_terms.doubt(
                    slot, summed[slot.key], self._taken, is_selected, not self._asks
                )

    def _fail_apart(self) -> None:
        raise LossError(
            "some workers have other terms in the loss than others, for the first time after many "
            "steps. Give it the same terms in all workers from the first step on (multiply a term "
            "without labels by 0), or state the weight of each batch by hg.report(weight=...) "
            "before backward"
        )


def _shape(seen: LossReading) -> int:
    """A digest of the form of a loss."""
    return _mark([(term.kind, term.counted) for term in seen.terms])


def _mark(form: Any) -> int:
    return zlib.crc32(repr(form).encode()) & 0xFFFFFF


def _number(value: Any, where: str) -> float:
    """
    Raises:
        ValueError: It is no number that can be a weight.
    """
    try:
        weight = float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{where} gave a {type(value).__name__}; expected a number, or a tensor of one"
        ) from None
    if not math.isfinite(weight) or weight < 0:
        raise ValueError(
            f"{where} gave {weight:g}; expected a number of at least 0, as the tokens of the batch"
        )
    return weight


def _scaled(gradient: torch.Tensor | None, factor: float) -> torch.Tensor | None:
    if gradient is None:
        return None
    # Not multiplied by 0, because a division by a count of 0 gives NaN.
    return gradient * factor if factor else torch.zeros_like(gradient)
