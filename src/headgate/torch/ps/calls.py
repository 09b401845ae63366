"""Questions of workers to servers, each with one answer, which may take as long as it has to: what plans that do not
step together and tables are made of. Dense synchronous rounds have messages of their own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.torch.ps import wire
from headgate.torch.ps.payload import PayloadError, octets, pack, unpack
from headgate.torch.ps.server import Server, Service
from headgate.torch.ps.views import View
from headgate.torch.ps.wire import Buffer, Header, Message

if TYPE_CHECKING:
    from headgate.torch.ps.loop import Loop

CALL = 32
ANSWER = 33
_SLICE_SECONDS = 1.0


class CallError(RuntimeError):
    """A server could not do what it was asked for; says why."""


class Answer:
    """What a server will answer."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._found: Any = None
        self._error: BaseException | None = None
        self.there = False

    def settle(self, found: Any = None, error: BaseException | None = None) -> None:
        with self._changed:
            self._found, self._error, self.there = found, error, True
            self._changed.notify_all()

    def wait(self, given_up: Callable[[], None]) -> Any:
        """The answer.

        Args:
            given_up: Called about once a second; raises where nobody will answer any more.

        Raises:
            CallError: The server could not do it.
        """
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self.there, _SLICE_SECONDS):
                    break
            given_up()
        if self._error is not None:
            raise self._error
        return self._found


class Caller:
    """A worker's connections to the servers. A server that was started again is told what it has to know, and asked
    again what it did not answer.

    Args:
        loop: Drives the sockets.
        secrets: Those of the task's welcome.
        index: Of this worker.
        servers: How many servers the plan has.
        greeting: Makes, for a server and whether it was started again, the calls that have to come before all others:
            operation and content.

    Attributes:
        bytes_in: Bytes received from each server.
        bytes_out: Bytes sent to each.
    """

    def __init__(
        self,
        loop: Loop,
        secrets: Mapping[str, Any],
        index: int,
        servers: int,
        greeting: Callable[[int, bool], Sequence[tuple[str, Mapping[str, Any]]]],
    ) -> None:
        self._loop = loop
        self._secrets = secrets
        self._index = index
        self._greeting = greeting
        self._changed = threading.Condition()
        self._number = 0
        self._view = View()
        self._sockets: dict[int, wire.Socket] = {}
        self._lives: dict[int, int] = {}
        self._open: list[dict[int, tuple[Answer, list[Buffer]]]] = [{} for _ in range(servers)]
        self.bytes_in = [0] * servers
        self.bytes_out = [0] * servers

    def call(self, server: int, operation: str, content: Mapping[str, Any]) -> Answer:
        """Ask a server; returns at once. The tensors in `content` must not change until the answer is there."""
        text, tensors = pack({"do": operation, **content})
        answer = Answer(self._changed)
        self._loop.call(self._send, server, answer, [text, *map(octets, tensors)])
        return answer

    def enter(self, view: View) -> None:
        """The view changed. From any thread."""
        self._loop.call(self._enter, view)

    # --- in the loop's thread ----------------------------------------------------------------------------------------

    def _enter(self, view: View) -> None:
        if view.number <= self._view.number:
            return
        self._view = view
        for index, member in view.servers.items():
            if not member.endpoint or self._lives.get(index) == member.life:
                continue
            again = index in self._lives
            self._drop(index)
            self._lives[index] = member.life
            socket = self._sockets[index] = wire.connect(self._loop, self._secrets, member.endpoint)
            self._loop.add(socket.zmq, lambda index=index, socket=socket: self._receive(index, socket))  # type: ignore[misc]
            waiting = self._open[index]
            self._open[index] = {}
            for operation, content in self._greeting(index, again):
                text, tensors = pack({"do": operation, **content})
                self._send(index, Answer(self._changed), [text, *map(octets, tensors)])
            for answer, frames in waiting.values():
                self._send(index, answer, frames)

    def _drop(self, index: int) -> None:
        socket = self._sockets.pop(index, None)
        if socket is not None:
            self.bytes_in[index] += socket.bytes_in
            self.bytes_out[index] += socket.bytes_out
            self._loop.remove(socket.zmq)
            socket.close()

    def _send(self, index: int, answer: Answer, frames: list[Buffer]) -> None:
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._open[index][self._number] = (answer, frames)
        socket = self._sockets.get(index)
        me = self._view.workers.get(self._index)
        if socket is not None and me is not None:
            header = Header(CALL, sender=self._index, life=me.life, view=self._view.number, round=self._number)
            socket.send(header, *frames)

    def _receive(self, index: int, socket: wire.Socket) -> None:
        message = socket.receive()
        if message is None or message.header.kind != ANSWER:
            return
        answer, _ = self._open[index].pop(message.header.round, (None, None))
        if answer is None:
            return
        try:
            found = unpack(message.frames[0].bytes, [frame.buffer for frame in message.frames[1:]])
        except (PayloadError, IndexError) as error:
            answer.settle(error=CallError(f"server-{index}: {error}"))
            return
        error = found.get("error")
        answer.settle(found, None if error is None else CallError(f"server-{index}: {error}"))

    def traffic(self) -> tuple[list[int], list[int]]:
        """Bytes received from and sent to each server so far."""
        sockets = [self._sockets.get(index) for index in range(len(self.bytes_in))]
        return (
            [old + (socket.bytes_in if socket else 0) for old, socket in zip(self.bytes_in, sockets)],
            [old + (socket.bytes_out if socket else 0) for old, socket in zip(self.bytes_out, sockets)],
        )


class Question:
    """A call as a server has it: answered once, now or later.

    Attributes:
        worker: Index of who asks.
        content: What was asked.
    """

    def __init__(self, desk: Desk, worker: int, number: int, content: Mapping[str, Any]) -> None:
        self.worker = worker
        self.content = content
        self._desk = desk
        self._number = number

    def answer(self, **content: Any) -> None:
        """Send the answer; the tensors in it are copied to the socket's side at once where they may change."""
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


class Desk(Service):
    """Hands calls to whoever answers them."""

    kinds = frozenset({CALL})

    def __init__(self, server: Server, clerks: Sequence[Clerk]) -> None:
        self.server = server
        self._clerks = clerks
        self._by_operation = {operation: clerk for clerk in clerks for operation in clerk.operations}

    def received(self, worker: int, message: Message) -> None:
        question = Question(self, worker, message.header.round, {})
        try:
            content = unpack(message.frames[0].bytes, [frame.buffer for frame in message.frames[1:]])
            operation = content.pop("do")
            question.content = content
            clerk = self._by_operation.get(operation)
            if clerk is None:
                raise CallError(f"{operation!r} is not known here")
            clerk.asked(operation, question)
        except (CallError, PayloadError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            question.answer(error=f"{type(error).__name__}: {error}")

    def entered(self, view: View) -> None:
        for clerk in self._clerks:
            clerk.entered(view)

    def close(self) -> None:
        for clerk in self._clerks:
            clerk.close()
