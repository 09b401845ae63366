"""Networks have the published sizes."""

from __future__ import annotations

import pytest

from headgate.workloads import networks


@pytest.mark.parametrize(
    ("name", "parameters", "gigaflops"),
    # torchvision's documentation of its weights
    [
        ("alexnet", 61_100_840, 0.714),
        ("resnet50", 25_557_032, 4.089),
        ("inception3", 23_834_568, 5.713),
    ],
)
def test_a_full_network_has_the_published_parameters_and_flops(
    name: str, parameters: int, gigaflops: float
) -> None:
    network = networks.build(name, "full")
    assert network.parameters == parameters
    assert network.flops / 1e9 == pytest.approx(gigaflops, abs=0.001)
    assert network.classes == 1000


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "inception3", "mlp"])
def test_a_small_network_has_a_weight_for_each_parameter(name: str) -> None:
    network = networks.build(name, "small")
    assert sum(value.size for value in networks.weights(network, 0).values()) == network.parameters
    assert network.flops < networks.build(name, "full").flops / 100


def test_a_window_larger_than_the_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a window of \(3, 3\) does not fit an image of"):
        networks.inception3(pixels=20)
