from __future__ import annotations

import math

from headgate.model.events import Exit, Progress
from headgate.model.identifiers import TaskId


def test_two_reports_make_one_with_the_mean_loss_and_the_later_of_all_else() -> None:
    first = Progress(
        TaskId("t"), step=10, epoch=1, epochs=5, loss=1.0, count=3, metrics={"a": 1.0, "b": 1.0}
    )
    later = Progress(TaskId("t"), step=11, loss=2.0, count=1, metrics={"b": 2.0})
    merged = Progress(
        TaskId("t"), step=11, epoch=1, epochs=5, loss=1.25, count=4, metrics={"a": 1.0, "b": 2.0}
    )
    assert first.merged(later) == merged
    assert first.merged(Progress(TaskId("t"), step=12)).loss == 1.0
    assert first.merged(Progress(TaskId("t"), step=12)).count == 3
    assert Progress(TaskId("t"), step=1).merged(first).loss == 1.0
    epoch = Progress(TaskId("t"), step=12, loss=3.0, covers="epoch")
    assert (first.merged(epoch).loss, first.merged(epoch).covers) == (3.0, "epoch")
    assert (epoch.merged(first).loss, epoch.merged(first).covers) == (first.loss, None)
    assert (
        epoch.merged(Progress(TaskId("t"), step=13)).loss,
        epoch.merged(Progress(TaskId("t"), step=13)).covers,
    ) == (
        3.0,
        "epoch",
    )
    assert math.isnan(first.merged(Progress(TaskId("t"), step=12, loss=math.nan)).loss or 0.0)


def test_an_exit_is_said_in_words_and_as_a_shell_counts() -> None:
    assert [Exit(code=3).in_words(), Exit(code=None, signal=11).in_words()] == [
        "exit code 3",
        "killed by SIGSEGV",
    ]
    assert Exit(code=None, signal=64 - 1).in_words() == "killed by signal 63"
    assert [
        Exit(code=3).shell_code,
        Exit(code=None, signal=9).shell_code,
        Exit(code=None).shell_code,
    ] == [3, 137, 127]
