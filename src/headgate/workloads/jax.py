"""Workloads in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import headgate.jax as hg
from headgate.workloads import networks, samples, script

Tree = dict[str, Any]


def placed(weights: Mapping[str, np.ndarray]) -> Tree:
    """Weights in JAX's layout: height and width before input before output."""
    turned = {2: lambda value: value.T, 4: lambda value: value.transpose(2, 3, 1, 0)}
    return {
        name: jnp.asarray(turned.get(value.ndim, np.array)(value))
        for name, value in weights.items()
    }


def running(network: networks.Architecture) -> Tree:
    """Means and variances of batch normalisations, before the first step."""
    norms = {
        str(place): layer for place, layer in enumerate(network.layers) if layer.kind == "norm"
    }
    return {
        place: (jnp.zeros(layer.shape[0]), jnp.ones(layer.shape[0]))
        for place, layer in norms.items()
    }


def forward(
    network: networks.Architecture, weights: Tree, state: Tree, images: Any
) -> tuple[Any, Tree]:
    """Logits of a training batch, and the running means and variances after it. Images have
    channels last.
    """
    values: list[Any] = []
    after = {}
    for place, layer in enumerate(network.layers):
        inputs = [values[index] for index in layer.inputs] or [images]
        own = {name: weights[f"{place}.{name}"] for name in layer.weights}
        if layer.kind == "norm":
            value, after[str(place)] = _normed(layer, own, state[str(place)], inputs[0])
        else:
            value = _computed(layer, own, inputs)
        values.append(value)
    return values[-1], after


def _normed(
    layer: networks.Layer, own: Tree, before: tuple[Any, Any], x: Any
) -> tuple[Any, tuple[Any, Any]]:
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    kept = networks.MOMENTUM
    after = kept * before[0] + (1 - kept) * mean, kept * before[1] + (1 - kept) * variance
    return (x - mean) * (lax.rsqrt(variance + layer.epsilon) * own["weight"]) + own["bias"], after


def _computed(layer: networks.Layer, own: Tree, inputs: list[Any]) -> Any:
    x, sides, pads = inputs[0], layer.kernel, [(pad, pad) for pad in layer.padding]
    if layer.kind == "conv":
        strides, order = (layer.stride, layer.stride), ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, own["weight"], strides, pads, dimension_numbers=order)
        return x + own["bias"] if layer.bias else x
    if layer.kind in ("max", "mean"):
        over = (1, *sides, 1), (1, layer.stride, layer.stride, 1), ((0, 0), *pads, (0, 0))
        if layer.kind == "max":
            return lax.reduce_window(x, -jnp.inf, lax.max, *over)
        return lax.reduce_window(x, 0.0, lax.add, *over) / (sides[0] * sides[1])
    if layer.kind == "dense":
        return x @ own["weight"] + own["bias"]
    if layer.kind == "flatten":
        return x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    if layer.kind == "add":
        return x + inputs[1]
    plain: dict[str, Callable[[Any], Any]] = {
        "relu": jax.nn.relu,
        "global": lambda x: x.mean((1, 2)),
    }
    return (
        jnp.concatenate(inputs, -1)
        if layer.kind == "concat"
        else plain.get(layer.kind, lambda x: x)(x)
    )


def _network_step(options: script.Options) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    network = networks.build(options.workload, options.size)
    weights = placed(networks.weights(network, options.seed))
    rate = script.rate(options.workload)

    def loss_of(weights: Tree, state: Tree, images: Any, labels: Any) -> tuple[Any, Tree]:
        logits, after = forward(network, weights, state, images)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -chosen.mean(), after

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(weights: Tree, speed: Tree, state: Tree, images: Any, labels: Any) -> Any:
        (loss, state), slope = jax.value_and_grad(loss_of, has_aux=True)(
            weights, state, images, labels
        )
        speed = jax.tree.map(lambda v, g: script.MOMENTUM * v + g, speed, slope)
        return (jax.tree.map(lambda w, v: w - rate * v, weights, speed), speed, state), loss

    return (weights, jax.tree.map(jnp.zeros_like, weights), running(network)), step


def _clicks_step(options: script.Options) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    """Sparse logistic regression, beginning with zeros. A sparse step only changes the rows that it
    uses.
    """
    rate = script.rate(options.workload)

    def loss_of(rows: Any, bias: Any, values: Any, clicked: Any) -> Any:
        logits = (rows * values).sum(1) + bias
        return jnp.mean(jax.nn.softplus(logits) - logits * clicked)

    @partial(jax.jit, donate_argnums=(0,))
    def step(weights: Tree, ids: Any, values: Any, clicked: Any) -> Any:
        table, bias = weights["rows"], weights["bias"]
        if options.pull == "sparse":
            loss, slopes = jax.value_and_grad(loss_of, (0, 1))(table[ids], bias, values, clicked)
            return (
                {"rows": table.at[ids].add(-rate * slopes[0]), "bias": bias - rate * slopes[1]},
            ), loss
        value_and_slopes = jax.value_and_grad(
            lambda table, *others: loss_of(table[ids], *others), (0, 1)
        )
        loss, slopes = value_and_slopes(table, bias, values, clicked)
        return ({"rows": table - rate * slopes[0], "bias": bias - rate * slopes[1]},), loss

    return ({"rows": jnp.zeros(samples.FEATURES[options.size]), "bias": jnp.zeros(())},), step


def train(options: script.Options) -> list[float]:
    """Train a workload. Returns the loss of each step."""
    hg.init()
    state, step = (_clicks_step if options.workload == "sparse" else _network_step)(options)
    state = hg.prepare(*state)
    state = state if isinstance(state, tuple) else (state,)
    printer, losses = script.StepPrinter(options), []
    for _ in hg.epochs(1):
        for batch in hg.batches(options.samples().batches(options.batch)):
            state, loss = step(*state, *batch)
            hg.report(loss=loss, state=state if len(state) > 1 else state[0])
            losses.append(loss)
            printer.step(loss)
    printer.end()
    return [float(loss) for loss in losses]


if __name__ == "__main__":
    script.run("jax", train)
