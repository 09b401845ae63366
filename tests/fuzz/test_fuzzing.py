"""Odd and damaged input, with a fixed seed; `fuzzing.py` runs any number by hand."""

from __future__ import annotations

import pytest
from tests.fuzz.fuzzing import fuzz

SEED = 20260314


ARBITERS = ("arbiter", "arbiter file", "arbiter store")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_whatever_an_arbiter_reads_is_answered_with_a_value_or_an_error_of_ours(seed: int) -> None:
    outcome = fuzz(20_000, seed, ARBITERS)
    assert outcome.failures == []
    for name in ARBITERS:
        assert 0 < outcome.answers[f"{name}: value"] < outcome.inputs[name]


@pytest.mark.parametrize("inputs", [500, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.filterwarnings("default::RuntimeWarning")  # what numpy says of numbers at the edge
def test_whatever_is_read_is_answered_with_a_value_or_an_error_of_ours_within_a_second(
    inputs: int,
) -> None:
    outcome = fuzz(inputs, SEED)
    assert outcome.failures == []
    assert outcome.inputs.total() == inputs
    assert len(outcome.inputs) == 14
    # damage that nothing survives, and none that does any harm, would test little
    for name in outcome.inputs:
        assert outcome.answers[f"{name}: value"] > 0
