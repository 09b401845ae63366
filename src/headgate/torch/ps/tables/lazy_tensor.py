"""Tables that no worker holds: the weight of an `Embedding` or `EmbeddingBag` with `sparse=True`
under a plan with parameter servers.

Their constructors (`headgate.torch.sparse_layers`) make a tensor without storage. In-place
operations before training (its initial values) are recorded, and applied on the servers. If the
script sets all values itself, they are kept in this process until the servers have them.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree

from headgate.torch import sparse_layers
from headgate.torch.backend import REMOTE
from headgate.torch.ps.tables.initializers import CONVERSION, INDEXED, PLAIN, RANDOM, Operation
from headgate.torch.ps.tables.lookups import embedding, embedding_bag
from headgate.torch.ps.tables.remote_table import DeferredTable, TableError, refused

_aten = torch.ops.aten
_ALIASES = frozenset((_aten.detach.default, _aten.alias.default))
_LIKE = {
    _aten.empty_like.default: 0,
    _aten.zeros_like.default: 0,
    _aten.ones_like.default: 1,
    _aten.full_like.default: 0,
}
"""Operations that make a table of the same shape, as optimizers do for their state, and the fill
value.
"""
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_OF_STORAGE = frozenset(
    (
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.__array__,
        torch.Tensor.share_memory_,
        torch.Tensor.apply_,
    )
)
"""Functions that bypass operator dispatch and access a storage, which a table does not have."""
_MOST_BROADCAST_BYTES = 1 << 24


class LazyTensor(torch.Tensor):
    """A table, some of its rows, or a field of its optimizer's state, without storage.

    The layer's lookup reads single rows. Only `torch.save` and `clone` read the whole table, into a
    file.
    """

    _deferred: DeferredTable
    _rows: tuple[int, int]
    _field: str | None

    @staticmethod
    def __new__(
        cls,
        deferred: DeferredTable,
        *,
        rows: tuple[int, int] | None = None,
        field: str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        row: bool = False,
    ) -> LazyTensor:
        """
        Args:
            deferred: The table.
            rows: First row, and one past the last; None: all.
            field: Name in the optimizer's state; None: the table itself.
            dtype: Type; None: the table's.
            device: Device of looked-up rows.
            row: Whether it is the single row of `rows`, not a matrix of one row.
        """
        first, last = rows or (0, deferred.rows)
        shape = (deferred.width,) if row else (last - first, deferred.width)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            shape,
            dtype=dtype or deferred.dtype,
            device=device or torch.device("cpu"),
            requires_grad=False,
        )
        made._deferred, made._rows, made._field = deferred, (first, last), field
        setattr(made, REMOTE, True)
        tensor: LazyTensor = made
        return tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"LazyTensor(shape={tuple(self.shape)}, dtype={self.dtype}, on the parameter servers)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if getattr(self, "_is_param", False):
            if self.here is None:
                raise refused("copy.deepcopy")
            return nn.Parameter(self.here.clone(), requires_grad=self.requires_grad)
        return self.whole()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.whole().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def whole(self) -> torch.Tensor:
        """All values, fetched from the servers piece by piece into a tensor whose memory is a file.

        Raises:
            TableError: The servers have no values yet.
        """
        if self._deferred.table is None:
            raise refused("reading all values")
        if self._rows != (0, self._deferred.rows):
            raise refused("reading some rows")
        return self._deferred.table.read(self._field)

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is F.embedding:
            return embedding(*args, **(kwargs or {}))
        if function is F.embedding_bag:
            return embedding_bag(*args, **(kwargs or {}))
        if function == _SET_DATA and isinstance(args[0], LazyTensor):
            return args[0]._set_data(args[1])
        if function in _OF_STORAGE:
            if args[0].here is None:
                raise refused(function.__name__)
            return function(args[0].here, *args[1:], **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given: dict[str, Any] = dict(kwargs or {})
        receiver = args[0] if args else None
        name = str(function.overloadpacket._qualified_op_name).rpartition("::")[2]
        if isinstance(receiver, LazyTensor) and function in _ALIASES:
            return receiver._like()
        if all(table.here is not None for table in _tables(args, given)):
            args, given = _pytree.tree_map_only(LazyTensor, lambda table: table.here, (args, given))
            done = function(*args, **given)
            return (
                receiver
                if function._schema.is_mutable and name.endswith("_")
                else given.get("out", done)
            )
        if isinstance(receiver, LazyTensor):
            if function is _aten._to_copy.default:
                return receiver._converted(given)
            if function is _aten.clone.default:
                return receiver.whole()
            if function in _LIKE and receiver._rows == (0, receiver._deferred.rows):
                return receiver._alike(
                    _LIKE[function] if len(args) == 1 else args[1], given.get("dtype")
                )
            if function is _aten.select.int and args[1] == 0 and receiver.dim() == 2:
                number = args[2] % receiver.shape[0]
                return receiver._like(
                    rows=(receiver._rows[0] + number, receiver._rows[0] + number + 1), row=True
                )
            if (
                function is _aten.slice.Tensor
                and receiver.dim() == 2
                and not args[4:5]
                and (not args[1:2] or args[1] == 0)
            ):
                first, last, _ = slice(*args[2:4]).indices(receiver.shape[0])
                return receiver._like(
                    rows=(receiver._rows[0] + first, receiver._rows[0] + max(first, last))
                )
            if (
                name == "copy_"
                and receiver._rows == (0, receiver._deferred.rows)
                and _is_whole(receiver, args[1])
            ):
                return receiver._copied(args[1])
            if (written := _written(name, args, given)) is not None:
                return receiver._indexed(name, *written)
            if name in RANDOM or name in PLAIN:
                return receiver._recorded(name, args[1:], given)
        raise refused(name)

    @property
    def here(self) -> torch.Tensor | None:
        """Its values, if they are in this process: the script has set them, and no server has them
        yet.
        """
        deferred = self._deferred
        if deferred.values is None or deferred.table is not None:
            return None
        if self.dim() == 1:
            return deferred.values[self._rows[0]]
        return deferred.values[slice(*self._rows)]

    def _like(
        self, rows: tuple[int, int] | None = None, row: bool = False, **others: Any
    ) -> LazyTensor:
        field = others.pop("field", self._field)
        others = {"dtype": self.dtype, "device": self.device, **others}
        return LazyTensor(self._deferred, rows=rows or self._rows, field=field, row=row, **others)

    def _alike(self, value: Any, dtype: torch.dtype | None) -> LazyTensor:
        deferred = DeferredTable(self._deferred.rows, self._deferred.width, dtype or self.dtype)
        made = LazyTensor(deferred, device=self.device)
        deferred.done(Operation("fill_", 0, deferred.rows, (value,), {}))
        return made

    def _converted(self, given: Mapping[str, Any]) -> LazyTensor:
        dtype = given.get("dtype") or self.dtype
        device = given.get("device") or self.device
        if dtype != self.dtype:
            name = str(dtype).rpartition(".")[2]
            self._deferred.done(Operation(CONVERSION, 0, self._deferred.rows, (name,)))
            self._deferred.dtype = dtype
        return self._like(dtype=dtype, device=device)

    def _copied(self, source: torch.Tensor) -> LazyTensor:
        deferred = self._deferred
        if isinstance(source, LazyTensor):
            if source.here is None:
                raise refused("copy_ from another table")
            source = source.here
        if deferred.table is not None:
            deferred.table.write(None, source)
        else:
            is_lent = sparse_layers.lending and source.dtype == self.dtype
            deferred.values = (
                source.detach() if is_lent else source.detach().to("cpu", self.dtype, copy=True)
            )
        return self

    def _set_data(self, value: torch.Tensor) -> None:
        """`self.data = value`: take the values and the shape of that tensor, as in one process."""
        deferred = self._deferred
        if isinstance(value, LazyTensor):
            if value._deferred is not deferred:
                raise TableError(
                    "data = the weight of another sparse layer, on the weight of a sparse layer: a "
                    "table on the parameter servers is one parameter; have both layers use it: "
                    "layer.weight = other.weight"
                )
            with torch._C.DisableTorchFunctionSubclass():
                _SET_DATA(self, value)
            return
        if deferred.table is not None:
            if value.shape != self.shape or value.dtype != self.dtype:
                raise refused(f"data = a {tuple(value.shape)} tensor of {value.dtype}")
            deferred.table.write(None, value)
            return
        if self._rows != (0, deferred.rows) or value.dim() != 2:
            raise refused(f"data = a {tuple(value.shape)} tensor")
        made = DeferredTable(value.shape[0], value.shape[1], value.dtype)
        made.values = value.detach()
        with torch._C.DisableTorchFunctionSubclass():
            _SET_DATA(self, LazyTensor(made, device=value.device))
        self._deferred, self._rows = made, (0, made.rows)

    def _indexed(self, name: str, index: torch.Tensor, values: torch.Tensor) -> LazyTensor:
        """Write values to the rows selected by a tensor of row numbers or a mask."""
        if index.dtype == torch.bool:
            index = index.nonzero().squeeze(-1)
        if index.dim() != 1 or self.dim() != 2 or self.device.type != "cpu":
            raise refused(name)
        start, stop = self._rows
        rows = torch.where(index < 0, index + stop - start, index).long() + start
        if rows.numel() and (int(rows.min()) < start or int(rows.max()) >= stop):
            raise IndexError(f"{name}: a row is out of range in a table of {stop - start} rows")
        values = (
            values.detach().expand(len(rows), self._deferred.width)
            if values.dim() < 2
            else values.detach()
        )
        self._deferred.done(
            Operation(INDEXED, start, stop, (rows.cpu(), values.to(self.dtype, copy=True)))
        )
        return self

    def _recorded(
        self, name: str, arguments: Sequence[Any], given: Mapping[str, Any]
    ) -> LazyTensor:
        named = dict(given)
        generator = named.pop("generator", None)
        random = None
        if name in RANDOM:
            if self.device.type != "cpu":
                raise TableError(
                    f"{name} on a table whose device is {self.device}: its first values are drawn "
                    "on the CPU; make the layer without device=, and move the model afterwards"
                )
            generator = torch.default_generator if generator is None else generator
            random = generator.get_state()
        for value in (*arguments, *named.values()):
            if (
                isinstance(value, torch.Tensor)
                and value.shape != self.shape
                and value.nbytes > _MOST_BROADCAST_BYTES
            ):
                raise refused(f"{name} with a tensor of {tuple(value.shape)}")
        operation = Operation(
            name, *self._rows, tuple(_held(value) for value in arguments), named, random
        )
        self._deferred.done(operation)
        if generator is not None:
            operation.draw_and_discard(self._deferred.width, self.dtype, generator)
        return self


def table_for(name: str, layer: Mapping[str, Any]) -> LazyTensor:
    """The weight of a sparse layer that is about to be constructed.

    Args:
        name: Name of the layer's class.
        layer: Arguments of its constructor, by name.

    Raises:
        TableError: The layer is not possible on parameter servers.
    """
    check(name, layer)
    dtype = layer["dtype"] or torch.get_default_dtype()
    device = (
        torch.device(layer["device"]) if layer["device"] is not None else torch.get_default_device()
    )
    rows, width = operator.index(layer["num_embeddings"]), operator.index(layer["embedding_dim"])
    return LazyTensor(DeferredTable(rows, width, dtype), device=device)


def defer(model: nn.Module) -> None:
    """Move the weights of sparse layers that the script made itself (`from_pretrained`, a new
    parameter) to the servers. The parameter object stays the same, because the optimizer has it as
    well.

    A weight stays in the process if anything but sparse layers uses it, or if autograd holds it.
    """
    users: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(module)
    for layers in users.values():
        if not all(
            isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse for layer in layers
        ):
            continue
        weight = layers[0].weight
        if type(weight) is not nn.Parameter or not weight.requires_grad or weight.is_cuda:
            continue
        for layer in layers:
            check(type(layer).__name__, layer.__dict__)
        made = DeferredTable(weight.shape[0], weight.shape[1], weight.dtype)
        made.values = weight.data
        with contextlib.suppress(RuntimeError):
            standing = nn.Parameter(LazyTensor(made, device=weight.device))
            torch.utils.swap_tensors(weight, standing)  # type: ignore[no-untyped-call]


def check(name: str, layer: Mapping[str, Any]) -> None:
    """
    Args:
        name: Name of a sparse layer's class.
        layer: Its options.

    Raises:
        TableError: The layer is not possible on parameter servers.
    """
    if layer["max_norm"] is not None:
        raise TableError(
            f"{name}(max_norm={layer['max_norm']}): rows of a table on parameter servers are not "
            "rescaled when they are looked up; leave max_norm out, or use sparse=False"
        )
    if layer["scale_grad_by_freq"]:
        raise TableError(
            f"{name}(scale_grad_by_freq=True): PyTorch has no sparse gradients for it; leave it "
            "out, or use sparse=False"
        )


def _written(
    name: str, args: Sequence[Any], given: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The rows that an operation overwrites, and their values. None if it does something else."""
    if (
        name == "index_put_"
        and len(args[1]) == 1
        and not any(args[3:])
        and not given.get("accumulate")
    ):
        return args[1][0], args[2]
    if name in ("index_copy_", "index_fill_") and args[1] in (0, -2):
        return args[2], torch.as_tensor(args[3])
    return None


def _is_whole(table: LazyTensor, source: Any) -> bool:
    """Whether a tensor has all values of the table, rather than values to broadcast over it."""
    return (
        isinstance(source, torch.Tensor)
        and source.shape == table.shape
        and 0 not in source.stride()
    )


def _tables(args: Sequence[Any], given: Mapping[str, Any]) -> list[LazyTensor]:
    return [
        tree_leaf
        for tree_leaf in _pytree.tree_leaves((args, given))
        if isinstance(tree_leaf, LazyTensor)
    ]


def _held(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
