"""What a script reports."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headgate.task.progress import whole


@pytest.mark.parametrize(
    ("given", "counted"), [(3, 3), (np.int64(3), 3), (3.0, 3), (None, 7), (math.nan, 7), (math.inf, 7), ("last", 7)]
)
def test_a_step_is_a_whole_number_whatever_counts_it(given: Any, counted: int) -> None:
    assert whole(given, 7) == counted
