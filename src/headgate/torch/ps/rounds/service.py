"""The server's side of synchronous rounds: takes pushes, sends sums, and settles open attempts
after a change of the view.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from headgate.torch.ps.rounds.aggregation import Contribution, Reply, Rounds
from headgate.torch.ps.transport import wire
from headgate.torch.ps.transport.server import Server, Service
from headgate.torch.ps.transport.shared_memory import Region
from headgate.torch.ps.transport.timing import RoundSpans
from headgate.torch.ps.transport.views import View
from headgate.torch.ps.transport.wire import Header, Message, MessageKind


@dataclass(frozen=True)
class _Request:
    """A worker's state when it saw a view.

    Args:
        round: The round that it is in, or comes to next.
        completed: The last round for which it has all sums.
        whole: Whether it still has those sums.
    """

    round: int
    completed: int
    whole: bool


class Synchronous(Service):
    """Sums dense gradients in rounds."""

    kinds = frozenset(
        {
            MessageKind.ASK,
            MessageKind.PUSH,
            MessageKind.PULL,
            MessageKind.SUPPLY,
            MessageKind.SHARE,
            MessageKind.PAUSE,
        }
    )

    def __init__(self, server: Server, spans: RoundSpans) -> None:
        """
        Args:
            server: The server.
            spans: Times its rounds.
        """
        self._server = server
        self._backups: int = server.plan["backup_workers"]
        self._rounds = Rounds()
        self._requests: dict[int, _Request] = {}
        self._regions: dict[int, Region] = {}
        self._settled: bool | None = None
        self._spans = spans

    def entered(self, view: View) -> None:
        self._rounds.enter(view.number, view.active, view.needed(self._backups))
        self._requests.clear()
        self._regions = {
            worker: region for worker, region in self._regions.items() if worker in view.workers
        }
        if self._settled is None:
            # A former life of this server fixed sums that some workers may have and others may not.
            self._settled = self._server.life == 1

    def received(self, worker: int, message: Message) -> None:
        if message.header.kind == MessageKind.PUSH:
            self._spans.bytes_in += message.header.size
            self._pushed(worker, message)
        elif message.header.kind == MessageKind.ASK:
            # otherwise the worker asks again once it sees this view
            if message.header.view == self._server.view.number:
                self._asked(worker, _Request(**message.json()))
        elif message.header.kind == MessageKind.PULL:
            self._pulled(worker, message)
        elif message.header.kind == MessageKind.SUPPLY:
            self._supplied(message)
        elif message.header.kind == MessageKind.PAUSE:
            self._rounds.pause(worker)
        else:
            self._share(worker, message)

    def close(self) -> None:
        if self._rounds.late:
            self._server.note(f"{self._rounds.late} chunks of gradients came too late to count")

    # --- pushes -----------------------------------------------------------------------------------

    def _pushed(self, worker: int, message: Message) -> None:
        header = message.header
        if self._rounds.gone(header.round):
            self._answer(worker, header.round)
            return
        given = self._contribution(worker, message)
        before = time.monotonic()
        replies = self._rounds.push(
            worker, header.round, header.view, header.chunk, header.chunks, given
        )
        added = time.monotonic()
        self._send(replies)
        self._spans.update += added - before
        self._spans.send += time.monotonic() - added
        if replies and replies[0].complete and not replies[0].late:
            self._spans.completed(header.step)

    def _contribution(self, worker: int, message: Message) -> Contribution:
        header = message.header
        place = header.offset if header.flags & wire.SHARED else None
        if header.flags & wire.EMPTY:
            values = None
        elif place is not None:
            values = self._regions[worker].pushed(place, header.size, header.dtype)
        else:
            values = message.tensor()
        of_all = bool(header.flags & wire.ALL)
        return Contribution(
            values, header.dtype, header.size, header.weight, message.at, place, of_all
        )

    def _send(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            slot = reply.slot
            header = Header(
                MessageKind.SUM,
                flags=(wire.LATE if reply.late else 0) | (wire.COMPLETE if reply.complete else 0),
                dtype=slot.dtype,
                view=reply.view,
                round=reply.round,
                chunk=reply.chunk,
                size=slot.size,
                weight=slot.weight,
                asked=slot.pushed.get(reply.worker, 0.0),
            )
            self._spans.bytes_out += slot.size
            region, place = self._regions.get(reply.worker), slot.places.get(reply.worker)
            if slot.total is None:
                self._server.send(reply.worker, header._replace(flags=header.flags | wire.EMPTY))
            elif region is not None and place is not None:
                region.summed(place, slot.size)[:] = wire.memory(slot.total)
                self._server.send(
                    reply.worker, header._replace(flags=header.flags | wire.SHARED, offset=place)
                )
            else:
                self._server.send(reply.worker, header, wire.memory(slot.total))

    def _share(self, worker: int, message: Message) -> None:
        content = message.json()
        try:
            region = Region.open(content["pid"], content["descriptor"], content["size"])
        except (OSError, ValueError):
            return  # the worker is not told to use it, and goes on through the socket
        self._regions[worker] = region
        self._server.send_json(
            worker, Header(MessageKind.MAPPED), {"descriptor": content["descriptor"]}
        )

    # --- after a change of the view ---------------------------------------------------------------

    def _asked(self, worker: int, asked: _Request) -> None:
        self._requests[worker] = asked
        self._rounds.tell(worker, asked.completed)
        if not self._settled:
            self._settle()
        else:
            self._answer(worker, asked.round)

    def _settle(self) -> None:
        """Settle the last round, once all workers have reported their last completed one. If a
        worker lacks its sums, have them handed back.
        """
        if not self._everybody_asked():
            return
        requests = self._requests.values()
        last = max((asked.completed for asked in requests), default=-1)
        behind = any(asked.completed < last for asked in requests)
        if behind and not any(key.completed == last and key.whole for key in requests):
            self._rounds.forget(last)
        elif behind and not self._rounds.complete(last):
            donor = min(
                w for w, asked in self._requests.items() if asked.completed == last and asked.whole
            )
            self._server.send(
                donor, Header(MessageKind.WANT, view=self._server.view.number, round=last)
            )
            return
        self._rounds.forget(last - 1)
        self._settled = True
        for worker, asked in self._requests.items():
            self._answer(worker, asked.round)

    def _supplied(self, message: Message) -> None:
        header = message.header
        given = self._contribution(header.sender, message)
        if not self._settled and self._rounds.supply(
            header.round, header.view, header.chunk, header.chunks, given
        ):
            self._settle()

    def _answer(self, worker: int, number: int) -> None:
        content = {"views": self._rounds.complete(number), "gone": self._rounds.gone(number)}
        self._server.send_json(
            worker, Header(MessageKind.ANSWER, view=self._server.view.number, round=number), content
        )

    def _everybody_asked(self) -> bool:
        return self._server.view.active <= self._requests.keys()

    def _pulled(self, worker: int, message: Message) -> None:
        header = message.header
        replies, needed, waited = self._rounds.pull(
            worker, header.round, header.view, message.json()["chunks"]
        )
        self._send(replies)
        content = {"needed": needed, "waited": sorted(waited)}
        self._server.send_json(
            worker, Header(MessageKind.PENDING, view=header.view, round=header.round), content
        )
