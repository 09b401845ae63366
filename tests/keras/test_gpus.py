"""Which GPUs a model counts as being on; there is none here, so what tells of devices is made
up.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.keras import backends
from headgate.keras.training_state import TrainingState

jax = pytest.importorskip("jax")


@pytest.fixture(scope="module")
def tensorflow() -> Any:
    """Takes seconds of CPU to import, in every process that collects tests."""
    return pytest.importorskip("tensorflow")


def on(device: str) -> SimpleNamespace:
    """A variable of TensorFlow's there."""
    return SimpleNamespace(device=f"/job:{device}", value=lambda: None)


def of_keras(*devices: str) -> SimpleNamespace:
    """One of Keras 3, on one device or mirrored on several."""
    values = [on(device) for device in devices]
    return SimpleNamespace(
        value=values[0] if len(values) == 1 else SimpleNamespace(values=tuple(values))
    )


def of_jax(*numbers: int, platform: str = "gpu", process: int = 0) -> SimpleNamespace:
    """What a step of JAX returned."""
    devices = [
        SimpleNamespace(platform=platform, process_index=process, local_hardware_id=number)
        for number in numbers
    ]
    return SimpleNamespace(devices=lambda: devices)


def of_torch(number: int | None) -> SimpleNamespace:
    return SimpleNamespace(
        value=SimpleNamespace(is_cuda=number is not None, device=SimpleNamespace(index=number))
    )


def gpus_of(variables: list[Any], computed: Any = 2.5) -> set[int]:
    """Those of a model that has these variables, and of which a step returned that."""
    trained = TrainingState(None)
    trained.add(SimpleNamespace(variables=variables), None)
    return trained.gpus(computed)


@pytest.mark.long  # TensorFlow takes seconds of CPU to import here, for a moment's work
@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        (
            [
                on("localhost/replica:0/task:0/device:GPU:0"),
                on("localhost/replica:0/task:0/device:CPU:0"),
            ],
            {0},
        ),
        ([of_keras("localhost/device:GPU:1")], {1}),
        ([of_keras("worker/task:1/device:GPU:0", "worker/task:1/device:GPU:1")], {0, 1}),
        ([of_keras("localhost/device:CPU:0")], set()),
        ([of_keras("ps/task:0/device:CPU:0")], {0, 1, 2}),
        ([of_torch(3), of_torch(None)], {3}),
        ([], set()),
    ],
)
def test_those_that_its_variables_are_on(
    variables: list[Any], gpus: set[int], tensorflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow.config, "list_logical_devices", lambda kind: [kind] * 3)
    assert gpus_of(variables) == gpus


@pytest.mark.parametrize(
    ("computed", "gpus"),
    [
        (of_jax(2), {2}),
        (of_jax(1, 2), {1, 2}),
        (of_jax(0, process=1), set()),
        (of_jax(0, platform="cpu"), set()),
        (0.5, {0, 1, 2}),
        (None, {0, 1, 2}),
    ],
)
def test_those_that_a_step_of_jax_was_computed_on(
    computed: Any, gpus: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    monkeypatch.setattr(jax, "local_devices", of_jax(0, 1, 2).devices)
    monkeypatch.setattr(backends, "backend_of", lambda _: "jax")
    assert gpus_of([], computed) == gpus


@pytest.mark.long
def test_none_where_there_is_none(tensorflow: Any) -> None:
    assert gpus_of([tensorflow.Variable(1.0), tensorflow.Variable([2.0])]) == set()
