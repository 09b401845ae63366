"""What was done to a table in place before it had a storage, kept so that servers can do it to their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headgate.torch.ps.rows import Rows, blocks

RANDOM = ("normal_", "uniform_")
PLAIN = ("zero_", "fill_", "mul_", "div_", "add_", "sub_", "clamp_", "erfinv_", "copy_")
CONVERSION = "to"


@dataclass(frozen=True)
class Operation:
    """One operation on the rows from `start` to `stop`.

    Args:
        name: Of the method of a tensor.
        arguments: Its arguments: numbers, or one tensor that is broadcast over the rows; for `to`, a type's name.
        named: Those given by name.
        random: State of the random generator before it; None: it draws nothing.
    """

    name: str
    start: int
    stop: int
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] | None = None
    random: torch.Tensor | None = None

    def sent(self) -> dict[str, Any]:
        """As plain values and tensors."""
        return {**self.__dict__}

    @classmethod
    def received(cls, sent: Mapping[str, Any]) -> Operation:
        """From `sent`.

        Raises:
            ValueError: It is none that can be done.
        """
        found = cls(**sent)
        if found.name not in (*RANDOM, *PLAIN, CONVERSION):
            raise ValueError(f"{found.name!r} cannot be done to a table on servers")
        return found

    def draw_and_discard(self, width: int, dtype: torch.dtype, generator: torch.Generator) -> None:
        """Leave `generator` as if the operation had been done, in memory that does not grow with the table."""
        if self.name not in RANDOM:
            return
        for start, stop in blocks(self.start, self.stop, width):
            scratch = torch.empty((stop - start) * width, dtype=dtype)
            getattr(scratch, self.name)(*self.arguments, **(self.named or {}), generator=generator)


def filled(operations: Sequence[Operation], rows: Rows, server: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """A server's rows of a table of `dtype` after these operations, bit by bit as one process has them."""
    values = torch.zeros(rows.count(server), width, dtype=dtype)
    for operation in operations:
        named = dict(operation.named or {})
        if operation.name == CONVERSION:
            values = values.to(getattr(torch, operation.arguments[0]))
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
