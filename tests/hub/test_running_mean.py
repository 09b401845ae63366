"""The mean loss of an epoch so far is made into the loss of the latest steps, for all who read
it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from headgate.forecast.expected import Expected, expect
from headgate.hub import messages
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.output.patterns import ProgressReader

TASK = TaskId("r/a/worker-0")
# Printed by Keras 3.15, and by 3.13 of the same losses: six epochs of 375 batches. Bars are
# shortened.
FITS = {each: Path(__file__).with_name(f"keras_{each}.log") for each in ("3.15", "3.13")}
FIT_ENDS = 1.054  # mean loss of the last 75 batches, as a callback noted them
SECONDS = 0.1


def told(lines: Iterable[str], metric: str = "loss") -> list[Progress]:
    reader, mean = ProgressReader(ProgressRule(metric, None, None)), messages.RunningMean()
    return [mean.undone(messages.read(TASK, found, metric)) for found in reader.feed(lines)]


def expected(reports: Iterable[Progress]) -> Expected:
    found = expect([(SECONDS * at, each.loss, each) for at, each in enumerate(reports)])
    assert found is not None
    return found


def bars(
    losses: list[float], epoch: int, every: int, *, means_of_means: bool = False
) -> Iterator[str]:
    """What Keras prints of an epoch of these losses."""
    means = [each / at for at, each in enumerate(accumulate(losses), 1)]
    shown = [each / at for at, each in enumerate(accumulate(means), 1)] if means_of_means else means
    yield f"Epoch {epoch}/6"
    for step in range(1, len(losses) + 1):
        if step % every == 1 or step == len(losses):
            yield f"{step:4}/{len(losses)} ━━━━━━ 1s 2ms/step - loss: {shown[step - 1]:.4f}"
    if means_of_means:  # where the last step is drawn, its bar is drawn again at the end
        yield f"{len(losses):4}/{len(losses)} ━━━━━━ 1s 2ms/step - loss: {means[-1]:.4f}"


def made_up(step: int, chance: random.Random) -> float:
    return 0.5 + 2.0 / (1.0 + step / 300.0) + chance.gauss(0.0, 0.05)


@pytest.mark.parametrize(("version", "width"), [("3.15", 0.1), ("3.13", 0.7)])
def test_a_prediction_of_a_fit_of_keras_holds_its_end(version: str, width: float) -> None:
    with FITS[version].open(newline="") as file:
        reports = told(file.read().split("\n"))
    assert reports[-1].step == 2250
    some = expected(each for each in reports if (each.epoch or 0) <= 4)
    end = some.curve[-1]
    assert end.step == pytest.approx(2250, rel=0.01) and end.low <= FIT_ENDS <= end.high
    assert end.high - end.low < width
    assert not some.diverging


@pytest.mark.parametrize("epochs", [2, 3, 4, 5])
def test_a_prediction_of_means_so_far_holds_a_known_end(epochs: int) -> None:
    chance, lines = random.Random(epochs), list[str]()
    for epoch in range(epochs):
        lines += bars([made_up(500 * epoch + at, chance) for at in range(500)], epoch + 1, 10)
    found = expected(told(lines))
    end = found.curve[-1]
    assert end.step == pytest.approx(3000, rel=0.01)
    assert end.low <= 0.5 + 2.0 / 11.0 <= end.high and end.high - end.low < 0.4
    assert not found.diverging


def test_the_losses_told_are_those_of_the_steps_since_the_report_before() -> None:
    losses = [3.0, 1.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    reports = told([*bars(losses, 1, 2), *bars([0.5] * 8, 2, 4)])
    assert [(each.step, each.loss, each.count) for each in reports if each.loss is not None] == [
        (1, 3.0, 1),
        (3, pytest.approx(1.5), 2),
        (5, pytest.approx(1.5, abs=1e-3), 2),
        (7, pytest.approx(1.0, abs=1e-3), 2),
        (9, 0.5, 1),
        (13, pytest.approx(0.5), 4),
    ]
    assert [each.covers for each in reports if each.mean is not None] == ["part"] * 4 + [
        "epoch"
    ] + ["part"] * 2 + ["epoch"]
    assert [each.mean for each in reports if each.covers == "epoch"] == [1.5, 0.5]


def test_a_line_for_each_epoch_tells_its_mean() -> None:
    reports = told(
        [
            "Epoch 1/2",
            "50/50 - 1s - loss: 0.9",
            "Epoch 2/2",
            "50/50 - 1s - loss: 0.7 - val_loss: 0.8",
        ]
    )
    assert [(each.step, each.loss, each.covers) for each in reports if each.mean] == [
        (50, 0.9, "epoch"),
        (100, 0.7, "epoch"),
    ]


def test_means_of_means_are_told_from_means_by_the_end_of_an_epoch() -> None:
    chance = random.Random(1)
    losses = [made_up(at, chance) for at in range(1500)]
    lines = [
        line
        for begin in range(0, 1500, 500)
        for line in bars(losses[begin : begin + 500], begin // 500 + 1, 10, means_of_means=True)
    ]
    found = [each for each in told(lines) if each.loss is not None and (each.epoch or 0) > 1]
    assert len(found) >= 20
    for each in found:
        assert each.step is not None and each.loss == pytest.approx(
            0.5 + 2.0 / (1.0 + each.step / 300.0), abs=0.2
        )
    assert [each.mean for each in told(lines) if each.covers == "epoch"][3] == pytest.approx(
        sum(losses[500:1000]) / 500, abs=1e-4
    )


def test_few_digits_make_no_wild_losses() -> None:
    for each in told(bars([0.001 + 1e-5 * (at % 3) for at in range(20_000)], 1, 50)):
        assert each.loss is None or each.loss == pytest.approx(0.001, abs=0.0015)


def test_means_that_a_library_tells_are_undone_too() -> None:
    mean = messages.RunningMean()
    reports = [
        Progress(TASK, step=100, epoch=1, loss=2.0, covers="part"),
        Progress(TASK, step=200, epoch=1, loss=1.5, covers="epoch"),
        Progress(TASK, step=300, epoch=2, loss=0.9, covers="part"),
        Progress(TASK, step=390, epoch=2, loss=0.9, covers="part"),
    ]
    assert [mean.undone(each).loss for each in reports] == pytest.approx([2.0, 1.0, 0.9, 0.9])


def test_where_an_epoch_began_in_the_middle_its_means_stay_as_they_are() -> None:
    report = Progress(TASK, step=1100, epoch=3, loss=2.0, covers="part")
    assert messages.RunningMean().undone(report) == report


def test_what_is_no_mean_or_no_number_stays_as_it_is() -> None:
    mean = messages.RunningMean()
    assert mean.undone(Progress(TASK, step=5, loss=1.0)) == Progress(TASK, step=5, loss=1.0)
    loss = mean.undone(Progress(TASK, step=5, loss=math.nan, covers="part", over=5)).loss
    assert loss is not None and math.isnan(loss)


def test_two_losses_of_latest_steps_make_one_with_their_mean() -> None:
    mean = messages.RunningMean()
    first = mean.undone(Progress(TASK, step=10, loss=2.0, covers="part", over=10))
    later = mean.undone(Progress(TASK, step=20, loss=1.5, covers="part", over=20))
    assert (first.merged(later).loss, first.merged(later).count) == (1.5, 20)


@pytest.mark.parametrize("huge", ["1e200", "1e308", "-1e308", "inf", "nan"])
def test_a_loss_that_explodes_is_told_and_stops_nobody(huge: str) -> None:
    ends = [
        f"Epoch {epoch}/3\n{step}/10 ━━━ 1s 2ms/step - loss: {loss}"
        for epoch in (1, 2, 3)
        for step, loss in ((1, "1.0"), (5, huge), (9, "2.0"), (10, huge), (10, "-1e300"))
    ]
    for each in told("\n".join(ends).split("\n")):
        assert (
            each.loss is None
            or math.isfinite(each.loss)
            or not math.isfinite(float(huge))
            or each.mean is None
        )
