"""Workloads in Keras by `fit`, over each of its back ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

import headgate.keras as hg
from headgate.workloads import networks, samples, script


def built(network: networks.Architecture, weights: Mapping[str, np.ndarray]) -> Any:
    """A network's model with its initial weights, for images with channels last."""
    values: list[Any] = []
    trained = []
    for place, layer in enumerate(network.layers):
        inputs = [values[index] for index in layer.inputs]
        if layer.kind == "input":
            height_first = (*layer.shape[1:], *layer.shape[:1])
            values.append(keras.Input(height_first))
            continue
        if layer.kind in ("add", "concat"):
            values.append((layers.Add() if layer.kind == "add" else layers.Concatenate())(inputs))
            continue
        made = _layer(layer)
        values.append(made(_padded(layer, inputs[0])))
        if layer.weights:
            trained.append(
                (made, [_keras_layout(weights[f"{place}.{name}"]) for name in layer.weights])
            )
    model = keras.Model(values[0], values[-1])
    for made, first in trained:
        others = [np.asarray(variable) for variable in made.non_trainable_variables]
        made.set_weights([*first, *others])
    return model


def _keras_layout(value: np.ndarray) -> np.ndarray:
    """The array in Keras' layout: height and width before input before output."""
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T


def _padded(layer: networks.Layer, x: Any) -> Any:
    """Pad an image with zeros. Max pools only have non-negative inputs, so that zeros change
    nothing.
    """
    if layer.padding == (0, 0) or _is_same_padding(layer):
        return x
    return layers.ZeroPadding2D(layer.padding)(x)


def _is_same_padding(layer: networks.Layer) -> bool:
    """Whether Keras' own padding equals the layer's. A mean pool would leave out padded values."""
    return layer.kind == "conv" and layer.stride == 1 and layer.shape[1:] == layer.taken[1:]


def _layer(layer: networks.Layer) -> Any:
    if layer.kind == "conv":
        padding = "same" if _is_same_padding(layer) else "valid"
        return layers.Conv2D(
            layer.shape[0], layer.kernel, layer.stride, padding, use_bias=layer.bias
        )
    if layer.kind in ("max", "mean"):
        kind = layers.MaxPooling2D if layer.kind == "max" else layers.AveragePooling2D
        return kind(layer.kernel, layer.stride)
    if layer.kind == "norm":
        return layers.BatchNormalization(momentum=networks.MOMENTUM, epsilon=layer.epsilon)
    if layer.kind == "dense":
        return layers.Dense(*layer.shape)
    if layer.kind == "flatten":
        return keras.Sequential([layers.Permute((3, 1, 2)), layers.Flatten()])
    return layers.ReLU() if layer.kind == "relu" else layers.GlobalAveragePooling2D()


def clicks(features: int) -> Any:
    """Sparse logistic regression, beginning with zeros."""
    ids, values = (
        keras.Input((samples.NON_ZEROS,), dtype="int32"),
        keras.Input((samples.NON_ZEROS,)),
    )
    rows = layers.Flatten()(layers.Embedding(features, 1, embeddings_initializer="zeros")(ids))
    total = layers.Dot(1)([rows, values])
    return keras.Model([ids, values], _Bias()(total))


class _Bias(layers.Layer):  # type: ignore[misc]  # has no types
    def build(self, shape: Any) -> None:
        self.bias = self.add_weight(shape=(1,), initializer="zeros")

    def call(self, x: Any) -> Any:
        return x + self.bias


def model_of(
    options: script.Options, clicks: Callable[[int], Any] = clicks
) -> tuple[Any, Any, Any]:
    """Model, optimizer and loss of a workload.

    Args:
        clicks: Makes the model of sparse logistic regression from the number of features.
    """
    if options.workload == "sparse":
        model, loss = (
            clicks(samples.FEATURES[options.size]),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
        return model, keras.optimizers.SGD(script.rate(options.workload)), loss
    network = networks.build(options.workload, options.size)
    optimizer = keras.optimizers.SGD(script.rate(options.workload), script.MOMENTUM)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return built(network, networks.weights(network, options.seed)), optimizer, loss


class _LossCallback(keras.callbacks.Callback):  # type: ignore[misc]  # has no types
    """Passes the loss of each batch to the printer. Keras logs the mean since the epoch began."""

    def __init__(self, printer: script.StepPrinter) -> None:
        super().__init__()
        self.printer, self._sum = printer, 0.0
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        total = float(logs["loss"]) * (batch + 1)
        self.losses.append(total - self._sum)
        self._sum = total
        self.printer.step(self.losses[-1])


def train(options: script.Options) -> list[float]:
    """Train a workload. Returns the loss of each step."""
    with hg.strategy().scope():
        model, optimizer, loss = model_of(options)
        model.compile(
            optimizer,
            loss,
            jit_compile=False if keras.backend.backend() == "tensorflow" else "auto",
        )

    batches = options.samples().batches(options.batch)

    class Data(keras.utils.PyDataset):  # type: ignore[misc]  # has no types
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index: int) -> Any:
            *inputs, labels = batches[index]
            return (tuple(inputs) if len(inputs) > 1 else inputs[0]), labels

    model = hg.prepare(model)
    callback = _LossCallback(script.StepPrinter(options))
    model.fit(Data(), epochs=1, shuffle=False, verbose=0, callbacks=[callback, hg.callback()])
    # as in every framework, and not Keras' mean of the epoch
    hg.report(loss=callback.losses[-1], step=len(callback.losses))
    callback.printer.end()
    return callback.losses


if __name__ == "__main__":
    script.run("keras", train)
