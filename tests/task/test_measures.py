"""Step spans, folded progress and the fit of a step's time."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headgate.task import ProgressReporter, Saver, StepSpans, Stop, fit_line
from headgate.task.step_timing import Step, StepMeter, StepSampling, is_told, is_warm


def ticking(times: list[float]) -> Callable[[], float]:
    remaining = iter(times)
    return lambda: next(remaining)


def test_spans_sum_to_the_step_exactly() -> None:
    spans = StepSpans(ticking([10, 11, 13, 16, 20, 25, 31]))
    spans.begin("other")
    spans.enter("input")
    spans.enter("other")
    spans.enter("forward")
    assert spans.inside == "forward"
    spans.enter("backward")
    spans.enter("other")
    assert spans.end() == {"other": 1 + 3 + 6, "input": 2, "forward": 4, "backward": 5}
    assert spans.inside == ""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def folding() -> tuple[ProgressReporter, list[Mapping[str, object]], Clock]:
    sent: list[Mapping[str, object]] = []
    clock = Clock()
    return ProgressReporter(lambda message, _: sent.append(message), clock=clock), sent, clock


def test_reports_are_folded_into_their_mean() -> None:
    progress, sent, clock = folding()
    progress.step = 1
    progress.report(4.0, {})
    assert [message["loss"] for message in sent] == [4.0]  # the first goes out at once
    for step, loss in enumerate([1.0, 2.0, 6.0], start=2):
        progress.step, progress.epoch, progress.epochs, progress.samples = step, 0, 5, 8 * step
        progress.report(loss, {"accuracy": loss / 10})
    assert len(sent) == 1
    clock.now = 0.2
    progress.report(3.0, {})
    assert sent[1] == {
        "type": "progress",
        "step": 4,
        "epoch": 0,
        "epochs": 5,
        "samples": 32,
        "loss": 3.0,
        "count": 4,
        "metrics": {"accuracy": 0.6},
    }
    progress.flush()
    assert len(sent) == 2


def test_a_nan_is_kept_that_lasts_and_metrics_alone_are_sent_without_a_loss() -> None:
    progress, sent, _ = folding()
    progress.report(None, {"accuracy": 0.97})
    assert sent[0] == {"type": "progress", "step": 0, "count": 0, "metrics": {"accuracy": 0.97}}
    progress.report(1.0, {})
    progress.report(math.nan, {})
    progress.flush()
    assert math.isnan(float(str(sent[1]["loss"])))
    for loss in (1.0, math.nan, math.inf, 3.0):
        progress.report(loss, {})
    progress.flush()
    assert (sent[2]["loss"], sent[2]["count"]) == (2.0, 4)


def test_an_epoch_reports_its_result_and_its_value_so_far_only_after_a_long_silence() -> None:
    progress, sent, clock = folding()
    for step in range(1, 61):  # an epoch of six seconds
        clock.now = step / 10
        progress.step = step
        progress.epoch_so_far(1.0 / step, {"accuracy": step / 100})
    progress.epoch_over(0.5, {"accuracy": 0.9, "val_loss": 0.7})
    losses = [
        (message["step"], message["loss"], message["covers"])
        for message in sent
        if "loss" in message
    ]
    assert losses == [(21, 1 / 21, "part"), (42, 1 / 42, "part"), (60, 0.5, "epoch")]
    assert sent[-1]["metrics"] == {"accuracy": 0.9, "val_loss": 0.7}
    assert len(sent) > 30  # steps are told all the while
    progress.epoch_so_far(3.0, {})
    progress.report(None, {"own": 1.0})
    progress.flush()  # as a task does that ends
    assert [(m.get("loss"), m.get("metrics"), m.get("covers")) for m in sent[-2:]] == [
        (None, {"own": 1.0}, None),
        (3.0, None, "part"),
    ]


def test_what_is_no_number_is_left_out_and_said_once() -> None:
    progress, sent, _ = folding()
    for _ in range(3):
        progress.report({"total": 1.0}, {"accuracy": "n/a", "best": None, "f1": 0.5})
        progress.flush()
    notes = [str(message["text"]) for message in sent if message["type"] == "note"]
    assert len(notes) == 2 and all(
        message["warns"] for message in sent if message["type"] == "note"
    )
    assert notes[0].startswith("report(loss=...): found a dict") and notes[0].endswith(
        "it is left out"
    )
    assert notes[1].startswith("report(accuracy=...): found a str")
    messages = [message for message in sent if message["type"] == "progress"]
    assert all(message.keys() == {"type", "step", "count", "metrics"} for message in messages)
    assert [message["metrics"] for message in messages] == [{"f1": 0.5}] * len(messages)


def test_a_line_is_found_with_its_error() -> None:
    exact = fit_line([8, 16, 32, 64], [0.010 + 0.001 * b for b in (8, 16, 32, 64)])
    assert exact.alpha == pytest.approx(0.010)
    assert exact.beta == pytest.approx(0.001)
    assert exact.relative_error == pytest.approx(0, abs=1e-9)
    bent = fit_line([8, 16, 32], [0.02, 0.03, 0.08])
    assert bent.relative_error is not None
    assert bent.relative_error > 0.05


def test_two_sizes_say_nothing_of_their_error() -> None:
    assert fit_line([8, 16], [1.0, 1.5]).relative_error is None


def test_neither_part_of_a_line_is_negative() -> None:
    falling = fit_line([8, 16, 32], [3.0, 2.0, 1.0])
    assert falling.beta == 0
    assert falling.alpha > 0
    through_zero = fit_line([8, 16, 32], [0.1, 1.0, 3.0])
    assert through_zero.alpha == 0
    assert through_zero.beta > 0


@pytest.mark.parametrize(
    ("batches", "seconds"), [([8], [1.0]), ([8, 8], [1.0, 1.0]), ([8, 16], [0.0, 1.0])]
)
def test_what_no_line_can_be_fitted_to_is_refused(
    batches: list[float], seconds: list[float]
) -> None:
    with pytest.raises(ValueError, match="two or more batch sizes"):
        fit_line(batches, seconds)


def test_a_stop_ends_the_script_well() -> None:
    with pytest.raises(SystemExit) as ended:
        raise Stop
    assert ended.value.code == 0
    assert not isinstance(ended.value, Exception)


def test_the_training_side_keeps_to_the_syntax_of_python_3_9() -> None:
    package = Path(__file__).parents[2] / "src" / "headgate"
    files = [package / "__init__.py", *package.glob("task/*.py"), *package.glob("torch/*.py")]
    assert len(files) > 10
    for file in files:
        ast.parse(file.read_text(), feature_version=(3, 9))


def test_the_spans_of_few_of_the_first_steps_are_told_and_of_all_that_are_measured_later() -> None:
    now = [0.0]
    sampling = StepSampling(clock=lambda: now[0])
    numbers = []
    for number in range(1, 1302):
        # Steps of 10 ms; from the hundredth on of 1 ms; then of 20 ms.
        if number <= 100:
            now[0] += 0.010
        else:
            now[0] += 0.001 if number <= 900 else 0.020
        if sampling.takes(number) and is_told(number):
            numbers.append(number)
    assert numbers == [
        3,
        4,
        5,
        6,
        7,
        50,
        51,
        100,
        101,
        150,
        400,
        401,
        800,
        801,
        1200,
        1201,
        1250,
        1251,
        1300,
        1301,
    ]
    assert [number for number in range(1, 5) if is_warm(number)] == [3, 4]


@pytest.mark.parametrize(
    "last", [[1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60], [3, 4, 9, 30, 31, 60]]
)
def test_however_many_steps_a_script_reports_at_once_those_that_are_measured_are_single(
    last: list[int],
) -> None:
    steps: list[Step] = []
    clock = Clock()
    meter = StepMeter(steps.append, lambda done: None, clock=clock)
    for before, number in zip([0, *last], last, strict=False):
        meter.begin(None)
        clock.now += 0.25 * (number - before)
        meter.mark("compute")
        clock.now += 0.5 * (number - before)
        meter.samples = 8 * (number - before)
        meter.end(None, more=number)
    assert [step.spans for step in steps[1:]] == [{"other": 0.25, "compute": 0.5}] * 5
    assert [step.begins["compute"] for step in steps[1:]] == [0.25] * 5
    assert [step.samples for step in steps[1:]] == [8] * 5


def test_time_of_measuring_is_no_part_of_a_step_and_a_step_can_be_passed_over() -> None:
    steps: list[Step] = []
    clock = Clock()
    meter = StepMeter(steps.append, lambda done: None, clock=clock)
    for number in range(2):
        meter.begin(None)
        if number:
            meter.pass_over()
        for span, seconds in (("input", 2.0), ("other", 3.0), ("compute", 5.0)):
            meter.mark(span)
            clock.now += seconds
            if span == "other":
                meter.leave_out(2.5)
        meter.end(None)
    assert [step.spans for step in steps] == [{"other": 0.5, "input": 2.0, "compute": 5.0}]
    assert meter.steps == 2


def test_what_is_reported_after_an_epoch_of_several_steps_is_not_measured() -> None:
    steps: list[Step] = []
    clock = Clock()
    meter = StepMeter(steps.append, lambda done: None, clock=clock)
    for number in (10, 20, 30, 40):
        meter.begin(None)
        clock.now += 5.0
        if number == 30:  # an epoch ends with step 25
            meter.drop()
            meter.begin(None)
        clock.now += 5.0
        meter.end(None, more=number)
    assert [(step.number, step.seconds) for step in steps] == [(1, 10.0), (2, 1.0), (4, 1.0)]


def test_where_counting_restarts_each_epoch_steps_are_single_and_its_first_is_skipped() -> None:
    steps: list[Step] = []
    clock = Clock()
    meter = StepMeter(steps.append, lambda done: None, clock=clock)
    for _ in range(2):
        for number in (10, 20, 30):  # ten steps of a tenth of a second each
            clock.now += 1.0
            meter.end(None, more=number)
            meter.begin(None)
    assert [sum(step.spans.values()) for step in steps] == [pytest.approx(0.1)] * 4


def saving(
    messages: list[dict[str, object]], clock: Callable[[], float], folder: str | None
) -> Saver:
    return Saver(folder, lambda message: messages.append(dict(message)), clock)


def test_a_checkpoint_that_nobody_asked_for_takes_little_of_the_time(tmp_path: Path) -> None:
    now = [0.0]
    saver = saving([], lambda: now[0], str(tmp_path))
    size = 200_000_000  # a second on the disk that a first one is taken to go to
    assert not saver.due(size)
    now[0] = 210.0
    assert saver.due(size)

    def write(folder: Path) -> tuple[Path, int]:
        now[0] += 0.1
        return folder / "step-3", size

    saver.save("epoch", 3, {"epoch": 1, "position": 0}, write)
    now[0] += 19.0
    assert not saver.due(size)
    now[0] += 1.0
    assert saver.due(size)


def test_a_checkpoint_is_told_and_so_is_one_that_failed(tmp_path: Path) -> None:
    messages: list[dict[str, object]] = []
    place = {"epoch": None, "position": None}

    def fails(folder: Path) -> tuple[Path, int]:
        raise ValueError("no such leaf")

    saving(messages, lambda: 0.0, None).save("stop", 1, place, fails)
    saver = saving(messages, lambda: 0.0, str(tmp_path))
    saver.save("stop", 1, place, fails)
    saver.save("stop", 1, place, lambda folder: (folder / "step-1", 7))
    assert [message["type"] for message in messages] == [
        "checkpoint_failed",
        "checkpoint_failed",
        "checkpoint",
    ]
    assert "HEADGATE_CHECKPOINTS" in str(messages[0]["error"])
    assert messages[1]["error"] == "no such leaf"
    assert messages[2] == {
        "type": "checkpoint",
        "path": str(tmp_path / "step-1"),
        "step": 1,
        "epoch": 0,
        "position": None,
        "bytes": 7,
        "seconds": 0.0,
        "why": "stop",
    }
    assert not saving(messages, lambda: 1e9, None).due(1)
