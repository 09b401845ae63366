"""Where a server takes calls: hands each to the clerk that answers it, and saves what the clerks know."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.torch.ps.calls import CALL, CallError, Clerk, Question
from headgate.torch.ps.payload import PayloadError, unpack
from headgate.torch.ps.server import Server, Service
from headgate.torch.ps.snapshots import SnapshotError, Writer, copy_of, former_of, interval, read
from headgate.torch.ps.timing import RoundSpans
from headgate.torch.ps.views import View
from headgate.torch.ps.wire import Buffer, Header, Message

Clerks = Callable[[Mapping[str, Any], bool], Mapping[str, Clerk]]


class Desk(Service):
    """Takes calls.

    Args:
        server: The server.
        clerks: Makes the clerks by name, given what was saved by name and whether the server was started again.
        folder: Where snapshots go; None: nowhere.
        away: That folder goes with its node: copies of snapshots are told of, to be brought to the run.
        spans: Times the steps of workers; None: somebody else tells where this server's time goes.
    """

    kinds = frozenset({CALL})

    def __init__(
        self, server: Server, clerks: Clerks, folder: Path | None, spans: RoundSpans | None, away: bool = False
    ) -> None:
        self.server = server
        self._make = clerks
        self._clerks: dict[str, Clerk] = {}
        self._by_operation: dict[str, Clerk] = {}
        self._path = None if folder is None else folder / f"server-{server.index}.snapshot"
        tell = self._copied if away else None
        self._writer = None if self._path is None else Writer(self._path, server.note, tell)
        self._every = interval()
        self._spans = spans
        self._bare = False
        self._lost = "before it had saved anything"
        self._told: set[str] = set()

    def send(self, worker: int, header: Header, frames: Sequence[Buffer]) -> None:
        """Send an answer."""
        before = time.monotonic()
        self.server.send(worker, header, *frames)
        if self._spans is not None:
            self._spans.send += time.monotonic() - before
            self._spans.bytes_out += sum(map(len, frames))

    def received(self, worker: int, message: Message) -> None:
        spans = self._spans
        if spans is None:
            self._answer(worker, message)
            return
        spans.bytes_in += sum(len(frame.buffer) for frame in message.frames)
        before, sending = time.monotonic(), spans.send
        ended = self._answer(worker, message)
        spans.update += time.monotonic() - before - (spans.send - sending)
        if ended is not None:
            spans.completed(ended)

    def _answer(self, worker: int, message: Message) -> int | None:
        """Have a call answered; the number of the worker's step, counted from 0, if the call is the last of it."""
        question = Question(self, worker, message)
        ended: int | None = None
        try:
            content = unpack(message.frames[0].bytes, [frame.buffer for frame in message.frames[1:]])
            operation = content.pop("do")
            ended = content.pop("ends", None)
            question.content = content
            clerk = self._by_operation.get(operation)
            if clerk is None:
                raise CallError(f"{operation!r} is not known here")
            self._tell_of_loss(clerk, operation)
            clerk.asked(operation, question)
        except (CallError, PayloadError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            question.answer(error=f"{type(error).__name__}: {error}")
        return ended

    def entered(self, view: View) -> None:
        if not self._clerks:
            self._begin()
        for clerk in self._clerks.values():
            clerk.entered(view)

    def close(self) -> None:
        for clerk in self._clerks.values():
            clerk.close()
        if self._writer is not None:
            self._writer.finish()

    def _begin(self) -> None:
        """The first view tells which life of the server this is."""
        again = self.server.life > 1
        saved = self._restored() if again else {}
        self._bare = again and not saved
        self._clerks = dict(self._make(saved, again))
        self._by_operation = {operation: clerk for clerk in self._clerks.values() for operation in clerk.operations}
        if self._writer is not None:
            if not again:
                self._writer.remove()
            self.server.loop.after(self._every, self._save)

    def _restored(self) -> Mapping[str, Any]:
        found = []
        for path in () if self._path is None else (self._path, former_of(self._path), copy_of(self._path)):
            try:
                if path.exists():
                    found.append(read(path))
            except SnapshotError as error:
                self._lost = "and cannot read what it had saved"
                self.server.note(str(error))
        if not found:
            return {}
        saved = max(found, key=lambda each: float(each["at"]))  # it may have been on this node before
        age = max(0.0, time.time() - saved["at"])
        text = (
            f"server-{self.server.index} was started again and goes on from what it had {age:.1f} s before: what "
            "workers have pushed to it since then is lost"
        )
        self.server.notify({"type": "fault", "text": text, "seconds": age, "steps": 0})
        state: Mapping[str, Any] = saved["state"]
        return state

    def _copied(self, path: Path, size: int) -> None:
        self.server.notify({"type": "snapshot", "path": str(path), "bytes": size})

    def _tell_of_loss(self, clerk: Clerk, operation: str) -> None:
        """A worker makes anew what a former life of the server had, and no snapshot has."""
        text = clerk.lost.get(operation) if self._bare else None
        if text is not None and text not in self._told:
            self._told.add(text)
            text = f"server-{self.server.index} was started again {self._lost}: {text}"
            self.server.notify({"type": "fault", "text": text, "seconds": 0.0, "steps": 0})

    def _save(self) -> None:
        state = {name: found for name, clerk in self._clerks.items() if (found := clerk.state())}
        if state and self._writer is not None:
            self._writer.take(state)
        self.server.loop.after(self._every, self._save)
