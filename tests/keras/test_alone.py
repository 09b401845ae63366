"""What a profile says of a script that can train in one task only, so that no plan of several is
chosen for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.keras.conftest import Start


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("jax", ""),
        ("tensorflow", "`fit` of Keras 3 over TensorFlow trains in one"),
        ("tf_keras", ""),
    ],
)
def test_a_profile_says_of_one_that_asks_for_its_strategy_what_fit_cannot_do(
    backend: str, why: str, start: Start
) -> None:
    running = start(backend, "result.json", "fit", script=Path(__file__).with_name("together.py"))
    running.finish()
    [message] = running.listener.of("profile")
    assert message["profile"]["alone"] == why
