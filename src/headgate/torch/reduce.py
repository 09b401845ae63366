"""Makes `.grad` what one process would have. Gradients are sent during backward; when it returns,
`.grad` holds their mean.

Each trained parameter has a hook. Its gradient is weighted by its samples and put into a flat
buffer. Full buffers go to the backend. At the end of the backward the sums are divided and written
into `.grad`. Then clipping, accumulation, gradient scalers and every optimizer work as in one
process.

The last buffer ends with a control vector, from which all workers learn the same at the same step
(`control_vector`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Callable, Protocol

import torch
from torch import nn

from headgate.torch import gradient_hooks, gradient_weights
from headgate.torch.accumulated_gradients import AccumulatedGradients
from headgate.torch.backend import Backend, Movement, RoundResult, TimedRound
from headgate.torch.buckets import GradientBuckets, GradientLayout, rows
from headgate.torch.control_vector import ControlSum, Interruption, ReduceError
from headgate.torch.declared_weights import DeclaredWeights, WeightTarget
from headgate.torch.gradient_weights import Weight
from headgate.torch.round_control import RoundControl


class Weigher(Protocol):
    """Computes the weight of a worker's gradients for a reducer."""

    summed: bool
    """Whether the loss of a batch is the sum of its samples' losses, not their mean."""

    def weigh(self) -> Weight:
        """The weight, as far as this worker knows. Called once, at the beginning of a round."""

    def head(self) -> Sequence[float]:
        """The numbers that this worker sends at the head of the round. Their number is always the
        same.
        """

    @property
    def asks(self) -> bool:
        """Whether this worker needs the summed head before gradients are put into buffers."""

    def agree(self, sums: Sequence[float]) -> Weight:
        """The weight of this worker's gradients, from the summed head, if it asks."""

    def check(self, sums: Sequence[float]) -> None:
        """Check the summed head at the end of a round in which it did not ask. Raises if the
        workers do not fit together.
        """


class Reducer:
    """Averages the gradients of prepared models over the workers of a job.

    Args:
        backend: Sums the gradients.
        weigher: Computes the weight of this worker's gradients; called once in each round.
        control: Writes and reads the control vectors.
        exchanged: Takes each round.

    Attributes:
        rounds: Rounds so far.
        part: This worker's fraction of the samples or tokens that counted in the latest round.
        said: The weights declared by the script.
    """

    def __init__(
        self,
        backend: Backend,
        weigher: Weigher,
        control: RoundControl,
        exchanged: Callable[[TimedRound], None],
    ) -> None:
        self._backend = backend
        self._weigher = weigher
        self._control = control
        self._exchanged = exchanged
        self.rounds = 0
        self.part: torch.Tensor | float = 1.0
        self._layout = GradientLayout(backend, gradient_weights.NUMBERS)
        self._hooked: dict[int, int] = {}
        self._weight = Weight(1.0, 1.0)
        self._open = False
        self._tasks: set[int] = set()
        self._arrived: dict[int, int] = {}
        # and the gradient before it
        self._tables: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._accumulated = AccumulatedGradients()
        self._launched = 0
        self.said = DeclaredWeights(self._layout.parameters)
        self._interruption = Interruption()

    def add(self, model: nn.Module) -> None:
        """Average the gradients of this model too."""
        self._layout.add(model)
        self._hook_all()
        for tensor in gradient_hooks.take(model, self.averages):
            self.sees_hook(tensor)

    def averages(self, tensor: torch.Tensor) -> bool:
        """Whether the gradient of this tensor is averaged."""
        return id(tensor) in self._hooked

    def sees_hook(self, parameter: torch.Tensor) -> None:
        """Note a hook of the script on a parameter. It is to run on the average of what a backward
        adds.
        """
        if parameter not in self._accumulated:
            self._accumulated.keep_apart(parameter)

    @property
    def one_of_all(self) -> nn.Parameter | None:
        """A trained parameter, a different one in each round."""
        return self._layout.one_of_all(self.rounds)

    @property
    def part_of_loss(self) -> torch.Tensor | float:
        """Factor of this worker's loss of the latest round, such that the sum over all workers is
        the loss of the whole batch.
        """
        return self._weight.factor if self._weigher.summed else self.part

    def settle(self) -> None:
        """End a round whose backward had no end of its own, because an optimizer begins its
        step.
        """
        self._interruption.check()
        if self._open:
            if torch._C._current_graph_task_id() != -1:
                raise ReduceError(
                    "an optimizer takes its step while backward runs, before the gradients of "
                    "other workers are there. "
                    "Let it step after backward, or in a hook by register_post_accumulate_grad_hook"
                )
            self.said.step_begins()
            try:
                self._end_round()
            except BaseException as error:
                self.failed(error)
                raise
        self.said.stepped()

    def failed(self, error: BaseException) -> str:
        """Handle a backward that ends with an error. Returns what is then permanently wrong, in
        words; empty if no round was open.
        """
        if self._open:
            self._interruption.begins(error)
        return self._interruption.text

    # --- during backward --------------------------------------------------------------------------

    def table_arrives(self, weight: torch.Tensor) -> None:
        """Note that a gradient of a parameter on servers is about to be added to the present
        one.
        """
        self.take_part()
        if id(weight) not in self._tables:
            self._tables[id(weight)] = weight, weight.grad
            weight.grad = None

    def take_part(self) -> None:
        """Note that the running backward ends a round."""
        self._interruption.check()
        self.said.backward_begins()
        if not self._open:
            self._begin_round()
        task = torch._C._current_graph_task_id()
        if task not in self._tasks:
            self._tasks.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(self._graph_done)

    def _has_arrived(self, parameter: torch.Tensor) -> None:
        self.take_part()
        key = id(parameter)
        if key in self._arrived:
            raise ReduceError(
                "a parameter got a second gradient in one backward; expected one. Either a "
                "backward failed before and the script went on, or a layer is used in several "
                "checkpointed parts: use_reentrant=False cures that"
            )
        self._arrived[key] = len(self._arrived)
        buckets = self._layout.buckets
        slot = buckets.slots.get(key)
        if slot is None:
            return  # sparse: added up when all is known
        if self.said.waits:
            return
        with torch.no_grad():
            self._contribute(slot.view, parameter)
        full = buckets.fill(slot)
        if self._backend.ordered:
            while self._launched < buckets.last and buckets.is_full(self._launched):
                self._backend.launch(self._launched)
                self._launched += 1
        elif full and slot.bucket != buckets.last:
            self._backend.launch(slot.bucket)

    def _begin_round(self) -> None:
        self._open = True
        self._tasks.clear()
        self._arrived.clear()
        self._tables.clear()
        self._hook_all()
        self._layout.begin_round()
        if not self.said.waits:
            self._take_weight()

    def _take_weight(self) -> None:
        observer = self._backend.observer
        self._backend.traced = observer is not None and observer.sampling()
        self._weight = self._weigher.weigh()
        self._begin_exchange()
        if self._weigher.asks:
            begin = time.perf_counter()
            head = self._backend.sum_of(0).tolist()
            if observer is not None:
                waited = time.perf_counter() - begin
                observer.moved(Movement((("wait", begin, waited),)))
            self._weight = self._weigher.agree(head)

    def _begin_exchange(self) -> None:
        self._backend.begin(self._weight.counts, self._weight.samples)
        head = self._layout.buckets.buffers[0]
        head.copy_(torch.tensor(self._weigher.head(), dtype=head.dtype))
        self._backend.launch(0)
        self._launched = 1

    def _hook_all(self) -> None:
        """Hook all parameters: those that were frozen before, or exchanged
        (torch.utils.swap_tensors), have none yet.
        """
        for parameter in self._layout.parameters:
            self._hook(parameter)

    def _hook(self, parameter: torch.Tensor) -> None:
        if not parameter.requires_grad or self._hooked.get(id(parameter)) == parameter._cdata:
            return
        self._hooked[id(parameter)] = parameter._cdata
        if self._weigher.summed or parameter in self._accumulated:
            self._accumulated.keep_apart(parameter)
        gradient_hooks.register_post_accumulate_grad_hook(parameter, self._has_arrived)

    def _contribute(self, view: torch.Tensor, parameter: torch.Tensor) -> None:
        """Write this worker's contribution to the sum into its slot."""
        assert parameter.grad is not None
        factor = self._factor
        if not factor:
            view.zero_()  # not multiplied: a borrowed sample's gradient may be infinite
            return
        gradient = _real(self._fresh(parameter))
        if gradient.dtype == view.dtype and gradient.device == view.device:
            torch.mul(gradient, factor, out=view)
        else:
            view.copy_(gradient).mul_(factor)

    @property
    def _factor(self) -> float:
        """Factor of this worker's gradients before they are summed."""
        return self._weight.factor if self._weigher.summed else self._weight.counts

    def _fresh(self, parameter: torch.Tensor) -> torch.Tensor:
        gradient = self._accumulated.fresh(parameter)
        is_dense = not gradient.is_sparse or self._layout.is_sparse(parameter)
        return gradient if is_dense else gradient.to_dense()

    # --- at the end of backward -------------------------------------------------------------------

    def _graph_done(self) -> None:
        # A backward within a backward (reentrant checkpointing) ends while a node of the outer one
        # is running.
        if not self._open or torch._C._current_autograd_node() is not None:
            return
        if not self.said.backward_ended():
            self._end_round()

    def weight_said(self, fetched: bool) -> None:
        """Take a weight that the script declares for the gradients of a backward.

        Args:
            fetched: Whether a batch was read, or may have been, that has no backward yet.

        Raises:
            ReduceError: It comes too late.
        """
        meant = self.said.said(fetched)
        if meant is WeightTarget.EXCHANGED:
            kept = self.said.put_back()
            self._begin_round()
            self._arrived, self._tables = dict(kept.arrived), dict(kept.tables)
            self._accumulated.earlier = dict(kept.earlier)
        if meant is not WeightTarget.NEXT:
            self._end_round()

    @torch.no_grad()
    def _end_round(self) -> None:
        buckets = self._layout.buckets
        waits = self.said.waits
        if waits:
            self._take_weight()
        self.said.exchanges(
            self._weigher.summed, self._arrived, self._tables, self._accumulated.earlier
        )
        tables = [(weight, weight.grad) for weight, _ in self._tables.values()]
        self._contribute_rest(buckets, tables, of_all=waits)
        begin = time.perf_counter()
        result = self._exchange(buckets)
        control = buckets.control_of(result.sums)
        if not self._weigher.summed and not control.is_cuda and not control[0]:
            # No gradient counts in the whole batch, so they are weighted by samples, as in one
            # process.
            self._weight = replace(self._weight, over=None)
            buckets.empty()
            self._begin_exchange()
            self._contribute_rest(buckets, tables, of_all=True)
            result = self._exchange(buckets)
        end = time.perf_counter()
        if not self._weigher.asks:
            self._weigher.check(result.sums[0].tolist())
        brought = self._write_back(buckets, result)
        self._accumulated.earlier.clear()
        self._open = False
        self.said.exchanged()
        self.rounds += 1
        self._layout.follow(self._arrived)
        self._exchanged(TimedRound(begin, end, result))
        for parameter in brought:
            gradient_hooks.run_after(parameter)

    def _contribute_rest(
        self,
        buckets: GradientBuckets,
        tables: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
        of_all: bool,
    ) -> None:
        """Write into their slots the gradients that backward has not brought, or all of them, and
        weight the gradients of tables.
        """
        for slot in buckets.slots.values():
            arrived = id(slot.parameter) in self._arrived
            if arrived and not of_all:
                continue
            if slot.parameter.grad is None:
                slot.view.zero_()
            elif not arrived and slot.parameter in self._accumulated:
                slot.view.zero_()
                self._accumulated.keep(slot.parameter)
            else:  # part of a mean of what was accumulated earlier, if it has not come now
                self._contribute(slot.view, slot.parameter)
        for weight, gradient in tables:
            weight.grad = rows(weight, gradient, self._factor)

    def _exchange(self, buckets: GradientBuckets) -> RoundResult:
        self._control.write(buckets, self._weight.counts, self._has_gradient)
        if self._backend.ordered:
            remaining = list(range(self._launched, buckets.last + 1))
        else:
            remaining = [
                n for n in range(1, buckets.last + 1) if n == buckets.last or not buckets.is_full(n)
            ]
        for number in remaining:
            self._backend.launch(number)
        return self._backend.finish()

    def _has_gradient(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._arrived or (
            parameter not in self._accumulated and parameter.grad is not None
        )

    def _write_back(self, buckets: GradientBuckets, result: RoundResult) -> list[torch.Tensor]:
        """Write the sums into `.grad`. Returns the parameters whose hooks have to run."""
        control = buckets.control_of(result.sums)
        slots = list(buckets.slots.values())
        lacks = control.is_cuda and (
            bool(buckets.sparse) or any(id(slot.parameter) not in self._arrived for slot in slots)
        )
        total, agreed = self._control.read(control, self._layout.shape, lacks)
        self.part = self._weight.counts / total
        if not self._weigher.summed:
            for sums in result.sums[1:]:
                sums.div_(total)
        gradients, values, apart = [], [], []
        for slot, is_used in zip(slots, [True] * len(slots) if agreed is None else agreed.used):
            if is_used:
                gradients.append(self._gradient_to_write(slot.parameter))
                values.append(slot.in_sums(result.sums))
                if slot.parameter in self._accumulated:
                    apart.append(slot.parameter)
        if gradients:
            torch._foreach_copy_(gradients, values)
        for parameter in apart:
            assert parameter.grad is not None
            self._accumulated.put(parameter, parameter.grad)
        if agreed is not None:
            if buckets.sparse:
                apart += self._sum_sparse(buckets.sparse, agreed)
            self._write_back_tables(agreed.weight or 1.0)
            self._backend.overflowed(agreed.overflows)
        return sorted(
            (parameter for parameter in apart if gradient_hooks.runs_after(parameter)),
            key=lambda parameter: self._arrived.get(id(parameter), len(self._arrived)),
        )

    def _write_back_tables(self, total: float) -> None:
        """Scale the gradients of tables to this worker's part of the mean. Servers sum the
        parts.
        """
        for weight, earlier in self._tables.values():
            assert weight.grad is not None
            fresh = weight.grad if self._weigher.summed else weight.grad / total
            weight.grad = fresh if earlier is None else earlier + fresh
        self._backend.took_part(None if self._weigher.summed else self._weight.counts / total)

    def _gradient_to_write(self, parameter: torch.Tensor) -> torch.Tensor:
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse:
            gradient = parameter.grad = torch.empty_like(parameter)
        return _real(gradient.detach())

    def _sum_sparse(
        self, parameters: Sequence[nn.Parameter], agreed: ControlSum
    ) -> list[torch.Tensor]:
        """Sum the sparse gradients. Returns the parameters that have only what backward added."""
        total = agreed.weight or 1.0
        used = [p for p, is_used in zip(parameters, agreed.sparse) if is_used]
        dense = {id(p) for p, is_dense in zip(parameters, agreed.densified) if is_dense}
        contributions = []
        for parameter in used:
            apart, arrived = parameter in self._accumulated, id(parameter) in self._arrived
            if apart and not arrived:
                self._accumulated.keep(parameter)
            adds = parameter.grad is not None and (arrived or not apart)
            contributions.append(
                rows(parameter, self._fresh(parameter) if adds else None, self._factor)
            )
        for parameter, summed in zip(used, self._backend.sum_sparse(contributions) if used else []):
            gradient = (summed if self._weigher.summed else summed / total).to(parameter.dtype)
            if parameter in self._accumulated:
                self._accumulated.put(parameter, gradient)
            else:
                parameter.grad = gradient
            if id(parameter) in dense and parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        return [parameter for parameter in used if parameter in self._accumulated]


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
