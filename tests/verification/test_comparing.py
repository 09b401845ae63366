"""What is made of records: the same, rounding, a difference and where it first shows, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from headgate.verification.comparing import Records, compared, compared_resume
from headgate.verification.records import RecordedStep, TensorAt, TrainingRecord
from headgate.verification.verdict import Sameness, Why


def tensor(kind: str, name: str, numbers: Sequence[float]) -> TensorAt:
    values = np.array(numbers)
    return TensorAt(
        kind, name, values.shape, values, float(values.sum()), float((values * values).sum())
    )


def record(
    *steps: Mapping[str, Sequence[float]], batch: float = 1.0, drew: bool = False, **more: object
) -> TrainingRecord:
    """A record of steps, each a mapping of `KIND NAME` to numbers."""
    made = {}
    for number, step in enumerate(steps, 1):
        tensors = {}
        for key, numbers in step.items():
            kind, name = key.split()
            tensors[kind, name] = tensor(kind, name, numbers)
        made[0, number] = RecordedStep(tensors, (8, batch, batch), drew)
    return TrainingRecord(made, **more)  # type: ignore[arg-type]


RIGHT = {"gradient w": [1.0, 2.0], "weight w": [3.0, 4.0], "gradient b": [0.5], "weight b": [1.0]}
WRONG = {**RIGHT, "gradient w": [1.0, 2.9]}


def verdict(
    alone: TrainingRecord, *workers: TrainingRecord, rounded: TrainingRecord | None = None
) -> tuple[Sameness, Why | None]:
    answer = compared(Records(alone, rounded, workers, double=True))
    return answer.answer, answer.cause


def parts(*steps: Mapping[str, Sequence[float]]) -> tuple[TrainingRecord, TrainingRecord]:
    """Two workers that do the same, each with half of the samples."""
    return record(*steps, batch=0.5), record(*steps, batch=0.5)


def test_the_same_to_the_last_bits_is_the_same() -> None:
    near = {name: [number * (1 + 4e-16) for number in numbers] for name, numbers in RIGHT.items()}
    answer = compared(Records(record(RIGHT, RIGHT), None, parts(near, near), double=True))
    assert answer.answer is Sameness.SAME
    assert answer.steps == 2
    assert answer.largest == pytest.approx(4e-16, rel=1)


def test_the_first_step_and_tensor_that_differ_are_named() -> None:
    answer = compared(
        Records(record(RIGHT, RIGHT, RIGHT), None, parts(RIGHT, WRONG, WRONG), double=True)
    )
    assert answer.answer is Sameness.DIFFERS
    assert answer.cause is Why.LOSS
    assert answer.difference is not None
    assert (answer.difference.step, answer.difference.kind, answer.difference.tensors) == (
        2,
        "gradient",
        ("w",),
    )
    assert answer.difference.size == pytest.approx(0.9 / np.hypot(1, 2))


def test_what_rounding_alone_does_to_a_tensor_is_allowed_for() -> None:
    """As a bias before a batch normalisation has it, under Adam: its gradient is rounding, and its
    step is whole.
    """
    off = {**RIGHT, "weight b": [1.01]}
    assert verdict(record(RIGHT), *parts(off)) == (Sameness.DIFFERS, Why.OPTIMIZER)
    tiny = {**RIGHT, "weight b": [1.0 + 1e-9]}
    assert verdict(record(RIGHT), *parts(tiny))[0] is Sameness.DIFFERS
    rounded = record({**RIGHT, "weight b": [1.0 - 1e-9]})
    assert verdict(record(RIGHT), *parts(tiny), rounded=rounded)[0] is Sameness.SAME


def test_weights_that_a_script_changes_are_named_though_gradients_differ_too() -> None:
    set_to = {**WRONG, "weight w": [3.0, 3.9]}
    first, second = (
        record(RIGHT, set_to, batch=0.5),
        record(RIGHT, {**set_to, "weight w": [3.0, 3.8]}, batch=0.5),
    )
    answer = compared(Records(record(RIGHT, RIGHT), None, (first, second), double=True))
    assert (answer.answer, answer.cause) == (Sameness.DIFFERS, Why.SET)
    assert answer.difference is not None
    assert (answer.difference.step, answer.difference.kind) == (2, "weight")
    own = record(RIGHT, {**set_to, "gradient w": [1.0, 2.0], "weight w": [3.0, 3.8]}, batch=0.5)
    assert verdict(record(RIGHT, RIGHT), first, own) == (Sameness.DIFFERS, Why.APART)


def test_a_script_that_rounding_takes_elsewhere_tells_nothing() -> None:
    assert verdict(record(RIGHT), *parts(WRONG), rounded=record(WRONG)) == (
        Sameness.UNKNOWN,
        Why.SENSITIVE,
    )


def test_what_draws_at_random_or_has_other_samples_is_not_blamed_on_workers() -> None:
    assert verdict(record(RIGHT, drew=True), *parts(WRONG)) == (Sameness.UNKNOWN, Why.RANDOM)
    other = record(WRONG, batch=0.7), record(WRONG, batch=0.7)
    assert verdict(record(RIGHT), *other) == (Sameness.UNKNOWN, Why.DATA)


def test_each_cause_is_told_from_what_was_recorded() -> None:
    assert verdict(record(RIGHT, hooked=("w",)), *parts(WRONG))[1] is Why.HOOK
    assert (
        verdict(record(RIGHT, normalised=("BatchNorm1d",)), *parts(WRONG))[1] is Why.NORMALISATION
    )
    moved = {**RIGHT, "buffer mean": [1.0]}
    assert verdict(record(moved), *parts({**moved, "buffer mean": [2.0]}))[1] is Why.BUFFER
    one, other = (
        parts(RIGHT)[0],
        parts({**RIGHT, "gradient w": [1.0, 3.0], "weight w": [3.0, 5.0]})[1],
    )
    assert verdict(record(RIGHT), one, other) == (Sameness.DIFFERS, Why.APART)


def test_weights_that_are_no_numbers_any_more_are_the_same_where_both_are() -> None:
    broken = {**RIGHT, "weight w": [np.nan, 1.0]}
    assert verdict(record(broken), *parts(broken))[0] is Sameness.SAME
    assert verdict(record(RIGHT), *parts(broken))[0] is Sameness.DIFFERS


def test_no_step_is_no_answer() -> None:
    assert verdict(record(), *parts()) == (Sameness.UNKNOWN, Why.NO_STEP)


def test_a_resume_is_compared_from_where_it_goes_on() -> None:
    whole = record(RIGHT, WRONG, RIGHT)
    resumed = TrainingRecord(
        {key: step for key, step in record(WRONG, WRONG, RIGHT).steps.items() if key[1] > 1}
    )
    assert compared_resume([whole], [resumed], double=True).answer is Sameness.SAME
    off = TrainingRecord(
        {key: step for key, step in record(RIGHT, WRONG, WRONG).steps.items() if key[1] > 1}
    )
    answer = compared_resume([whole], [off], double=True)
    assert (answer.answer, answer.cause) == (Sameness.DIFFERS, Why.RESUME)
    assert answer.difference is not None
    assert answer.difference.step == 3
