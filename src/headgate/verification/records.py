"""Records of tasks as `headgate.task.recording` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headgate.verification.verdict import CutOff, LeftOut, Why

Key = tuple[int, int]
"""Number of an optimizer, from 0, and number of its step, from 1."""


@dataclass(frozen=True, slots=True)
class TensorAt:
    """A tensor at a step.

    Args:
        kind: `gradient`, `weight` or `buffer`.
        name: Its name.
        shape: Its shape.
        numbers: Its numbers; some of them for a large one.
        total: Sum of all its numbers.
        squares: Sum of their squares.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    numbers: NDArray[np.float64]
    total: float
    squares: float

    @property
    def norm(self) -> float:
        return float(np.sqrt(self.squares)) if self.squares > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of an optimizer.

    Args:
        tensors: The trained tensors, by kind and name, in the order of the models.
        batch: Number of samples since the last step, the sum of their numbers and of the squares;
            empty: none were seen.
        drew: Whether the script drew random numbers between a batch and the step.
        unprepared: Whether its optimizer was not given to `prepare`.
    """

    tensors: Mapping[tuple[str, str], TensorAt]
    batch: tuple[float, ...] = ()
    drew: bool = False
    unprepared: bool = False


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """A forward pass of a model: its number, whether it trains, the epoch (-1: unknown), and the
    number of steps before it.
    """

    number: int
    trains: bool
    epoch: int
    steps: int


@dataclass(slots=True)
class TrainingRecord:
    """The record of one task.

    Args:
        steps: By optimizer and number, in order.
        passes: Its forward passes.
        losses: The reported losses, with the weight of each in the job's.
        hooked: Names of tensors whose gradients hooks change.
        normalised: Kinds of layers with statistics over a batch.
        double: Whether all weights were in float64.
        sharded: Whether tensors are parts of tensors that no worker has whole.
        fenced: Whether the kernel refuses writes elsewhere.
        cut_off: The mechanism that isolates it from other programs.
        outside: Paths elsewhere that it tried to write.
        network: Addresses that it tried to reach over a network.
        refused: What was refused last, `OUTSIDE` or `NETWORK`; None: nothing since its last step.
        left_out: Requested operations that were not done.
        sources: Its own modules and settings, with the SHA-256 of each.
        ended: Whether all requested steps were recorded.
    """

    steps: dict[Key, RecordedStep] = field(default_factory=dict)
    passes: list[ForwardPass] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    hooked: tuple[str, ...] = ()
    normalised: tuple[str, ...] = ()
    double: bool = True
    sharded: bool = False
    fenced: bool = True
    cut_off: CutOff = CutOff.NAMESPACE
    outside: list[str] = field(default_factory=list)
    network: list[str] = field(default_factory=list)
    refused: Why | None = None
    left_out: list[LeftOut] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    ended: bool = False


def read(folder: Path, task: str) -> TrainingRecord:
    """The record of a task so far; empty if it recorded nothing."""
    record = TrainingRecord()
    try:
        lines = (folder / f"{task}.jsonl").read_text().splitlines()
    except OSError:
        return record
    data = folder / f"{task}.f64"
    size = data.stat().st_size if data.exists() else 0
    numbers: Any = np.memmap(data, dtype=np.float64, mode="r") if size else np.zeros(0)
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            break  # it was killed as it wrote this
        _take(record, entry, numbers)
    return record


def _take(record: TrainingRecord, entry: Mapping[str, Any], numbers: NDArray[np.float64]) -> None:
    match entry:
        case {"step": [optimizer, number]}:
            record.steps[optimizer, number] = _step(entry, numbers)
            record.refused = None
            record.double = record.double and entry["double"]
            record.hooked = tuple(entry.get("hooked", record.hooked))
            record.normalised = tuple(entry.get("normalised", record.normalised))
            record.sharded = record.sharded or entry.get("sharded", False)
        case {"pass": facts}:
            steps = sum(optimizer == 0 for optimizer, _ in record.steps)
            record.passes.append(ForwardPass(steps=steps, **facts))
        case {"loss": loss, "part": part}:
            record.losses.append((loss, part))
        case {"outside": path}:
            record.outside.append(path)
            record.refused = Why.OUTSIDE
        case {"fact": {"fenced": fenced}}:
            record.fenced = bool(fenced)
        case {"fact": {"cut_off": cut_off}}:
            record.cut_off = CutOff(cut_off)
        case {"network": place}:
            record.network.append(place)
            record.refused = Why.NETWORK
        case {"left_out": what}:
            record.left_out.append(LeftOut(what))
        case {"sources": sources}:
            record.sources.update(sources)
        case {"end": True}:
            record.ended = True


def _step(entry: Mapping[str, Any], numbers: NDArray[np.float64]) -> RecordedStep:
    tensors = {}
    for tensor in entry["tensors"]:
        begin, count = tensor["at"] // 8, tensor["bytes"] // 8
        kind, name = tensor["kind"], tensor["name"]
        values = numbers[begin : begin + count]
        tensors[kind, name] = TensorAt(
            kind, name, tuple(tensor["shape"]), values, tensor["total"], tensor["squares"]
        )
    return RecordedStep(
        tensors, tuple(entry["batch"]), entry["drew"], entry.get("unprepared", False)
    )
