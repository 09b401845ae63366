"""What a worker does with its gradients if all workers step together: it averages them with theirs,
round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from headgate.torch import gradient_hooks, loss_mean
from headgate.torch.agreed_requests import AgreedRequests
from headgate.torch.backend import Backend, Observer, TimedRound
from headgate.torch.buffers import Buffers
from headgate.torch.closures import Arguments, averaged
from headgate.torch.gradients import check_averaged, check_same
from headgate.torch.reduce import Reducer
from headgate.torch.round_control import RoundControl
from headgate.torch.round_weights import RoundWeights
from headgate.torch.sharding import Slices
from headgate.torch.straggler_wait import StragglerWait
from headgate.torch.worker_position import PositionComparison


class Owner(Observer, Protocol):
    """The session that a worker belongs to."""

    def place(self) -> tuple[int, int]:
        """The current phase and epoch; -1 outside of a loop over epochs."""

    def exchanged(self, exchange: TimedRound) -> None: ...

    def note(self, text: str) -> None:
        """Tell the user something."""


class GradientAveraging:
    """The rounds of a worker, and what its optimizers may step.

    Args:
        link: Sums the gradients.
        workers: Number of workers in the plan.
        slices: Divides batches among the workers that take part.
        weights: Weights this worker's gradients.
        comparison: Compares the workers' positions.
        agreed: The requests that all workers handle at the same step.
        buffers: The buffers of the models.
        send: Sends a message to the engine.
        owner: Knows the script's position, and takes the rounds.

    Attributes:
        reducer: Averages the gradients.
    """

    def __init__(
        self,
        link: Backend,
        workers: int,
        slices: Slices,
        weights: RoundWeights,
        comparison: PositionComparison,
        agreed: AgreedRequests,
        buffers: Buffers,
        send: Callable[[Mapping[str, Any]], object],
        owner: Owner,
    ) -> None:
        self._link = link
        self._workers = workers
        self._slices = slices
        self._weights = weights
        self._losses = weights.losses
        self._comparison = comparison
        self._agreed = agreed
        self._buffers = buffers
        self._waits = StragglerWait(send)
        self._owner = owner
        self._rounds: dict[int, int] = {}  # when each optimizer took its latest step
        control = RoundControl(link, self._mark, agreed.flags, agreed.agree, comparison.differs)
        self.reducer = Reducer(link, weights, control, self._exchanged)
        weights.start(link.index, slices)
        loss_mean.watch(weights.losses.sees, self._backward_failed)
        gradient_hooks.watch(self.reducer.averages, self.reducer.sees_hook)

    def state(self) -> dict[str, Any]:
        """The state that joining workers need."""
        return {
            **self._link.before_save(),
            "rounds": self.reducer.rounds,
            "used": self._comparison.position.used,
            "weighed_late": self.reducer.said.waits,
            "weighing": self._losses.state(),
        }

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Take the state of workers that this one joins."""
        self.reducer.rounds = state["rounds"]
        self.reducer.said.waits = state["weighed_late"]
        self._comparison.position.used = state["used"]
        self._losses.go_on(state["weighing"])

    def close(self) -> None:
        """Send what is left about stragglers."""
        self._waits.close()

    def say_weight(self, value: Any) -> None:
        """Note the number that the loss of the batch is a mean over.

        Raises:
            ValueError: It is no valid weight, or comes too late.
        """
        if not self._weights.summed:
            self._losses.say(value)
            self.reducer.weight_said(self._weights.awaits_backward)

    def take_part(self) -> None:
        """Begin the round of the running backward, if it has not begun and its loss is weighed."""
        if not self._weights.summed:
            self.reducer.take_part()

    # --- optimizers

    def optimizer_begins(
        self, optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Arguments | None:
        """Wait for the gradients, at the beginning of an optimizer's step.

        Args:
            optimizer: The optimizer.
            args: Positional arguments of its step.
            kwargs: Keyword arguments of its step.

        Returns:
            Other arguments for the step; None: unchanged.

        Raises:
            ReduceError: The optimizer steps parameters of no prepared model, or gradients that no
                backward made: these are this worker's alone.
        """
        self._settle(optimizer)
        self._comparison.position.steps(optimizer)
        if self._workers == 1:
            return None
        replaced = averaged(args, kwargs, self._mean_loss)
        is_new = self.reducer.rounds != self._rounds.get(id(optimizer), 0)
        if not (is_new or replaced):
            check_same(optimizer, self._link.add_up)
        return replaced

    def stray_begins(self, optimizer: Any) -> None:
        """Check a step of an optimizer that was not given to `prepare`.

        Raises:
            ReduceError: It trains parameters of no prepared model.
        """
        self._settle(optimizer, tensors=False)

    def optimizer_ended(self, optimizer: Any) -> None:
        """Note the end of an optimizer's step."""
        if self.reducer.rounds == self._rounds.get(id(optimizer), 0):
            self._owner.note(
                "the optimizer took a step without a backward: its gradients were not averaged"
            )
        self._rounds[id(optimizer)] = self.reducer.rounds

    def _settle(self, optimizer: Any, tensors: bool = True) -> None:
        self.reducer.settle()
        self._losses.settle()
        check_averaged(optimizer, self.reducer.averages, tensors=tensors)

    def _mean_loss(self, loss: float) -> float:
        """The loss of the whole batch, from this worker's part. All workers call this at the same
        place.
        """
        part = float(self.reducer.part_of_loss) * self._losses.value_factor
        return float(
            self._link.add_up(torch.tensor([loss * part if part else 0.0], dtype=torch.float64))
        )

    # --- rounds

    def _mark(self) -> int:
        return self._comparison.position.exchanges(
            self._weights.batch, self.reducer.rounds, self.reducer.one_of_all
        )

    def _backward_failed(self, error: BaseException) -> None:
        if not self._comparison.sync_points.failure:
            # ends the worker, if the script continues to its end
            self._comparison.sync_points.failure = self.reducer.failed(error)

    def _exchanged(self, exchange: TimedRound) -> None:
        self._comparison.exchanged()
        result = exchange.result
        self._buffers.combine(self._link.add_up, self._weights.samples)
        self._slices.members = result.members
        if self._agreed.leaving and self._link.index not in result.members:
            self._agreed.leave()
        self._weights.exchanged(exchange, self.reducer.part)
        if result.changed:
            self._waits.skip(exchange.end)
        else:
            self._waits.add(exchange.begin, exchange.end, self._owner.step, result.waited)
        self._owner.exchanged(exchange)
