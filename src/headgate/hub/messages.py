"""What tasks say, over the task channel (docs/channel.md) or in their output, as the hub's own types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.events import Checkpoint, Progress, TaskId
from headgate.telemetry.patterns import Reading


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
        within=_number(message.get("within")),
        samples=_whole(message.get("samples")),
        loss=float(loss) if loss is not None else None,
        covers={"part": "part", "epoch": "epoch"}.get(message.get("covers") or ""),
        count=max(int(message.get("count", 1)), 1),
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


def span(message: Mapping[str, Any]) -> dict[str, object]:
    """A part of a step, as a row of the store.

    Raises:
        KeyError, ValueError, TypeError: It makes no sense.
    """
    known = {name: message.get(name) for name in ("bytes_in", "bytes_out", "begin")}
    return {
        "name": str(message["name"]),
        "seconds": float(message["seconds"]),
        **{name: float(value) if value is not None else None for name, value in known.items()},
    }


def transfer(message: Mapping[str, Any]) -> dict[str, object]:
    """What went to and came from one other task in a step, as a row of the store.

    Raises:
        KeyError, ValueError, TypeError: It makes no sense.
    """
    row: dict[str, object] = {"peer": str(message["peer"])}
    for way in ("push", "pull"):
        begin, end, count = message.get(way) or (None, None, 0)
        row |= {f"{way}_begin": _number(begin), f"{way}_end": _number(end), f"{way}_bytes": float(count)}
    return row


def checkpoint(message: Mapping[str, Any]) -> Checkpoint:
    """A `checkpoint` message.

    Raises:
        KeyError, ValueError, TypeError: It makes no sense.
    """
    return Checkpoint(
        str(message["path"]), int(message["step"]), int(message["epoch"]), _whole(message.get("position"))
    )


def _number(value: object) -> float | None:
    return float(str(value)) if value is not None else None


def _whole(value: object) -> int | None:
    return int(str(value)) if value is not None else None
