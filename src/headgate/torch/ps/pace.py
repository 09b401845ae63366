"""Server 0 of a plan in which workers do not wait for each other: how far they may run ahead, and who trains on
what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.torch.ps.calls import Clerk, Question
from headgate.torch.ps.clocks import Clocks
from headgate.torch.ps.leases import LATER, OVER, Leases
from headgate.torch.ps.views import View


class Pace(Clerk):
    """Keeps the clocks and the leases.

    After a restart it waits until every worker that counts has told what it did and has: only then are batches leased
    again.

    Args:
        bound: Most steps that a worker may be ahead; None: no bound.
        saved: What `state` gave to a former life of the server.
        again: Whether the server was started again.
        tell: Tells the user something.
    """

    operations = frozenset(
        {"pace.enter", "pace.begin", "pace.done", "pace.lease", "pace.ends", "pace.back", "pace.freeze", "pace.read"}
    )

    def __init__(self, bound: int | None, saved: Mapping[str, Any], again: bool, tell: Callable[[str], None]) -> None:
        self._clocks = Clocks(bound)
        self._clocks.largest = saved.get("largest", 0)
        self._leases = {int(loader): Leases.restored(state) for loader, state in saved.get("leases", {}).items()}
        self._tell = tell
        self._unheard = again
        self._active: frozenset[int] = frozenset()
        self._entered: set[int] = set()
        self._steps: dict[str, Question] = {}
        self._asked: dict[tuple[int, str], Question] = {}
        self._freezing: dict[str, Question] = {}

    def asked(self, operation: str, question: Question) -> None:
        worker = str(question.worker)
        content = question.content
        if operation == "pace.enter":
            self._enter(worker, question)
        elif operation == "pace.begin":
            self._clocks.ask(worker)
            self._steps[worker] = question
        elif operation == "pace.done":
            self._clocks.stepped(worker)
            for loader, epoch, numbers in content["leases"]:
                self._of(loader).done(worker, epoch, numbers)
            question.answer()
        elif operation == "pace.lease":
            leases = self._of(content["loader"])
            leases.begin(content["epoch"], content["below"], ())
            leases.ask(worker, content["epoch"])
            self._asked[content["loader"], worker] = question
        elif operation == "pace.ends":
            self._of(content["loader"]).ends(content["epoch"], content["total"])
            question.answer()
        elif operation == "pace.back":
            self._of(content["loader"]).back(worker, content["epoch"], content["numbers"])
            question.answer()
        elif operation == "pace.freeze":
            self._clocks.freeze(worker)
            self._freezing[worker] = question
        else:
            question.answer(largest=self._clocks.largest, clocks=self._clocks.read())
        self._settle()

    def entered(self, view: View) -> None:
        for worker in self._active - view.active:
            self._gone(worker)
        self._active = view.active
        self._settle()

    def state(self) -> Mapping[str, Any]:
        return {
            "largest": self._clocks.largest,
            "leases": {str(loader): leases.state() for loader, leases in self._leases.items()},
        }

    def _of(self, loader: int) -> Leases:
        return self._leases.setdefault(loader, Leases())

    def _enter(self, worker: str, question: Question) -> None:
        content = question.content
        self._entered.add(question.worker)
        self._clocks.enter(worker, content["clock"])
        for loader, epoch, done, held in content["told"]:
            self._of(loader).retell(worker, epoch, done, held)
        for loader, epoch in content["over"]:
            self._of(loader).over(epoch)
        question.answer(clock=self._clocks.read()[worker])

    def _gone(self, worker: int) -> None:
        name = str(worker)
        self._entered.discard(worker)
        self._clocks.gone(name)
        self._steps.pop(name, None)
        for loader, leases in self._leases.items():
            self._asked.pop((loader, name), None)
            for numbers in leases.gone(name).values():
                listed = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
                self._tell(f"worker-{worker} is gone: others train on batches {listed} that it had, once each")
        self._freezing.pop(name, None)

    def _settle(self) -> None:
        """Answer whoever can be answered."""
        if self._unheard and not self._active <= self._entered:
            return
        self._unheard = False
        for loader, leases in self._leases.items():
            for worker, number in leases.answers():
                asked = self._asked.pop((loader, worker), None)
                fresh = number not in (OVER, LATER) and self._clocks.resume(worker)
                if number == OVER:  # until it goes on with another epoch, nobody waits for it
                    self._clocks.rest(worker)
                if asked is not None:
                    asked.answer(number=number, refresh=fresh)
        for _, worker in self._asked:
            self._clocks.rest(worker)
        for worker in self._clocks.allowed():
            waiting = self._steps.pop(worker, None)
            if waiting is not None:
                waiting.answer(largest=self._clocks.largest)
        for worker in [worker for worker in self._freezing if self._clocks.still(worker)]:
            found = [(loader, *place) for loader, leases in self._leases.items() for place in leases.positions()]
            self._freezing.pop(worker).answer(positions=found)
