"""A worker's side of one sparse table: pulls the rows that a batch uses, and pushes their
gradients.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headgate.torch.backend import Movement, Observer
from headgate.torch.ps.tables.initializers import PLAIN, RANDOM, Operation
from headgate.torch.ps.tables.rows import Rows
from headgate.torch.ps.transport.calls import Answer, Caller, transfers
from headgate.torch.sparse_layers import each_row_once

_PIECE_BYTES = 4 << 20


class TableError(RuntimeError):
    """An operation on a table that is impossible, because no process holds all of it."""


class DeferredTable:
    """State shared by all tensors that stand for one table.

    Attributes:
        operations: In-place operations on it, in order.
        values: All of its values, if the script has set them; until the table exists, operations
            are applied to them. None: not set.
        table: The table on the servers; None before the model was prepared.
        dtype: Its type; `first_dtype` before all operations.
        arriving: Called with the tensor of the table when a gradient of it is about to arrive in a
            backward.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        self.rows = rows
        self.width = width
        self.dtype = self.first_dtype = dtype
        self.operations: list[Operation] = []
        self.values: torch.Tensor | None = None
        self.table: RemoteTable | None = None
        self.arriving: Callable[[torch.Tensor], None] = lambda weight: None

    def done(self, operation: Operation) -> None:
        """Record an operation.

        Raises:
            TableError: It comes too late.
        """
        if self.table is not None:
            raise TableError(
                f"{operation.name} on a table that is on the parameter servers already; give "
                "it its first values "
                "before headgate.torch.prepare, or load all of them with load_state_dict"
            )
        self.operations.append(operation)


def refused(name: str) -> TableError:
    return TableError(
        f"{name} on the weight of a sparse layer: the table is on the parameter servers and no "
        f"worker holds it. Its first values may be set by {', '.join((*RANDOM, *PLAIN))}, row by "
        "row, or all at once by load_state_dict and weight.data = tensor; after "
        "headgate.torch.prepare, torch.save(model.state_dict(), ...) writes it, and clone() "
        "brings it into a file. For anything else make the layer sparse=False"
    )


class RemoteTable:
    """One table on the servers.

    Args:
        caller: Calls the servers.
        name: Name of the table, the same for all workers.
        deferred: What stands for it in this process.
        folder: Folder of files that hold all of it; None: that of temporary files.
        observer: Returns the observer of lookups.
        barrier: Waits until all workers that step together call it.
        steps: Steps of it before this worker takes part.

    Attributes:
        steps: Steps that this worker knows of: earlier ones, and those that it pushed for.
        taken: The last step that the servers reported as taken.
    """

    def __init__(
        self,
        caller: Caller,
        name: str,
        deferred: DeferredTable,
        folder: str | None,
        observer: Callable[[], Observer | None],
        barrier: Callable[[], None],
        steps: int = 0,
    ) -> None:
        self.name = name
        self._caller = caller
        self._deferred = deferred
        self._folder = folder
        self._observer = observer
        self._barrier = barrier
        self._rows = Rows(deferred.rows, caller.servers)
        self._pushed: list[Answer] = []
        self.steps = self.taken = steps

    @property
    def servers(self) -> range:
        return range(self._caller.servers)

    def open(self) -> None:
        """Wait until the servers have the table."""
        for answer in [self._ask(server, "open", taken=self.taken) for server in self.servers]:
            answer.wait()

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        """The values of these rows (ascending, distinct), after all earlier pushes of this
        worker.
        """
        begin = time.perf_counter()
        self.settle()
        settled = time.perf_counter()
        parts = [(server, *part) for server, part in enumerate(self._parted(rows))]
        answers = [
            (places, self._ask(server, "pull", rows=sent))
            for server, places, sent in parts
            if len(sent)
        ]
        if len(answers) == 1 and len(self.servers) == 1:
            values: torch.Tensor = answers[0][1].wait()["values"]
        else:
            values = torch.empty(len(rows), self._deferred.width, dtype=self._deferred.dtype)
            for places, answer in answers:
                values[places] = answer.wait()["values"]
        observer = self._observer()
        if observer is not None and observer.sampling():
            spans = (
                ("wait", begin, settled - begin),
                ("pull", settled, time.perf_counter() - settled),
            )
            observer.moved(Movement(spans, transfers(answer for _, answer in answers)))
        return values

    def push(self, gradient: torch.Tensor | None, head: Mapping[str, Any]) -> list[Answer]:
        """Push the sparse gradient of a step. Returns the pending answers at once.

        Args:
            gradient: The gradient; None: this worker did not use the table.
            head: Values sent with it: `fraction`, `members`, `options`.
        """
        if gradient is None:
            rows = torch.empty(0, dtype=torch.int64)
            values = torch.empty(0, self._deferred.width, dtype=self._deferred.dtype)
        else:
            gradient = each_row_once(gradient)
            rows, values = gradient.indices()[0].cpu(), gradient.values().cpu()
        # Counted by the worker, not by the servers: if some pushes may be left out, servers are
        # ahead of a late worker.
        self.steps += 1
        head = {**head, "step": self.steps, "used": gradient is not None}
        pushed = []
        for server, (places, sent) in enumerate(self._parted(rows)):
            part = values if len(self.servers) == 1 else values[places]
            pushed.append(self._ask(server, "push", rows=sent, gradients=part, **head))
        self._pushed += pushed
        return pushed

    def settle(self) -> None:
        """Wait until everything that was pushed is part of the table."""
        pushed, self._pushed = self._pushed, []
        for answer in pushed:
            answer.wait()
        self.taken = self.steps

    def finish(self, seconds: float) -> None:
        """Wait up to `seconds` until pushes have arrived. Servers no longer listen to a worker that
        has left.
        """
        for answer in self._pushed:
            answer.there_within(seconds)

    def fields(self) -> dict[str, Any]:
        """The state of the table's optimizer. None for state per row, which `read` returns."""
        self.settle()
        fields: dict[str, Any] = self._ask(0, "fields").wait()["fields"]
        return fields

    def read(self, field: str | None) -> torch.Tensor:
        """All rows, in a tensor whose memory is a private file.

        Args:
            field: Name in the optimizer's state; None: the values.
        """
        self.settle()
        values = self._file()
        for server in self.servers:
            pieces = self._pieces(server)
            asked = [
                self._ask(server, "read", field=field, start=start, stop=stop)
                for start, stop in pieces[:2]
            ]
            for number, (start, stop) in enumerate(pieces):
                # the next piece is fetched while this one is stored
                if number + 2 < len(pieces):
                    begin, end = pieces[number + 2]
                    asked.append(self._ask(server, "read", field=field, start=begin, stop=end))
                received = asked.pop(0).wait()["values"]
                for row, place, count in self._rows.runs(server, start, stop):
                    values[row : row + count] = received[place - start : place - start + count]
        return values

    def write(self, field: str | None, values: torch.Tensor) -> None:
        """Overwrite all rows with the lowest worker's values."""
        self.settle()
        self._barrier()  # nobody looks up rows as they were before
        if self._caller.lowest:
            for answer in self.written(field, values):
                answer.wait()
        self._barrier()  # and nobody goes on with these

    def written(self, field: str | None, values: torch.Tensor) -> Sequence[Answer]:
        answers: list[Answer] = []
        for server in self.servers:
            for start, stop in self._pieces(server):
                runs = self._rows.runs(server, start, stop)
                part = torch.cat([values[row : row + count] for row, _, count in runs])
                part = part.to(dtype=self._deferred.dtype, device="cpu")
                if len(answers) > 2:
                    answers[-2].wait()
                answers.append(self._ask(server, "write", field=field, start=start, values=part))
        return answers

    def _ask(self, server: int, verb: str, **content: Any) -> Answer:
        return self._caller.call(server, f"table.{verb}", {"name": self.name, **content})

    def _parted(self, rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each server, its rows among `rows`: their positions, and the rows as they are
        sent.
        """
        sent = rows.to(torch.int32) if self._deferred.rows < 2**31 else rows
        if len(self.servers) == 1:
            return [(sent, sent)]
        owners = self._rows.owner(rows)
        places = [(owners == server).nonzero().squeeze(1) for server in self.servers]
        return [(owner, sent[owner]) for owner in places]

    def _pieces(self, server: int) -> list[tuple[int, int]]:
        """Ranges of places on a server, a few MiB each."""
        item = torch.empty((), dtype=self._deferred.dtype).element_size()
        size = max(1, _PIECE_BYTES // max(1, item * self._deferred.width))
        count = self._rows.count(server)
        return [(start, min(start + size, count)) for start in range(0, count, size)]

    def _file(self) -> torch.Tensor:
        shape = (self._deferred.rows, self._deferred.width)
        count = shape[0] * shape[1]
        if not count:
            return torch.empty(shape, dtype=self._deferred.dtype)
        if self._folder is not None:
            os.makedirs(self._folder, exist_ok=True)
        descriptor, path = tempfile.mkstemp(prefix=".table-", dir=self._folder)
        try:
            os.close(descriptor)
            flat = torch.from_file(path, shared=True, size=count, dtype=self._deferred.dtype)
        finally:
            os.unlink(path)
        return flat.view(shape)
