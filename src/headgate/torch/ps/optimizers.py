"""Optimizers on parameter servers: which are possible, how tensors are cut for them, and their
state in the form of one process.
"""

from __future__ import annotations

import heapq
import importlib
import inspect
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

CHUNK_BYTES = 512 * 1024
_CHUNKS_PER_SERVER = 20
"""Least number of chunks per server if tensors may be cut. Loads then differ by less than 5 %."""
_SMALLEST_CHUNK_BYTES = 4096
_ELEMENT_WISE = frozenset(
    (
        "SGD",
        "Adam",
        "AdamW",
        "Adagrad",
        "RMSprop",
        "Adadelta",
        "Adamax",
        "NAdam",
        "RAdam",
        "ASGD",
        "Rprop",
    )
)
_LOCAL_OPTIONS = {"foreach": None, "fused": None, "capturable": False}
"""Options of the implementation, which each server sets itself."""
_LEFT_OUT = ("params", "param_names", "lr_scheduler")


class OptimizerError(TypeError):
    """An optimizer cannot run on parameter servers."""


def element_wise(kind: type) -> bool:
    """Whether each element's update depends only on that element, so that tensors can be cut
    anywhere.

    This is known only for PyTorch's own classes. Tensors of other optimizers stay whole, as for
    Adafactor and Muon.
    """
    return kind.__name__ in _ELEMENT_WISE and kind is getattr(torch.optim, kind.__name__, None)


def recipe(optimizer: Any) -> dict[str, Any]:
    """What another process needs to make the same optimizer: class name, arguments, and options of
    the groups.

    Raises:
        OptimizerError: It cannot run on servers. The message says why and what to do.
    """
    kind = type(optimizer)
    name = kind.__qualname__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise OptimizerError(
            "LBFGS evaluates the loss several times within a step, on the same batch and with "
            "other weights: it cannot "
            "run on parameter servers that do not wait; use a synchronous plan"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptimizerError(
            f"{name} is no torch.optim.Optimizer: parameter servers cannot run it; use a "
            "synchronous plan"
        )
    if kind.__module__ == "__main__" or "<locals>" in name:
        raise OptimizerError(
            f"{name} is defined in the script itself, where parameter servers cannot import "
            "it; move it to a module "
            "beside the script and put that folder on PYTHONPATH, or use a synchronous plan"
        )
    known = inspect.signature(kind).parameters
    return {
        "module": kind.__module__,
        "name": name,
        "arguments": {
            key: plain(value, key) for key, value in optimizer.defaults.items() if key in known
        },
        "groups": [options(group) for group in optimizer.param_groups],
    }


def options(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a parameter group as plain values.

    Raises:
        OptimizerError: An option is no plain value.
    """
    return {key: plain(value, key) for key, value in group.items() if key not in _LEFT_OUT}


def plain(value: Any, name: str) -> Any:
    if name in _LOCAL_OPTIONS:
        return _LOCAL_OPTIONS[name]
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()  # a learning rate as a tensor
    if isinstance(value, (tuple, list)):
        return tuple(plain(item, name) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    raise OptimizerError(
        f"the optimizer's option {name} is a {type(value).__name__}: only numbers and strings can "
        "be sent to parameter servers; use a synchronous plan"
    )


def build(
    made: Mapping[str, Any], tensors: Sequence[tuple[torch.Tensor, int]]
) -> tuple[Any, dict[int, Any]]:
    """Make the optimizer of `recipe` for other tensors.

    Args:
        made: The result of `recipe`.
        tensors: Each tensor with the number of its group.

    Returns:
        The optimizer, and its groups by their numbers in the recipe.

    Raises:
        OptimizerError: The class cannot be imported here, or refuses the tensors.
    """
    try:
        kind: Any = importlib.import_module(made["module"])
        for part in made["name"].split("."):
            kind = getattr(kind, part)
    except (ImportError, AttributeError) as error:
        raise OptimizerError(
            f"a parameter server cannot import {made['module']}.{made['name']} ({error}); put the "
            "folder of its module on PYTHONPATH, or use a synchronous plan"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise OptimizerError(f"{made['module']}.{made['name']} is no torch.optim.Optimizer")
    numbers = sorted({number for _, number in tensors})
    groups = [
        {
            **made["groups"][number],
            "params": [tensor for tensor, group in tensors if group == number],
        }
        for number in numbers
    ]
    try:
        optimizer = kind(groups, **made["arguments"])
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptimizerError(
            f"{made['name']} cannot be made on a parameter server: {error}"
        ) from error
    _built.add(optimizer)
    return optimizer, dict(zip(numbers, optimizer.param_groups))


_built: weakref.WeakSet[Any] = weakref.WeakSet()


def is_built(optimizer: Any) -> bool:
    """Whether `build` made an optimizer, and no script."""
    return optimizer in _built


# --- cutting --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Elements `start` to `stop` of the parameter number `parameter`."""

    parameter: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class ParameterChunk:
    """Pieces of parameters of one type, sent to a server and back in one message."""

    server: int
    pieces: tuple[Piece, ...]


def cut(tensors: Sequence[torch.Tensor], servers: int, split: bool) -> list[ParameterChunk]:
    """Distribute the tensors in chunks over servers.

    If tensors may be split, the servers' bytes differ by at most 5 %. The result depends only on
    the shapes.

    Args:
        tensors: The parameters, by number.
        servers: Number of servers.
        split: Whether a tensor may be split. Otherwise each stays whole.
    """
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    size = CHUNK_BYTES
    if servers > 1:
        size = max(_SMALLEST_CHUNK_BYTES, min(size, total // (servers * _CHUNKS_PER_SERVER)))
    bundles: list[tuple[int, list[Piece]]] = []
    open_bundle: dict[torch.dtype, int] = {}
    for number, tensor in enumerate(tensors):
        item, elements = tensor.element_size(), tensor.numel()
        step = max(1, size // item) if split else max(1, elements)
        for start in range(0, elements, step):
            piece = Piece(number, start, min(start + step, elements))
            bundle = open_bundle.get(tensor.dtype)
            if bundle is None or bundles[bundle][0] + piece.elements * item > size:
                bundle = open_bundle[tensor.dtype] = len(bundles)
                bundles.append((0, []))
            bytes_so_far, pieces = bundles[bundle]
            pieces.append(piece)
            bundles[bundle] = (bytes_so_far + piece.elements * item, pieces)
    # The largest chunk first, to the server with the least bytes. Then in the order of the
    # parameters, so that all servers are busy.
    loads = [(0, server) for server in range(servers)]
    owners: dict[int, int] = {}
    for number in sorted(range(len(bundles)), key=lambda number: -bundles[number][0]):
        load, server = heapq.heappop(loads)
        owners[number] = server
        heapq.heappush(loads, (load + bundles[number][0], server))
    return [
        ParameterChunk(owners[number], tuple(pieces)) for number, (_, pieces) in enumerate(bundles)
    ]


def part(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    """A piece of a tensor. An unsplit tensor is returned itself, so that optimizers see its
    shape.
    """
    return (
        tensor if piece.elements == tensor.numel() else tensor.reshape(-1)[piece.start : piece.stop]
    )


# --- state ----------------------------------------------------------------------------------------


def cut_state(state: Mapping[str, Any], shape: torch.Size, piece: Piece) -> dict[str, Any]:
    """The optimizer state of a piece: entries with the parameter's shape are cut, others are
    kept.
    """
    return {
        key: part(value, piece)
        if isinstance(value, torch.Tensor) and value.shape == shape
        else value
        for key, value in state.items()
    }


def joined_state(
    parts: Sequence[tuple[Piece, Mapping[str, Any]]], shape: torch.Size
) -> dict[str, Any]:
    """The optimizer state of a parameter, from those of all its pieces."""
    ordered = sorted(parts, key=lambda item: item[0].start)
    first_piece, first = ordered[0]
    if len(ordered) == 1:
        return dict(first)
    fields: dict[str, Any] = {}
    for key, value in first.items():
        cut_up = isinstance(value, torch.Tensor) and value.shape == (first_piece.elements,)
        fields[key] = (
            torch.cat([state[key] for _, state in ordered]).reshape(shape) if cut_up else value
        )
    return fields
