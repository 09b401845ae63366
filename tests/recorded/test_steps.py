from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pytest

from headgate.recorded.steps import StepSums, Sums, divide


def sums(spans: Iterable[tuple[int, str, float]], bytes_out: float = 0.0) -> StepSums:
    """The sums over steps of one task, from step, name and seconds of each span."""
    whole: dict[int, float] = defaultdict(float)
    waited: dict[int, float] = defaultdict(float)
    parts: dict[str, Sums] = {}
    for step, name, seconds in spans:
        whole[step] += seconds
        if name == "input":
            waited[step] += seconds
        before = parts.get(name, (0.0, None, None))
        sent = (before[2] or 0.0) + bytes_out if name == "push" else None
        parts[name] = (before[0] + seconds, None, sent)
    return StepSums(
        np.array(list(whole.values())),
        np.array([waited.get(step, np.nan) for step in whole]),
        parts,
        np.ones(len(whole)),
    )


def test_a_step_divides_by_the_time_of_all_sampled_steps() -> None:
    division = divide(
        [
            sums(
                [
                    (1, "forward", 0.2),
                    (1, "input", 0.1),
                    (1, "backward", 0.7),
                    (2, "input", 1.1),
                    (2, "forward", 0.2),
                    (2, "backward", 0.7),
                ]
            )
        ]
    )
    assert division is not None
    assert division.steps == 2
    assert division.step_seconds == pytest.approx(1.5)
    assert list(division.seconds) == ["input", "forward", "backward"]
    assert division.input_fraction == pytest.approx(1.2 / 3.0)
    assert division.fraction("backward") == pytest.approx(0.7 / 1.5)
    assert division.input_low is not None and division.input_high is not None
    assert 0.1 <= division.input_low < division.input_high <= 0.55
    assert (division.exposed_fraction, division.sent, division.received) == (None, None, None)


def test_a_mean_of_many_steps_counts_as_many() -> None:
    whole, waited = np.array([0.001, 1.0]), np.array([0.0, 1.0])
    division = divide(
        [StepSums(whole, waited, {"input": (1.0, None, None)}, np.array([999.0, 1.0]))]
    )
    assert division is not None
    assert division.steps == 1000
    assert division.step_seconds == pytest.approx(0.001999)
    assert division.input_fraction == pytest.approx(1.0 / 1.999)
    assert division.seconds["input"] == pytest.approx(0.001)


def test_spans_of_another_name_are_kept_after_the_known_ones() -> None:
    division = divide(
        [sums([(1, "zeta", 1.0), (1, "other", 1.0), (1, "alpha", 1.0), (1, "push", 1.0)])]
    )
    assert division is not None
    assert list(division.seconds) == ["push", "other", "alpha", "zeta"]


def test_without_spans_there_is_no_division_and_steps_of_no_time_divide_nothing() -> None:
    assert divide([]) is None
    division = divide([sums([(1, "input", 0.0)])])
    assert division is not None
    assert (division.input_fraction, division.fraction("input")) == (0.0, 0.0)


def test_what_is_exposed_of_communication_and_bytes_are_means_over_the_steps_of_all_tasks() -> None:
    first = sums(
        [(1, "backward", 0.6), (1, "push", 0.1), (1, "wait", 0.2), (1, "pull", 0.1)],
        bytes_out=600.0,
    )
    second = sums([(1, "backward", 0.9), (1, "push", 0.1), (2, "backward", 1.0)], bytes_out=300.0)
    division = divide([first, second])
    assert division is not None
    assert division.steps == 3
    assert division.step_seconds == pytest.approx(1.0)
    assert division.exposed_fraction == pytest.approx(0.5 / 3.0)
    assert division.bytes_out == {"push": 300.0}
    assert (division.sent, division.received) == (300.0, None)


def test_what_was_not_measured_is_not_zero() -> None:
    unknown = divide([sums([(1, "step", 1.0), (2, "step", 2.0)])])
    assert unknown is not None
    assert unknown.step_seconds == 1.5
    assert (unknown.input_fraction, unknown.input_low, unknown.input_high) == (None, None, None)
    assert (unknown.exposed_fraction, unknown.sent, unknown.received) == (None, None, None)
    partly = divide([sums([(1, "step", 1.0), (2, "input", 0.5), (2, "compute", 0.5)])])
    assert partly is not None and partly.input_fraction == 0.5
