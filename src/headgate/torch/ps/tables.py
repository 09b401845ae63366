"""The server's side of sparse tables: its rows, the optimizer that steps them, and when the pushes of several workers
are one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from headgate.torch.ps import optimizers
from headgate.torch.ps.calls import CallError, Clerk, Question
from headgate.torch.ps.filling import Operation, filled
from headgate.torch.ps.rows import Rows
from headgate.torch.ps.views import View


class Shard:
    """A server's rows of one table.

    Args:
        rows: How the table lies on the servers.
        server: Which of them this is.
        values: Its rows.
    """

    def __init__(self, rows: Rows, server: int, values: torch.Tensor) -> None:
        self.rows = rows
        self.server = server
        self.values = values
        self.recipe: dict[str, Any] | None = None
        self._optimizer: Any = None
        self._options: dict[int, Any] = {}

    def optimize(self, recipe: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Step the rows with this optimizer from now on.

        Args:
            recipe: What `optimizers.recipe` gave, with one group.
            state: The optimizer's state: what it has for each row is written later.
        """
        self.recipe = dict(recipe)
        self._optimizer, self._options = optimizers.build(recipe, [(self.values, 0)])
        for name, value in state.items():
            self._optimizer.state[self.values][name] = value.clone() if isinstance(value, torch.Tensor) else value

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        """The values of these rows of the table."""
        return self.values.index_select(0, self.rows.local(rows.long()))

    def apply(self, rows: torch.Tensor, gradients: torch.Tensor, options: Mapping[str, Any]) -> None:
        """Take a step with these gradients; a row may be named more than once."""
        if self._optimizer is None:
            raise CallError("a table that no optimizer steps was given gradients")
        self._options[0].update(options)
        local = self.rows.local(rows.long()).unsqueeze(0)
        shape = self.values.shape
        self.values.grad = torch.sparse_coo_tensor(local, gradients, shape, check_invariants=False).coalesce()
        self._optimizer.step()
        self.values.grad = None

    def fields(self) -> dict[str, Any]:
        """The optimizer's state: None for what it has for each row, which `read` gives."""
        state = {} if self._optimizer is None else self._optimizer.state.get(self.values, {})
        return {name: None if self._by_row(value) else value for name, value in state.items()}

    def read(self, field: str | None, start: int, stop: int) -> torch.Tensor:
        """Rows from one place to another on this server.

        Args:
            field: Name in the optimizer's state; None: the values.
            start: First place.
            stop: One past the last.
        """
        return self._field(field)[start:stop].clone()

    def write(self, field: str | None, start: int, values: torch.Tensor) -> None:
        """Overwrite rows from a place on."""
        if field is not None and field not in self._optimizer.state[self.values]:
            self._optimizer.state[self.values][field] = torch.zeros_like(self.values)
        self._field(field)[start : start + len(values)] = values.to(self.values.dtype)

    def saved(self) -> dict[str, Any]:
        """All of it, for `restored`."""
        recipe = self.recipe
        if recipe is not None:
            recipe = {**recipe, "groups": [optimizers.options(self._options[0])]}
        state = {} if self._optimizer is None else dict(self._optimizer.state.get(self.values, {}))
        place = {"total": self.rows.total, "servers": self.rows.servers, "server": self.server}
        return {**place, "values": self.values, "recipe": recipe, "state": state}

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Shard:
        shard = cls(Rows(saved["total"], saved["servers"]), saved["server"], saved["values"].clone())
        if saved["recipe"] is not None:
            shard.optimize(saved["recipe"], saved["state"])
        return shard

    def _by_row(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.shape == self.values.shape

    def _field(self, field: str | None) -> torch.Tensor:
        found = self.values if field is None else self._optimizer.state[self.values][field]
        if not self._by_row(found):
            raise CallError(f"{field!r} is not kept for each row")
        values: torch.Tensor = found
        return values


def merged(pushes: Sequence[Mapping[str, Any]]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Rows and gradients of one step from the pushes of its workers; None where nobody used the table.

    Each worker's gradients come as its contribution to the mean, with its share of the batch: where contributions are
    missing, those that are there stand for all.
    """
    used = [push for push in pushes if push["used"]]
    if not used:
        return None
    rows = torch.cat([push["rows"] for push in used])
    gradients = torch.cat([push["gradients"] for push in used])
    shares = [push["share"] for push in pushes]
    if None not in shares and 0.0 < sum(shares) < 1.0 - 1e-6:
        gradients = gradients / sum(shares)
    return rows, gradients


class Pushes(NamedTuple):
    """What a step is made of.

    Args:
        questions: The pushes, by worker.
        counts: Whether they change the table.
    """

    questions: list[Question]
    counts: bool


class Steps:
    """Which pushes make up which step of a table, where workers step together.

    Args:
        needed: How many pushes make a step; None: those of all who took part in it.

    Attributes:
        taken: Steps taken so far.
        late: Pushes that came after their step.
    """

    def __init__(self, needed: int | None, taken: int = 0) -> None:
        self._needed = needed
        self.taken = taken
        self.late = 0
        self._waiting: dict[int, dict[int, Question]] = {}

    def push(self, question: Question) -> None:
        """A worker's push; one that does not say its step is part of the next."""
        step = question.content["step"]
        step = self.taken + 1 if step is None else step
        self._waiting.setdefault(step, {})[question.worker] = question

    def told(self, step: int) -> None:
        """A worker knows of this step, which a former life of the server took."""
        self.taken = max(self.taken, step)

    def next(self, present: frozenset[int]) -> Pushes | None:
        """The pushes of a step that is due now; None: there is none.

        Args:
            present: Workers that are there.
        """
        for step in sorted(self._waiting)[:1]:
            pushes = self._waiting[step]
            late = step <= self.taken
            if not late and not (step == self.taken + 1 and self._are_enough(pushes, present)):
                return None
            del self._waiting[step]
            self.taken = max(self.taken, step)
            if late and self._needed is not None:
                self.late += len(pushes)
            # Late where all are needed: the others' part was taken before the server was started again.
            return Pushes([pushes[worker] for worker in sorted(pushes)], counts=not late or self._needed is None)
        return None

    def _are_enough(self, pushes: Mapping[int, Question], present: frozenset[int]) -> bool:
        if self._needed is not None:
            return len(pushes) >= min(self._needed, len(present))
        members = {member for push in pushes.values() for member in push.content["members"]}
        return members & present <= pushes.keys()


class Tables(Clerk):
    """Tables by name. A question about one that is not complete yet waits until it is.

    Args:
        server: Index of this server.
        together: Whether the workers step together.
        needed: How many pushes make a step of a table then; None: all.
        saved: What `state` gave to a former life of the server.
    """

    lost: Mapping[str, str] = {
        "table.create": "its rows of sparse tables begin anew, and what workers have pushed to them is lost"
    }

    def __init__(self, server: int, together: bool, needed: int | None, saved: Mapping[str, Any]) -> None:
        self._server = server
        self._together = together
        self._needed = needed
        self._shards = {name: Shard.restored(kept["shard"]) for name, kept in saved.items()}
        self._steps = {name: Steps(needed, kept["taken"]) for name, kept in saved.items()}
        self._complete = set(self._shards)
        self._waiting: dict[str, list[tuple[str, Question]]] = {}
        self._present: frozenset[int] = frozenset()
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
        self._present = frozenset(view.workers)
        for name in self._steps:
            self._take_steps(name)

    def state(self) -> Mapping[str, Any]:
        return {
            name: {"shard": self._shards[name].saved(), "taken": self._steps[name].taken}
            for name in sorted(self._complete)
        }

    @property
    def late(self) -> int:
        """Pushes that came too late to count."""
        return sum(steps.late for steps in self._steps.values())

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
            self._steps[name] = Steps(self._needed)
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
        question.answer(taken=self._steps[name].taken)
        self._take_steps(name)

    def _pull(self, name: str, question: Question) -> None:
        question.answer(values=self._shards[name].pull(question.content["rows"]))

    def _push(self, name: str, question: Question) -> None:
        if self._together:
            self._steps[name].push(question)
            self._take_steps(name)
        else:
            self._apply(name, [question])
            question.answer(taken=0)

    def _fields(self, name: str, question: Question) -> None:
        question.answer(fields=self._shards[name].fields())

    def _read(self, name: str, question: Question) -> None:
        content = question.content
        question.answer(values=self._shards[name].read(content["field"], content["start"], content["stop"]))

    def _take_steps(self, name: str) -> None:
        steps = self._steps[name]
        while True:
            pushes = steps.next(self._present)
            if pushes is None:
                return
            if pushes.counts:
                self._apply(name, pushes.questions)
            for question in pushes.questions:
                question.answer(taken=steps.taken)

    def _apply(self, name: str, questions: Sequence[Question]) -> None:
        pushes = [question.content for question in questions]
        found = merged(pushes)
        if found is not None:
            self._shards[name].apply(*found, pushes[0]["options"])
