"""What a script reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from headgate.task.progress import EVERY_SECONDS, ProgressReporter, whole


@pytest.mark.parametrize(
    ("given", "counted"),
    [(3, 3), (np.int64(3), 3), (3.0, 3), (None, 7), (math.nan, 7), (math.inf, 7), ("last", 7)],
)
def test_a_step_is_a_whole_number_whatever_counts_it(given: Any, counted: int) -> None:
    assert whole(given, 7) == counted


def test_a_step_that_is_still_to_be_computed_is_read_when_a_message_is_due() -> None:
    class Slow:
        reads = 0

        def __int__(self) -> int:
            self.reads += 1
            return 10 * self.reads

    now, sent = [0.0], list[Mapping[str, object]]()
    progress, step = (
        ProgressReporter(lambda message, _: sent.append(message), clock=lambda: now[0]),
        Slow(),
    )
    for _ in range(5):
        progress.said = step
        progress.report(1.0, {})
    now[0] += EVERY_SECONDS
    progress.step, progress.said = 7, "lost"
    progress.report(1.0, {})
    assert [message["step"] for message in sent] == [10, 7]
    assert step.reads == 1


def test_losses_are_weighed_and_those_of_nothing_are_left_out() -> None:
    now, sent = [0.0], list[Mapping[str, object]]()
    progress = ProgressReporter(lambda message, _: sent.append(message), clock=lambda: now[0])
    progress.report(5.0, {})  # sent at once
    for loss, weight in ((1.0, 1.5), (4.0, 0.5), (math.nan, 0.0)):
        progress.report(loss, {}, weight)
    progress.flush()
    progress.report(math.nan, {}, 0.0)
    progress.flush()
    assert "weight" not in sent[0]
    assert [(message.get("loss"), message["count"], message["weight"]) for message in sent[1:]] == [
        (1.75, 2, 1.0),
        (None, 1, 0.0),
    ]
