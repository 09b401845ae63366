from __future__ import annotations

import math

from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress


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
