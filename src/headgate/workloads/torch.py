"""Workloads in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import headgate.torch as hg
from headgate.torch.ps.tables.rows import add_rows
from headgate.workloads import networks, samples, script


class Built(nn.Module):
    """A network with its initial weights.

    Args:
        network: Its layers.
        weights: The result of `networks.weights`.
    """

    def __init__(self, network: networks.Architecture, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.layers = network.layers
        self.trained = nn.ModuleDict()
        for place, layer in enumerate(network.layers):
            if (module := _module(layer)) is not None:
                for name in layer.weights:
                    getattr(module, name).data.copy_(torch.from_numpy(weights[f"{place}.{name}"]))
                self.trained[f"{layer.kind}{place}"] = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values: list[torch.Tensor] = []
        for place, layer in enumerate(self.layers):
            inputs = [values[index] for index in layer.inputs] or [images]
            name = f"{layer.kind}{place}"
            values.append(
                self.trained[name](*inputs) if name in self.trained else _plain(layer, inputs)
            )
        return values[-1]


def _module(layer: networks.Layer) -> nn.Module | None:
    if layer.kind == "conv":
        sizes = layer.taken[0], layer.shape[0], layer.kernel, layer.stride, layer.padding
        return nn.Conv2d(*sizes, bias=layer.bias)
    if layer.kind == "norm":
        return nn.BatchNorm2d(layer.shape[0], layer.epsilon, 1 - networks.MOMENTUM)
    if layer.kind == "dense":
        return nn.Linear(layer.taken[0], layer.shape[0])
    return None


def _plain(layer: networks.Layer, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The output of a layer without weights."""
    first = inputs[0]
    if layer.kind == "relu":
        return F.relu_(first)  # nothing else reads what it is given
    if layer.kind == "max":
        return F.max_pool2d(first, layer.kernel, layer.stride, layer.padding)
    if layer.kind == "mean":
        return F.avg_pool2d(first, layer.kernel, layer.stride, layer.padding)
    if layer.kind == "global":
        return first.mean((2, 3))
    if layer.kind == "flatten":
        return first.flatten(1)
    if layer.kind == "add":
        return first + inputs[1]
    return torch.cat(inputs, 1) if layer.kind == "concat" else first


class Clicks(nn.Module):
    """Sparse logistic regression, beginning with zeros."""

    def __init__(self, features: int, sparse: bool) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(features, 1, mode="sum", sparse=sparse)
        nn.init.zeros_(self.rows.weight)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.rows(ids, per_sample_weights=values).squeeze(1) + self.bias
        return logits


class _Rows(torch.utils.data.Dataset[Any]):
    """Samples for a loader, a batch at a time."""

    def __init__(self, sample_set: samples.Samples) -> None:
        self._found = sample_set

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: int) -> Any:
        return tuple(position[0] for position in self.__getitems__([index]))

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.from_numpy, self._found.taken(rows)))


class RowSGD(torch.optim.SGD):
    """Adds sparse gradients to rows of one number as to a vector. PyTorch's own way takes twenty
    times as long.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad.is_sparse:
                    add_rows(weight, weight.grad._indices()[0], weight.grad._values(), -group["lr"])
                else:
                    weight.add_(weight.grad, alpha=-group["lr"])


def train(options: script.Options) -> list[float]:
    """Train a workload. Returns the loss of each step."""
    sparse = options.workload == "sparse"
    model: nn.Module
    if sparse:
        model = Clicks(samples.FEATURES[options.size], options.pull == "sparse")
    else:
        network = networks.build(options.workload, options.size)
        model = Built(network, networks.weights(network, options.seed))
    # Parameter servers, which have the rows of sparse layers, add them in the same way.
    is_sparse = (
        isinstance(model, Clicks) and model.rows.sparse and type(model.rows.weight) is nn.Parameter
    )
    kind = RowSGD if is_sparse else torch.optim.SGD
    optimizer = kind(
        model.parameters(), script.rate(options.workload), 0 if sparse else script.MOMENTUM
    )
    rows = _Rows(options.samples(channels_first=True))
    loader = torch.utils.data.DataLoader(rows, options.batch, collate_fn=_as_is)
    model, optimizer, loader = hg.prepare(model, optimizer, loader)
    printer, losses = script.StepPrinter(options), []
    for _ in hg.epochs(1):
        for *inputs, labels in loader:
            logits = model(*inputs)
            loss = (
                F.binary_cross_entropy_with_logits(logits, labels)
                if sparse
                else F.cross_entropy(logits, labels)
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hg.report(loss=loss)
            losses.append(loss.detach())
            printer.step(losses[-1])
    printer.end()
    return [float(loss) for loss in losses]


def _as_is(batch: Any) -> Any:
    """The batch itself: the dataset yields whole batches."""
    return batch


if __name__ == "__main__":
    script.run("torch", train)
