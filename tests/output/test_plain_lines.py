"""What loggers put around a message, times what is logged: the right answer is that of the message
alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

import pytest

from headgate.model.progress_rule import ProgressRule
from headgate.output.line_progress import LineProgress
from headgate.output.patterns import ProgressReader
from headgate.output.plain_lines import plain

BEFORE = [
    # loguru
    "2026-11-28 07:00:00.123 | INFO     | __main__:train_step:142 - ",
    "2026-11-28 07:00:00.123 | DEBUG    | mypkg.trainer:train_epoch:88 - ",
    "2026-11-28 07:00:00.123 | SUCCESS  | mypkg.trainer:loss:88 - ",
    "07:00:00 | INFO | engine:run_epoch:12 | ",
    # Python's logging, with the formats that people give it
    "INFO:root:",
    "INFO:train_step:",
    "WARNING:trainer.loop:",
    "2026-11-28 07:00:00,123 - trainer - INFO - ",
    "2026-11-28 07:00:00,123 - INFO - train.py:142 - ",
    "2026-11-28 07:00:00,123 [INFO] trainer.loop:142: ",
    "2026-11-28 07:00:00,123 INFO train_step:142 ",
    "2026-11-28 07:00:00,123 - INFO - train_step - 142 - ",
    "2026-11-28 07:00:00,123 trainer.py train_step 142 INFO: ",
    "2026-11-28 07:00:00,123 INFO [train.py:train_step:142] ",
    "2026-11-28 07:00:00,123 INFO trainer.train_epoch:142 - ",
    "[trainer.py train_epoch:88] ",
    "[trainer.py:88 train_step] ",
    "[train_step:142] ",
    "[train.py:142][train_step] ",
    "[engine.step:142] ",
    "train_step:142 - ",
    "training_step:142: ",
    "train.py:142 - train_step() - ",
    "train.py:train_step:142: ",
    "train_step (train.py:142): ",
    "train.py(142): ",
    "train.py:142:INFO: ",
    "(train.py:142) INFO ",
    "INFO trainer.step[142]: ",
    "at train_step:142 ",
    "File train.py, line 142, in train_step: ",
    "INFO train.py:142 in train_step ",
    "[MainThread:train_step:142] ",
    "[MainProcess] ",
    "pid=1234 train_step:142 ",
    "epoch_loop.py:88 ",
    "loss.py:88: ",
    "losses.compute_loss:88 - ",
    "trainer::train_step:142 - ",
    (
        '{"time": "2026-11-28T07:00:00", "level": "INFO", "func": "train_step", "line": 142, '
        '"message": "'
    ),
    "level=info msg=",
    "gpu0 | train.py:142 | ",
    "[step_fn:142] ",
    "epoch_loop:7: ",
    "(trainer.py:88:train_step) ",
    "[ERROR] train.py:142 - ",
    "train_step: ",
    # Trainers and those who run them
    "[2026-11-28 07:00:00,123][trainer.step][INFO] - ",
    "[11/28 07:00:00 d2.utils.events]: ",
    "2026/11/28 07:00:00 - mmengine - INFO - ",
    "I1128 07:00:00.123456 140231416178496 train_step.py:142] ",
    "I20261128 07:00:00.123456 140231 solver.cpp:239] ",
    "[INFO|train_step.py:12] 2026-11-28 07:00:00,123 >> ",
    "11/28/2026 07:00:00 - INFO - train_step -   ",
    "I1128 07:00:00.123456       1 main.go:139] 2026-11-28T07:00:00Z INFO     ",
    "[I 2026-11-28 07:00:00,123] ",
    "[rank0]: ",
    "[rank: 0] ",
    "0: ",
    "(RayTrainWorker pid=1234, ip=10.0.0.1) ",
    "[1,0]<stdout>:",
    "[2026-11-28, 07:00:00 UTC] {train.py:142} INFO - ",
    "trainer-1  | ",
    "[pod/train-0/trainer] ",
    "Nov 28 07:00:00 host train_step[1234]: ",
    "[07:00:00] INFO     ",
]
AFTER = [
    "            train.py:142",
    "  (train.py:142)",
    " [in train_step:142]",
    "  [trainer] lineno=142",
    " @train_step:142",
]

Answer = tuple[float | None, int | None, int | None, Mapping[str, float]]
NOTHING: Answer = None, None, None, {}
MESSAGES: list[tuple[str, Answer]] = [
    ("step 7 loss 0.5123", (0.5123, 7, None, {})),
    ("loss: 0.7", (0.7, None, None, {})),
    ("Epoch 3/10, loss=0.5", (0.5, None, 3, {})),
    ("Epoch [3/10], Step [7/100], Loss: 0.5", (0.5, 7, 3, {})),
    ("iteration 7/100 - loss: 0.5 - acc: 0.9", (0.5, 7, None, {"acc": 0.9})),
    ("Step 7 | loss 0.5 | lr 1e-3", (0.5, 7, None, {"lr": 1e-3})),
    ("epoch 3 train loss 0.5 val loss 0.6", (0.5, None, 3, {"val_loss": 0.6})),
    ("{'loss': 0.5, 'epoch': 1.0}", (0.5, None, 1, {})),
    ("loss decreased from 0.9 to 0.8", (0.8, None, None, {})),
    ("epoch 3: loss 0.9 --> 0.8", (0.8, None, 3, {})),
    (
        "Validation loss decreased (inf --> 0.8).  Saving model ...",
        (None, None, None, {"val_loss": 0.8}),
    ),
    ("epoch：3，loss：0.5", (0.5, None, 3, {})),
    ("[2,  2000] loss: 1.234", (1.234, 2000, 2, {})),
    ("7/100 - loss: 0.5", (0.5, 7, None, {})),
    ("10/10 ━━━━ 1s - loss: 0.9", (0.9, 10, None, {})),
    ("Train Epoch: 3 [640/6000 (10%)]\tLoss: 0.5", (0.5, None, 3, {})),
    ("Epoch 3:  42%|████▏     | 420/1000 [00:10<00:14, 40.1it/s, loss=0.32]", (0.32, 420, 3, {})),
    (
        "eta: 0:01:02  iter: 19  total_loss: 1.5  loss_cls: 0.5  lr: 0.02",
        (1.5, 19, None, {"lr": 0.02}),
    ),
    ("Loss after step 7: 0.5", (0.5, 7, None, {})),
    ("train_step: 7 loss: 0.5", (0.5, 7, None, {})),
    ("train done", NOTHING),
    ("starting epoch loop", NOTHING),
    ("loss function is cross entropy", NOTHING),
]


def answer(line: str) -> tuple[float | None, int | None, int | None, Mapping[str, float]]:
    *_, reading = (LineProgress(), *ProgressReader(ProgressRule()).feed([line]))
    return reading.loss, reading.step, reading.epoch, reading.metrics


@pytest.mark.parametrize(("message", "right"), MESSAGES, ids=[message for message, _ in MESSAGES])
def test_what_a_logger_says_of_where_it_was_called_is_neither_a_step_nor_an_epoch_nor_a_loss(
    message: str, right: Answer
) -> None:
    for before, after in [*itertools.product(BEFORE, [""]), *itertools.product([""], ["", *AFTER])]:
        line = before + message + after
        *place, metrics = answer(line)
        assert place == list(right[:3]), line
        assert {name: metrics.get(name) for name in right[3]} == right[3], line


@pytest.mark.parametrize("before", BEFORE)
def test_a_message_without_numbers_gives_the_lines_below_no_step(before: str) -> None:
    for message in ("train done", "starting epoch loop", "saving checkpoint"):
        readings = ProgressReader(ProgressRule()).feed([before + message, before + "loss: 0.5"])
        assert readings == [LineProgress(loss=0.5)], message


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("train_step=7, loss=0.5", (0.5, 7, None)),
        ("train_epoch:3 train_loss:0.5", (0.5, None, 3)),
        ("epoch:3 - loss:0.5", (0.5, None, 3)),
        ("[epoch:3] loss: 0.5", (0.5, None, 3)),
        ("INFO:root:epoch:3 - loss:0.5", (0.5, None, 3)),
        ("train/step:7 train/loss:0.5", (0.5, 7, None)),
        ("global_step:7 loss:0.5", (0.5, 7, None)),
    ],
)
def test_counts_that_are_written_without_a_space_are_counts(
    line: str, place: tuple[float, int | None, int | None]
) -> None:
    assert answer(line)[:3] == place


@pytest.mark.parametrize(
    "change",
    [
        "loss decreased from 0.9 to {}",
        "loss has decreased from 0.9 to {}!",
        "loss went down from 0.9 to {}",
        "loss improved 0.9 -> {}",
        "loss improved (0.9 --> {})",
        "loss improved: 0.9 to {}",
        "loss: 0.9->{}",
        "Loss: 0.9 => {}, lr: 0.1 => 0.01",
        "loss 0.9 → {}",
        "loss (0.9 -> {})",
        "loss: [0.9 ==> {}]",
        "Loss: 0.9 (prev) -> {} (now)",
        "loss from inf to {}",
        "loss fell from 1,234.5 to {}",
        "loss reduced by 11% from 0.9 to {}",
        "loss changed by -0.1 to {}",
        "loss dropped to {}",
        "loss is now {} (was 0.9)",
        "decreased loss from 0.9 to {}",
        "loss -> {}",
        "accuracy rose from 0.1 to 0.2; loss fell from 0.9 to {}",
    ],
)
def test_of_a_change_the_new_value_is_read(change: str) -> None:
    for value in ("0.8", "0.80000", "1e-3"):
        assert answer(change.format(value))[0] == float(value)


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("best loss 0.9 -> 0.8", None),
        ("loss ranges from 0.1 to 0.9", None),
        ("loss dropped below 0.5", None),
        ("Epoch 00003: loss did not improve from 0.80000", None),
        ("step 7 loss 0.5 (moved from cpu to 0)", 0.5),
        ("Step 100 -> loss: 0.5", 0.5),
        ("step 1 -> 2: loss 0.5", 0.5),
    ],
)
def test_what_is_no_change_of_the_loss_is_not_taken_for_one(line: str, loss: float | None) -> None:
    assert answer(line)[0] == loss


FRAMES = [
    "╭─ {} ─────────╮",
    "┏━━ {} ━━┓",
    "+---- {} ----+",
    "╔═══ {} ═══╗",
    "│ {} │",
    "==== {} ====",
    "─── {} ───",
]


@pytest.mark.parametrize("frame", FRAMES)
def test_the_epoch_in_a_frame_is_that_of_the_bar_inside(frame: str) -> None:
    titles = ["Epoch 3/10", "Training · epoch 3", "EPOCH [3/10]", "epoch 3 of 10"]
    bars = [
        "│ 12/100 ━━━━━━ loss: 0.5    │",
        "┃ ████▌      12% 12/100 • loss 0.5 ┃",
        "| ████▌    | 12/100 | loss=0.5 |",
    ]
    for title, bar in itertools.product(titles, bars):
        *_, reading = ProgressReader(ProgressRule()).feed(
            [frame.format(title), bar, "╰──────────────╯"]
        )
        assert (reading.loss, reading.step, reading.epoch) == (0.5, 12, 3), (title, bar)
        assert answer(f"{frame.format(title)} {bar}")[:3] == (0.5, 12, 3), (title, bar)


def test_bars_of_ended_epochs_that_are_drawn_again_count_once() -> None:
    bar, readings, reader = (
        "Epoch {}/3 ━━━━━━ {}/20 loss: {:.4f} 0:00:01",
        [],
        ProgressReader(ProgressRule()),
    )
    for epoch in range(1, 4):
        for step in range(1, 21):
            ended = [bar.format(before, 20, 1 / (20 * before)) for before in range(1, epoch)]
            drawn = [*ended, bar.format(epoch, step, 1 / (20 * epoch - 20 + step))]
            readings += reader.feed(f"\x1b[2K\x1b[1A{line}" for line in drawn)
    assert [reading.step for reading in readings] == list(range(1, 61))
    folds = [bar.format(epoch, 20, loss) for loss in (0.5, 0.4) for epoch in (1, 2, 3)]
    assert [reading.step for reading in ProgressReader(ProgressRule()).feed(folds)] == [
        20,
        40,
        60,
        80,
        100,
        120,
    ]


@pytest.mark.parametrize(
    "line",
    [
        "loss.a" * 600 + ":1 -",
        "a/" * 2000 + ".py:1",
        "loss x:1 " * 400,
        "loss train_:1 " * 300,
        "train_step[1" * 300 + "]: loss",
        "loss from 1 " * 300 + "to 1",
        "loss (1 " * 500 + "-> 1",
        "loss decreased " * 250 + "to 1",
        "loss " + "1 - " * 1000,
        "loss：" * 1300,
        "loss line 1" * 350,
        "[" * 4000 + "loss:1] ",
        "info:" * 800 + "loss",
    ],
    ids=lambda line: repr(line[:14]),
)
def test_the_oddest_line_is_made_plain_at_little_cost(line: str) -> None:
    def seconds() -> float:
        started = time.process_time()
        plain(line[:4096].lower())
        return time.process_time() - started

    best = min(seconds() for _ in range(5))
    # The dearest takes 5 ms; one that backtracks takes seconds.
    assert best < 0.05, f"{best * 1e3:.1f} ms"
