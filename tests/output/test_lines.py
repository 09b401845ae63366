"""A metric that a job names, in every wording that scripts give it."""

from __future__ import annotations

import itertools

import pytest

from headgate.model.progress_rule import ProgressRule
from headgate.output.line_progress import LineProgress
from headgate.output.patterns import ProgressReader

QUALIFIERS = [
    "",
    "Avg ",
    "avg. ",
    "Mean ",
    "Running ",
    "Overall ",
    "micro ",
    "Final ",
    "The ",
    "Top-1 ",
    "Masked ",
]
NAMES = [
    ("accuracy", "accuracy"),
    ("F1", "f1"),
    ("PSNR", "psnr"),
    ("mean IoU", "iou"),
    ("Reward", "reward"),
]
FORMS = [
    "{}: {}",
    "epoch {n} {}: {}",
    "{} = {}",
    "[{n}] loss 0.5, {}: {}",
    "===> {}: {} (dt 0.1)",
    "{} is {}",
]
VALUES = [0.25, 0.5, 0.75, 0.875]


def values(metric: str, lines: list[str]) -> list[float]:
    readings = ProgressReader(ProgressRule(metric)).feed(lines)
    return [reading.loss for reading in readings if reading.loss is not None]


@pytest.mark.parametrize(("printed", "metric"), NAMES)
def test_a_metric_is_read_in_every_line_whatever_word_stands_before_its_name(
    printed: str, metric: str
) -> None:
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
        ("recall@20", "recall@20: {}"),
        ("ndcg@10", "NDCG@10 = {} NDCG@20 = 0.1"),
        ("acc@1", "Acc@1: {} Acc@5: 0.9"),
        ("accuracy", "Validation accuracy of {}"),
        ("return", "Mean return over 10 episodes: {}"),
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
        line
        for n, value in enumerate(VALUES)
        for line in (f"epoch {n} loss: 1.5", "Validation:", f"accuracy: {value}")
    ]
    readings = ProgressReader(ProgressRule("accuracy")).feed(lines)
    assert [reading.loss for reading in readings if reading.loss is not None] == VALUES
    assert not any("val_loss" in reading.metrics for reading in readings)
    both = ["epoch 1 loss: 1.5 accuracy: 0.5", "Validation:", "accuracy: 0.4"]
    assert ProgressReader(ProgressRule("accuracy")).feed(both)[-1].values == (
        LineProgress(epoch=1, metrics={"val_accuracy": 0.4}).values
    )


@pytest.mark.parametrize(
    ("line", "step", "metrics"),
    [
        ("global_step=100, episodic_return=[12.5]", 100, {"episodic_return": 12.5}),
        ("global_step=100, episodic_return=12.0", 100, {"episodic_return": 12.0}),
        ("Episode 7 | Reward: -3.5 | Steps: 200", 7, {"reward": -3.5}),
        ("step 40 accuracy 0.75", 40, {"accuracy": 0.75}),
        (
            (
                "[I 2026] Trial 3 finished with value: 0.87 and parameters: {}. Best is trial 2 "
                "with value: 0.9."
            ),
            4,
            {"value": 0.87},
        ),
        (
            (
                "[I 2026-11-28 07:00:00,123] Trial 3 finished with values: [0.39, 1.0] and "
                "parameters: {'x': 1}."
            ),
            4,
            {"value": 0.39},
        ),
    ],
)
def test_what_tells_how_good_a_model_is_is_read_without_a_loss(
    line: str, step: int, metrics: dict[str, float]
) -> None:
    (reading,) = ProgressReader(ProgressRule()).feed([line])
    assert (reading.loss, reading.step) == (None, step)
    assert {name: reading.metrics.get(name) for name in metrics} == metrics


@pytest.mark.parametrize(
    "line",
    ["return code: 0", "step 1: return value 5", "Trial 4 pruned.", "step 2: score the model"],
)
def test_what_only_looks_like_it_is_not_read(line: str) -> None:
    assert ProgressReader(ProgressRule()).feed([line]) == []


def test_the_value_of_a_trial_can_be_followed_and_not_the_best_one() -> None:
    lines = [
        (
            f"Trial {n} finished with value: {value} and parameters: {{}}. Best is trial 0 with "
            "value: 0.99."
        )
        for n, value in enumerate(VALUES)
    ]
    assert values("value", lines) == VALUES


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["7:\tlearn: 0.5\ttotal: 95ms\tremaining: 251ms"], 0.251),
        (["7:\tlearn: 0.5\ttotal: 1m\tremaining: 1h 2m 3s"], 3723.0),
        (
            [
                "      Iter       Train Loss   Remaining Time ",
                "         7           0.5            1.50m",
            ],
            90.0,
        ),
        (["step 7 loss 0.5 remaining: 3 files"], None),
    ],
)
def test_the_time_that_a_script_says_is_left_is_read(lines: list[str], left: float | None) -> None:
    *_, reading = ProgressReader(ProgressRule()).feed(lines)
    assert (reading.loss, reading.remaining) == (0.5, left)
