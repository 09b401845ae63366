"""Remote calls of workers to servers, each with one answer, however long it takes.

Asynchronous plans and sparse tables use them. Dense synchronous rounds have messages of their own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headgate.task import Channel, PeerLost, Stop
from headgate.task.membership import GOODBYE_SECONDS
from headgate.torch.backend import Passage, Transfer
from headgate.torch.ps.transport.payload import PayloadError, octets, pack, unpack
from headgate.torch.ps.transport.views import View
from headgate.torch.ps.transport.wire import Buffer, Header, Message

if TYPE_CHECKING:
    from headgate.torch.ps.transport.links import Links
    from headgate.torch.ps.transport.loop import Loop

CALL = 32
ANSWER = 33
_SLICE_SECONDS = 1.0
_ORPHANED_SLICES = 12


class CallError(RuntimeError):
    """A server could not do what it was asked. The message says why."""


class Answer:
    """A server's pending answer.

    Attributes:
        server: Index of the server.
        bytes_out: Bytes of the request.
        bytes_in: Bytes of the answer.
        sent: When the request was sent, by this worker's clock, in seconds. Like the other times,
            it is known once the answer has arrived.
        reached: When it arrived at the server.
        left: When the server sent the answer.
        came: When the answer arrived.
        then: Called with the result in the loop's thread, before any waiting thread gets it.
    """

    def __init__(
        self,
        caller: Caller,
        server: int,
        bytes_out: int,
        then: Callable[[Any], None] = lambda value: None,
    ) -> None:
        self._caller = caller
        self.then = then
        self.server = server
        self.bytes_out = bytes_out
        self.bytes_in = 0
        self.sent = self.reached = self.left = self.came = 0.0
        self.there = False
        self.found: Any = None
        self.error: BaseException | None = None

    def there_within(self, seconds: float) -> bool:
        """Whether the answer arrives within `seconds`."""
        return self._caller.there_within(self, seconds)

    def wait(self) -> Any:
        """Wait for the answer.

        Raises:
            CallError: The server could not do what it was asked.
        """
        self._caller.await_answer(self)
        if self.error is not None:
            raise self.error
        return self.found


class Caller:
    """Calls the servers. It first tells a restarted server what it has to know. Then it repeats the
    calls that the former life did not answer.

    Args:
        links: Links to the servers, not started yet.
        loop: Drives the links.
        channel: The channel to the hub.

    Attributes:
        index: Index of this worker.
        servers: Number of servers.
        greetings: Called in the loop's thread with a server's index and whether it was restarted.
            Returns the calls (operation, content) to make first.
        bytes_in: Bytes of each server's answers so far.
        bytes_out: Bytes of each server's requests so far.
    """

    def __init__(self, links: Links, loop: Loop, channel: Channel) -> None:
        self.index = links.index
        self.servers = links.servers
        self.greetings: list[Callable[[int, bool], Sequence[tuple[str, Mapping[str, Any]]]]] = []
        self.bytes_in = [0] * links.servers
        self.bytes_out = [0] * links.servers
        self._links = links
        self._loop = loop
        self._channel = channel
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._number = 0
        self._with: frozenset[int] | None = None
        self._lives: dict[int, int] = {}
        self._open: list[dict[int, tuple[Answer, list[Buffer]]]] = [
            {} for _ in range(links.servers)
        ]
        links.handlers[ANSWER] = self._answered
        links.watchers.append(self._entered)

    @property
    def lowest(self) -> bool:
        """Whether this is the first of the workers that count. Waits for the first view."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._links.view.number >= 0 or self._failure is not None
            )
        return self.index == min(self._links.view.active, default=self.index)

    def call(
        self,
        server: int,
        operation: str,
        content: Mapping[str, Any],
        then: Callable[[Any], None] = lambda value: None,
    ) -> Answer:
        """Call a server. Returns at once. The tensors in `content` must not change until the answer
        has arrived.

        Args:
            server: Index of the server.
            operation: The operation.
            content: Its arguments.
            then: As `Answer.then`, for state that a restarted server has to be told.
        """
        frames = _framed(operation, content)
        answer = Answer(self, server, sum(map(len, frames)), then)
        self._loop.call(self._send, server, answer, frames)
        return answer

    def ask(self, server: int, operation: str, content: Mapping[str, Any]) -> Any:
        """Call a server and wait for its answer.

        Raises:
            CallError: The server could not do what it was asked.
        """
        return self.call(server, operation, content).wait()

    def compare_clocks(self) -> None:
        """Compare this worker's clock with the servers', if it is due. Call it while no other
        message is in flight.
        """
        self._loop.call(self._links.compare_clocks)

    def fail(self, error: BaseException) -> None:
        """Fail all waiting calls with the error that ended the loop."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def there_within(self, answer: Answer, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: answer.there, seconds)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """A context for calls that need other workers for their answers. They end once one of these
        is gone, or this task was asked to stop.
        """
        self._with = self._workers()
        try:
            yield
        finally:
            self._with = None

    def await_answer(self, answer: Answer) -> None:
        """Wait for the answer.

        Raises:
            headgate.task.Stop: No server will answer any more, and this task was asked to stop.
            headgate.task.PeerLost: No server will answer any more, because another worker is gone.
        """
        alone = 0
        while True:
            with self._changed:
                if self._changed.wait_for(
                    lambda: answer.there or self._failure is not None, _SLICE_SECONDS
                ):
                    break
            if self._with is not None:
                self._look_round(self._with)
            # Servers outlive the hub for a while. Then nothing restarts them.
            alone = alone + 1 if self._channel.stopping == "orphaned" else 0
            if alone > _ORPHANED_SLICES:
                raise Stop
        if self._failure is not None and not answer.there:
            raise self._failure

    def _look_round(self, before: frozenset[int]) -> None:
        gone = before - self._workers()
        if gone:  # whether the job goes on without it, the engine says
            self._channel.wait_for(lambda: False, GOODBYE_SECONDS)
        if self._channel.stopping:
            raise Stop
        if gone:
            who = ", ".join(f"worker-{index}" for index in sorted(gone))
            text = (
                f"{who} was lost before all workers had called prepare; this worker cannot "
                "continue without it"
            )
            print(f"headgate: {text}", file=sys.stderr, flush=True)
            raise PeerLost(text)

    def _workers(self) -> frozenset[int]:
        return frozenset(
            m["index"] for m in self._channel.peers.get("members", ()) if m["role"] == "worker"
        )

    def settle(self, answer: Answer, value: Any, error: BaseException | None) -> None:
        if error is None:
            answer.then(value)
        with self._changed:
            answer.found, answer.error, answer.there = value, error, True
            self._changed.notify_all()

    # --- in the loop's thread ---------------------------------------------------------------------

    def _entered(self, former: View) -> None:
        with self._changed:
            self._changed.notify_all()
        for index in range(self.servers):
            member = self._links.member(index)
            if member is None or self._lives.get(index) == member.life:
                continue
            again = index in self._lives
            self._lives[index] = member.life
            waiting, self._open[index] = self._open[index], {}
            for greeting in self.greetings:
                for operation, content in greeting(index, again):
                    frames = _framed(operation, content)
                    self._send(index, Answer(self, index, sum(map(len, frames))), frames)
            for answer, frames in waiting.values():
                self._send(index, answer, frames)

    def _send(self, index: int, answer: Answer, frames: list[Buffer]) -> None:
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._open[index][self._number] = (answer, frames)
        header = Header(CALL, view=self._links.view.number, round=self._number)
        answer.sent = time.monotonic()
        if index in self._lives and self._links.send(index, header, *frames):
            self.bytes_out[index] += answer.bytes_out

    def _answered(self, index: int, message: Message) -> None:
        answer, _ = self._open[index].pop(message.header.round, (None, None))
        size = sum(len(frame.buffer) for frame in message.frames)
        self.bytes_in[index] += size
        if answer is None:
            return
        answer.bytes_in, answer.came = size, message.at
        # The clocks of two nodes differ by an amount that their comparison cannot know.
        answer.reached = min(
            max(self._links.ours(index, message.header.asked), answer.sent), message.at
        )
        answer.left = min(
            max(self._links.ours(index, message.header.sent), answer.reached), message.at
        )
        try:
            value = unpack(message.frames[0].bytes, [frame.buffer for frame in message.frames[1:]])
        except (PayloadError, IndexError) as error:
            self.settle(answer, None, CallError(f"server-{index}: {error}"))
            return
        failed = value.get("error")
        self.settle(
            answer, value, None if failed is None else CallError(f"server-{index}: {failed}")
        )


def transfers(answers: Iterable[Answer]) -> list[Transfer]:
    """The bytes of answered calls to the servers, and of their answers."""
    by_server: dict[int, list[Answer]] = {}
    for answer in answers:
        by_server.setdefault(answer.server, []).append(answer)
    moved = []
    for server, calls in sorted(by_server.items()):
        sizes = sum(call.bytes_out for call in calls), sum(call.bytes_in for call in calls)
        push = Passage(
            min(call.sent for call in calls), max(call.reached for call in calls), sizes[0]
        )
        pull = Passage(min(call.left for call in calls), max(call.came for call in calls), sizes[1])
        moved.append(Transfer(f"server-{server}", push, pull))
    return moved


def _framed(operation: str, content: Mapping[str, Any]) -> list[Buffer]:
    text, tensors = pack({"do": operation, **content})
    return [text, *map(octets, tensors)]
