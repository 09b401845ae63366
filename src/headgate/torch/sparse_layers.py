"""Layers with sparse gradients, whose weight may be too large for a worker.

Under a plan with parameter servers, the weight is made on the servers when the layer is
constructed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def each_row_once(gradient: torch.Tensor) -> torch.Tensor:
    """Coalesce a sparse gradient.

    Autograd does not mark accumulated gradients as coalesced even if they are. Sorting the rows
    again takes much longer than checking.
    """
    rows = gradient._indices()
    if not gradient.is_coalesced() and len(rows) == 1 and bool((rows[0, 1:] > rows[0, :-1]).all()):
        values = gradient._values()
        return torch.sparse_coo_tensor(
            rows, values, gradient.shape, check_invariants=False, is_coalesced=True
        )
    return gradient.coalesce()


lending = False
"""Whether tensors copied into tables now are not changed afterwards, and need no copy."""


@contextmanager
def lent() -> Iterator[None]:
    """A context in which tensors copied into tables are not changed afterwards."""
    global lending
    lending = True
    try:
        yield
    finally:
        lending = False


def watch(on_servers: Callable[[], bool], table_for: Callable[[str, dict[str, Any]], Any]) -> None:
    """From now on, keep the weight of `Embedding` and `EmbeddingBag` with `sparse=True` on
    parameter servers.

    Args:
        on_servers: Whether this process is a worker of a plan with parameter servers; called for
            each such layer.
        table_for: Makes the weight of such a layer, from the name of its class and the arguments of
            its constructor.
    """
    for kind in (nn.Embedding, nn.EmbeddingBag):
        _watch(kind, on_servers, table_for)


def _watch(
    kind: Any, on_servers: Callable[[], bool], table_for: Callable[[str, dict[str, Any]], Any]
) -> None:
    make = kind.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def constructing(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        layer = bound.arguments
        if not layer["sparse"] or layer["_weight"] is not None or not on_servers():
            make(self, *args, **kwargs)
            return
        layer["_weight"] = table_for(type(self).__name__, layer)
        make(*bound.args, **bound.kwargs)
        self.reset_parameters()  # left out where a weight is given

    kind.__init__ = constructing
