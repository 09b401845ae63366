"""Which of several jobs that wait goes best beside those that run."""

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
"""Times that a job lets another start before it; then it is next."""
LOOKED_AT = 50
"""Jobs that are compared: the first of those that wait."""
_WORTH = 0.05
"""Of a rate: by so much more a job has to go better than an earlier one."""


class Company(NamedTuple):
    """The part of their rates that a job and those beside it keep, on average, with a band; 1 where
    nobody is there.
    """

    part: float
    low: float
    high: float
    beside: tuple[str, ...] = ()


class Pairing:
    """Compares jobs that wait by how well they go beside those that run.

    Args:
        pairs: What jobs cost each other, as it is known now.
        model: What pairs call a job.
        by_turns: Whether jobs compute on a GPU by turns; those beside them on it then cost them
            nothing more.
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
        """Whether any pair is known."""
        return bool(self._pairs())

    def choose(
        self, waiting: Sequence[Claim], running: Sequence[Claim], resources: FreeResources
    ) -> Claim:
        """Of those that wait, the first one, for which there is room, or one that goes better in
        its place. The earlier ones then have let it by.
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
            its = (
                self._company(claim.job, slots, running, resources) if {*place} & {*slots} else None
            )
            if its is not None and its.low > than.high + _WORTH and its.part > most.part:
                best, most = claim, its
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
        """How well a job would go in these places; None: that is not known of all those there."""
        pairs, model = self._pairs(), self._model(job)
        company: list[tuple[float, ...]] = []
        names: list[str] = []
        for slot in dict.fromkeys(slots):
            if slot.gpus and self._by_turns:
                continue
            for other in _there(running, slot):
                device, its = resources.device(slot), self._model(other)
                one, two = pairs.between(device, model, its), pairs.between(device, its, model)
                if one is None or two is None:
                    return None
                company += one, two
                names.append(other.spec.name)
        if not company:
            return Company(1.0, 1.0, 1.0)
        part, low, high = (fmean(values) for values in zip(*company, strict=True))
        return Company(part, low, high, tuple(names))


def _room(claim: Claim, resources: FreeResources) -> tuple[WorkerSlot, ...]:
    """Where a job that waits would have its room now; empty: it has none."""
    slots = resources.seize(claim.request) or ()
    resources.give(claim.request, slots)
    return slots


def _there(running: Iterable[Claim], slot: WorkerSlot) -> Iterator[JobRecord]:
    """The jobs on the same node and, of those on GPUs, on the same ones."""
    for claim in running:
        if any(
            each.node == slot.node and (not slot.gpus or {*slot.gpus} & {*each.gpus})
            for each in claim.slots
        ):
            yield claim.job
