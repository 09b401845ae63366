"""The decisions of server 0 in an asynchronous plan: how far workers may run ahead, and which
worker trains on which batch. It also passes on values of the lowest worker to all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.torch.ps.asynchronous.leases import LATER, OVER, Leases
from headgate.torch.ps.asynchronous.staleness import Staleness
from headgate.torch.ps.transport.requests import Handler, Request
from headgate.torch.ps.transport.views import View


class Coordinator(Handler):
    """Keeps the steps of all workers, and the leases.

    After a restart it waits until every worker that counts has told what it did and holds. Only
    then are batches leased again.

    Args:
        bound: Most steps that a worker may be ahead; None: no bound.
        saved: The result of `state` in a former life of the server.
        again: Whether the server was restarted.
        tell: Tells the user something.
    """

    operations = frozenset(
        {
            "coordinator.enter",
            "coordinator.begin",
            "coordinator.done",
            "coordinator.lease",
            "coordinator.ends",
            "coordinator.back",
            "coordinator.freeze",
            "coordinator.read",
        }
    )

    def __init__(
        self, bound: int | None, saved: Mapping[str, Any], again: bool, tell: Callable[[str], None]
    ) -> None:
        self._staleness = Staleness(bound)
        self._staleness.largest = saved.get("largest", 0)
        self._leases = {
            int(loader): Leases.restored(state) for loader, state in saved.get("leases", {}).items()
        }
        self._tell = tell
        self._unheard = again
        self._active: frozenset[int] = frozenset()
        self._entered: set[int] = set()
        self._steps: dict[str, Request] = {}
        self._asked: dict[tuple[int, str], Request] = {}
        self._freezing: dict[str, Request] = {}

    def handle(self, operation: str, request: Request) -> None:
        worker = str(request.worker)
        content = request.content
        if operation == "coordinator.enter":
            self._enter(worker, request)
        elif operation == "coordinator.begin":
            self._staleness.ask(worker)
            self._steps[worker] = request
        elif operation == "coordinator.done":
            self._staleness.stepped(worker)
            for loader, epoch, numbers in content["leases"]:
                self._of(loader).done(worker, epoch, numbers)
            request.answer()
        elif operation == "coordinator.lease":
            leases = self._of(content["loader"])
            leases.begin(content["epoch"], content["below"], ())
            leases.ask(worker, content["epoch"])
            self._asked[content["loader"], worker] = request
        elif operation == "coordinator.ends":
            self._of(content["loader"]).ends(content["epoch"], content["total"])
            request.answer()
        elif operation == "coordinator.back":
            self._of(content["loader"]).back(worker, content["epoch"], content["numbers"])
            request.answer()
        elif operation == "coordinator.freeze":
            self._staleness.freeze(worker)
            self._freezing[worker] = request
        else:
            request.answer(largest=self._staleness.largest, clocks=self._staleness.read())
        self._settle()

    def entered(self, view: View) -> None:
        for worker in self._active - view.active:
            self._gone(worker)
        self._active = view.active
        self._settle()

    def state(self) -> Mapping[str, Any]:
        return {
            "largest": self._staleness.largest,
            "leases": {str(loader): leases.state() for loader, leases in self._leases.items()},
        }

    def _of(self, loader: int) -> Leases:
        return self._leases.setdefault(loader, Leases())

    def _enter(self, worker: str, request: Request) -> None:
        content = request.content
        self._entered.add(request.worker)
        self._staleness.enter(worker, content["clock"])
        for loader, epoch, done, held in content["told"]:
            self._of(loader).retell(worker, epoch, done, held)
        for loader, epoch in content["over"]:
            self._of(loader).over(epoch)
        request.answer(clock=self._staleness.read()[worker])

    def _gone(self, worker: int) -> None:
        name = str(worker)
        self._entered.discard(worker)
        self._staleness.gone(name)
        self._steps.pop(name, None)
        for loader, leases in self._leases.items():
            self._asked.pop((loader, name), None)
            for numbers in leases.gone(name).values():
                listed = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
                self._tell(
                    f"worker-{worker} is gone: others train on batches {listed} that it "
                    "had, once each"
                )
        self._freezing.pop(name, None)

    def _settle(self) -> None:
        """Answer all requests that can be answered."""
        if self._unheard and not self._active <= self._entered:
            return
        self._unheard = False
        for loader, leases in self._leases.items():
            for worker, number in leases.answers():
                asked = self._asked.pop((loader, worker), None)
                fresh = number not in (OVER, LATER) and self._staleness.resume(worker)
                if number == OVER:  # until it goes on with another epoch, nobody waits for it
                    self._staleness.rest(worker)
                if asked is not None:
                    asked.answer(number=number, refresh=fresh)
        for _, worker in self._asked:
            self._staleness.rest(worker)
        for worker in self._staleness.allowed():
            waiting = self._steps.pop(worker, None)
            if waiting is not None:
                waiting.answer(largest=self._staleness.largest)
        for worker in [worker for worker in self._freezing if self._staleness.still(worker)]:
            waiting_for = [
                (loader, *place)
                for loader, leases in self._leases.items()
                for place in leases.positions()
            ]
            self._freezing.pop(worker).answer(positions=waiting_for)


class Broadcasts(Handler):
    """Values, numbered from 0 in an order that is the same for all. They are kept until all workers
    that count have them.

    Only then is the worker that gives a value answered. So it gives the value again to a restarted
    server. The other workers tell such a server how many values they have had.
    """

    operations = frozenset({"broadcast.give", "broadcast.take", "broadcast.had"})

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._givers: dict[int, list[Request]] = {}
        self._waiting: dict[int, list[Request]] = {}
        self._had: dict[int, int] = {}
        self._active: frozenset[int] = frozenset()

    def handle(self, operation: str, request: Request) -> None:
        if operation == "broadcast.had":
            self._had[request.worker] = request.content["count"]
            request.answer()
        elif operation == "broadcast.give":
            number = request.content["number"]
            self._values.setdefault(number, request.content["value"])
            self._givers.setdefault(number, []).append(request)
            self._had[request.worker] = number + 1
            for waiting in self._waiting.pop(number, []):
                self._assignment(number, waiting)
        elif (number := request.content["number"]) in self._values:
            self._assignment(number, request)
        else:
            self._waiting.setdefault(number, []).append(request)
        self._drop()

    def entered(self, view: View) -> None:
        self._active = view.active
        self._drop()

    def _assignment(self, number: int, request: Request) -> None:
        request.answer(value=self._values[number])
        self._had[request.worker] = number + 1

    def _drop(self) -> None:
        everybody = min((self._had.get(worker, 0) for worker in self._active), default=0)
        for number in [number for number in self._values if number < everybody]:
            del self._values[number]
            for giver in self._givers.pop(number):
                giver.answer()
