"""Weights of the terms of a loss in several workers, when the terms are means over different
things.

One process divides each term's sum over the whole batch by one count. A worker divides its part by
its own count. So each term's gradient is multiplied by the ratio of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.torch.loss_mean import LossTerm
from headgate.torch.normalisers import Steps, applied

MOST = 8
"""Most terms that are sent with an exchange."""
_FIELDS = 12
NUMBERS = MOST * _FIELDS
_ALIKE = 1e-9
_FEW = 4
_LITTLE = 1e-2


@dataclass(frozen=True)
class TermSlot:
    """A term of this worker's loss.

    Args:
        name: Name of its operation and parameters.
        number: Number among this worker's terms of that name.
        nodes: Its nodes in the graph.
        count: The count, which is summed over the workers.
        local: The divisor of the term in this worker.
        steps: The operations applied to the sum of counts.
        times: Its other factor.
        counted: Whether it may leave samples out.
        known: Whether the count is known to be of this worker's part.
        divided: Whether it is a sum that the script divides.
        whole: Whether it includes all numbers, though it need not.
        rate: Its count per sample.
        weights: A digest of its class weights.
    """

    name: str
    number: int
    nodes: tuple[Any, ...]
    count: float
    local: float
    steps: Steps
    times: float
    counted: bool
    known: bool
    divided: bool
    whole: bool
    rate: float
    weights: float = 0.0

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.number

    @property
    def exceeds(self) -> float:
        return self.local - applied(self.count, self.steps)

    @property
    def is_unclear(self) -> bool:
        """Whether the divisor depends on the count in an unknown way."""
        return self.exceeds < 0 or self.exceeds > 1 or bool(self.exceeds > _LITTLE and self.count)

    @property
    def form(self) -> list[Any]:
        return [self.name, self.number, [[name, round(number, 12)] for name, number in self.steps]]

    def numbers(self) -> list[float]:
        """Numbers to sum over the workers. Sums of squares tell whether all workers have the
        same.
        """
        pairs = (self.count, self.rate, self.times, self.exceeds, self.weights)
        squares = [value for number in pairs for value in (number, number * number)]
        return [*squares, float(self.is_unclear), float(self.whole and self.rate > 1)]


def slots(
    terms: Sequence[LossTerm], taken: float, of: Callable[[Any], str]
) -> tuple[list[TermSlot], str]:
    """The terms of a loss, with those of a list combined.

    Args:
        terms: The terms as read from the graph.
        taken: Samples of this worker's part.
        of: Names the parameter that a node of the graph comes from.

    Returns:
        The terms, and a reason to doubt them; empty: no reason is known.
    """
    alike: dict[str, list[LossTerm]] = {}
    for term in terms:
        alike.setdefault(f"{term.kind} of {of(term.node)}", []).append(term)
    made: list[TermSlot] = []
    for name, all_of_name in alike.items():
        members = all_of_name
        for divisor in {term.listed: None for term in all_of_name}:
            listed = [term for term in all_of_name if term.listed == divisor]
            if _are_per_sample(listed, taken) and divisor % len(listed) == 0:
                made.append(
                    _combined_term(
                        f"{name}, one by one", listed, divisor, len(listed) / divisor, taken
                    )
                )
                members = [term for term in members if term.listed != divisor]
        if _are_per_sample(members, taken) and all(
            term.count == term.listed == 1.0 for term in members
        ):
            return (
                [],
                "it is a sum over the samples of a batch, which are gone through one after another",
            )
        if (
            len(members) > _FEW
            and len({(term.by, term.times, term.listed) for term in members}) == 1
        ):
            made.append(_combined_term(name, members, members[0].count, len(members), taken))
        else:
            made += [_slot(name, n, term, taken) for n, term in enumerate(members)]
    return made, f"it has {len(made)} terms" if len(made) > MOST else ""


def _are_per_sample(members: Sequence[LossTerm], taken: float) -> bool:
    """Whether these are the terms of a batch's samples, one after another."""
    return len(members) > 1 and len(members) == taken and not any(term.elements for term in members)


def _slot(name: str, number: int, term: LossTerm, taken: float) -> TermSlot:
    by, divisor = term.by, term.listed  # a constant, as it is of no list
    rate = by.base / divisor / taken if taken else 0.0
    of = (term.times / divisor, term.counted, by.known, bool(term.elements), term.whole)
    weights = term.weights
    return TermSlot(
        name,
        number,
        (term.node,),
        by.base / divisor,
        by.local / divisor,
        by.steps,
        *of,
        rate,
        weights,
    )


def _combined_term(
    name: str, terms: Sequence[LossTerm], count: float, times: float, taken: float
) -> TermSlot:
    """Combine the terms of a list into one, with the total `count` and the additional factor
    `times`.
    """
    first = terms[0]
    nodes = tuple(term.node for term in terms)
    of = (first.times * times, first.counted and count == first.count, first.by.known, False, False)
    rate = count / taken if taken else 0.0
    return TermSlot(
        name,
        0,
        nodes,
        count,
        count,
        (),
        *of,
        rate,
        sum(term.weights for term in terms) / len(terms),
    )


@dataclass(frozen=True)
class Summed:
    """One term, summed over all workers that count.

    Args:
        workers: Number of workers that have it.
        count: The sum of their counts.
        same: Whether all have the same count.
        same_rate: Whether all have the same count per sample.
        same_times: Whether the factor is the same in all.
        same_exceeds: Whether the divisor exceeds the count by the same in all.
        same_weights: Whether its class weights are the same in all.
        unclear: Whether it is unclear in any.
        whole: Whether it includes all numbers in any.
    """

    workers: float
    count: float
    same: bool
    same_rate: bool
    same_times: bool
    same_exceeds: bool
    same_weights: bool
    unclear: bool
    whole: bool

    @classmethod
    def read(cls, numbers: Sequence[float], workers: float) -> Summed:
        pairs = [(numbers[2 * n], numbers[2 * n + 1]) for n in range(5)]
        count, rate, times, exceeds, weights = (
            _same(workers, total, squares) for total, squares in pairs
        )
        of = (count, rate, times, exceeds, weights, numbers[10] > 0, numbers[11] == workers)
        return cls(workers, pairs[0][0], *of)

    def divisor(self, slot: TermSlot) -> float:
        """The divisor of the term in one process."""
        if not self.count:
            return slot.local
        return applied(self.count, slot.steps) + (slot.exceeds if self.same_exceeds else 0.0)

    def factor(self, slot: TermSlot, share: float) -> float:
        """Factor of the term's gradient, if this worker's gradients count by its share of the
        samples.
        """
        if not slot.local:
            return 0.0
        divisor = self.divisor(slot)
        factor = slot.local / divisor / share if divisor and share else 1.0
        return 1.0 if math.isclose(factor, 1.0, rel_tol=1e-14) else factor


def _same(workers: float, total: float, squares: float) -> bool:
    # An infinite value in one worker, as when a scaler's factor is too large, skips the step in
    # all.
    return (
        not math.isfinite(squares)
        or workers * squares - total * total <= _ALIKE * workers * squares
    )


def doubt(
    slot: TermSlot, summed: Summed, taken: float, selected: Callable[[Any], bool], known: bool
) -> str:
    """Why a term's gradient is not that of one process; empty: no reason is known.

    Args:
        slot: The term in this worker.
        summed: The term over all workers.
        taken: Samples of this worker's part.
        selected: Whether a node is a selection of numbers.
        known: Whether the loss had the same form in steps that were checked closely.
    """
    name = slot.name
    if not summed.same_times:
        return (
            f"its term {name} is multiplied by a number that is not the same in all workers "
            f"({slot.times:g} here)"
        )
    if not summed.same_weights:
        return (
            f"its term {name} has class weights that differ between workers, for example because "
            "each counts the classes in its own part of a batch"
        )
    if summed.unclear:
        return (
            f"its term {name} is divided by {slot.local:g}, which is made of the count "
            f"{slot.count:g} in a way that is not seen"
        )
    several = summed.workers > 1
    unknown = slot.divided and not slot.known and not known
    if unknown and slot.count == 1.0 and taken > 1:
        return f"its term {name} is divided by 1, which may stand for a count of nothing"
    if several and unknown and not (summed.same or summed.same_rate) and slot.count % 1:
        return (
            f"its term {name} is a sum divided by {slot.count:g}, which differs between workers "
            "and is not known to be a count of this worker's samples"
        )
    if several and unknown and summed.same and slot.count % taken:
        return (
            f"its term {name} is a sum divided by {slot.count:g}, which is the same in all workers"
        )
    counts_all = (summed.whole and taken > 1) or not slot.counted
    unlike = several and not slot.divided and not summed.same_rate and not slot.count % taken
    if unlike and counts_all and not any(map(selected, slot.nodes)):
        return (
            f"its term {name} is a mean over {slot.rate:g} numbers for each sample here, and not "
            "in other workers, for example because each pads its samples to its own longest"
        )
    return ""


def united(given: Mapping[int, Mapping[str, Any]]) -> tuple[dict[tuple[str, int], Summed], str]:
    """Sum the terms if not all workers have the same ones.

    Args:
        given: By worker, its slots in the form of `as_message`.

    Returns:
        The summed terms by key; and a reason why they are unknown, or empty.
    """
    numbers: dict[tuple[str, int], list[float]] = {}
    workers: dict[tuple[str, int], int] = {}
    members: dict[str, set[int]] = {}
    forms: dict[tuple[str, int], Any] = {}
    for answer in given.values():
        counts: dict[str, int] = {}
        for name, number, steps, values in answer["slots"]:
            key = name, number
            counts[name] = counts.get(name, 0) + 1
            if forms.setdefault(key, steps) != steps:
                return {}, f"its term {name} is divided in other ways in other workers"
            sums = numbers.setdefault(key, [0.0] * _FIELDS)
            numbers[key] = [a + b for a, b in zip(sums, values)]
            workers[key] = workers.get(key, 0) + 1
        for name, count in counts.items():
            members.setdefault(name, set()).add(count)
    for name, sizes in members.items():
        if len(sizes) > 1:
            return {}, f"it has other numbers of terms {name} in other workers"
    return {key: Summed.read(sums, workers[key]) for key, sums in numbers.items()}, ""


def as_message(own: Sequence[TermSlot]) -> list[Any]:
    """Slots in the form that `united` takes."""
    return [[*slot.form, slot.numbers()] for slot in own]
