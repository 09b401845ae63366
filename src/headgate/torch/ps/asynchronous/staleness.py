"""Bounded staleness: how far workers may run ahead of each other.

Server 0 keeps the clocks of stale synchronous parallel training (Ho et al.: More effective
distributed ML via a stale synchronous parallel parameter server, NIPS 2013). No clock of seconds
and no sockets.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Worker:
    clock: int
    asking: bool = False
    stepping: bool = False
    idle: bool = False


class Staleness:
    """Counts the steps of each worker. A step that would be more than `bound` ahead of the slowest
    is held.

    A worker asks, may step, and says when it has. The others do not wait for an idle worker, which
    waits for data that others may give back, or for a lost one. A worker that joins, or resumes
    after it was idle, gets the clock of the slowest other worker, and has to take new values.

    Args:
        bound: Most steps ahead, at least 1; None: no bound.

    Attributes:
        largest: Most steps that a worker was ahead of the slowest when a step of it was let
            through.
    """

    def __init__(self, bound: int | None) -> None:
        self._bound = bound
        self._workers: dict[str, _Worker] = {}
        self._frozen: set[str] = set()
        self.largest = 0

    def enter(self, worker: str, clock: int | None = None) -> None:
        """Add a worker. `clock`: the clock that it tells a restarted server."""
        if clock is None:
            clock = self._slowest(leaving_out=worker) or 0
        self._workers[worker] = _Worker(clock)

    def ask(self, worker: str) -> None:
        """Note that a worker has gradients and wants to step. `allowed` names it once it may."""
        state = self._known(worker)
        state.asking, state.idle = True, False
        self._frozen.discard(worker)

    def allowed(self) -> list[str]:
        """Workers that asked and may step now. Each is named once."""
        names = []
        # The slowest first: after its step, those ahead of it may step as well.
        for name, worker in sorted(self._workers.items(), key=lambda item: item[1].clock):
            if not worker.asking or self._frozen - {name}:
                continue
            slowest = self._slowest(leaving_out=name)
            ahead = 0 if slowest is None else max(0, worker.clock + 1 - slowest)
            if self._bound is not None and ahead > self._bound:
                continue
            self.largest = max(self.largest, ahead)
            worker.asking, worker.stepping = False, True
            names.append(name)
        return names

    def stepped(self, worker: str) -> None:
        """Note that all servers have applied a worker's step."""
        state = self._known(worker)
        if state.stepping:
            state.stepping = False
            state.clock += 1

    def rest(self, worker: str) -> None:
        """Note that a worker has nothing to train on."""
        self._known(worker).idle = True

    def resume(self, worker: str) -> bool:
        """Note that a worker has data again. Returns whether it has to take new values, because
        others have stepped meanwhile.
        """
        state = self._known(worker)
        state.idle = False
        slowest = self._slowest(leaving_out=worker)
        if slowest is None or slowest <= state.clock:
            return False
        state.clock = slowest
        return True

    def gone(self, worker: str) -> None:
        """Remove a worker that has ended."""
        self._workers.pop(worker, None)
        self._frozen.discard(worker)

    def freeze(self, worker: str) -> None:
        """Hold all workers but `worker` until it asks for its own next step. It is about to save a
        state that all agree on.
        """
        self._frozen.add(worker)

    def still(self, worker: str) -> bool:
        """Whether no step of another worker is being applied."""
        return not any(w.stepping for name, w in self._workers.items() if name != worker)

    def read(self) -> dict[str, int]:
        """The clock of each worker."""
        return {name: worker.clock for name, worker in self._workers.items()}

    def _known(self, worker: str) -> _Worker:
        if worker not in self._workers:
            self.enter(worker)
        return self._workers[worker]

    def _slowest(self, leaving_out: str) -> int | None:
        counted = [
            w.clock for name, w in self._workers.items() if name != leaving_out and not w.idle
        ]
        return min(counted, default=None)
