"""Products that grow with the number of workers are found in a script, and no others."""

from __future__ import annotations

import pytest

from headgate.task.scaling import growing


@pytest.mark.parametrize(
    ("text", "line", "product"),
    [
        ("batch = 64 * strategy.num_replicas_in_sync", 1, "64 * strategy.num_replicas_in_sync"),
        (
            "def f(s):\n    return data.batch(s.num_replicas_in_sync * args.batch)",
            2,
            "s.num_replicas_in_sync * args.batch",
        ),
        ("n = strategy.num_replicas_in_sync\nlr = 0.1 * n", 2, "0.1 * n"),
        (
            "batch *= hg.strategy().num_replicas_in_sync",
            1,
            "batch *= hg.strategy().num_replicas_in_sync",
        ),
        ("size = 32 * jax.device_count()", 1, "32 * jax.device_count()"),
        ("from jax import process_count\nsize = process_count() * 32", 2, "process_count() * 32"),
        ("size = 8 * len(jax.devices())", 1, "8 * len(jax.devices())"),
        (
            "size = 8 * max(1, strategy.num_replicas_in_sync)",
            1,
            "8 * max(1, strategy.num_replicas_in_sync)",
        ),
        ("size = (8 *\n  jax.device_count())", 1, "8 * jax.device_count()"),
    ],
)
def test_a_product_with_the_number_of_workers_is_found(text: str, line: int, product: str) -> None:
    (found,) = growing(text, "train.py")
    assert found == ("train.py", line, product)


@pytest.mark.parametrize(
    "text",
    [
        "loss = total / strategy.num_replicas_in_sync",
        "share = batch // strategy.num_replicas_in_sync",
        "print(strategy.num_replicas_in_sync)",
        "local = 8 * jax.local_device_count()",
        "n = count()\nsize = 8 * n",
        "size = 8 * len(rows)",
    ],
)
def test_other_uses_of_that_number_and_other_products_are_not(text: str) -> None:
    assert list(growing(text, "train.py")) == []
