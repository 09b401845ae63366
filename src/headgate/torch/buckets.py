"""The buffers in which gradients are exchanged: dense ones in flat buffers, sparse ones as the used
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from headgate.torch.backend import REMOTE, Backend
from headgate.torch.control_vector import ReduceError, Shape
from headgate.torch.sparse_layers import each_row_once


@dataclass(frozen=True)
class GradientSlice:
    """The slice of a buffer that holds a parameter's gradient.

    Args:
        parameter: The parameter.
        bucket: Number of the buffer.
        offset: First element in the buffer.
        view: That part of the buffer, in the gradient's shape. Complex numbers are pairs of real
            ones.
    """

    parameter: torch.Tensor
    bucket: int
    offset: int
    view: torch.Tensor

    def in_sums(self, sums: Sequence[torch.Tensor]) -> torch.Tensor:
        """The same slice of the summed buffers."""
        return sums[self.bucket][self.offset : self.offset + self.view.numel()].view(
            self.view.shape
        )


class GradientBuckets:
    """The buffers for a list of parameters.

    Half-precision types are summed in float32. Buffers of float32 and float64 are filled in the
    order of the parameters, beginning with a small one, as in torch's DistributedDataParallel.

    Args:
        parameters: Parameters with dense gradients, in the order in which their gradients arrive.
        sparse: Parameters with sparse gradients. Only their flags are in the buffers.
        head: Length of the first buffer, which holds no gradients and is sent before they arrive.
        controls: Length of the control vector, after the gradients.
        backend: Decides the size and device of the buffers.

    Attributes:
        slots: Slices by `id` of the parameter, in the order of `parameters`.
        sparse: The parameters with sparse gradients.
        buffers: The head of a round, then the buffers with gradients. The last one ends with
            `control`.
        control: The control vector.
        last: Number of the last buffer.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        sparse: Sequence[nn.Parameter],
        head: int,
        controls: int,
        backend: Backend,
    ) -> None:
        self.sparse = list(sparse)
        self.slots: dict[int, GradientSlice] = {}
        self.buffers = [torch.zeros(head, dtype=torch.float64)]
        groups = _grouped(parameters, backend)
        if not groups:
            groups = [([], torch.float32, backend.device or torch.device("cpu"))]
        self._sizes = [0, *(len(group) for group, _, _ in groups)]
        self._missing = list(self._sizes)
        self.last = len(groups)
        for number, (group, dtype, device) in enumerate(groups, 1):
            elements = sum(_elements(parameter) for parameter in group)
            extra = controls if number == self.last else 0
            buffer = torch.zeros(elements + extra, dtype=dtype, device=device)
            self.buffers.append(buffer)
            offset = 0
            for parameter in group:
                count = _elements(parameter)
                shape = (*parameter.shape, 2) if parameter.is_complex() else parameter.shape
                self.slots[id(parameter)] = GradientSlice(
                    parameter, number, offset, buffer[offset : offset + count].view(shape)
                )
                offset += count
            if number == self.last:
                self._control_at = offset
                self.control = buffer[offset:]

    def control_of(self, sums: Sequence[torch.Tensor]) -> torch.Tensor:
        """The control vector in the summed buffers."""
        return sums[self.last][self._control_at :]

    def fill(self, slot: GradientSlice) -> bool:
        """Note that a gradient was written to its slice. Returns whether its buffer is now full."""
        self._missing[slot.bucket] -= 1
        return not self._missing[slot.bucket]

    def is_full(self, bucket: int) -> bool:
        return not self._missing[bucket]

    def empty(self) -> None:
        """Begin a round, with all buffers empty."""
        self._missing = list(self._sizes)


class GradientLayout:
    """The parameters whose gradients are averaged, and where each goes in the buffers.

    Gradients arrive from the last layer to the first; once seen, buffers are filled in the order in
    which they arrived at the lowest worker.

    Args:
        backend: Decides the size and device of the buffers.
        head: Length of the first buffer.

    Attributes:
        parameters: All parameters of the prepared models that are not on servers.
        shape: The layout of the control vector.
    """

    def __init__(self, backend: Backend, head: int) -> None:
        self._backend = backend
        self._head = head
        self.parameters: list[nn.Parameter] = []
        self.shape = Shape(0, 0, 0)
        self._sparse: set[int] = set()
        self._trained: list[torch.Size | None] = []
        self._order: list[int] | None = None
        self._buckets: GradientBuckets | None = None

    def add(self, model: nn.Module) -> None:
        """Average the gradients of this model too."""
        known = set(map(id, self.parameters))
        for parameter in model.parameters():
            if id(parameter) not in known and not hasattr(parameter, REMOTE):
                known.add(id(parameter))
                self.parameters.append(parameter)
        if self._backend.sums_sparse:
            self._sparse |= sparse_parameters(model)
        self._trained = []
        self._buckets = None

    @property
    def buckets(self) -> GradientBuckets:
        """The buffers of the running round.

        Raises:
            ReduceError: None has begun.
        """
        if self._buckets is None:
            raise ReduceError("a round was to end that had not begun")
        return self._buckets

    def is_sparse(self, parameter: torch.Tensor) -> bool:
        """Whether the rows of a sparse gradient are summed."""
        return id(parameter) in self._sparse

    def one_of_all(self, number: int) -> nn.Parameter | None:
        """A trained parameter, a different one for each number; None: none is trained."""
        count = len(self.parameters)
        places = ((number + n) % count for n in range(count))
        return next((self.parameters[n] for n in places if self.parameters[n].requires_grad), None)

    def begin_round(self) -> None:
        """Empty the buffers; make new ones if the trained parameters have changed."""
        trained = [
            parameter.shape if parameter.requires_grad else None for parameter in self.parameters
        ]
        if trained != self._trained:
            self._trained = trained
            self._order = None
            self._buckets = None
        if self._buckets is not None:
            self._buckets.empty()
            return
        dense = self._dense
        order = range(len(dense) - 1, -1, -1) if self._order is None else self._order
        sparse = [
            p for p, on in zip(self.parameters, trained) if on is not None and self.is_sparse(p)
        ]
        self.shape = Shape(len(dense), len(sparse), len(self._backend.overflows()))
        self._buckets = GradientBuckets(
            [dense[i] for i in order], sparse, self._head, self.shape.numbers, self._backend
        )
        self._backend.register(self._buckets.buffers)

    def follow(self, arrived: Mapping[int, int]) -> None:
        """From the next round on, fill buffers in the order in which gradients arrived at the
        lowest worker, if that is not known yet. All workers call this after a round.

        Args:
            arrived: When each gradient arrived, by `id` of its parameter.
        """
        if not self._backend.ordered or self._order is not None:
            return
        dense = self._dense
        order = sorted(
            range(len(dense)), key=lambda i: (arrived.get(id(dense[i]), len(arrived)), -i)
        )
        self._order = list(self._backend.broadcast_value(order))
        if [id(dense[i]) for i in self._order] != list(self.buckets.slots):
            self._buckets = None

    @property
    def _dense(self) -> list[nn.Parameter]:
        return [
            p
            for p, on in zip(self.parameters, self._trained)
            if on is not None and not self.is_sparse(p)
        ]


def _elements(parameter: torch.Tensor) -> int:
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _sum_type(parameter: torch.Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype in (torch.float64, torch.complex128) else torch.float32


def _grouped(
    parameters: Sequence[torch.Tensor], backend: Backend
) -> list[tuple[list[torch.Tensor], torch.dtype, torch.device]]:
    """Parameters by buffer, with each buffer's type and device, in the order in which buffers get
    full.
    """
    open_groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    closed: list[tuple[list[torch.Tensor], torch.dtype, torch.device]] = []
    for parameter in parameters:
        key = _sum_type(parameter), backend.device or parameter.device
        open_groups.setdefault(key, []).append(parameter)
        sizes[key] = sizes.get(key, 0) + _elements(parameter) * key[0].itemsize
        if sizes[key] >= (backend.bucket_bytes if closed else backend.first_bucket_bytes):
            closed.append((open_groups.pop(key), *key))
            del sizes[key]
    return closed + [(group, *key) for key, group in open_groups.items()]


def sparse_parameters(model: nn.Module) -> set[int]:
    """`id`s of a model's parameters with sparse gradients."""
    return {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }


def rows(parameter: torch.Tensor, gradient: torch.Tensor | None, factor: float) -> torch.Tensor:
    """A gradient as unique rows, multiplied by `factor`. No rows without a gradient, or if the
    factor is 0.
    """
    if gradient is None or not factor:
        indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
        values = torch.empty(
            (0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device
        )
        return torch.sparse_coo_tensor(
            indices, values, parameter.shape, check_invariants=False, is_coalesced=True
        )
    return each_row_once(gradient if gradient.is_sparse else gradient.to_sparse(1)) * factor
