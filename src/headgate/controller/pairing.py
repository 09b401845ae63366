"""Choose among waiting jobs the one that runs best beside the running ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from headgate.controller.free_resources import FreeResources
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.queue_orders import Claim
from headgate.controller.records import JobRecord
from headgate.planning.interference import Interference

MOST_PASSED = 3
"""How often a job may be overtaken; then it is next."""
LOOKED_AT = 50
"""How many of the first waiting jobs are compared."""
_WORTH = 0.05
"""Least advantage, as a fraction of the rate, for which a job overtakes an earlier one."""


class Company(NamedTuple):
    """Fraction of their rates that a job and its neighbours keep, on average, with a band; 1
    without neighbours.
    """

    part: float
    low: float
    high: float
    beside: tuple[str, ...] = ()


class Pairing:
    """Compares waiting jobs by their slowdown beside the running ones.

    Args:
        pairs: Known slowdowns of jobs by each other.
        model: The name of a job's model in `pairs`.
        by_turns: Whether jobs take turns on a GPU; then neighbours on it add no further cost.
    """

    def __init__(
        self,
        pairs: Callable[[], Interference],
        model: Callable[[JobRecord], str],
        by_turns: bool = False,
    ) -> None:
        self._pairs, self._model, self._by_turns = pairs, model, by_turns

    @property
    def knows(self) -> bool:
        """Whether the slowdown of any pair is known."""
        return bool(self._pairs())

    def choose(
        self, waiting: Sequence[Claim], running: Sequence[Claim], resources: FreeResources
    ) -> Claim:
        """The first waiting job, for which there is room, or a later one that runs better in its
        place. Earlier jobs then count as overtaken.
        """
        first = waiting[0]
        place = _room(first, resources)
        than = (
            self._company(first.job, place, running, resources)
            if first.passed < MOST_PASSED
            else None
        )
        if than is None:
            return first
        best, most = first, than
        for claim in waiting[1:]:
            slots = _room(claim, resources)
            own_company = (
                self._company(claim.job, slots, running, resources) if {*place} & {*slots} else None
            )
            if (
                own_company is not None
                and own_company.low > than.high + _WORTH
                and own_company.part > most.part
            ):
                best, most = claim, own_company
            if claim.passed >= MOST_PASSED:
                break
        if best is not first:
            for claim in waiting[: waiting.index(best)]:
                claim.passed += 1
            best.job.overtook = {
                "overtook": first.job.spec.name,
                "beside": most.beside,
                "keeps": most.part,
                "would_keep": than.part,
            }
        return best

    def _company(
        self,
        job: JobRecord,
        slots: Sequence[WorkerSlot],
        running: Sequence[Claim],
        resources: FreeResources,
    ) -> Company | None:
        """How well a job would run in these places; None: unknown for a neighbour there."""
        pairs, model = self._pairs(), self._model(job)
        company: list[tuple[float, ...]] = []
        names: list[str] = []
        for slot in dict.fromkeys(slots):
            if slot.gpus and self._by_turns:
                continue
            for other in _there(running, slot):
                device, other_model = resources.device(slot), self._model(other)
                kept, other_kept = (
                    pairs.between(device, model, other_model),
                    pairs.between(device, other_model, model),
                )
                if kept is None or other_kept is None:
                    return None
                company += kept, other_kept
                names.append(other.spec.name)
        if not company:
            return Company(1.0, 1.0, 1.0)
        part, low, high = (fmean(values) for values in zip(*company, strict=True))
        return Company(part, low, high, tuple(names))


def _room(claim: Claim, resources: FreeResources) -> tuple[WorkerSlot, ...]:
    """Where a waiting job would have room now; empty: nowhere."""
    slots = resources.seize(claim.request)
    if slots is None:
        return ()
    resources.give(claim.request, slots)
    return slots


def _there(running: Iterable[Claim], slot: WorkerSlot) -> Iterator[JobRecord]:
    """Jobs on the same node; for jobs on GPUs, those on the same GPUs."""
    for claim in running:
        if any(
            other_slot.node == slot.node and (not slot.gpus or {*slot.gpus} & {*other_slot.gpus})
            for other_slot in claim.slots
        ):
            yield claim.job
