"""The server's side of sparse tables: creates them, answers lookups, and steps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headgate.torch.ps.tables.initializers import Operation, filled
from headgate.torch.ps.tables.rows import Rows
from headgate.torch.ps.tables.shard import Shard
from headgate.torch.ps.tables.steps import Steps, merged
from headgate.torch.ps.transport.requests import Handler, Request
from headgate.torch.ps.transport.views import View


class Tables(Handler):
    """Tables by name. A request about an incomplete table waits until it is complete.

    Args:
        server: Index of this server.
        together: Whether the workers step together.
        backups: If they do, the number of workers whose pushes a step of a table may lack.
        saved: The result of `state` in a former life of the server.
        note: Tells the user something.
    """

    without_snapshot: Mapping[str, str] = {
        "table.create": (
            "its rows of sparse tables are initialized again, and all updates to them are lost"
        )
    }

    def __init__(
        self,
        server: int,
        together: bool,
        backups: int,
        saved: Mapping[str, Any],
        note: Callable[[str], None],
    ) -> None:
        self._note = note
        self._server = server
        self._together = together
        self._backups = backups
        self._shards = {name: Shard.restored(kept["shard"]) for name, kept in saved.items()}
        self._steps = {name: Steps(kept["taken"]) for name, kept in saved.items()}
        self._complete = set(self._shards)
        self._waiting: dict[str, list[tuple[str, Request]]] = {}
        self._view = View()
        self._making = {
            "table.create": self._create,
            "table.optimize": self._optimize,
            "table.write": self._write,
            "table.ready": self._finish,
        }
        self._using = {
            "table.open": self._open,
            "table.pull": self._pull,
            "table.push": self._push,
            "table.fields": self._fields,
            "table.read": self._read,
        }
        self.operations = frozenset((*self._making, *self._using))

    def handle(self, operation: str, request: Request) -> None:
        name = request.content["name"]
        if operation in self._making:
            self._making[operation](name, request)
        elif name in self._complete:
            self._using[operation](name, request)
        else:
            self._waiting.setdefault(name, []).append((operation, request))

    def entered(self, view: View) -> None:
        self._view = view
        for name in self._steps:
            self._take_steps(name)

    def state(self) -> Mapping[str, Any]:
        return {
            name: {"shard": self._shards[name].saved(), "taken": self._steps[name].taken}
            for name in sorted(self._complete)
        }

    def close(self) -> None:
        late = sum(steps.late for steps in self._steps.values())
        if late:
            self._note(f"{late} gradients of sparse tables came too late to count")

    # --- creating a table -------------------------------------------------------------------------

    def _create(self, name: str, request: Request) -> None:
        content = request.content
        new = name not in self._complete
        if new:
            rows = Rows(content["rows"], content["servers"])
            operations = [Operation.received(operation) for operation in content["operations"]]
            dtype = getattr(torch, content["dtype"])
            values = filled(operations, rows, self._server, content["width"], dtype)
            self._shards[name] = Shard(rows, self._server, values)
            self._steps[name] = Steps()
        request.answer(new=new)

    def _optimize(self, name: str, request: Request) -> None:
        if name not in self._complete:
            self._shards[name].optimize(request.content["recipe"], request.content["state"])
        request.answer()

    def _write(self, name: str, request: Request) -> None:
        content = request.content
        self._shards[name].write(content["field"], content["start"], content["values"])
        request.answer()

    def _finish(self, name: str, request: Request) -> None:
        self._complete.add(name)
        request.answer()
        for operation, waiting in self._waiting.pop(name, []):
            self.handle(operation, waiting)

    # --- using a table ----------------------------------------------------------------------------

    def _open(self, name: str, request: Request) -> None:
        """Note that a worker uses a table, with the step that it knows of."""
        self._steps[name].catch_up(request.content["taken"])
        request.answer()
        self._take_steps(name)

    def _pull(self, name: str, request: Request) -> None:
        request.answer(values=self._shards[name].pull(request.content["rows"]))

    def _push(self, name: str, request: Request) -> None:
        if self._together:
            self._steps[name].push(request)
            self._take_steps(name)
        else:
            self._apply(name, [request])
            request.answer()

    def _fields(self, name: str, request: Request) -> None:
        request.answer(fields=self._shards[name].fields())

    def _read(self, name: str, request: Request) -> None:
        content = request.content
        request.answer(
            values=self._shards[name].read(content["field"], content["start"], content["stop"])
        )

    def _take_steps(self, name: str) -> None:
        steps = self._steps[name]
        while True:
            # A joining worker does not count: it waits for the others' state, and they would wait
            # for its push.
            pushes = steps.next(self._view.active, self._view.needed(self._backups))
            if pushes is None:
                return
            if pushes.counts:
                self._apply(name, pushes.requests)
            for request in pushes.requests:
                request.answer()

    def _apply(self, name: str, requests: Sequence[Request]) -> None:
        pushes = [request.content for request in requests]
        step = merged(pushes)
        if step is not None:
            self._shards[name].apply(*step, pushes[0]["options"])
