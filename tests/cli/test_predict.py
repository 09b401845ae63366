"""`headgate predict` draws a course that is known, and says when it would end."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli.predict import command
from headgate.model.errors import HeadgateError, NotFoundError
from headgate.model.progress_rule import ProgressRule
from headgate.output.patterns import ProgressReader
from headgate.recorded.store import Recorder

EPOCHS = 40
STEPS = 10


def losses(count: int) -> Iterator[tuple[int, float]]:
    noise = random.Random(7)
    for step in range(1, count + 1):
        yield step, 0.5 + 3.0 / (1.0 + 0.05 * step) + noise.gauss(0.0, 0.005)


@pytest.fixture
def recorder(home: Path) -> Iterator[Recorder]:
    folder = home / "runs" / "20260314-0900-ab12"
    folder.mkdir(parents=True)
    recorder = Recorder(folder / "run.sqlite")
    yield recorder
    recorder.close()


def job(
    recorder: Recorder, home: Path, name: str = "a", state: str = "done", **progress: object
) -> None:
    (home / "runs" / "20260314-0900-ab12" / "jobs" / name).mkdir(parents=True)
    recorder.add(
        "jobs",
        name=name,
        position=0,
        state=state,
        attempt=1,
        spec=json.dumps({"name": name, "run": "true", "progress": progress}),
    )
    for index in range(2):
        recorder.add("tasks", id=f"{name}/worker-{index}", job=name, attempt=1)


def says(
    recorder: Recorder, course: Sequence[tuple[int, float]], epochs: int | None = EPOCHS
) -> None:
    for step, loss in course:
        epoch = (step - 1) // STEPS + 1
        recorder.add(
            "progress",
            t=step * 0.5,
            task="a/worker-0",
            step=step,
            epoch=epoch,
            epochs=epochs,
            loss=loss,
        )
        recorder.add("usage", t=step * 0.5, target="a/worker-0", cpu_cores=1.5)
        recorder.add("usage", t=step * 0.5, target="a/worker-1", cpu_cores=0.5)


def types(*words: str) -> str:
    return CliRunner().invoke(command, words, catch_exceptions=False).stdout


def told(recorder: Recorder, *words: str) -> dict[str, Any]:
    recorder.close()
    parsed: dict[str, Any] = json.loads(types("a", "--json", *words))
    return parsed


def test_what_is_left_follows_from_the_epochs_and_the_curve_from_the_losses(
    recorder: Recorder, home: Path
) -> None:
    job(recorder, home)
    says(recorder, list(losses(200)))
    found = told(recorder)
    assert (found["until"], found["step"], found["state"], found["ends"]) == (
        "epochs",
        200,
        "done",
        None,
    )
    assert found["steps_left"]["median"] == pytest.approx(200, abs=10)
    assert found["seconds_per_step"] == pytest.approx(0.5)
    assert found["seconds_left"]["median"] == pytest.approx(100, abs=5)
    assert found["core_seconds_left"]["median"] == pytest.approx(200, abs=10)
    last = found["curve"][-1]
    assert last["step"] == pytest.approx(400, abs=10)
    assert last["low"] <= 0.5 + 3.0 / 21.0 <= last["high"]
    assert found["asymptote"] == pytest.approx(0.5, abs=0.1)


def test_what_is_left_in_core_seconds_stays_as_it_is_when_the_share_changes(
    recorder: Recorder, home: Path
) -> None:
    """Each step costs a core-second; the last of them are made on a quarter of a core."""
    job(recorder, home)
    now = 0.0
    for step, loss in losses(200):
        seconds = 1.0 if step <= 150 else 4.0
        for _ in range(int(seconds)):
            now += 1.0
            recorder.add("usage", t=now, target="a/worker-0", cpu_cores=0.75 / seconds)
            recorder.add("usage", t=now, target="a/worker-1", cpu_cores=0.25 / seconds)
        recorder.add("progress", t=now, task="a/worker-0", step=step, steps=400, loss=loss)
    found = told(recorder)
    assert found["steps_left"]["median"] == 200
    assert found["core_seconds_left"]["median"] == pytest.approx(200, rel=0.03)


def test_what_is_left_is_read_from_the_output_of_a_script(recorder: Recorder, home: Path) -> None:
    lines = [f"iter {step}/200 loss={3 - step / 100:.2f}" for step in range(10, 130, 10)]
    shows(recorder, home, lines)
    recorder.close()
    assert types("a").splitlines()[-2] == (
        "it has ended; had it gone on until the end of its 200 steps: 80 steps (80 to 80)"
    )


@pytest.mark.parametrize(
    ("heads", "left"),
    [
        (["Epoch 1/300", "Epoch 2/300", "Epoch 3/300"], 297 * 938),
        (["Epoch 0/299", "Epoch 1/299", "Epoch 2/299"], 297 * 938),
        (["Epoch 0/300", "Epoch 1/300", "Epoch 2/300"], 297 * 938),
        (["Epoch 1/1", "Epoch 1/1", "Epoch 1/1"], None),  # a loop: nobody says how often
    ],
)
def test_one_line_an_epoch_tells_the_steps_of_those_that_are_left(
    recorder: Recorder, home: Path, heads: list[str], left: int | None
) -> None:
    lines = [
        text
        for head in heads
        for text in (head, f"938/938 - 2s - 2ms/step - loss: {1 / len(head):.4f}")
    ]
    shows(recorder, home, lines)
    found = told(recorder)
    assert found["step"] == 3 * 938
    assert (found["steps_left"] or {"median": None})["median"] == left


def shows(recorder: Recorder, home: Path, lines: list[str]) -> None:
    """A job's output is read, and what it says recorded."""
    job(recorder, home)
    for at, reading in enumerate(ProgressReader(ProgressRule()).feed(lines)):
        names = ("step", "epoch", "epochs", "loss", "within", "steps")
        recorder.add(
            "progress",
            t=float(at),
            task="a/worker-0",
            **{name: getattr(reading, name) for name in names},
        )


def test_a_goal_that_comes_first_ends_it(recorder: Recorder, home: Path) -> None:
    job(recorder, home, metric="loss", goal=0.7)  # at step 280
    says(recorder, list(losses(200)))
    found = told(recorder)
    assert found["until"] == "goal"
    assert found["steps_left"]["low"] <= 80 <= found["steps_left"]["high"]


def test_early_stopping_before_the_last_epoch_ends_it(recorder: Recorder, home: Path) -> None:
    # from step 201 to 251 the loss falls by that
    job(recorder, home, metric="loss", patience=50, min_delta=0.05)
    for step, loss in losses(150):
        recorder.add("progress", t=float(step), task="a/worker-0", step=step, loss=loss)
    found = told(recorder)
    assert found["until"] == "rest"
    assert found["steps_left"]["low"] <= 101 <= found["steps_left"]["high"]


def test_of_a_metric_that_rises_the_curve_does(recorder: Recorder, home: Path) -> None:
    job(recorder, home, metric="accuracy", goal=0.95)
    for step, loss in losses(100):
        recorder.add(
            "progress",
            t=float(step),
            task="a/worker-0",
            step=step,
            metrics={"accuracy": 1 - loss / 4},
        )
    found = told(recorder)
    assert found["points"][0][1] < found["points"][-1][1] < found["curve"][-1]["middle"]
    assert found["curve"][-1]["low"] <= found["curve"][-1]["middle"] <= found["curve"][-1]["high"]


def test_the_drawing_has_what_was_seen_left_of_what_is_expected(
    recorder: Recorder, home: Path
) -> None:
    job(recorder, home)
    says(recorder, list(losses(200)))
    recorder.close()
    lines = types("20260314/a").splitlines()
    assert lines[0].startswith("a of run 20260314-0900-ab12: done, step 200, loss 0.7")
    drawn = [line.partition("|")[2] for line in lines[2:16]]
    assert "o" in drawn[0] and "-" not in drawn[0]
    assert max(line.rfind("o") for line in drawn) <= min(
        line.find("-") for line in drawn if "-" in line
    )
    assert lines[17].split() == ["1", "200", lines[17].split()[-1]]
    text = "\n".join(lines)
    assert "had it gone on until the end of its 40 epochs: " in text
    assert "at 0.5 s a step" in text
    assert "would end" not in text  # it has ended
    assert text.isascii()


def test_a_job_that_says_too_little_is_told_what_is_missing(recorder: Recorder, home: Path) -> None:
    job(recorder, home)
    says(recorder, list(losses(3)), epochs=None)
    recorder.close()
    text = types("a")
    assert "too few reports for a curve: 3; 6 are needed" in text
    assert "its remaining time cannot be predicted" in text


def test_a_job_without_a_number_is_one_message(recorder: Recorder, home: Path) -> None:
    job(recorder, home)
    recorder.add("progress", t=1.0, task="a/worker-0", step=1, nan=1)
    recorder.close()
    with pytest.raises(
        HeadgateError, match="job 'a' has reported no loss yet, so nothing can be predicted; see"
    ):
        types("a")
    with pytest.raises(NotFoundError, match="no job 'b' in any run"):
        types("b")


def test_a_metric_is_told_though_the_loss_is_no_number(recorder: Recorder, home: Path) -> None:
    job(recorder, home, metric="accuracy")
    for step, loss in losses(100):
        accuracy = {"accuracy": 1 - loss / 4}
        recorder.add(
            "progress",
            t=float(step),
            task="a/worker-0",
            step=step,
            loss=float("nan"),
            nan=1,
            metrics=accuracy,
        )
    found = told(recorder)
    assert len(found["points"]) == 100
    assert not found["diverging"]


def test_a_job_of_which_nothing_is_recorded_is_one_message(recorder: Recorder, home: Path) -> None:
    (home / "runs" / "20260314-0900-ab12" / "jobs" / "a").mkdir(parents=True)
    recorder.close()
    with pytest.raises(
        NotFoundError,
        match="run 20260314-0900-ab12 has recorded nothing of job 'a'; `headgate ps` ",
    ):
        types("a")
