"""The networks, written once: layers with their shapes, as plain data. The script of each framework
builds from it.

    network = networks.build("resnet50", "full")
    network.parameters      # 25,557,032
    network.flops           # of a sample: 4.1e9 multiplications with their additions
    networks.weights(network, seed=0)       # NumPy arrays, in PyTorch's layout

Shapes are those of one sample, channels first. Padding is stated in numbers and is the same on both
sides. Dropout is left out, because frameworks draw it from different random streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Layer", "Architecture", "alexnet", "build", "inception3", "mlp", "resnet", "weights"]

Shape = tuple[int, ...]
Pair = tuple[int, int]

MOMENTUM = 0.9
"""Momentum of the running mean and variance of a batch normalisation. PyTorch states its
complement: 0.1.
"""


@dataclass(frozen=True)
class Layer:
    """A layer. It names its inputs by their index in the list.

    Args:
        kind: `input`, `conv`, `norm` (batch normalisation), `relu`, `max` and `mean` (pools; a mean
            includes the padding), `global` (mean over height and width), `flatten` (channels, then
            rows, then columns), `dense`, `add`, `concat` (along channels).
        inputs: Indices of its inputs.
        shape: Shape of its output.
        taken: Shape of its first input.
        bias: Whether a convolution has a bias; a dense layer always has.
        epsilon: Added to the variance of a normalisation.
        factor: Initial factor of a normalisation.
    """

    kind: str
    inputs: Shape
    shape: Shape
    taken: Shape = ()
    kernel: Pair = (1, 1)
    stride: int = 1
    padding: Pair = (0, 0)
    bias: bool = False
    epsilon: float = 0.0
    factor: float = 0.0

    @property
    def weights(self) -> dict[str, Shape]:
        """The trained tensors by name, in PyTorch's layout: output before input before height and
        width.
        """
        if self.kind == "conv":
            kernel: Shape = (self.shape[0], self.taken[0], *self.kernel)
            return {"weight": kernel, "bias": self.shape[:1]} if self.bias else {"weight": kernel}
        if self.kind == "norm":
            return {"weight": self.shape[:1], "bias": self.shape[:1]}
        if self.kind == "dense":
            return {"weight": (*self.shape, *self.taken), "bias": self.shape}
        return {}

    @property
    def flops(self) -> int:
        """Multiply-adds of a forward pass of one sample, in convolutions and dense layers."""
        if self.kind not in ("conv", "dense"):
            return 0
        return math.prod(self.weights["weight"]) * math.prod(self.shape[1:])


@dataclass(frozen=True)
class Architecture:
    """Layers in order of computation. The output of the last one is the logits of the classes."""

    layers: tuple[Layer, ...]

    @property
    def shape(self) -> Shape:
        """Shape of a sample."""
        return self.layers[0].shape

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.layers[-1].shape[0]

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        return sum(math.prod(shape) for layer in self.layers for shape in layer.weights.values())

    @property
    def flops(self) -> int:
        """See `Layer.flops`."""
        return sum(layer.flops for layer in self.layers)


@dataclass
class _Builder:
    """Builds a network. Each method adds a layer and returns its index."""

    layers: list[Layer] = field(default_factory=list)

    def input(self, *shape: int) -> int:
        return self._added(Layer("input", (), shape))

    def conv(self, x: int, channels: int, kernel: int | Pair, **options: Any) -> int:
        return self._windowed("conv", x, kernel, channels=channels, **options)

    def pool(self, kind: str, x: int, kernel: int, **options: Any) -> int:
        return self._windowed(kind, x, kernel, **options)

    def plain(self, kind: str, *inputs: int, shape: Shape | None = None) -> int:
        taken = self.layers[inputs[0]].shape
        return self._added(Layer(kind, inputs, taken if shape is None else shape, taken))

    def relu(self, x: int) -> int:
        return self.plain("relu", x)

    def dense(self, x: int, units: int) -> int:
        return self.plain("dense", x, shape=(units,))

    def flatten(self, x: int) -> int:
        return self.plain("flatten", x, shape=(math.prod(self.layers[x].shape),))

    def mean_of_all(self, x: int) -> int:
        return self.plain("global", x, shape=self.layers[x].shape[:1])

    def concat(self, *inputs: int) -> int:
        channels = sum(self.layers[x].shape[0] for x in inputs)
        return self.plain("concat", *inputs, shape=(channels, *self.layers[inputs[0]].shape[1:]))

    def normed(
        self,
        x: int,
        channels: int,
        kernel: int | Pair,
        epsilon: float = 1e-5,
        factor: float = 1.0,
        **options: Any,
    ) -> int:
        """Add a convolution without bias, and its batch normalisation."""
        x = self.conv(x, channels, kernel, **options)
        shape = self.layers[x].shape
        return self._added(Layer("norm", (x,), shape, shape, epsilon=epsilon, factor=factor))

    def done(self) -> Architecture:
        return Architecture(tuple(self.layers))

    def _windowed(
        self,
        kind: str,
        x: int,
        kernel: int | Pair,
        channels: int = 0,
        stride: int = 1,
        padding: int | Pair = 0,
        bias: bool = False,
    ) -> int:
        sides, pads = ((n, n) if isinstance(n, int) else n for n in (kernel, padding))
        taken = self.layers[x].shape
        rows, columns = (
            (n + 2 * pad - side) // stride + 1 for n, side, pad in zip(taken[1:], sides, pads)
        )
        if min(rows, columns) < 1:
            raise ValueError(
                f"a window of {sides} does not fit an image of {taken[1:]}; expected a larger image"
            )
        shape = (channels or taken[0], rows, columns)
        return self._added(Layer(kind, (x,), shape, taken, sides, stride, pads, bias))

    def _added(self, layer: Layer) -> int:
        self.layers.append(layer)
        return len(self.layers) - 1


def build(name: str, size: str) -> Architecture:
    """The network of a workload.

    Args:
        name: `alexnet`, `resnet50`, `inception3` or `mlp`.
        size: `full` as in the papers, for 1,000 classes; `small` is narrower and for smaller images
            of 10 classes.
    """
    if name == "mlp":
        return mlp(784, 4096, 10) if size == "full" else mlp(64, 256, 10)
    if name == "alexnet":
        return alexnet() if size == "full" else alexnet(pixels=64, width=1 / 4, classes=10)
    if name == "resnet50":
        return resnet() if size == "full" else resnet(pixels=32, width=16, classes=10)
    return inception3() if size == "full" else inception3(pixels=75, width=1 / 4, classes=10)


def weights(network: Architecture, seed: int) -> dict[str, np.ndarray]:
    """Initial values, the same for each framework: normal with variance 2 / inputs (He et al. 2015,
    eq. 10).

    Biases are 0, and normalisations have the factors of their layers.

    Returns:
        Float32 arrays in PyTorch's layout, by index of the layer and name: `3.weight`.
    """
    values = {}
    for place, layer in enumerate(network.layers):
        for name, shape in layer.weights.items():
            value = np.full(shape, layer.factor if name == "weight" else 0, np.float32)
            if len(shape) > 1:
                value = np.random.default_rng([seed, place]).standard_normal(shape, np.float32)
                value *= math.sqrt(2 / math.prod(shape[1:]))
            values[f"{place}.{name}"] = value
    return values


def mlp(features: int, hidden: int, classes: int) -> Architecture:
    """Two hidden layers."""
    net = _Builder()
    x = net.relu(net.dense(net.input(features), hidden))
    net.dense(net.relu(net.dense(x, hidden)), classes)
    return net.done()


def alexnet(pixels: int = 224, width: float = 1.0, classes: int = 1000) -> Architecture:
    """One tower (Krizhevsky 2014, arXiv:1404.5997), with torchvision's channels. torchvision's
    adaptive pool changes nothing at 224 pixels and is left out.
    """
    net = _Builder()
    x = net.input(3, pixels, pixels)
    for channels, kernel, stride, padding, pooled in (
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    ):
        x = net.relu(
            net.conv(x, int(channels * width), kernel, stride=stride, padding=padding, bias=True)
        )
        x = net.pool("max", x, 3, stride=2) if pooled else x
    x = net.flatten(x)
    for _ in range(2):
        x = net.relu(net.dense(x, int(4096 * width)))
    net.dense(x, classes)
    return net.done()


def resnet(
    pixels: int = 224, width: int = 64, classes: int = 1000, blocks: tuple[int, ...] = (3, 4, 6, 3)
) -> Architecture:
    """A residual network of bottlenecks (He et al. 2015, arXiv:1512.03385, table 1), with the
    stride on the 3 × 3 convolution as in torchvision.

    Each bottleneck initially adds nothing (Goyal et al. 2017, arXiv:1706.02677, section 5.1).
    Otherwise rounding errors grow in each step.

    Args:
        width: Channels of the first layer.
        blocks: Number of bottlenecks in each stage; 3, 4, 6 and 3 make ResNet-50.
    """
    net = _Builder()
    x = net.relu(net.normed(net.input(3, pixels, pixels), width, 7, stride=2, padding=3))
    x = net.pool("max", x, 3, stride=2, padding=1)
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for block in range(count):
            stride = 2 if block == 0 and stage else 1
            y = net.relu(net.normed(x, inner, 1))
            y = net.relu(net.normed(y, inner, 3, stride=stride, padding=1))
            y = net.normed(y, 4 * inner, 1, factor=0.0)
            skipped = net.normed(x, 4 * inner, 1, stride=stride) if block == 0 else x
            x = net.relu(net.plain("add", y, skipped))
    net.dense(net.mean_of_all(x), classes)
    return net.done()


def inception3(pixels: int = 299, width: float = 1.0, classes: int = 1000) -> Architecture:
    """Inception V3 (Szegedy et al. 2015, arXiv:1512.00567) as in torchvision, without the second,
    auxiliary output.
    """
    net = _Builder()

    def conv(x: int, channels: int, *kernel: int, stride: int = 1, same: bool = True) -> int:
        rows, columns = kernel * (3 - len(kernel))
        padding = ((rows - 1) // 2, (columns - 1) // 2) if same and stride == 1 else (0, 0)
        x = net.normed(
            x, int(channels * width), (rows, columns), 1e-3, stride=stride, padding=padding
        )
        return net.relu(x)

    def chain(x: int, channels: int, *kernels: Pair, last: int = 0, stride: int = 1) -> int:
        """Add convolutions of equal width one after another. The last has its own width and
        stride.
        """
        for kernel in kernels[:-1]:
            x = conv(x, channels, *kernel)
        return conv(x, last or channels, *kernels[-1], stride=stride)

    def pooled(x: int, channels: int) -> int:
        return conv(net.pool("mean", x, 3, padding=1), channels, 1)

    def halved(x: int, *branches: int) -> int:
        return net.concat(*branches, net.pool("max", x, 3, stride=2))

    x = conv(net.input(3, pixels, pixels), 32, 3, stride=2)
    x = conv(conv(x, 32, 3, same=False), 64, 3)
    x = conv(conv(net.pool("max", x, 3, stride=2), 80, 1), 192, 3, same=False)
    x = net.pool("max", x, 3, stride=2)
    for channels in (32, 64, 64):
        thin, thick = conv(conv(x, 48, 1), 64, 5), chain(conv(x, 64, 1), 96, (3, 3), (3, 3))
        x = net.concat(conv(x, 64, 1), thin, thick, pooled(x, channels))
    narrow = conv(chain(conv(x, 64, 1), 96, (3, 3)), 96, 3, stride=2)
    x = halved(x, conv(x, 384, 3, stride=2), narrow)
    for inner in (128, 160, 160, 192):
        once = chain(x, inner, (1, 1), (1, 7), (7, 1), last=192)
        twice = chain(x, inner, (1, 1), (7, 1), (1, 7), (7, 1), (1, 7), last=192)
        x = net.concat(conv(x, 192, 1), once, twice, pooled(x, 192))
    short = chain(x, 192, (1, 1), (3, 3), last=320, stride=2)
    long = chain(x, 192, (1, 1), (1, 7), (7, 1), (3, 3), stride=2)
    x = halved(x, short, long)
    for _ in range(2):
        left, right = conv(x, 384, 1), conv(conv(x, 448, 1), 384, 3)
        crossed = [
            conv(branch, 384, *kernel) for branch in (left, right) for kernel in ((1, 3), (3, 1))
        ]
        x = net.concat(conv(x, 320, 1), *crossed, pooled(x, 192))
    net.dense(net.mean_of_all(x), classes)
    return net.done()
