"""In-place operations on a table before it had storage, recorded so that servers can apply them to
their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headgate.torch.ps.tables.rows import Rows, blocks

RANDOM = ("normal_", "uniform_")
PLAIN = ("zero_", "fill_", "mul_", "div_", "add_", "sub_", "clamp_", "erfinv_", "copy_")
CONVERSION = "to"
INDEXED = "rows"


@dataclass(frozen=True)
class Operation:
    """One operation on the rows from `start` to `stop`.

    Args:
        name: Name of the tensor method.
        arguments: Its arguments: numbers, or one tensor that is broadcast over the rows; for `to`,
            the name of a type; for `rows`, row numbers and their values.
        named: Keyword arguments.
        random: State of the random generator before it; None: it draws nothing.
    """

    name: str
    start: int
    stop: int
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] | None = None
    random: torch.Tensor | None = None

    def sent(self) -> dict[str, Any]:
        """The operation as plain values and tensors."""
        return {**self.__dict__}

    @classmethod
    def received(cls, sent: Mapping[str, Any]) -> Operation:
        """Read an operation from `sent`.

        Raises:
            ValueError: The operation is not supported.
        """
        operation = cls(**sent)
        if operation.name not in (*RANDOM, *PLAIN, CONVERSION, INDEXED):
            raise ValueError(f"{operation.name!r} cannot be done to a table on servers")
        return operation

    def draw_and_discard(self, width: int, dtype: torch.dtype, generator: torch.Generator) -> None:
        """Advance `generator` as the operation would, in memory that does not grow with the
        table.
        """
        if self.name not in RANDOM:
            return
        for start, stop in blocks(self.start, self.stop, width):
            scratch = torch.empty((stop - start) * width, dtype=dtype)
            getattr(scratch, self.name)(*self.arguments, **(self.named or {}), generator=generator)


def filled(
    operations: Sequence[Operation], rows: Rows, server: int, width: int, dtype: torch.dtype
) -> torch.Tensor:
    """A server's rows of a table of type `dtype` after these operations, bit for bit as in one
    process.
    """
    values = torch.zeros(rows.count(server), width, dtype=dtype)
    for operation in operations:
        named = dict(operation.named or {})
        if operation.name == CONVERSION:
            values = values.to(getattr(torch, operation.arguments[0]))
        elif operation.name == INDEXED:
            index, given = operation.arguments
            owned = rows.owner(index) == server
            values[rows.local(index[owned])] = given[owned]
        elif operation.name in RANDOM:
            generator = torch.Generator()
            if operation.random is not None:
                generator.set_state(operation.random.clone())
            for start, stop in blocks(operation.start, operation.stop, width):
                scratch = torch.empty((stop - start) * width, dtype=values.dtype)
                getattr(scratch, operation.name)(*operation.arguments, **named, generator=generator)
                taken, places = rows.within(server, start, stop)
                scratch = scratch.view(-1, width)
                values[places] = scratch if rows.servers == 1 else scratch[taken]
        elif (operation.start, operation.stop) == (0, rows.total):
            getattr(values, operation.name)(*operation.arguments, **named)
        else:
            for start, stop in blocks(operation.start, operation.stop, width):
                _, places = rows.within(server, start, stop)
                part = values[places]
                getattr(part, operation.name)(*operation.arguments, **named)
                values[places] = part
    return values


def coalesced(operations: Sequence[Operation], dtype: torch.dtype) -> list[Operation]:
    """Merge operations on a table of type `dtype`. Consecutive operations that overwrite rows
    become one, because a script may set the rows of a vocabulary one by one.
    """
    merged: list[Operation] = []
    run: list[tuple[torch.Tensor, torch.Tensor]] = []
    for operation in operations:
        written = _written(operation, dtype)
        if written is not None:
            run.append(written)
            continue
        merged += [*_joined(run), operation]
        run = []
        if operation.name == CONVERSION:
            dtype = getattr(torch, operation.arguments[0])
    return [*merged, *_joined(run)]


def _joined(run: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[Operation]:
    """Combine writes of rows into one operation. The last write of a row counts."""
    if not run:
        return []
    rows, places = torch.unique(torch.cat([rows for rows, _ in run]), return_inverse=True)
    last = torch.zeros_like(rows).scatter_reduce_(0, places, torch.arange(len(places)), "amax")
    values = torch.cat([values for _, values in run])[last]
    return (
        [Operation(INDEXED, int(rows[0]), int(rows[-1]) + 1, (rows, values))] if len(rows) else []
    )


def _written(operation: Operation, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The rows that an operation overwrites, and their values. None if it does something else."""
    if operation.name == INDEXED:
        rows, values = operation.arguments
        return rows, values
    given = operation.arguments[0] if operation.name == "copy_" else None
    count = operation.stop - operation.start
    if (
        not isinstance(given, torch.Tensor)
        or not given.dim()
        or given.numel() != count * given.shape[-1]
    ):
        return None
    return torch.arange(operation.start, operation.stop), given.reshape(count, -1).to("cpu", dtype)
