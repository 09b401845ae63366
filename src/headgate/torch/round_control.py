"""What workers tell each other at the end of each round: requests, positions, and which gradients
there are.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import torch

from headgate.torch.backend import Backend
from headgate.torch.buckets import GradientBuckets
from headgate.torch.control_vector import HEAD, ControlInput, ControlSum, Shape
from headgate.torch.deferred_reads import DeferredReads


class RoundTotal(NamedTuple):
    """What a worker learns of all workers in a round.

    Args:
        weight: The weight of all gradients; above 0.
        flags: Which gradients there are; None: the flags were not read, and this worker has each.
    """

    weight: torch.Tensor | float
    flags: ControlSum | None


class RoundControl:
    """Writes and reads the control vectors of a worker.

    Args:
        backend: Sums them.
        mark: A digest of this worker's position, below `control_vector.MARKS`; called at the end of
            each round.
        flags: Whether this worker was asked to stop, and to save a checkpoint; called at the end of
            each round.
        agreed: Called for each round with whether any worker was asked to stop, and to save.
        differs: Called if the workers' marks differ, with how many rounds ago that was, and whether
            only this worker's mark differs from the others'. Raises the error.
    """

    def __init__(
        self,
        backend: Backend,
        mark: Callable[[], int],
        flags: Callable[[], tuple[bool, bool]],
        agreed: Callable[[bool, bool], None],
        differs: Callable[[int, bool], None],
    ) -> None:
        self._backend = backend
        self._mark = mark
        self._flags = flags
        self._agreed = agreed
        self._differs = differs
        self._marks = (0, 0)  # of the round before the latest, and of the latest
        self._late = DeferredReads(backend.look)

    def write(
        self,
        buckets: GradientBuckets,
        weight: float,
        has_gradient: Callable[[torch.Tensor], bool],
    ) -> None:
        """Write this worker's control vector into its buffer.

        Args:
            buckets: The buffers of the round.
            weight: Weight of this worker's gradients.
            has_gradient: Whether a parameter has a gradient in this worker.
        """
        stop, checkpoint = self._flags()
        self._marks = self._marks[1], self._mark()
        own = ControlInput(
            float(weight),
            stop,
            checkpoint,
            self._marks[1],
            used=[has_gradient(slot.parameter) for slot in buckets.slots.values()],
            sparse=[has_gradient(parameter) for parameter in buckets.sparse],
            densified=[p.grad is not None and not p.grad.is_sparse for p in buckets.sparse],
            overflows=self._backend.overflows(),
        )
        buckets.control.copy_(torch.tensor(own.numbers(), dtype=buckets.control.dtype))

    def read(self, control: torch.Tensor, shape: Shape, needs_flags: bool) -> RoundTotal:
        """Read the summed control vector, and handle requests and marks.

        Args:
            control: The vector.
            shape: Its layout.
            needs_flags: Whether this worker lacks a gradient that others may have.
        """
        head: ControlSum | None
        if control.is_cuda:
            # Its head is read one round later, so that not every step waits for the GPU. All
            # workers do the same.
            before = self._late.swap(control[HEAD])
            head = None if before is None else ControlSum.read(before, Shape(0, 0, 0))
            weight = control[0].clamp_min(torch.finfo(control.dtype).tiny)
            flags = ControlSum.read(control.tolist(), shape) if needs_flags else None
            total = RoundTotal(weight, flags)
        else:
            head = ControlSum.read(control.tolist(), shape)
            total = RoundTotal(head.weight or 1.0, head)
        if head is not None:
            if head.mark != self._marks[not control.is_cuda]:
                self._differs(int(control.is_cuda), head.mark is not None)
            self._agreed(head.stop, head.checkpoint)
        return total
