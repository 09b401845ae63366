"""Parse messages of tasks (docs/channel.md) and of their output, and make the gates that throttle
their steps (docs/shares.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from headgate.arbiter.turn_files import TURNS
from headgate.machine import arbiter_socket
from headgate.model.endings import Checkpoint
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress
from headgate.model.shares import Lever, Share
from headgate.model.units import say_text
from headgate.output.line_progress import LineProgress
from headgate.recorded.folders import host

MOST_COUNT = 2**53
"""Largest accepted count of steps, samples or bytes; beyond it floating point is not exact."""
MOST_PARTS = 4096
"""Most parts of a step, or transfers, accepted in one message."""
_TEXT_LETTERS = 2000
_FRESH, _FRESH_MEANS, _LAST = 0.1, 0.2, 0.5
"""Least fraction of an epoch so far that new steps make up: for a mean, a mean of means, and an
epoch's final mean.
"""
_NEAR_END = 0.8
"""Fraction of an epoch after which the latest report predicts its final mean."""
_TELLING = 0.002
"""Least significant difference between two means that are printed with four digits."""
_NAME_LETTERS = 128

OPEN: Mapping[str, object] = {"type": "gate"}
"""The gate that holds nothing back."""
PAUSED: Mapping[str, object] = {"type": "gate", "paused": True}
"""The gate that starts no step for now."""


def progress(task: TaskId, message: Mapping[str, Any]) -> Progress:
    """Parse a `progress` message.

    Raises:
        ValueError, TypeError, OverflowError: It is invalid.
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
        count=max(_whole(message.get("count")) or 1, 1),
        weight=1.0 if message.get("weight") is None else max(_finite(message["weight"]), 0.0),
        metrics={
            _name(name): float(value) for name, value in dict(message.get("metrics") or {}).items()
        },
    )


def read(task: TaskId, reading: LineProgress, metric: str) -> Progress:
    """Make a progress from a task's output, as if the task had reported it.

    The reading has the job's metric in place of the loss. Unless `metric` is the loss, it becomes
    one of the metrics.

    Raises:
        ValueError: A count exceeds `MOST_COUNT`.
    """
    loss, metrics = reading.loss, {_name(name): value for name, value in reading.metrics.items()}
    if metric != "loss":
        if loss is not None:
            metrics[metric] = loss
        loss = metrics.pop("loss", None)
    over, is_whole_epoch = reading.averaged or (None, None)
    covers = "epoch" if over == is_whole_epoch else "part"
    return Progress(
        task,
        covers=None if over is None else covers,
        over=over,
        step=_whole(reading.step),
        epoch=_whole(reading.epoch),
        epochs=_whole(reading.epochs),
        within=reading.within,
        remaining=reading.remaining,
        steps=_whole(reading.steps),
        samples=_whole(reading.samples),
        loss=loss,
        metrics=metrics,
    )


class RunningMean:
    """Converts an epoch's running mean loss into the loss of the latest steps.

    Few digits are printed, so steps are combined until the difference is significant. Keras 3.0 to
    3.13 print the mean of all running means, and the true mean only at the end of the epoch. The
    kind of mean is known after one epoch.
    """

    def __init__(self) -> None:
        self._began: int | None = None  # count at the start of the epoch
        self._ended: int | None = None  # count at the end of the previous epoch
        self._once, self._again = _Stretches(), _Stretches()
        self._twice = False  # whether it is a mean of means, as far as known
        # evidence for that if positive: from earlier epochs, and from this one
        self._spoke, self._speaks = 0.0, 0.0
        self._part: tuple[int, float] | None = None  # the latest part of this epoch, and its mean

    def undone(self, progress: Progress) -> Progress:
        """A report with the loss of the steps since the last one; without a loss if there are too
        few.
        """
        at = progress.step if progress.step is not None else progress.samples
        if progress.covers is None or progress.loss is None or at is None:
            return progress
        began = self._ended if self._ended is not None or progress.epoch not in (None, 1) else 0
        if progress.over is not None:
            began = at - progress.over
        if progress.covers == "epoch":
            self._ended = at
        if began is None or at <= began or not math.isfinite(progress.loss):
            return progress
        if began != self._began:
            self._began, self._part = began, None
            self._spoke, self._speaks = self._spoke + self._speaks, 0.0
            self._once, self._again = _Stretches(), _Stretches()
        over, mean = at - began, progress.loss
        loss = self._whole(over, mean) if progress.covers == "epoch" else self._so_far(over, mean)
        if loss is not None and not math.isfinite(loss):
            return progress
        count = self._once.fresh if loss is not None and progress.step is not None else 1
        return replace(progress, loss=loss, count=count, mean=mean)

    def _so_far(self, over: int, mean: float) -> float | None:
        self._part = over, mean
        loss = self._once.add(over, mean, _FRESH_MEANS if self._twice else _FRESH)
        if loss is None or not self._twice:
            return loss
        # the mean at the middle of the stretch
        return self._again.add(over - (self._once.fresh - 1) / 2, loss)

    def _whole(self, over: int, mean: float) -> float | None:
        # A progress bar may reach its end twice, with its own mean first: the last one counts.
        if self._part is not None and self._once.latest is not None:
            (part, so_far), latest = self._part, self._once.latest
            ends_at = so_far + (over - part) / over * (latest - so_far)
            if part >= _NEAR_END * over:
                off, on = mean - ends_at, mean - latest
                # a power of an exploding loss would overflow
                self._speaks = off * off - on * on
                self._twice = self._spoke + self._speaks > _TELLING**2
        if self._twice and self._again.latest is not None:
            return self._again.add(over, mean, _FRESH) if self._speaks > 0.0 else None
        return self._once.add(over, mean, _LAST)


class _Stretches:
    """Splits a running mean into means of stretches of steps.

    Attributes:
        fresh: Steps of the latest stretch.
        latest: Its mean; None before the first.
    """

    def __init__(self) -> None:
        self.fresh: int = 0
        self.latest: float | None = None
        self._over, self._sum = 0.0, 0.0

    def add(self, over: float, mean: float, least: float = 0.0) -> float | None:
        """The mean of the steps since the last stretch; None: they are less than this fraction of
        all.
        """
        fresh = over - self._over
        if fresh <= 0 or fresh < least * over:
            return None
        self.latest = (over * mean - self._sum) / fresh
        self.fresh, self._over, self._sum = round(fresh), over, over * mean
        return self.latest


def steps_of(message: Mapping[str, Any]) -> int | None:
    """The number of steps whose mean parts a message tells; None: they are those of one step.

    Raises:
        ValueError: It is invalid.
    """
    steps = _whole(message.get("steps"))
    if steps is not None and steps < 1:
        raise ValueError(f"found {steps} steps; expected at least 1")
    return steps


def span(message: Mapping[str, Any]) -> dict[str, object]:
    """Parse a part of a step into a row of the store.

    Raises:
        KeyError, ValueError, TypeError: It is invalid.
    """
    known = {
        name: _number(message.get(name)) for name in ("bytes_in", "bytes_out", "begin", "workers")
    }
    return {
        "name": _name(message["name"]),
        "seconds": _finite(message["seconds"]),
        **known,
    }


def transfer(message: Mapping[str, Any]) -> dict[str, object]:
    """Parse the traffic of a step with one other task into a row of the store.

    Raises:
        KeyError, ValueError, TypeError: It is invalid.
    """
    row: dict[str, object] = {"peer": _name(message["peer"])}
    for way in ("push", "pull"):
        begin, end, count = message.get(way) or (None, None, 0)
        row |= {
            f"{way}_begin": _number(begin),
            f"{way}_end": _number(end),
            f"{way}_bytes": _finite(count),
        }
    return row


def asides(message: Mapping[str, Any]) -> dict[str, float]:
    """Parse an `asides` message: seconds by activity.

    Raises:
        KeyError, ValueError, TypeError: It is invalid.
    """
    seconds = dict(message["seconds"])
    if len(seconds) > MOST_PARTS:
        raise ValueError(f"found {len(seconds)} asides; expected at most {MOST_PARTS}")
    return {_name(name): max(_finite(value), 0.0) for name, value in seconds.items()}


def checkpoint(message: Mapping[str, Any]) -> Checkpoint:
    """Parse a `checkpoint` message.

    Raises:
        KeyError, ValueError, TypeError: It is invalid.
    """
    step, epoch = _whole(message["step"]), _whole(message["epoch"])
    if step is None or epoch is None:
        raise ValueError("found a checkpoint of no step or no epoch")
    return Checkpoint(str(message["path"]), step, epoch, _whole(message.get("position")))


def step(message: Mapping[str, Any]) -> int | None:
    """The step in a message about a script's own checkpoint; None: its steps are not observed.

    Raises:
        ValueError, TypeError: It is invalid.
    """
    return _whole(message.get("step"))


def size(message: Mapping[str, Any]) -> int:
    """The bytes of a script's own checkpoint; 0: unknown.

    Raises:
        ValueError, TypeError: It is invalid.
    """
    return _whole(message.get("bytes")) or 0


def saving(message: Mapping[str, Any]) -> dict[str, object]:
    """Parse how a `checkpoint` was saved into columns of the store.

    Raises:
        ValueError, TypeError: It is invalid.
    """
    why = message.get("why")
    return {
        "bytes": _whole(message.get("bytes")),
        "seconds": _number(message.get("seconds")),
        "why": text(why) if why is not None else None,
    }


def stopping(message: Mapping[str, Any]) -> tuple[int | None, float, str]:
    """Parse a `stopping` message: patience, the least gain that counts, and its metric.

    Raises:
        KeyError, ValueError, TypeError: It is invalid.
    """
    return (
        _whole(message["patience"]),
        _finite(message.get("min_delta", 0.0)),
        text(message.get("monitor")),
    )


def cost(message: Mapping[str, Any]) -> tuple[float, int]:
    """Parse the cost in a `fault` message: seconds and steps.

    Raises:
        ValueError, TypeError: It is invalid.
    """
    return _finite(message.get("seconds") or 0.0), _whole(message.get("steps")) or 0


def gpus(message: Mapping[str, Any]) -> tuple[int, ...]:
    """Parse the GPU numbers of a `gpus` message.

    Raises:
        KeyError, ValueError, TypeError: It is invalid.
    """
    return tuple(
        number for gpu_message in message["gpus"] if (number := _whole(gpu_message)) is not None
    )


def text(value: object) -> str:
    """A text for people, shortened to a readable length."""
    full_text = str(value)
    return full_text if len(full_text) <= _TEXT_LETTERS else f"{full_text[:_TEXT_LETTERS]} …"


def _name(value: object) -> str:
    return say_text(str(value))[:_NAME_LETTERS]


def _number(value: object) -> float | None:
    return _finite(value) if value is not None else None


def _finite(value: object) -> float:
    number = float(str(value))
    if not math.isfinite(number):
        raise ValueError(f"found {value!r:.40}; expected a finite number")
    return number


def _whole(value: object) -> int | None:
    if value is None:
        return None
    number = int(str(value))
    if abs(number) > MOST_COUNT:
        raise ValueError(f"found {value!r:.40}; expected a whole number of at most {MOST_COUNT}")
    return number


# --- gates of their steps -------------------------------------------------------------------------


def gate(
    share: Share,
    entitled_cores: float,
    node_cores: float | None,
    uncontrolled: Collection[Lever],
    turns: Sequence[str],
) -> Mapping[str, object]:
    """Make the `gate` message of a task.

    Args:
        share: Its share.
        entitled_cores: Cores that its weight and cap amount to.
        node_cores: Cores of its node; None: the node is lost.
        uncontrolled: What its engine cannot control.
        turns: Files by which the tasks on its GPUs take turns; empty: they cannot.
    """
    if isinstance(share.gpu_fraction, int | float) and share.gpu_fraction < 1:
        return {
            "type": "gate",
            "fraction": share.gpu_fraction,
            **({"turns": list(turns)} if turns else {}),
        }
    if (
        Lever.CPU_WEIGHT not in uncontrolled
        or node_cores is None
        or entitled_cores > node_cores - 1e-9
    ):
        return OPEN
    return {"type": "gate", "cores": entitled_cores}


def turns_in(home: Path) -> Path | None:
    """Make the folder of the files by which tasks take turns on GPUs; None: it cannot be made. On a
    machine that users share it is the arbiter's.

    Args:
        home: Headgate's folder.
    """
    socket = arbiter_socket.path()
    if socket is not None and arbiter_socket.is_shared() and (socket.parent / TURNS).is_dir():
        return socket.parent / TURNS
    folder = home / TURNS / host()  # each host has its own GPUs
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # the disk may be full: steps are still throttled, but may overlap
        return None
    return folder


def strictest(gates: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """The gate for one worker that the others wait for: as strict as each worker's gate, with turns
    on the GPUs of all.
    """
    turns = sorted(
        {
            path
            for gate_message in gates
            for path in cast("Sequence[str]", gate_message.get("turns", ()))
        }
    )
    for field in ("fraction", "cores"):
        held = [
            (float(str(gate_message[field])), gate_message)
            for gate_message in gates
            if field in gate_message
        ]
        if held:
            gate = min(held, key=lambda pair: pair[0])[1]
            return {**gate, "turns": turns} if turns and field == "fraction" else gate
    return OPEN
