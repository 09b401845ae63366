"""A worker's side of synchronous rounds: pushes chunks as buffers fill, and takes sums. It agrees
with the other workers when tasks come and go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from headgate.torch.ps.rounds.exchange import Exchange, Round
from headgate.torch.ps.rounds.pushing import Pusher
from headgate.torch.ps.transport import wire
from headgate.torch.ps.transport.links import Links
from headgate.torch.ps.transport.loop import Loop
from headgate.torch.ps.transport.views import Member, View
from headgate.torch.ps.transport.wire import Buffer, Header, Message, MessageKind

_ASK_AGAIN_SECONDS = 5.0
_NOTE_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_VIEWS_KEPT = 64


class _Offers:
    """Offers of shared memory for the current exchange. Use only in the loop's thread.

    Args:
        links: Links to the servers.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._exchange: Exchange | None = None
        self._lives: dict[int, int] = {}
        links.handlers[MessageKind.MAPPED] = self._mapped
        links.watchers.append(self._entered)

    def make(self, exchange: Exchange) -> None:
        """Share the memory of this exchange from now on, and of no other."""
        self._exchange = exchange
        self._lives.clear()
        self._offer()

    def _entered(self, former: View) -> None:
        self._offer()

    def _offer(self) -> None:
        """Offer memory to each life of a server on this node once. Withdraw it from a server that
        is gone.
        """
        exchange = self._exchange
        if exchange is None:
            return
        for server in range(self._links.servers):
            member = self._links.member(server)
            if member is None or member.node != self._links.node:
                self._lives.pop(server, None)
                exchange.withdraw(server)
            elif (
                self._lives.get(server) != member.life
                and (offered := exchange.offer(server)) is not None
            ):
                self._lives[server] = member.life
                self._links.send_json(
                    server, Header(MessageKind.SHARE, view=self._links.view.number), offered
                )

    def _mapped(self, server: int, message: Message) -> None:
        if self._exchange is not None:
            self._exchange.accepted(server, message.json()["descriptor"])


class SumsExpired(Exception):
    """The servers no longer keep the sums that this worker needs next."""


class HubLost(Exception):
    """No message arrives, and the hub, which would replace lost tasks, is gone itself."""


class RoundClient:
    """Takes part in rounds, one at a time. Call methods with an underscore only in the loop's
    thread.

    Args:
        links: Links to the servers.
        loop: Drives the links.
        first: Number of this worker's first round. If it joins others, that is the round after the
            state that it was given.
        note: Tells the user something.
        hub_gone: Whether the hub is gone.

    Attributes:
        error: The error that ended the loop's thread, or stops this worker.
    """

    def __init__(
        self,
        links: Links,
        loop: Loop,
        first: int,
        note: Callable[[str], None],
        hub_gone: Callable[[], bool],
    ) -> None:
        self._links = links
        self._loop = loop
        self._note = note
        self._hub_gone = hub_gone
        self._next = first
        self._under = -1
        self._round: Round | None = None
        self._last: Round | None = None
        self._answers: dict[int, list[int]] = {}
        self._views: dict[int, View] = {}
        self._offers = _Offers(links)
        self._pusher = Pusher(links, loop)
        self._lost: set[str] = set()
        self.error: BaseException | None = None
        links.handlers.update(
            {
                MessageKind.ANSWER: self._answered,
                MessageKind.SUM: self._summed,
                MessageKind.PENDING: self._pending,
                MessageKind.WANT: self._wanted,
            }
        )
        links.watchers.append(self._entered)
        loop.call(self._look)

    # --- from the training thread -----------------------------------------------------------------

    def offer_memory(self, exchange: Exchange) -> None:
        """Exchange these buffers through shared memory with servers on this node."""
        self._loop.call(self._offers.make, exchange)

    def begin(
        self, exchange: Exchange, weight: float, lowest_only: bool = False, step: int = 0
    ) -> Round:
        """Begin the next round. Returns at once."""
        began = Round(self._next, exchange, weight, lowest_only, step)
        self._loop.call(self._begin, began)
        return began

    def launch(self, running: Round, index: int) -> None:
        """Push buffer `index`, which must not change until the round is done. Returns at once."""
        self._loop.call(self._launch, running, index)

    def pause(self) -> int:
        """Pause between two rounds: the others wait for this worker. Returns the number of its next
        round.
        """
        self._loop.call(self._pause)
        return self._next

    def wait(
        self, running: Round, look: Callable[[], None], event: threading.Event | None = None
    ) -> None:
        """Wait for all sums.

        Args:
            running: The round.
            look: Called at intervals; its exceptions end the wait.
            event: The event of one buffer, to wait only for its sum.

        Raises:
            SumsExpired: The servers no longer keep the sums.
            HubLost: No server is left to send them.
        """
        while not (event or running.done).wait(_LOOK_SECONDS):
            if self.error is not None:
                break
            look()
        if self.error is not None:
            raise self.error

    def fail(self, error: BaseException) -> None:
        """Fail the running round with an error, and tell all who wait."""
        self.error = error
        if self._round is not None:
            self._round.end()

    def view(self, running: Round) -> View | None:
        """The view in which a round was completed. None for a round before this worker joined."""
        return self._views.get(running.under)

    def take_lost(self) -> set[str]:
        """Tasks that the views have lost since the last call."""
        lost, self._lost = self._lost, set()
        return lost

    # --- a round ----------------------------------------------------------------------------------

    def _begin(self, began: Round) -> None:
        if self.error is not None:
            began.end()
            return
        self._round = began
        self._links.compare_clocks()
        self._settle()

    def _pause(self) -> None:
        for server in range(self._links.servers):
            self._links.send(server, Header(MessageKind.PAUSE, view=self._links.view.number))

    def _launch(self, running: Round, index: int) -> None:
        running.launched.append(index)
        running.moved = time.monotonic()
        if running.target is None:
            return
        chunks = running.exchange.layout.buffers[index]
        if running.pulling:
            self._pusher.pull(running, {chunk.number for chunk in chunks})
        else:
            self._pusher.give(running, chunks)

    def _summed(self, server: int, message: Message) -> None:
        header, running = message.header, self._round
        if running is None or header.round != running.number or header.view != running.under:
            return
        chunk = running.exchange.chunks[header.chunk]
        received: Buffer | None
        if header.flags & wire.EMPTY:
            received = None
        elif header.flags & wire.SHARED:
            received = running.exchange.regions[server].summed(header.offset, chunk.size)
        else:
            received = message.frames[0].buffer
        running.exchange.total(chunk)[:] = bytes(chunk.size) if received is None else received
        running.received[chunk.number] = received
        running.weights[chunk.number] = header.weight
        if header.flags & wire.COMPLETE:
            running.ahead.add(server)
        running.late |= bool(header.flags & wire.LATE)
        running.moved = message.at
        sent = self._links.ours(server, header.sent)
        arrived = self._links.ours(server, header.asked) if header.asked else sent
        running.traffic[server].came(chunk.size, arrived, sent, message.at)
        running.last = (arrived, sent, message.at)
        self._pusher.came(server, message.at)
        if self._last is not None:
            self._last.received.pop(chunk.number, None)
        if all(
            other.number in running.received
            for other in running.exchange.layout.buffers[chunk.buffer]
        ):
            running.arrived[chunk.buffer].set()
        if running.whole:
            self._complete(running)

    def _complete(self, running: Round) -> None:
        self._under = running.under
        self._last, self._round = running, None
        self._next += 1
        self._answers.clear()
        if self._under < self._links.view.number:
            # Others may have continued under the former view before they saw the present one.
            self._ask()
        running.done.set()

    # --- after a change of the view ---------------------------------------------------------------

    def _entered(self, former: View) -> None:
        view = self._links.view
        self._views[view.number] = view
        while len(self._views) > _VIEWS_KEPT:
            del self._views[min(self._views)]
        self._lost |= _lost("worker", former.workers, view.workers) | _lost(
            "server", former.servers, view.servers
        )
        self._answers.clear()
        if self._round is not None:
            self._round.changed = True
            self._round.target = None
            self._pusher.close()
        self._ask()

    def _ask(self) -> None:
        """Tell the servers this worker's progress, and ask them about its next round."""
        view = self._links.view
        if self._links.index not in view.active:
            return
        content = {
            "round": self._next,
            "completed": self._next - 1,
            "whole": self._last is not None and self._last.whole,
        }
        header = Header(MessageKind.ASK, view=view.number, round=self._next)
        for server in range(self._links.servers):
            if server not in self._answers:
                self._links.send_json(server, header, content)

    def _answered(self, server: int, message: Message) -> None:
        header, content = message.header, message.json()
        if header.view != self._links.view.number or header.round != self._next:
            return
        if content["gone"]:
            self.fail(SumsExpired("the servers no longer keep the sums that come next for it"))
            return
        self._answers[server] = content["views"]
        self._settle()

    def _settle(self) -> None:
        """Settle earlier attempts at the round: take the sums of one that all servers completed, or
        push again.
        """
        running, view = self._round, self._links.view.number
        if running is None or running.target is not None:
            return
        if self._under != view:
            if len(self._answers) < self._links.servers:
                return
            complete = set.intersection(*map(set, self._answers.values()))
            if complete:
                running.aim(min(complete), pulling=True)
                self._pusher.open(running)
                self._pusher.pull(running)
                return
        running.aim(view, pulling=False)
        self._pusher.open(running)
        for index in running.launched:
            self._pusher.give(running, running.exchange.layout.buffers[index])

    def _wanted(self, server: int, message: Message) -> None:
        """Give a restarted server the sums of a round that this worker has."""
        kept = self._last
        if kept is None or kept.number != message.header.round or not kept.whole:
            return
        for chunk in kept.exchange.chunks:
            if chunk.server != server:
                continue
            received = kept.received[chunk.number]
            header = Header(
                MessageKind.SUPPLY,
                flags=wire.EMPTY if received is None else 0,
                dtype=kept.exchange.dtypes[chunk.buffer],
                view=kept.under,
                round=kept.number,
                chunk=chunk.number,
                chunks=kept.exchange.layout.counts[server],
                size=chunk.size,
                weight=kept.weights[chunk.number],
            )
            self._links.send(server, header, *(() if received is None else (received,)))

    # --- when no message arrives ------------------------------------------------------------------

    def _look(self) -> None:
        """Ask again for messages that are overdue. A broken connection may have lost them."""
        self._loop.after(_ASK_AGAIN_SECONDS, self._look)
        running = self._round
        if running is None or len(running.launched) < len(running.exchange.buffers):
            return
        still = time.monotonic() - running.moved
        if still < _ASK_AGAIN_SECONDS:
            return
        if running.target is None:
            self._ask()
        else:
            self._pusher.pull(running)
        if still < _NOTE_SECONDS:
            return
        waited = f"a step has waited {still:.0f} s for {self._waited(running)}"
        if self._hub_gone():
            self.fail(HubLost(f"{waited}, and the hub is gone"))
        elif not running.noted:
            running.noted = True
            self._note(waited)

    def _pending(self, server: int, message: Message) -> None:
        running, content = self._round, message.json()
        if (
            running is None
            or message.header.round != running.number
            or message.header.view != running.target
        ):
            return
        running.waited |= {f"worker-{n}" for n in content["waited"]}
        if not running.pulling:
            self._pusher.again(running, server, content["needed"])

    def _waited(self, running: Round) -> str:
        absent = [
            f"server-{n}" for n in range(self._links.servers) if self._links.member(n) is None
        ]
        return ", ".join([*absent, *sorted(running.waited)]) or "the servers' answers"


def _lost(role: str, before: Mapping[int, Member], now: Mapping[int, Member]) -> set[str]:
    staying = {n: member for n, member in before.items() if not member.leaving}
    return {
        f"{role}-{n}" for n, member in staying.items() if n not in now or now[n].life != member.life
    }
