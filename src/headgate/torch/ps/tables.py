"""The server's side of sparse tables: makes them, answers lookups, and has them stepped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headgate.torch.ps.calls import Clerk, Question
from headgate.torch.ps.filling import Operation, filled
from headgate.torch.ps.rows import Rows
from headgate.torch.ps.shard import Shard
from headgate.torch.ps.table_steps import Steps, merged
from headgate.torch.ps.views import View


class Tables(Clerk):
    """Tables by name. A question about one that is not complete yet waits until it is.

    Args:
        server: Index of this server.
        together: Whether the workers step together.
        backups: Of how many workers the pushes may be missing from a step of a table then.
        saved: What `state` gave to a former life of the server.
        note: Tells the user something.
    """

    lost: Mapping[str, str] = {
        "table.create": "its rows of sparse tables begin anew, and what workers have pushed to them is lost"
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
        self._waiting: dict[str, list[tuple[str, Question]]] = {}
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

    def asked(self, operation: str, question: Question) -> None:
        name = question.content["name"]
        if operation in self._making:
            self._making[operation](name, question)
        elif name in self._complete:
            self._using[operation](name, question)
        else:
            self._waiting.setdefault(name, []).append((operation, question))

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

    # --- how a table comes about -------------------------------------------------------------------------------------

    def _create(self, name: str, question: Question) -> None:
        content = question.content
        new = name not in self._complete
        if new:
            rows = Rows(content["rows"], content["servers"])
            operations = [Operation.received(operation) for operation in content["operations"]]
            dtype = getattr(torch, content["dtype"])
            values = filled(operations, rows, self._server, content["width"], dtype)
            self._shards[name] = Shard(rows, self._server, values)
            self._steps[name] = Steps()
        question.answer(new=new)

    def _optimize(self, name: str, question: Question) -> None:
        if name not in self._complete:
            self._shards[name].optimize(question.content["recipe"], question.content["state"])
        question.answer()

    def _write(self, name: str, question: Question) -> None:
        content = question.content
        self._shards[name].write(content["field"], content["start"], content["values"])
        question.answer()

    def _finish(self, name: str, question: Question) -> None:
        self._complete.add(name)
        question.answer()
        for operation, waiting in self._waiting.pop(name, []):
            self.asked(operation, waiting)

    # --- how it is used ----------------------------------------------------------------------------------------------

    def _open(self, name: str, question: Question) -> None:
        """A worker comes to know of a table, or tells which step of it it knows of."""
        self._steps[name].told(question.content["taken"])
        question.answer()
        self._take_steps(name)

    def _pull(self, name: str, question: Question) -> None:
        question.answer(values=self._shards[name].pull(question.content["rows"]))

    def _push(self, name: str, question: Question) -> None:
        if self._together:
            self._steps[name].push(question)
            self._take_steps(name)
        else:
            self._apply(name, [question])
            question.answer()

    def _fields(self, name: str, question: Question) -> None:
        question.answer(fields=self._shards[name].fields())

    def _read(self, name: str, question: Question) -> None:
        content = question.content
        question.answer(values=self._shards[name].read(content["field"], content["start"], content["stop"]))

    def _take_steps(self, name: str) -> None:
        steps = self._steps[name]
        while True:
            # One that joins does not count: it waits for the others' state, and they would wait for its push.
            pushes = steps.next(self._view.active, self._view.needed(self._backups))
            if pushes is None:
                return
            if pushes.counts:
                self._apply(name, pushes.questions)
            for question in pushes.questions:
                question.answer()

    def _apply(self, name: str, questions: Sequence[Question]) -> None:
        pushes = [question.content for question in questions]
        found = merged(pushes)
        if found is not None:
            self._shards[name].apply(*found, pushes[0]["options"])
