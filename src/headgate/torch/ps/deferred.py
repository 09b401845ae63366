"""Tables that no worker holds: the weight of an `Embedding` or `EmbeddingBag` with `sparse=True` under a plan with
parameter servers.

Their constructors (`headgate.torch.sparse_layers`) make it a tensor without storage. What is done to it in
place before training (its first values) is recorded, and done on the servers. A lookup brings the rows that the batch
uses; their gradient is a sparse gradient of the weight, as torch has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from headgate.torch.backend import REMOTE
from headgate.torch.ps.filling import CONVERSION, PLAIN, RANDOM, Operation

if TYPE_CHECKING:
    from headgate.torch.ps.remote_table import RemoteTable

_aten = torch.ops.aten
_ALIASES = frozenset((_aten.detach.default, _aten.alias.default))
_LIKE = {
    _aten.empty_like.default: 0,
    _aten.zeros_like.default: 0,
    _aten.ones_like.default: 1,
    _aten.full_like.default: 0,
}
"""What makes a table of the same shape, as optimizers do for their state, and what it is filled with."""
_MOST_BROADCAST_BYTES = 1 << 24


class TableError(RuntimeError):
    """Something was asked of a table that cannot be done where nobody holds all of it."""


class Deferral:
    """What all tensors that stand for one table share.

    Attributes:
        operations: What was done to it in place, in that order.
        source: A tensor with all of its values, that was copied into it after those; None: there was none.
        table: The table on the servers; None before the model was prepared.
        dtype: Its type; `first_dtype` before all operations.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        self.rows = rows
        self.width = width
        self.dtype = self.first_dtype = dtype
        self.operations: list[Operation] = []
        self.source: torch.Tensor | None = None
        self.table: RemoteTable | None = None

    def done(self, operation: Operation) -> None:
        """Record an operation.

        Raises:
            TableError: It comes too late.
        """
        if self.table is not None or self.source is not None:
            raise TableError(
                f"{operation.name} on a table that is on the parameter servers already; give it its first values "
                "before headgate.torch.prepare, or load all of them with load_state_dict"
            )
        self.operations.append(operation)


class DeferredTensor(torch.Tensor):
    """A table, some of its rows, or a field of its optimizer's state, without storage. It is read row by row in the
    layer's lookup, and as a whole only into a file: by `torch.save`, and by `clone`."""

    _deferral: Deferral
    _rows: tuple[int, int]
    _field: str | None

    @staticmethod
    def __new__(
        cls,
        deferral: Deferral,
        *,
        rows: tuple[int, int] | None = None,
        field: str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        row: bool = False,
    ) -> DeferredTensor:
        """
        Args:
            deferral: The table.
            rows: From which row to which; None: all.
            field: Name in the optimizer's state; None: the table itself.
            dtype: Type; None: the table's.
            device: Where looked up rows go.
            row: Whether it is the one row of `rows`, not a matrix of one row.
        """
        first, last = rows or (0, deferral.rows)
        shape = (deferral.width,) if row else (last - first, deferral.width)
        made = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype or deferral.dtype, device=device or torch.device("cpu"), requires_grad=False
        )
        made._deferral, made._rows, made._field = deferral, (first, last), field
        setattr(made, REMOTE, True)
        found: DeferredTensor = made
        return found

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DeferredTensor(shape={tuple(self.shape)}, dtype={self.dtype}, on the parameter servers)"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if getattr(self, "_is_param", False):
            raise _refused("copy.deepcopy")
        return self.whole()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.whole().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def whole(self) -> torch.Tensor:
        """All values in a tensor whose memory is a file, brought from the servers in pieces.

        Raises:
            TableError: There are none on servers yet.
        """
        if self._deferral.table is None:
            raise _refused("reading all values")
        if self._rows != (0, self._deferral.rows):
            raise _refused("reading some rows")
        return self._deferral.table.read(self._field)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is F.embedding:
            return _embedding(*args, **(kwargs or {}))
        if function is F.embedding_bag:
            return _embedding_bag(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given: dict[str, Any] = dict(kwargs or {})
        this = args[0] if args else None
        if isinstance(this, DeferredTensor):
            name = str(function.overloadpacket._qualified_op_name).rpartition("::")[2]
            if function in _ALIASES:
                return this._like()
            if function is _aten._to_copy.default:
                return this._converted(given)
            if function is _aten.clone.default:
                return this.whole()
            if function in _LIKE and this._rows == (0, this._deferral.rows):
                return this._alike(_LIKE[function] if len(args) == 1 else args[1], given.get("dtype"))
            if function is _aten.select.int and args[1] == 0 and this.dim() == 2:
                number = args[2] % this.shape[0]
                return this._like(rows=(this._rows[0] + number, this._rows[0] + number + 1), row=True)
            if function is _aten.slice.Tensor and this.dim() == 2 and not args[4:5] and (not args[1:2] or args[1] == 0):
                first, last, _ = slice(*args[2:4]).indices(this.shape[0])
                return this._like(rows=(this._rows[0] + first, this._rows[0] + max(first, last)))
            if name == "copy_" and this._rows == (0, this._deferral.rows) and _is_whole(this, args[1]):
                return this._copied(args[1])
            if name in RANDOM or name in PLAIN:
                return this._recorded(name, args[1:], given)
        raise _refused(str(function.overloadpacket._qualified_op_name).rpartition("::")[2])

    def _like(self, rows: tuple[int, int] | None = None, row: bool = False, **others: Any) -> DeferredTensor:
        field = others.pop("field", self._field)
        others = {"dtype": self.dtype, "device": self.device, **others}
        return DeferredTensor(self._deferral, rows=rows or self._rows, field=field, row=row, **others)

    def _alike(self, value: Any, dtype: torch.dtype | None) -> DeferredTensor:
        deferral = Deferral(self._deferral.rows, self._deferral.width, dtype or self.dtype)
        made = DeferredTensor(deferral, device=self.device)
        deferral.done(Operation("fill_", 0, deferral.rows, (value,), {}))
        return made

    def _converted(self, given: Mapping[str, Any]) -> DeferredTensor:
        dtype = given.get("dtype") or self.dtype
        device = given.get("device") or self.device
        if dtype != self.dtype:
            name = str(dtype).rpartition(".")[2]
            self._deferral.done(Operation(CONVERSION, 0, self._deferral.rows, (name,)))
            self._deferral.dtype = dtype
        return self._like(dtype=dtype, device=device)

    def _copied(self, source: torch.Tensor) -> DeferredTensor:
        deferral = self._deferral
        if deferral.table is not None:
            deferral.table.write(None, source)
        else:
            deferral.source = source.detach()
        return self

    def _recorded(self, name: str, arguments: Sequence[Any], given: Mapping[str, Any]) -> DeferredTensor:
        named = dict(given)
        generator = named.pop("generator", None)
        random = None
        if name in RANDOM:
            if self.device.type != "cpu":
                raise TableError(
                    f"{name} on a table whose device is {self.device}: its first values are drawn on the CPU; make the "
                    "layer without device=, and move the model afterwards"
                )
            generator = torch.default_generator if generator is None else generator
            random = generator.get_state()
        for value in (*arguments, *named.values()):
            if isinstance(value, torch.Tensor) and value.numel() * value.element_size() > _MOST_BROADCAST_BYTES:
                raise _refused(f"{name} with a tensor of {tuple(value.shape)}")
        operation = Operation(name, *self._rows, tuple(_held(value) for value in arguments), named, random)
        self._deferral.done(operation)
        if generator is not None:
            operation.draw_and_discard(self._deferral.width, self.dtype, generator)
        return self


def table_for(name: str, layer: Mapping[str, Any]) -> DeferredTensor:
    """The weight of a sparse layer that is about to be made.

    Args:
        name: Of the layer's class.
        layer: What its constructor was given, by name.

    Raises:
        TableError: The layer cannot be had on parameter servers.
    """
    if layer["max_norm"] is not None:
        raise TableError(
            f"{name}(max_norm={layer['max_norm']}): rows of a table on parameter servers are not rescaled when they "
            "are looked up; leave max_norm out, or use sparse=False"
        )
    if layer["scale_grad_by_freq"]:
        raise TableError(
            f"{name}(scale_grad_by_freq=True): PyTorch has no sparse gradients for it; leave it out, or use "
            "sparse=False"
        )
    dtype = layer["dtype"] or torch.get_default_dtype()
    device = torch.device(layer["device"]) if layer["device"] is not None else torch.get_default_device()
    return DeferredTensor(Deferral(layer["num_embeddings"], layer["embedding_dim"], dtype), device=device)


# --- lookups ---------------------------------------------------------------------------------------------------------


class _Lookup(torch.autograd.Function):
    """The rows that were brought; their gradient is a sparse one of the table."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = weight.shape
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (rows,) = ctx.saved_tensors
        sparse = torch.sparse_coo_tensor(
            rows.unsqueeze(0), gradients[0], ctx.shape, check_invariants=False, is_coalesced=True
        )
        return sparse, None, None


def _looked_up(indices: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Different rows that are used, the number among them of each index, and their values."""
    if not isinstance(weight, DeferredTensor):
        raise TypeError(f"a table was given as indices of a lookup in a {type(weight).__name__}")
    table = weight._deferral.table
    if table is None:
        raise TableError(
            "a sparse layer is used that is not on the parameter servers yet; call headgate.torch.prepare(model, ...) "
            "first"
        )
    rows, numbers = torch.unique(indices, return_inverse=True)
    if rows.numel() and (rows[0] < 0 or rows[-1] >= weight.shape[0]):
        raise IndexError(f"index out of range in a table of {weight.shape[0]} rows")
    rows = rows.long()
    values = table.pull(rows.cpu()).to(device=indices.device, dtype=weight.dtype)
    return rows, numbers, _Lookup.apply(weight, rows, values)  # type: ignore[no-untyped-call]


def _padding(rows: torch.Tensor, padding_idx: int | None, total: int) -> int | None:
    """The number of the padding row among `rows`; None where it is not used."""
    if padding_idx is None:
        return None
    found = (rows == (padding_idx + total if padding_idx < 0 else padding_idx)).nonzero()
    return int(found[0]) if found.numel() else None


def _embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    _check(max_norm, scale_grad_by_freq)
    rows, numbers, values = _looked_up(input, weight)
    return F.embedding(numbers, values, _padding(rows, padding_idx, weight.shape[0]))


def _embedding_bag(
    input: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    _check(max_norm, scale_grad_by_freq)
    if mode == "max":
        raise ValueError("max mode does not support sparse weights")  # as torch says it
    rows, numbers, values = _looked_up(input, weight)
    return F.embedding_bag(
        numbers,
        values,
        offsets,
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=_padding(rows, padding_idx, weight.shape[0]),
    )


def _check(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    if max_norm is not None or scale_grad_by_freq:
        raise TableError("max_norm and scale_grad_by_freq cannot be had for a table on parameter servers")


def _is_whole(table: DeferredTensor, source: Any) -> bool:
    """Whether a tensor has all values of the table, rather than some that are broadcast over it."""
    return isinstance(source, torch.Tensor) and source.shape == table.shape and 0 not in source.stride()


def _held(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _refused(name: str) -> TableError:
    return TableError(
        f"{name} on the weight of a sparse layer: the table is on the parameter servers and no worker holds it. Its "
        f"first values may be set by {', '.join((*RANDOM, *PLAIN))} and load_state_dict; after "
        "headgate.torch.prepare, torch.save(model.state_dict(), ...) writes it, and clone() brings it into a file. For "
        "anything else make the layer sparse=False"
    )
