"""The server's side of calls: a dispatcher passes each request to its handler, and saves the
handlers' state.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.torch.ps.transport.calls import ANSWER, CALL, CallError
from headgate.torch.ps.transport.payload import PayloadError, octets, pack, unpack
from headgate.torch.ps.transport.server import Server, Service
from headgate.torch.ps.transport.snapshots import (
    SnapshotError,
    Writer,
    copy_of,
    former_of,
    interval,
    read,
)
from headgate.torch.ps.transport.timing import RoundSpans
from headgate.torch.ps.transport.views import View
from headgate.torch.ps.transport.wire import Buffer, Header, Message


class Request:
    """A call on the server's side, to be answered once, now or later.

    Attributes:
        worker: Index of the worker that asks.
        content: Arguments of the call.
    """

    def __init__(self, dispatcher: Dispatcher, worker: int, message: Message) -> None:
        self.worker = worker
        self.content: Mapping[str, Any] = {}
        self._dispatcher = dispatcher
        self._life = message.header.life
        self._number = message.header.round
        self._at = message.at

    def answer(self, **content: Any) -> None:
        """Send the answer, if the worker is still connected. The tensors in it must not change
        afterwards.
        """
        member = self._dispatcher.server.view.workers.get(self.worker)
        if member is None or member.life != self._life:
            return
        text, tensors = pack(content)
        header = Header(ANSWER, round=self._number, asked=self._at)
        self._dispatcher.send(self.worker, header, [text, *map(octets, tensors)])


class Handler(ABC):
    """Answers some operations.

    Attributes:
        operations: Names of the operations.
        without_snapshot: In words, the consequence when a server restarted without a snapshot is
            asked for one of these operations.
    """

    operations: frozenset[str]
    without_snapshot: Mapping[str, str] = {}

    @abstractmethod
    def handle(self, operation: str, request: Request) -> None:
        """Answer, or keep the request and answer later.

        Raises:
            CallError: It cannot be done. The worker is told.
        """

    def entered(self, view: View) -> None:  # noqa: B027 - not all care who is there
        """Note a change of the view."""

    def state(self) -> Mapping[str, Any]:
        """The state for a snapshot, in the form that `pack` takes."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Release resources when the server ends."""


Handlers = Callable[[Mapping[str, Any], bool], Mapping[str, Handler]]


class Dispatcher(Service):
    """Passes calls to handlers.

    Args:
        server: The server.
        handlers: Makes the handlers by name, from the saved states by name and whether the server
            was restarted.
        folder: Folder of snapshots; None: no snapshots.
        away: Whether that folder disappears with its node. Then copies of snapshots are reported,
            to be brought to the run.
        spans: Times the rounds of this server. A call may end one.
    """

    kinds = frozenset({CALL})

    def __init__(
        self,
        server: Server,
        handlers: Handlers,
        folder: Path | None,
        spans: RoundSpans,
        away: bool = False,
    ) -> None:
        self.server = server
        self._make = handlers
        self._handlers: dict[str, Handler] = {}
        self._by_operation: dict[str, Handler] = {}
        self._path = None if folder is None else folder / f"server-{server.index}.snapshot"
        tell = self._copied if away else None
        self._writer = (
            None if self._path is None else Writer(self._path, server.life, server.note, tell)
        )
        self._every = interval()
        self._spans = spans
        self._bare = False
        self._lost = "before it had saved anything"
        self._told: set[str] = set()

    def send(self, worker: int, header: Header, frames: Sequence[Buffer]) -> None:
        """Send an answer."""
        before = time.monotonic()
        self.server.send(worker, header, *frames)
        self._spans.send += time.monotonic() - before
        self._spans.bytes_out += sum(map(len, frames))

    def received(self, worker: int, message: Message) -> None:
        spans = self._spans
        spans.bytes_in += sum(len(frame.buffer) for frame in message.frames)
        before, sending = time.monotonic(), spans.send
        ended = self._answer(worker, message)
        spans.update += time.monotonic() - before - (spans.send - sending)
        if ended is not None:
            spans.completed(ended + 1)

    def _answer(self, worker: int, message: Message) -> int | None:
        """Have a call answered. Returns the number of the worker's step, from 0, if the call is the
        last of it.
        """
        request = Request(self, worker, message)
        ended: int | None = None
        try:
            content = unpack(
                message.frames[0].bytes, [frame.buffer for frame in message.frames[1:]]
            )
            operation = content.pop("do")
            ended = content.pop("ends", None)
            request.content = content
            handler = self._by_operation.get(operation)
            if handler is None:
                raise CallError(f"{operation!r} is not known here")
            self._tell_of_loss(handler, operation)
            handler.handle(operation, request)
        except (
            CallError,
            PayloadError,
            KeyError,
            IndexError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            request.answer(error=f"{type(error).__name__}: {error}")
        return ended

    def entered(self, view: View) -> None:
        if not self._handlers:
            self._begin()
        for handler in self._handlers.values():
            handler.entered(view)

    def close(self) -> None:
        for handler in self._handlers.values():
            handler.close()
        writer, self._writer = self._writer, None  # a save that is due writes nothing any more
        if writer is not None:
            writer.finish()

    def _begin(self) -> None:
        """Begin at the first view, which tells which life of the server this is."""
        again = self.server.life > 1
        saved = self._restored() if again else {}
        self._bare = again and not saved
        self._handlers = dict(self._make(saved, again))
        self._by_operation = {
            operation: handler
            for handler in self._handlers.values()
            for operation in handler.operations
        }
        if self._writer is not None:
            if not again:
                self._writer.remove()
            self.server.loop.after(self._every, self._save)

    def _restored(self) -> Mapping[str, Any]:
        snapshots = []
        for path in (
            () if self._path is None else (self._path, former_of(self._path), copy_of(self._path))
        ):
            try:
                if path.exists():
                    snapshots.append(read(path))
            except SnapshotError as error:
                self._lost = "and cannot read what it had saved"
                self.server.note(str(error))
        if not snapshots:
            return {}
        # the server may have been on this node before
        saved = max(snapshots, key=lambda snapshot: list(snapshot["order"]))
        age = max(0.0, time.time() - saved["at"])
        text = (
            f"server-{self.server.index} was started again and goes on from what it had {age:.1f} "
            "s before: what workers have pushed to it since then is lost"
        )
        self.server.notify({"type": "fault", "text": text, "seconds": age, "steps": 0})
        state: Mapping[str, Any] = saved["state"]
        return state

    def _copied(self, path: Path, size: int) -> None:
        self.server.notify({"type": "snapshot", "path": str(path), "bytes": size})

    def _tell_of_loss(self, handler: Handler, operation: str) -> None:
        """Note that a worker recreates what a former life of the server had and no snapshot has."""
        text = handler.without_snapshot.get(operation) if self._bare else None
        if text is not None and text not in self._told:
            self._told.add(text)
            text = f"server-{self.server.index} was started again {self._lost}: {text}"
            self.server.notify({"type": "fault", "text": text, "seconds": 0.0, "steps": 0})

    def _save(self) -> None:
        state = {
            name: handler_state
            for name, handler in self._handlers.items()
            if (handler_state := handler.state())
        }
        if state and self._writer is not None:
            self._writer.take(state)
        self.server.loop.after(self._every, self._save)
