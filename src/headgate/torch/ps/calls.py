"""Questions of workers to servers, each with one answer, which may take as long as it has to: what plans that do not
step together and tables are made of. Dense synchronous rounds have messages of their own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.task import Channel, Stop
from headgate.torch.ps.payload import PayloadError, octets, pack, unpack
from headgate.torch.ps.views import View
from headgate.torch.ps.wire import Buffer, Header, Message

if TYPE_CHECKING:
    from headgate.torch.ps.desk import Desk
    from headgate.torch.ps.links import Links
    from headgate.torch.ps.loop import Loop

CALL = 32
ANSWER = 33
_SLICE_SECONDS = 1.0
_ORPHANED_SLICES = 12


class CallError(RuntimeError):
    """A server could not do what it was asked for; says why."""


class Answer:
    """What a server will answer."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.there = False
        self.found: Any = None
        self.error: BaseException | None = None

    def there_within(self, seconds: float) -> bool:
        """Whether the answer is there in so many seconds."""
        return self._caller.there_within(self, seconds)

    def wait(self) -> Any:
        """The answer, once it is there.

        Raises:
            CallError: The server could not do what it was asked.
        """
        self._caller.await_answer(self)
        if self.error is not None:
            raise self.error
        return self.found


class Caller:
    """Asks the servers. One that was started again is told first what it has to know, and asked again what its former
    life did not answer.

    Args:
        links: To the servers; not started yet.
        loop: Drives them.
        channel: To the hub.

    Attributes:
        index: Of this worker.
        servers: How many servers there are.
        greetings: Asked, in the loop's thread, for the calls (operation, content) that a server has to be told first;
            given its index and whether it was started again.
        bytes_in: Bytes of the answers of each server so far.
        bytes_out: Bytes of what each was asked.
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
        self._lives: dict[int, int] = {}
        self._open: list[dict[int, tuple[Answer, list[Buffer]]]] = [{} for _ in range(links.servers)]
        links.handlers[ANSWER] = self._answered
        links.watchers.append(self._entered)

    @property
    def lowest(self) -> bool:
        """Whether this is the first of the workers that count; waits for the first view."""
        with self._changed:
            self._changed.wait_for(lambda: self._links.view.number >= 0 or self._failure is not None)
        return self.index == min(self._links.view.active, default=self.index)

    def call(self, server: int, operation: str, content: Mapping[str, Any]) -> Answer:
        """Ask a server; returns at once. The tensors in `content` must not change until the answer is there."""
        text, tensors = pack({"do": operation, **content})
        answer = Answer(self)
        self._loop.call(self._send, server, answer, [text, *map(octets, tensors)])
        return answer

    def ask(self, server: int, operation: str, content: Mapping[str, Any]) -> Any:
        """Ask a server and wait for its answer.

        Raises:
            CallError: The server could not do it.
        """
        return self.call(server, operation, content).wait()

    def fail(self, error: BaseException) -> None:
        """The loop has ended with an error: whoever waits is to raise it."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def there_within(self, answer: Answer, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: answer.there, seconds)

    def await_answer(self, answer: Answer) -> None:
        """Wait until the answer is there.

        Raises:
            headgate.task.Stop: Nobody will give it any more, and this task was asked to stop.
        """
        alone = 0
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: answer.there or self._failure is not None, _SLICE_SECONDS):
                    break
            # Servers outlive the hub for a while; then nobody starts them again.
            alone = alone + 1 if self._channel.stopping == "orphaned" else 0
            if alone > _ORPHANED_SLICES:
                raise Stop
        if self._failure is not None and not answer.there:
            raise self._failure

    def settle(self, answer: Answer, found: Any, error: BaseException | None) -> None:
        with self._changed:
            answer.found, answer.error, answer.there = found, error, True
            self._changed.notify_all()

    # --- in the loop's thread ----------------------------------------------------------------------------------------

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
                    text, tensors = pack({"do": operation, **content})
                    self._send(index, Answer(self), [text, *map(octets, tensors)])
            for answer, frames in waiting.values():
                self._send(index, answer, frames)

    def _send(self, index: int, answer: Answer, frames: list[Buffer]) -> None:
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._open[index][self._number] = (answer, frames)
        header = Header(CALL, view=self._links.view.number, round=self._number)
        if index in self._lives and self._links.send(index, header, *frames):
            self.bytes_out[index] += sum(map(len, frames))

    def _answered(self, index: int, message: Message) -> None:
        answer, _ = self._open[index].pop(message.header.round, (None, None))
        self.bytes_in[index] += sum(len(frame.buffer) for frame in message.frames)
        if answer is None:
            return
        try:
            found = unpack(message.frames[0].bytes, [frame.buffer for frame in message.frames[1:]])
        except (PayloadError, IndexError) as error:
            self.settle(answer, None, CallError(f"server-{index}: {error}"))
            return
        failed = found.get("error")
        self.settle(answer, found, None if failed is None else CallError(f"server-{index}: {failed}"))


class Question:
    """A call as a server has it: answered once, now or later.

    Attributes:
        worker: Index of who asks.
        content: What was asked.
    """

    def __init__(self, desk: Desk, worker: int, message: Message) -> None:
        self.worker = worker
        self.content: Mapping[str, Any] = {}
        self._desk = desk
        self._life = message.header.life
        self._number = message.header.round

    def answer(self, **content: Any) -> None:
        """Send the answer, if whoever asked is still there. The tensors in it must not change afterwards."""
        member = self._desk.server.view.workers.get(self.worker)
        if member is None or member.life != self._life:
            return
        text, tensors = pack(content)
        header = Header(ANSWER, round=self._number)
        self._desk.server.send(self.worker, header, text, *map(octets, tensors))


class Clerk(ABC):
    """Answers some operations."""

    operations: frozenset[str]

    @abstractmethod
    def asked(self, operation: str, question: Question) -> None:
        """Answer, or keep the question and answer later.

        Raises:
            CallError: It cannot be done; the worker is told.
        """

    def entered(self, view: View) -> None:  # noqa: B027 - not all care who is there
        """The view changed."""

    def state(self) -> Mapping[str, Any]:
        """What a snapshot has to hold, as `pack` takes it."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """The server ends."""
