"""What tasks say, over the task channel (docs/channel.md) or in their output, as the hub's own types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.events import Checkpoint, Progress, TaskId
from headgate.telemetry.patterns import Reading


def welcome(task: TaskId, plan: Mapping[str, Any], threads: int) -> dict[str, object]:
    """The first message down."""
    role, index = task.rsplit("/", 1)[1].rsplit("-", 1)
    return {"type": "welcome", "v": 1, "role": role, "index": int(index), "plan": plan, "threads": threads}


def progress(task: TaskId, message: Mapping[str, Any]) -> Progress:
    """A `progress` message.

    Raises:
        ValueError, TypeError: It makes no sense.
    """
    loss, epoch = message.get("loss"), _whole(message.get("epoch"))
    return Progress(
        task,
        step=_whole(message.get("step")),
        epoch=epoch + 1 if epoch is not None else None,
        epochs=_whole(message.get("epochs")),
        samples=_whole(message.get("samples")),
        loss=float(loss) if loss is not None else None,
        count=int(message.get("count", 1)),
        metrics={str(name): float(value) for name, value in dict(message.get("metrics") or {}).items()},
    )


def read(task: TaskId, reading: Reading, metric: str) -> Progress:
    """What was read from a task's output, as if the task had reported it: `metric`, which the job names and the reading
    has in the place of the loss, becomes one of the metrics unless it is the loss."""
    loss, metrics = reading.loss, dict(reading.metrics)
    if metric != "loss":
        if loss is not None:
            metrics[metric] = loss
        loss = metrics.pop("loss", None)
    return Progress(
        task,
        step=reading.step,
        epoch=reading.epoch,
        epochs=reading.epochs,
        samples=reading.samples,
        loss=loss,
        metrics=metrics,
    )


def checkpoint(message: Mapping[str, Any]) -> Checkpoint:
    """A `checkpoint` message.

    Raises:
        KeyError, ValueError, TypeError: It makes no sense.
    """
    return Checkpoint(
        str(message["path"]), int(message["step"]), int(message["epoch"]), _whole(message.get("position"))
    )


def _whole(value: object) -> int | None:
    return int(str(value)) if value is not None else None
