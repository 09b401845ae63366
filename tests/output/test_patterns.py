"""Loss, step and epoch as scripts print them: one literal line or more of each family."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.errors import UsageError
from headgate.model.progress_rule import ProgressRule
from headgate.output.expressions import check_pattern
from headgate.output.line_progress import LineProgress
from headgate.output.patterns import ProgressReader


def read(*lines: str, metric: str = "loss", pattern: str | None = None) -> list[LineProgress]:
    return ProgressReader(ProgressRule(metric=metric, pattern=pattern)).feed(lines)


def one(line: str, metric: str = "loss") -> LineProgress:
    readings = read(line, metric=metric)
    assert len(readings) == 1, readings
    return readings[0]


LINES: list[tuple[str, dict[str, object]]] = [
    # PyTorch: its examples, its tutorials, and what people write after them
    (
        "Train Epoch: 3 [6400/60000 (11%)]\tLoss: 0.123456",
        {"loss": 0.123456, "epoch": 3, "samples": 6400},
    ),
    ("[2,  2000] loss: 1.234", {"loss": 1.234, "epoch": 2, "step": 2000}),
    ("loss: 2.303494  [   64/60000]", {"loss": 2.303494, "samples": 64}),
    ("Epoch 3/10, loss=0.5", {"loss": 0.5, "epoch": 3, "epochs": 10}),
    ("epoch 3 | loss 0.5", {"loss": 0.5, "epoch": 3}),
    ("Epoch #4: loss = 1e-3", {"loss": 0.001, "epoch": 4}),
    ("Epoch 3 of 10 - average loss: .25", {"loss": 0.25, "epoch": 3, "epochs": 10}),
    (
        "Epoch [3/10], Step [100/600], Loss: 0.5000",
        {"loss": 0.5, "epoch": 3, "epochs": 10, "step": 100},
    ),
    (
        "Epoch: 1, Train Loss: 0.5, Val Loss: 0.6",
        {"loss": 0.5, "epoch": 1, "metrics": {"val_loss": 0.6}},
    ),
    (
        "Epoch 1 train_loss=0.5 valid_loss=0.6",
        {"loss": 0.5, "epoch": 1, "metrics": {"valid_loss": 0.6}},
    ),
    (
        "epoch 2 val loss 0.61 train loss 0.52",
        {"loss": 0.52, "epoch": 2, "metrics": {"val_loss": 0.61}},
    ),
    ("Loss at step 400: 0.75", {"loss": 0.75, "step": 400}),
    ("Training loss (for one batch) at step 100: 1.2345", {"loss": 1.2345, "step": 100}),
    ("loss: tensor(0.5432, grad_fn=<NllLossBackward0>)", {"loss": 0.5432}),
    ("trainLoss: 0.4, valLoss: 0.5", {"loss": 0.4, "metrics": {"val_loss": 0.5}}),
    (
        (
            "Epoch: [0][  10/5005]\tTime  0.500 ( 0.600)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   "
            "0.00 (  0.10)"
        ),
        {"loss": 6.9, "epoch": 0, "step": 10},
    ),
    ("epoch 1 loss_D: 0.7 loss_G: 1.9", {"loss": 0.7, "epoch": 1, "metrics": {"loss_g": 1.9}}),
    ("step 5 policy_loss=0.2 loss=0.9", {"loss": 0.9, "step": 5, "metrics": {"policy_loss": 0.2}}),
    # Keras
    (
        (
            "938/938 ━━━━━━━━━━━━━━━━━━━━ 2s 2ms/step - accuracy: 0.9 - loss: 0.3 - "
            "val_accuracy: 0.91 - val_loss: 0.28"
        ),
        {
            "loss": 0.3,
            "step": 938,
            "metrics": {"accuracy": 0.9, "val_accuracy": 0.91, "val_loss": 0.28},
        },
    ),
    (
        (
            "\x1b[1m 12/938\x1b[0m \x1b[32m━\x1b[0m\x1b[37m━━━\x1b[0m \x1b[1m5s\x1b[0m 6ms/step "
            "- loss: 2.1"
        ),
        {"loss": 2.1, "step": 12},
    ),
    ("469/938 [=============>......] - ETA: 1s - loss: 0.3041", {"loss": 0.3041, "step": 469}),
    (
        "\b\b\b\b\b\b\b\b470/938 [=====>......] - ETA: 1s - loss: 0.3040",
        {"loss": 0.304, "step": 470},
    ),
    (
        "938/938 - 2s - 2ms/step - accuracy: 0.9 - loss: 0.3",
        {"loss": 0.3, "step": 938, "metrics": {"accuracy": 0.9}},
    ),
    ("     10/Unknown \x1b[1m1s\x1b[0m 2ms/step - loss: 0.7", {"loss": 0.7, "step": 10}),
    # JAX and Flax, absl
    (
        "train epoch: 1, loss: 0.2000, accuracy: 93.4",
        {"loss": 0.2, "epoch": 1, "metrics": {"accuracy": 93.4}},
    ),
    ("I0101 12:00:00.000000 140231 train.py:42] step 100 loss=1.5", {"loss": 1.5, "step": 100}),
    ("step: 7, loss: Array(0.25, dtype=float32)", {"loss": 0.25, "step": 7}),
    # Lightning and tqdm
    (
        "Epoch 0:  42%|████▏     | 420/1000 [00:10<00:14, 40.1it/s, v_num=0, train_loss=0.32]",
        {"loss": 0.32, "epoch": 0, "step": 420},
    ),
    (
        (
            "Epoch 2: 100%|██████████| 10/10 [00:01<00:00, 9.1it/s, v_num=3, "
            "train_loss_step=0.2, train_loss_epoch=0.4]"
        ),
        {"loss": 0.2, "epoch": 2, "step": 10, "metrics": {"train_loss_epoch": 0.4}},
    ),
    (
        "Epoch:  30%|███       | 3/10 [00:10<00:20, 6.7s/it, loss=0.5]",
        {"loss": 0.5, "epoch": 3, "epochs": 10},
    ),
    (" 10%|█         | 10/100 [00:01<00:09, loss=1.75]", {"loss": 1.75, "step": 10}),
    # Hugging Face
    (
        "{'loss': 0.5, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 1.0}",
        {"loss": 0.5, "epoch": 1, "metrics": {"grad_norm": 1.2, "learning_rate": 5e-05}},
    ),
    # nanoGPT, llm.c, Megatron, fairseq
    ("iter 100: loss 2.3456, time 123.45ms, mfu 1.20%", {"loss": 2.3456, "step": 100}),
    (
        "step 250: train loss 2.1000, val loss 2.2000",
        {"loss": 2.1, "step": 250, "metrics": {"val_loss": 2.2}},
    ),
    (
        (
            "step   10/19560 | loss 5.334521 (+nanz)| norm 12.3456 (+nanz)| lr 3.00e-04 | 123.45 "
            "ms | 33.3% bf16 MFU"
        ),
        {"loss": 5.334521, "step": 10, "metrics": {"lr": 3e-4}},
    ),
    (
        (
            " iteration      100/  500000 | learning rate: 1.000E-04 | lm loss: 6.5E+00 | loss "
            "scale: 1.0 |"
        ),
        {"loss": 6.5, "step": 100, "metrics": {"learning_rate": 1e-4, "loss_scale": 1.0}},
    ),
    (
        (
            '2024-01-01 12:00:00 | INFO | train_inner | {"epoch": 1, "update": 0.5, "loss": '
            '"5.3", "num_updates": "100"}'
        ),
        {"loss": 5.3, "epoch": 1, "step": 100},
    ),
    # Boosting
    (
        "[10]\ttrain-rmse:0.5\teval-rmse:0.6",
        {"loss": 0.5, "step": 10, "metrics": {"eval_rmse": 0.6}},
    ),
    (
        "[10]\ttraining's binary_logloss: 0.5\tvalid_0's binary_logloss: 0.6",
        {"loss": 0.5, "step": 10, "metrics": {"val_binary_logloss": 0.6}},
    ),
    # MMEngine
    (
        (
            "Epoch(train)   [1][  50/7330]  lr: 1.0e-05  eta: 1:02:03  time: 0.5  loss: 1.5  "
            "loss_cls: 0.7"
        ),
        {"loss": 1.5, "epoch": 1, "step": 50, "metrics": {"lr": 1e-5, "loss_cls": 0.7}},
    ),
    # Nothing but names and numbers
    ("loss 1", {"loss": 1.0}),
    ("loss 1.0 val_acc 0.3", {"loss": 1.0, "metrics": {"val_acc": 0.3}}),
    (
        "step 3/9, train loss 2, grad_norm 1 acc 0",
        {"loss": 2.0, "step": 3, "metrics": {"grad_norm": 1.0, "acc": 0.0}},
    ),
    ("loss: -inf", {"loss": -math.inf}),
    ("Epoch 4 - loss: inf", {"loss": math.inf, "epoch": 4}),
]


@pytest.mark.parametrize(("line", "expected"), LINES, ids=[line[:40] for line, _ in LINES])
def test_a_usual_line_is_read(line: str, expected: Mapping[str, object]) -> None:
    assert one(line).values == LineProgress(**expected).values  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line", ["loss: nan", "Loss: NaN", "epoch 1 | loss nan", "{'loss': nan, 'epoch': 0.1}"]
)
def test_a_loss_that_is_no_number_is_read_as_such(line: str) -> None:
    loss = one(line).loss
    assert loss is not None
    assert math.isnan(loss)


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("Test set: Average loss: 0.0520, Accuracy: 9800/10000 (98%)", {"test_loss": 0.052}),
        ("eval epoch: 1, loss: 0.25, accuracy: 92.4", {"val_loss": 0.25, "val_accuracy": 92.4}),
        ("Validation loss: 0.5", {"val_loss": 0.5}),
        (
            "{'eval_loss': 0.4, 'eval_runtime': 1.2, 'epoch': 1.0}",
            {"eval_loss": 0.4, "eval_runtime": 1.2},
        ),
    ],
)
def test_a_loss_of_validation_is_a_metric_and_never_the_loss(
    line: str, metrics: Mapping[str, float]
) -> None:
    reading = one(line)
    assert reading.loss is None
    assert reading.metrics == metrics


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loss function: mse",
        "Loading loss.py",
        "time: 3",
        "lossless 1.0",
        "compression: lossless=1.0",
        "loss scale 32768.0",
        "Gradient overflow, reducing loss scale to 16384.0",
        "Using loss weights: 0.5",
        "loss_weight=0.5",
        "packet loss: 3%",
        "loss 3 of 5",
        "loss 3 times",
        "added loss 3",
        "loss: 3/5",
        "best loss: 0.2",
        "Best val loss: 0.2",
        "loss=mse version 1.2.3",
        "headgate-loss 1.2.3",
        "loss: 2024-01-01",
        "loss: 12:30",
        "loss at 0.5s",
        "seconds per epoch: 3",
        "steps per epoch: 938",
        "Namespace(loss='mse', lr=0.1, epochs=10)",
        "torch 2.3.1 loss v1.0.2",
        "saved to epoch_3.pt",
        "Downloading: 42%|████▏     | 42/100 [00:10<00:14]",
        "[10] worker started",
        "Step 1: preparing data",
        "{'train_runtime': 12.3, 'train_loss': 0.45, 'epoch': 3.0}",
        "x" * 1_000_000,
    ],
)
def test_what_is_no_progress_is_not_taken_for_it(line: str) -> None:
    assert read(line) == []


def test_an_epoch_header_counts_for_the_lines_below_it() -> None:
    header, first, second = read(
        "Epoch 2/5", "  1/938 ━━━━ 1s - loss: 0.9", "  2/938 ━━━━ 1s - loss: 0.8"
    )
    assert (header.epoch, header.epochs, header.loss) == (2, 5, None)
    assert [(reading.epoch, reading.epochs, reading.step) for reading in (first, second)] == [
        (2, 5, 1),
        (2, 5, 2),
    ]


def test_steps_run_on_when_a_new_epoch_starts_counting_anew() -> None:
    readings = read(
        "Epoch 1/2",
        "10/10 ━━━━ 1s - loss: 0.9",
        "Epoch 2/2",
        " 3/10 ━━━━ 1s - loss: 0.8",
        "10/10 ━━━━ 1s - loss: 0.7",
    )
    assert [reading.step for reading in readings if reading.loss is not None] == [10, 13, 20]


def test_a_line_that_tells_no_step_is_at_the_last_one_told() -> None:
    readings = read(
        "Epoch 1/2",
        "10/10 ━━━━ 1s - loss: 0.9",
        "epoch 1: loss 0.95, val_loss 0.8",
        "Epoch 2/2",
        "3/10 ━━━━ 1s - loss: 0.7",
    )
    assert [(reading.step, reading.epoch) for reading in readings] == [
        (None, 1),
        (10, 1),
        (10, 1),
        (10, 2),
        (13, 2),
    ]


def test_samples_run_on_when_a_new_epoch_starts_counting_anew() -> None:
    readings = read(
        "Train Epoch: 1 [51200/60000 (85%)]\tLoss: 0.5",
        "Train Epoch: 2 [0/60000 (0%)]\tLoss: 0.4",
        "Train Epoch: 2 [6400/60000 (11%)]\tLoss: 0.3",
    )
    assert [reading.samples for reading in readings] == [51200, 60000, 66400]


def test_steps_that_count_through_all_epochs_are_left_as_they_are() -> None:
    readings = read("epoch 1 step 100 loss 0.5", "epoch 2 step 200 loss 0.4")
    assert [reading.step for reading in readings] == [100, 200]


def test_a_keras_evaluation_after_training_is_not_taken_for_training() -> None:
    readings = read(
        "Epoch 1/1",
        "938/938 ━━━━ 1s - loss: 0.3",
        "  1/313 ━━━━ 1s - loss: 0.9",
        "313/313 ━━━━ 1s - loss: 0.8",
    )
    assert [reading.loss for reading in readings if reading.loss is not None] == [0.3]
    assert (readings[-1].step, readings[-1].metrics) == (938, {"eval_loss": 0.8})


@pytest.mark.parametrize(
    "line",
    [
        "Test: [ 0/20]  Loss: 0.9",
        "val:  10%|#  | 1/10 [00:00<00:01, loss=0.9]",
        "Evaluating: 10%|#| 1/9 [0:0<0:1, loss=0.9]",
        "[eval] batch 3/10 loss 0.9",
        "Epoch(val) [1][10/20]  loss: 0.9",
        "validation step 3/10: loss=0.9",
        '{"mode": "val", "iter": 3, "loss": 0.9}',
    ],
)
def test_an_evaluation_counts_no_steps_of_the_training(line: str) -> None:
    readings = read("step 100 loss 0.5", line, "step 110 loss 0.4")
    assert [reading.step for reading in readings] == [100, 100, 110]
    assert [reading.loss for reading in readings] == [0.5, None, 0.4]
    assert 0.9 in readings[1].metrics.values()


def test_a_second_fit_of_another_length_runs_on() -> None:
    first = ["Epoch 1/2", "10/10 - 1s - loss: 0.9", "Epoch 2/2", "10/10 - 1s - loss: 0.8"]
    second = ["Epoch 1/3", "10/10 - 1s - loss: 0.7", "Epoch 2/3", "10/10 - 1s - loss: 0.6"]
    last = read(*first, *second)[-1]
    assert (last.step, last.epoch, last.epochs) == (40, 4, 5)


def test_bars_without_an_epoch_run_on_and_are_not_all_there_is() -> None:
    bars = [
        f" {10 * step}%|## | {step}/10 [00:01<00:09, loss=0.{9 - step // 5}]" for step in (5, 10)
    ]
    readings = read(*bars, *bars)
    assert [reading.step for reading in readings] == [5, 10, 15, 20]
    assert [reading.steps for reading in readings] == [10, 10, None, None]


def test_steps_that_go_on_through_epochs_go_to_their_own_total() -> None:
    readings = read(
        *(f"epoch {1 + step // 200}/5, step {step}/1000, loss 0.5" for step in (100, 199, 200, 300))
    )
    assert [reading.steps for reading in readings] == [None, None, 1000, 1000]


@pytest.mark.parametrize(
    ("line", "loss", "step"),
    [
        ("step 1,000 loss=24,123.50", 24123.5, 1000),
        ("step 1_000 loss=24_123.5", 24123.5, 1000),
        ("step 12,345,678: loss 1.5e+03", 1500.0, 12345678),
        ("step 10 loss 0,6931", 0.6931, 10),
        ("step 10 loss 1.234,56", 1234.56, 10),
        ("step 10, loss 0.5, lr 1e-4", 0.5, 10),
        ("{step:10,loss:0.5,acc:0.1}", 0.5, 10),
        ("step 10 loss -1.25E-3", -0.00125, 10),
    ],
)
def test_numbers_are_read_as_people_write_them(line: str, loss: float, step: int) -> None:
    reading = one(line)
    assert (reading.loss, reading.step) == (loss, step)


def test_a_decimal_comma_once_seen_is_one_from_then_on() -> None:
    assert [reading.loss for reading in read("step 1 loss 2,5", "step 2 loss 1,234")] == [
        2.5,
        1.234,
    ]


PREFIXES = [
    "2026-03-01 12:00:00,123 - INFO - ",
    "2026-03-01T12:00:00.123456 ",
    "[12:00:00] ",
    "[2026-03-01 12:00:00,123] [INFO] ",
    "INFO:root:",
    "INFO:tensorflow:",
    "I0301 12:00:00.123456 140 train.py:42] ",
    "[rank0]: ",
    "[1,0]<stdout>:",
    "0: ",
    "(train pid=321) ",
    "\x1b[36m(train pid=321, ip=10.0.0.1)\x1b[0m ",
    "2026-03-01 12:00:00 | INFO | pkg.train | ",
    "03/01 12:00:00 - mmengine - INFO - ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[3, 200] loss: 0.5", (0.5, 200, 3)),
        ("[350] loss=0.5, lr=0.1", (0.5, 350, None)),
        ("12/938 [>.....] - ETA: 1s - loss: 0.5", (0.5, 12, None)),
        ("Epoch 2: 42%|## | 42/100 [00:01<00:02, 40it/s, loss=0.5]", (0.5, 42, 2)),
        ("[10]\ttrain-rmse:0.5\teval-rmse:0.6", (0.5, 10, None)),
        ("[1/25][7/782] Loss_D: 0.5 Loss_G: 2.0", (0.5, 7, 1)),
        ("epoch 1 | loss 0.5", (0.5, None, 1)),
        ("{'loss': 0.5, 'epoch': 0.5}", (0.5, None, 1)),
    ],
)
def test_what_loggers_and_launchers_put_before_a_line_changes_nothing(
    prefix: str, line: str, expected: tuple[float, int | None, int | None]
) -> None:
    reading = one(prefix + line)
    assert (reading.loss, reading.step, reading.epoch) == expected


@pytest.mark.parametrize(
    "closing",
    ["Training finished in 10 s, average loss 1.9", "Done! Mean loss: 1.9", "Overall avg_loss=1.9"],
)
def test_a_mean_over_the_whole_run_is_not_the_final_loss(closing: str) -> None:
    assert [
        reading.loss for reading in read("step 10 loss 0.5", closing) if reading.loss is not None
    ] == [0.5]


def test_where_nothing_is_found_the_nearest_lines_are_told() -> None:
    reader = ProgressReader(ProgressRule())
    reader.feed(
        [
            "Loading 3 files",
            "iteration 10 objective -35.1 over 20 frames",
            "iteration 20 objective -30.2 over 20 frames",
        ]
    )
    hint = reader.hint()
    assert hint is not None
    assert "found no loss" in hint
    assert "`progress:` says how" in hint
    assert hint.endswith("iteration 20 objective -30.2 over 20 frames")
    reader.feed(["step 30 loss 0.5"])
    assert reader.hint() is None


@pytest.mark.parametrize(
    ("line", "metric"),
    [
        ("round 5: accuracy=0.9941", "accuracy"),
        ("Epoch 3: train acc 93.4%", "acc"),
        ("[ROUND 5] test accuracy: 0.81, time 3.20s", "accuracy"),
        ('{"step": 10, "mae": 0.5}', "mae"),
        ("step 3 reward 12.5", "reward"),
        ("Epoch: 3  Acc@1 12.5 (13.0)", "acc@1"),
    ],
)
def test_a_metric_that_could_be_followed_instead_of_a_loss_is_named_and_followed(
    line: str, metric: str
) -> None:
    reader = ProgressReader(ProgressRule())
    reader.feed([line])
    assert f"`progress: {{metric: {metric}}}`" in (reader.hint() or "")
    followed = ProgressReader(ProgressRule(metric))
    assert followed.feed([line])[0].loss is not None
    assert followed.hint() is None


@pytest.mark.parametrize("line", ["iteration 10 objective -35.1", "epoch 1 lr: 0.1 time 3.5"])
def test_a_value_that_may_be_better_either_way_is_not_proposed(line: str) -> None:
    reader = ProgressReader(ProgressRule())
    reader.feed([line])
    assert "`progress:` says how" in (reader.hint() or "")


def test_a_script_without_progress_gets_no_hint_unless_something_was_asked_for() -> None:
    lines = ["Starting the server", "listening on port 8080"]
    for rule, hints in [(ProgressRule(), False), (ProgressRule("accuracy", goal=0.9), True)]:
        reader = ProgressReader(rule)
        reader.feed(lines)
        assert (reader.hint() is not None) is hints


@pytest.mark.parametrize(
    "above",
    [
        "Step 1: prepare the data",
        "Step 2/5: train the model",
        "step took: 1m 20s",
        "step: 1m 20s",
        "batch: 32",
        "steps: 1000",
        "save every step: 500",
        "total iter: 500",
        "eval step: 500",
        "train_steps=100000",
    ],
)
def test_a_line_above_that_says_no_place_gives_no_step(above: str) -> None:
    assert read(above, "loss: 0.5") == [LineProgress(loss=0.5)]


def test_a_line_above_says_the_step_only_where_lines_with_a_loss_say_none() -> None:
    assert [reading.step for reading in read("step: 100/500", "loss: 0.5", "loss: 0.4")] == [
        100,
        100,
    ]
    assert [reading.step for reading in read("step 10 loss 0.5", "step: 100/500", "loss: 0.4")] == [
        10,
        10,
    ]


def test_of_lines_with_parts_of_the_loss_the_first_is_read_until_it_stops_coming() -> None:
    parts = ["step 1 encoder loss: 0.5", "step 1 decoder loss: 0.7"] * 3
    assert [reading.loss for reading in read(*parts) if reading.loss is not None] == [0.5, 0.5, 0.5]
    alone = read(*parts, *["step 2 decoder loss: 0.6"] * 20)
    assert alone[-1].loss == 0.6
    assert [reading.loss for reading in read("step 1 encoder loss: 0.5", "step 1 loss: 1.2")] == [
        0.5,
        1.2,
    ]
    whole = read("step 1 loss: 1.2", "step 1 encoder loss: 0.5")
    assert (whole[-1].loss, whole[-1].metrics) == (None, {"encoder_loss": 0.5})


def test_what_was_the_best_is_not_what_is() -> None:
    lines = [
        "step 10 loss 0.5",
        "step 20 loss 0.6",
        "Best so far:",
        "step 10 loss 0.5",
        "step 30 loss 0.4",
    ]
    assert [reading.step for reading in read(*lines)] == [10, 20, 30]


def test_bars_as_long_as_there_are_epochs_count_steps_where_they_are_elsewhere() -> None:
    lines = [
        f"Epoch {epoch}/9: {step / 9:4.0%}|█  | {step}/9 [00:01<00:01, loss=0.5]"
        for epoch in (1, 2)
        for step in (4, 9)
    ]
    assert [reading.step for reading in read(*lines)] == [4, 9, 13, 18]
    over = [
        f"Epoch {epoch}/9: {epoch / 9:4.0%}|█  | {epoch}/9 [00:01<00:01, loss=0.5]"
        for epoch in (1, 2)
    ]
    assert [(reading.step, reading.epoch) for reading in read(*over)] == [(None, 1), (None, 2)]


def test_a_bar_that_is_drawn_again_is_read_once() -> None:
    bar = "Epoch 0:  42%|████ | 420/1000 [00:10<00:14, 40.1it/s, train_loss=0.32]"
    assert len(read(bar, bar)) == 1


def test_a_script_that_counts_no_steps_may_repeat_its_loss() -> None:
    assert len(read("loss: 0.5", "loss: 0.5")) == 2


def test_every_state_of_a_line_redrawn_by_carriage_returns_is_read() -> None:
    assert [
        reading.loss for reading in read("1/9 [>...] - loss: 0.9\r2/9 [=>..] - loss: 0.8\r")
    ] == [0.9, 0.8]


def test_only_the_start_of_a_very_long_line_is_looked_at() -> None:
    assert one("loss: 0.5 " + "x" * 10_000).loss == 0.5
    assert read("x " * 5_000 + "loss: 0.5") == []


@pytest.mark.parametrize(
    ("metric", "line", "value"),
    [
        ("accuracy", "epoch 1 loss 0.5 accuracy 0.9", 0.9),
        ("val_loss", "Epoch: 1, Train Loss: 0.5, Val Loss: 0.6", 0.6),
        ("val_accuracy", "10/10 ━━━━ 1s - accuracy: 0.8 - loss: 1.0 - val_accuracy: 0.7", 0.7),
        ("reward", "episode 3 reward: -12.5", -12.5),
        ("rmse", "[10]\ttrain-rmse:0.5\teval-rmse:0.6", 0.5),
        ("eval/loss", "step 3 eval/loss=0.6 loss=0.5", 0.6),
        ("accuracy", "Test set: Average loss: 0.0520, Accuracy: 9800/10000 (98%)", 0.98),
        ("test_accuracy", "Test set: Average loss: 0.0520, Accuracy: 9800/10000 (98%)", 0.98),
        (
            "coco/bbox_mAP",
            "Epoch(val) [1][625/625]    coco/bbox_mAP: 0.2110  coco/bbox_mAP_50: 0.3820",
            0.211,
        ),
    ],
)
def test_another_metric_can_be_named(metric: str, line: str, value: float) -> None:
    assert one(line, metric=metric).loss == value


def test_a_metric_of_the_training_is_not_taken_from_an_evaluation() -> None:
    readings = read(
        "epoch 1 accuracy: 0.5", "test accuracy: 0.9", "epoch 2 accuracy: 0.6", metric="accuracy"
    )
    assert [reading.loss for reading in readings if reading.loss is not None] == [0.5, 0.6]


def test_where_only_evaluations_tell_a_step_it_is_theirs() -> None:
    readings = read("iter 500: val acc 0.7", "iter 1000: val acc 0.8", metric="val_acc")
    assert [(reading.loss, reading.step) for reading in readings] == [(0.7, 500), (0.8, 1000)]


def test_a_jobs_own_pattern_is_used_instead() -> None:
    pattern = r"it (?P<step>\d+) of epoch (?P<epoch>\d+) cost (?P<loss>\S+) at lr (?P<lr>\S+)"
    readings = read(
        "it 1,200 cost", "it 12 of epoch 3 cost 0.25 at lr 1e-3", "loss: 0.5", pattern=pattern
    )
    assert readings == [LineProgress(step=12, epoch=3, loss=0.25, metrics={"lr": 0.001})]


@pytest.mark.parametrize(("goal", "value"), [(0.97, 0.1), (97.0, 10.0), (None, 10.0)])
@pytest.mark.parametrize(
    "line", ["epoch 1 loss 2.3 accuracy: 10.00%", "epoch 1, loss: 2.3, accuracy = 10.0 %"]
)
@pytest.mark.parametrize("pattern", [None, r"accuracy\W+(?P<accuracy>[\d.]+%?)"])
def test_a_percentage_is_read_on_the_scale_of_the_goal(
    line: str, goal: float | None, value: float, pattern: str | None
) -> None:
    (reading,) = ProgressReader(ProgressRule("accuracy", pattern, goal)).feed([line])
    assert reading.loss == pytest.approx(value)


def test_what_a_jobs_own_pattern_finds_need_not_be_a_number() -> None:
    assert read("loss=oops", pattern=r"loss=(?P<loss>\S+)") == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("loss=(?P<loss>", "no regular expression"),
        (r"loss=(\S+)", "no named group"),
        (r"(?P<step>\d+)", "no named group"),
        (r"(?P<loss>(\d+)*)x", "search for ever"),
        (r"(a|ab)*(?P<loss>\d)", "search for ever"),
        (r"((a*)b?)*(?P<loss>\d)", "search for ever"),
        ("x" * 2000, "characters"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_with_the_reason(
    pattern: str, reason: str
) -> None:
    found = check_pattern(pattern)
    assert found is not None
    assert reason in found
    with pytest.raises(UsageError, match=r"progress\.pattern"):
        read("loss", pattern=pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"loss=(?P<loss>[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)",
        r"^(?:\w+\s){0,3}loss (?P<value>\S+)",
        r"(?:\d++,)*(?P<loss>\d+)",
        r"(?i)LOSS\s*[:=]\s*(?P<loss>nan|inf|[\d.]+)",
        r"[[](?P<loss>\S+)]",  # Python warns that it may read it otherwise one day
    ],
)
def test_a_harmless_pattern_is_accepted(pattern: str) -> None:
    assert check_pattern(pattern) is None


def test_a_pattern_may_name_its_group_after_the_metric() -> None:
    assert check_pattern(r"acc (?P<accuracy>\S+)", "accuracy") is None
    assert read("acc 0.9", metric="accuracy", pattern=r"acc (?P<accuracy>\S+)")[0].loss == 0.9


def test_a_pattern_that_turns_out_slow_is_given_up_with_the_reason() -> None:
    pattern = r".*a.*a.*a.*a(?P<loss>\d)"
    assert check_pattern(pattern) is None
    reader = ProgressReader(ProgressRule(pattern=pattern))
    reader.feed(["a" * 90])
    assert reader.problem is not None
    assert "no longer searched" in reader.problem
    assert reader.feed(["aaaa1"]) == []


@settings(max_examples=400, deadline=None)
@given(
    st.text(
        alphabet=st.sampled_from("loss epch=:. 0123456789[]()|/'\"-+_\t\b\r\x1b%naiftv,{}"),
        max_size=400,
    )
)
def test_noise_is_read_without_error(line: str) -> None:
    for reading in read(line, line):
        assert reading.step is None or reading.step >= 0


@pytest.mark.parametrize(
    "line",
    [
        "loss " * 900,
        "loss:" * 900,
        "loss.a-" * 600,
        "epoch " * 700,
        "[ " * 2000 + "loss",
        "loss" + " " * 4000 + "x",
        "loss " + "(" * 4000,
        "loss (" * 700,
        "loss" + " a" * 2000,
        "train " * 680 + "loss",
        "loss at a " * 400,
        "val: a: 1.0 " * 300 + "loss=1.0",
        "1/" * 2000 + "loss",
        "loss" + "9" * 4000,
        "loss: " + "1" * 4000 + "x",
        "\x1b[" * 2000 + "loss",
        "\x1b]" * 2000 + "loss",
    ],
    ids=lambda line: repr(line[:12]),
)
def test_the_oddest_line_costs_little(line: str) -> None:
    reader = ProgressReader(ProgressRule())
    best = min(_seconds(reader, line) for _ in range(5))
    # The dearest takes 2 ms; one that backtracks takes seconds.
    assert best < 0.05, f"{best * 1e3:.1f} ms"


def _seconds(reader: ProgressReader, line: str) -> float:
    started = time.process_time()
    reader.feed([line])
    return time.process_time() - started
