"""What a user is told where a metric is not found, and that the hint holds."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from headgate.model.progress_rule import ProgressRule
from headgate.output.patterns import ProgressReader

EPOCHS = range(1, 11)


def heard(rule: ProgressRule, lines: Iterable[str]) -> list[tuple[int, str]]:
    """What the reader warns of, and after how many lines."""
    reader, warnings = ProgressReader(rule), []
    for count, line in enumerate(lines, 1):
        reader.feed([line])
        if (warning := reader.missed()) is not None:
            warnings.append((count, warning))
    return warnings


@pytest.mark.parametrize(
    ("metric", "lines", "other"),
    [
        ("accuracy", [f"epoch {n} loss: 0.{n} acc: 0.{n}5" for n in EPOCHS], "acc"),
        (
            "accuracy",
            [line for n in EPOCHS for line in (f"epoch {n} loss: 0.{n}", f"best accuracy 0.{n}")],
            None,
        ),
        (
            "accuracy",
            [
                line
                for n in EPOCHS
                for line in (f"epoch {n} loss: 0.{n}", f"Accuracy of cats : {n} %")
            ],
            None,
        ),
        ("accuracy", ["accuracy: 0.1", *(f"accuracy among {n} ~> 0.{n}" for n in EPOCHS)], None),
        ("val_wer", [f"epoch {n} loss: 0.{n} test_wer: 0.{n}5" for n in EPOCHS], "test_wer"),
        ("psnr", [f"iter {n}: l_pix: 0.{n}" for n in range(1, 100)], None),
    ],
)
def test_a_job_whose_metric_does_not_come_is_warned_soon_and_once(
    metric: str, lines: list[str], other: str | None
) -> None:
    ((count, warning),) = heard(ProgressRule(metric, goal=0.01, better="higher"), lines)
    assert count <= 50
    assert f"found no {metric} in its" in warning
    named = re.search(r"`progress: \{metric: (.+?)\}` follows", warning)
    assert (named[1] if named else None) == other


@pytest.mark.parametrize(
    "lines",
    [
        [f"epoch {n} loss: 0.{n} accuracy: 0.{n}5" for n in EPOCHS],
        [
            line
            for n in range(30)
            for line in (f"epoch {n} loss: 0.5", *([f"test accuracy: 0.{n}"] if n % 2 else []))
        ],
        [f"epoch {n // 100} step {n} loss: 0.5" for n in range(150)] + ["accuracy: 0.5"],
        [
            line
            for n in EPOCHS
            for line in (f"epoch {n} loss: 0.{n}", f"accuracy: 0.{n}", f"best accuracy 0.{n}")
        ],
    ],
)
def test_a_job_whose_metric_comes_is_not_warned(lines: list[str]) -> None:
    assert heard(ProgressRule("accuracy"), lines) == []


def test_a_pattern_that_finds_nothing_is_told_of_soon() -> None:
    ((_, warning),) = heard(
        ProgressRule(pattern=r"perte (?P<loss>\S+)"), [f"epoch {n} loss: 0.5" for n in EPOCHS]
    )
    assert "the pattern of its `progress:` found no loss in its first 3 reports" in warning


@pytest.mark.parametrize(
    "line",
    [
        "[LightGBM] [Info] Start training from score {}",
        "more than score {}",
        "{{'best_accuracy': {}}}",
        "best accuracy so far {}",
    ],
)
def test_a_hint_names_nothing_that_its_lines_do_not_give(line: str) -> None:
    reader = ProgressReader(ProgressRule())
    reader.feed([line.format(value) for value in (0.25, 0.5, 0.75)])
    hint = reader.hint() or "nothing"
    named = re.search(r"`progress: \{metric: (.+?)\}` follows", hint)
    if named is not None:
        followed = ProgressReader(ProgressRule(named[1])).feed(
            [line.format(value) for value in (0.25, 0.5, 0.75)]
        )
        assert [reading.loss for reading in followed] == [0.25, 0.5, 0.75]
    assert "metric: score" not in hint


@pytest.mark.parametrize(
    ("line", "is_near"),
    [
        (
            (
                "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB "
                "at step 3."
            ),
            False,
        ),
        ("[rank0]: ValueError: expected a loss above 0.5 at step 3", False),
        ("UserWarning: the score of 0.5 is that of epoch 3", False),
        ("trainError: 0.51 at round 3, score ~ 0.7", True),
        ("Error at iteration 3 ~> 0.51", True),
    ],
)
def test_an_exception_printed_alone_does_not_come_near_a_loss(line: str, is_near: bool) -> None:
    reader = ProgressReader(ProgressRule())
    reader.feed([line])
    assert (reader.hint() is not None) == is_near
