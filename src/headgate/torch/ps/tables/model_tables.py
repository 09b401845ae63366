"""The sparse tables of prepared models: creates and steps them on the servers, and connects them to
layers and optimizers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headgate.torch.backend import Movement, Observer, Passage, Transfer
from headgate.torch.ps import optimizers
from headgate.torch.ps.optimizers import OptimizerError
from headgate.torch.ps.tables.initializers import coalesced
from headgate.torch.ps.tables.lazy_tensor import LazyTensor
from headgate.torch.ps.tables.remote_table import DeferredTable, RemoteTable, TableError
from headgate.torch.ps.transport.calls import Answer, Caller


def sparse(rows: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A sparse gradient of distinct rows."""
    return torch.sparse_coo_tensor(
        rows.unsqueeze(0), values, shape, check_invariants=False, is_coalesced=True
    )


def check(optimizer: Any, group: Mapping[str, Any]) -> None:
    """Try an optimizer on a table of two rows.

    Raises:
        OptimizerError: It accepts no sparse gradients, or changes rows that the batch does not use.
    """
    made = {**optimizers.recipe(optimizer), "groups": [optimizers.options(group)]}
    table = torch.ones(2, 1)
    tried, _ = optimizers.build(made, [(table, 0)])
    name = type(optimizer).__name__
    try:
        for row in (0, 1):
            before = table.clone()
            table.grad = sparse(torch.tensor([row]), torch.ones(1, 1), table.shape)
            tried.step()
    except RuntimeError as error:
        raise OptimizerError(
            f"{name} cannot step a table on parameter servers: {error}. Give sparse layers an "
            "optimizer of their own: SparseAdam, Adagrad, or SGD"
        ) from None
    if not torch.equal(table[0], before[0]):
        options = ", ".join(key for key in ("momentum", "weight_decay", "lambd") if group.get(key))
        raise OptimizerError(
            f"{name} with {options or 'these options'} changes every row of a table in every "
            "step, not only those that "
            "the batch uses; leave that out for sparse layers, in a parameter group of their own"
        )


@dataclass
class _Adopted:
    """A table of a prepared model.

    Args:
        table: The table.
        deferred: Its recorded operations.
        weight: The tensor that stands for it in the model.
        optimizer: The optimizer that steps it; None: none.
        made: What the servers need to create it.
    """

    table: RemoteTable
    deferred: DeferredTable
    weight: LazyTensor
    optimizer: Any
    made: dict[str, Any]


class RemoteTables:
    """The tables of all prepared models.

    Args:
        caller: Calls the servers; not connected yet.
        together: Whether the workers step together.
        folder: Folder of files that hold a whole table.
        observer: Returns the observer of lookups, and of pushes if the workers step together.
        members: Workers that take part in the ending step.
        barrier: Waits until all workers that step together call it.

    Attributes:
        arriving: Called with the tensor of a table when a gradient of it is about to arrive in a
            backward.
        fraction: This worker's part of the mean that the last gradients belong to; None: they
            belong to a sum.
    """

    def __init__(
        self,
        caller: Caller,
        together: bool,
        folder: str | None,
        observer: Callable[[], Observer | None],
        members: Callable[[], Sequence[int]] = tuple,
        barrier: Callable[[], None] = lambda: None,
    ) -> None:
        self.caller = caller
        self._together = together
        self._folder = folder
        self._observer = observer
        self.arriving: Callable[[torch.Tensor], None] = lambda weight: None
        self.fraction: float | None = 1.0
        self._members = members
        self._barrier = barrier
        self._adopted: list[_Adopted] = []
        caller.greetings.append(self._greet)

    def adopt(
        self, number: int, model: nn.Module, optimizer: Any, steps: Mapping[str, int] | None = None
    ) -> None:
        """Have the servers create and step the tables of a model, and its layers use them.

        Args:
            number: Number of the model, in the order of preparation.
            model: The model.
            optimizer: Its optimizer, or None.
            steps: For each table, the steps that others have taken before this worker joins.

        Raises:
            OptimizerError: The optimizer cannot step a table.
        """
        known = {id(adopted.deferred) for adopted in self._adopted}
        stepped = False
        for name, weight in model.named_parameters():
            if not isinstance(weight, LazyTensor) or id(weight._deferred) in known:
                continue
            known.add(id(weight._deferred))
            group = _group(optimizer, weight)
            if group is not None:
                check(optimizer, group)
            made = self._made(weight, optimizer, group)
            name = f"{number}.{name}"
            before = (steps or {}).get(name, 0)
            table = RemoteTable(
                self.caller,
                name,
                weight._deferred,
                self._folder,
                self._observer,
                self._barrier,
                before,
            )
            adopted = _Adopted(
                table, weight._deferred, weight, None if group is None else optimizer, made
            )
            if self.caller.lowest:
                self._create(adopted)
            with self.caller.preparing():
                table.open()
            self._adopted.append(adopted)
            weight._deferred.table, weight._deferred.arriving = table, self.arriving
            if group is not None:
                stepped = True
                optimizer.state.pop(weight, None)
        if stepped:
            if self._together:
                optimizer.register_step_pre_hook(lambda stepping, *_: self._push_together(stepping))
            optimizer.register_state_dict_post_hook(self._with_state)

    def push(self, optimizer: Any) -> list[Answer]:
        """Push the gradients of the optimizer's tables, and hide them from the optimizer. Returns
        the pending answers.
        """
        pushed = []
        for adopted in self._of(optimizer):
            if not isinstance(adopted.weight, LazyTensor):
                raise TableError(
                    f"the weight of sparse layer {adopted.table.name} was exchanged for another "
                    "after headgate.torch.prepare (torch.utils.swap_tensors); exchange it before"
                )
            options = optimizers.options(_group(optimizer, adopted.weight))
            adopted.made["recipe"] = {**adopted.made["recipe"], "groups": [options]}
            head = {"fraction": self.fraction, "members": list(self._members()), "options": options}
            gradient, adopted.weight.grad = adopted.weight.grad, None
            if gradient is not None or self._together:
                pushed += adopted.table.push(gradient, head)
        return pushed

    def steps(self) -> dict[str, int]:
        """The number of steps of each table that this worker knows of."""
        return {adopted.table.name: adopted.table.steps for adopted in self._adopted}

    def overflows(self) -> list[bool]:
        """For each table, whether the gradient to push is not finite."""
        return [
            adopted.weight.grad is not None and not _finite(adopted.weight.grad.detach())
            for adopted in self._adopted
        ]

    @torch.no_grad()
    def overflowed(self, anywhere: Sequence[bool]) -> None:
        """Set for each table whether the gradient of any worker that counts in this round is not
        finite.

        A gradient scaler that finds such a gradient skips the step, so all workers have to find
        one, or none. If another worker has one, this worker's gradient gets a row that is not
        finite. If this worker's does not count, it is dropped.
        """
        for adopted, is_anywhere, is_here in zip(self._adopted, anywhere, self.overflows()):
            weight = adopted.weight
            if is_here == is_anywhere:
                continue
            row = torch.zeros(int(is_anywhere), dtype=torch.int64, device=weight.device)
            values = torch.full(
                (len(row), weight.shape[1]), torch.inf, dtype=weight.dtype, device=weight.device
            )
            marked = sparse(row, values, weight.shape)
            kept = weight.grad if is_anywhere else None
            weight.grad = marked if kept is None else kept + marked

    def settle(self) -> None:
        """Wait until everything that was pushed is part of the tables."""
        for adopted in self._adopted:
            adopted.table.settle()

    def finish(self, seconds: float) -> None:
        """Wait up to `seconds` until pushes to tables have arrived."""
        for adopted in self._adopted:
            adopted.table.finish(seconds)

    def traffic(self) -> str:
        """The network traffic of tables, in words; empty without tables."""
        if not self._adopted:
            return ""
        size = sum(a.weight.numel() * a.weight.element_size() for a in self._adopted)
        pulled, pushed = sum(self.caller.bytes_in), sum(self.caller.bytes_out)
        return (
            f"sparse tables of {size / 1e6:.1f} MB: {pulled / 1e6:.1f} MB came from the servers "
            f"and {pushed / 1e6:.1f} MB went to them"
        )

    def _push_together(self, optimizer: Any) -> None:
        """Push, and let the servers take the step until the next lookup."""
        begin = time.perf_counter()
        pushed = self.push(optimizer)
        end = time.perf_counter()
        observer = self._observer()
        if pushed and observer is not None and observer.sampling():
            transfers = [
                Transfer(f"server-{answer.server}", Passage(begin, end, answer.bytes_out))
                for answer in pushed
            ]
            observer.moved(Movement((("push", begin, end - begin),), transfers))

    def _of(self, optimizer: Any) -> Iterator[_Adopted]:
        return (adopted for adopted in self._adopted if adopted.optimizer is optimizer)

    def _made(self, weight: LazyTensor, optimizer: Any, group: Any) -> dict[str, Any]:
        """What the servers need to create a table."""
        deferred = weight._deferred
        made: dict[str, Any] = {
            "rows": deferred.rows,
            "width": deferred.width,
            "dtype": str(deferred.first_dtype).rpartition(".")[2],
            "servers": self.caller.servers,
            "operations": [
                operation.sent()
                for operation in coalesced(deferred.operations, deferred.first_dtype)
            ],
            "recipe": None,
        }
        if group is not None:
            made["recipe"] = {**optimizers.recipe(optimizer), "groups": [optimizers.options(group)]}
        return made

    def _create(self, adopted: _Adopted) -> None:
        """Create a table on the servers, with the values and the optimizer's state that were loaded
        in this process.
        """
        table, weight = adopted.table, adopted.weight
        state = {} if adopted.optimizer is None else adopted.optimizer.state.get(weight, {})
        # The servers also make the state that the optimizer's constructor made without storage.
        state = {name: value for name, value in state.items() if not isinstance(value, LazyTensor)}
        by_row = {
            name: v
            for name, v in state.items()
            if isinstance(v, torch.Tensor) and v.shape == weight.shape
        }
        single = {name: value for name, value in state.items() if name not in by_row}
        calls = [
            self.caller.call(server, operation, content)
            for server in table.servers
            for operation, content in self._making(adopted, single)
        ]
        answers = [answer.wait() for answer in calls]
        if all(answer.get("new", True) for answer in answers):
            values = weight._deferred.values
            fields: list[tuple[str | None, torch.Tensor]] = (
                [] if values is None else [(None, values)]
            )
            for field, values in [*fields, *by_row.items()]:
                for answer in table.written(field, values):
                    answer.wait()
        for answer in [
            self.caller.call(server, "table.ready", {"name": table.name})
            for server in table.servers
        ]:
            answer.wait()

    def _making(
        self, adopted: _Adopted, state: Mapping[str, Any]
    ) -> list[tuple[str, dict[str, Any]]]:
        name, made = adopted.table.name, adopted.made
        head = {key: value for key, value in made.items() if key != "recipe"}
        calls = [("table.create", {"name": name, **head})]
        if made["recipe"] is not None:
            calls.append(
                ("table.optimize", {"name": name, "recipe": made["recipe"], "state": state})
            )
        return calls

    def _greet(self, server: int, again: bool) -> list[tuple[str, Mapping[str, Any]]]:
        """The calls for a restarted server: how to create the tables of no snapshot, with their
        initial values, and the known steps.
        """
        calls: list[tuple[str, Mapping[str, Any]]] = []
        for adopted in self._adopted if again else []:
            calls += self._making(adopted, {})
            name = adopted.table.name
            calls += [
                ("table.ready", {"name": name}),
                ("table.open", {"name": name, "taken": adopted.table.taken}),
            ]
        return calls

    def _with_state(self, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        """The optimizer's state dict, with references to the state on the servers, which is fetched
        when it is saved.
        """
        ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for adopted in self._of(optimizer):
            weight = adopted.weight
            number = next(number for number, parameter in enumerate(ordered) if parameter is weight)
            fields = {
                name: weight._like(field=name) if value is None else value
                for name, value in adopted.table.fields().items()
            }
            if fields:
                state["state"][number] = fields
        return state


def _finite(gradient: torch.Tensor) -> bool:
    values = gradient._values() if gradient.is_sparse else gradient
    return bool(values.isfinite().all())


def _group(optimizer: Any, weight: torch.Tensor) -> Any:
    """The parameter group of a weight; None: none."""
    groups = [] if optimizer is None else optimizer.param_groups
    return next(
        (group for group in groups if any(parameter is weight for parameter in group["params"])),
        None,
    )
