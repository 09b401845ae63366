"""The jobs that wait for room, by what they ask for."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator
from heapq import merge
from itertools import chain, islice

from headgate.controller.free_resources import ResourceRequest
from headgate.controller.preemption import Key
from headgate.controller.queue_orders import Claim


class WaitingJobs:
    """Waiting jobs, each request with its jobs in the order in which they are served.

    Thousands of jobs may make the same request: whether it fits is then asked once.
    """

    def __init__(self) -> None:
        self._by_request: dict[ResourceRequest, list[tuple[Key, Claim]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_request)

    @property
    def requests(self) -> Collection[ResourceRequest]:
        """What any job asks for."""
        return self._by_request.keys()

    def in_order(self) -> Iterator[Claim]:
        """All jobs in the order in which they are served."""
        ranked_claims = sorted(chain.from_iterable(self._by_request.values()))
        return (claim for _, claim in ranked_claims)

    def first(self, blocked: Collection[ResourceRequest]) -> tuple[Key, Claim] | None:
        """The first job with a request that is not blocked, with its rank."""
        fronts = (
            ranked[0] for request, ranked in self._by_request.items() if request not in blocked
        )
        return min(fronts, default=None)

    def of_priority(self, key: Key, blocked: Collection[ResourceRequest], most: int) -> list[Claim]:
        """The first jobs (at most `most`) of the priority of a rank, with requests that are not
        blocked.
        """
        free = (ranked for request, ranked in self._by_request.items() if request not in blocked)
        equal = (claim for other, claim in merge(*free) if other[0] == key[0])
        return list(islice(equal, most))

    def add(self, key: Key, claim: Claim) -> None:
        """Add a job with its rank, which stays while it waits."""
        insort(self._by_request.setdefault(claim.request, []), (key, claim))

    def remove(self, claim: Claim) -> None:
        """Remove a job."""
        ranked = self._by_request[claim.request]
        del ranked[next(i for i, (_, other) in enumerate(ranked) if other is claim)]
        if not ranked:
            del self._by_request[claim.request]

    def take_out(self, script: str) -> list[tuple[Key, Claim]]:
        """Remove all jobs of a script. Returns them with their ranks."""
        removed: list[tuple[Key, Claim]] = []
        for request, ranked in list(self._by_request.items()):
            of_script = [(key, claim) for key, claim in ranked if claim.job.script == script]
            if not of_script:
                continue
            removed += of_script
            if len(of_script) == len(ranked):
                del self._by_request[request]
            else:
                self._by_request[request] = [
                    (key, claim) for key, claim in ranked if claim.job.script != script
                ]
        return removed
