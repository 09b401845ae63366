"""A metric that a job names, in every wording that scripts give it."""

from __future__ import annotations

import itertools

import pytest

from headgate.jobs import ProgressRule
from headgate.telemetry.patterns import LineReading, ProgressReader

QUALIFIERS = ["", "Avg ", "avg. ", "Mean ", "Running ", "Overall ", "micro ", "Final ", "The ", "Top-1 ", "Masked "]
NAMES = [("accuracy", "accuracy"), ("F1", "f1"), ("PSNR", "psnr"), ("mean IoU", "iou"), ("Reward", "reward")]
FORMS = ["{}: {}", "epoch {n} {}: {}", "{} = {}", "[{n}] loss 0.5, {}: {}", "===> {}: {} (dt 0.1)", "{} is {}"]
VALUES = [0.25, 0.5, 0.75, 0.875]


def values(metric: str, lines: list[str]) -> list[float]:
    readings = ProgressReader(ProgressRule(metric)).feed(lines)
    return [reading.loss for reading in readings if reading.loss is not None]


@pytest.mark.parametrize(("printed", "metric"), NAMES)
def test_a_metric_is_read_in_every_line_whatever_word_stands_before_its_name(printed: str, metric: str) -> None:
    for qualifier, form in itertools.product(QUALIFIERS, FORMS):
        lines = [form.format(qualifier + printed, value, n=n) for n, value in enumerate(VALUES, 1)]
        assert values(metric, lines) == VALUES, lines


@pytest.mark.parametrize(
    ("metric", "printed"),
    [
        ("accuracy", "avg_accuracy={}"),
        ("return", "global_step=100, episodic_return={}"),
        ("return", "global_step=100, episodic_return=[{}]"),
        ("f1", "F1 score = {}"),
        ("f1", "macro-F1: {}"),
        ("mean reward", "Mean reward: {} +/- 0.1"),
        ("mean episode reward", "mean episode reward: {}"),
        ("reward", "mean reward: {}, std reward: 0.1"),
        ("accuracy", "accuracy: {} (best accuracy: 0.9)"),
        ("accuracy", "Best accuracy: 0.9, accuracy: {}"),
        ("accuracy", "Val accuracy: {}"),
        ("accuracy", "acc of plane: 0.1, accuracy {}"),
        ("accuracy", "Accuracy of the network on the 10000 test images: {}"),
        ("acc", "acc on test = {}"),
        ("val_f1", "val micro F1: {}, test micro F1: 0.1"),
        ("val_accuracy", "train accuracy 0.1, validation accuracy {}"),
        ("test_accuracy", "Test set: accuracy of the model on all images is {}"),
        ("nll", "nll: {}"),
    ],
)
def test_a_metric_is_read_among_others_like_it(metric: str, printed: str) -> None:
    assert values(metric, [printed.format(value) for value in VALUES]) == VALUES


@pytest.mark.parametrize(
    "line",
    [
        "best accuracy: 0.9",
        "target accuracy 0.9",
        "std accuracy: 0.1",
        "accuracy std: 0.1",
        "accuracy threshold: 0.9",
        "inaccuracy: 0.9",
        "Accuracy of plane : 90 %",
    ],
)
def test_what_is_no_value_of_the_metric_as_of_now_is_not_read(line: str) -> None:
    assert values("accuracy", [line]) == []


def test_of_several_that_share_a_name_the_first_is_the_metric() -> None:
    lines = [line for value in VALUES for line in (f"val micro F1: {value}", "val macro F1: 0.1")]
    assert values("f1", lines) == VALUES


def test_a_metric_that_only_an_evaluation_has_is_read_there() -> None:
    lines = [
        line for n, value in enumerate(VALUES) for line in (f"epoch {n} loss: 1.5", "Validation:", f"accuracy: {value}")
    ]
    readings = ProgressReader(ProgressRule("accuracy")).feed(lines)
    assert [reading.loss for reading in readings if reading.loss is not None] == VALUES
    assert not any("val_loss" in reading.metrics for reading in readings)
    both = ["epoch 1 loss: 1.5 accuracy: 0.5", "Validation:", "accuracy: 0.4"]
    assert ProgressReader(ProgressRule("accuracy")).feed(both)[-1] == LineReading(
        epoch=1, metrics={"val_accuracy": 0.4}
    )
