"""Tables that no worker holds: the weight of an `Embedding` or `EmbeddingBag` with `sparse=True` under a plan with
parameter servers.

Their constructors (`headgate.torch.sparse_layers`) make it a tensor without storage. What is done to it in
place before training (its first values) is recorded, and done on the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from headgate.torch.backend import REMOTE
from headgate.torch.ps.deferral import Deferral, TableError, refused
from headgate.torch.ps.filling import CONVERSION, PLAIN, RANDOM, Operation
from headgate.torch.ps.lookups import embedding, embedding_bag

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
            raise refused("copy.deepcopy")
        return self.whole()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.whole().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def whole(self) -> torch.Tensor:
        """All values in a tensor whose memory is a file, brought from the servers in pieces.

        Raises:
            TableError: There are none on servers yet.
        """
        if self._deferral.table is None:
            raise refused("reading all values")
        if self._rows != (0, self._deferral.rows):
            raise refused("reading some rows")
        return self._deferral.table.read(self._field)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is F.embedding:
            return embedding(*args, **(kwargs or {}))
        if function is F.embedding_bag:
            return embedding_bag(*args, **(kwargs or {}))
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
        raise refused(str(function.overloadpacket._qualified_op_name).rpartition("::")[2])

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
                raise refused(f"{name} with a tensor of {tuple(value.shape)}")
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


def _is_whole(table: DeferredTensor, source: Any) -> bool:
    """Whether a tensor has all values of the table, rather than some that are broadcast over it."""
    return isinstance(source, torch.Tensor) and source.shape == table.shape and 0 not in source.stride()


def _held(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
