"""Compares the positions of a job's workers in their script. Workers that step together have to be
at the same place, with the same settings.

A position is a JSON object. `rounds`: exchanges between the workers in which this one has taken
part. `phase`, `epoch`, `batch`, `step`: the loop over `epochs`, its epoch, the batch, the optimizer
steps; left out where unknown. `settings`: for each optimizer what its parameter groups hold, by
name, one value or a list with one for each group. `data`: tells the samples of its batch from
others. `weights`: a number of one of the parameters. `buffers`: by name, shape, whether it is
saved, and a few numbers. `what`: what the worker does instead of a step. `exchanges`: whether it
waits in an exchange, where exchanges are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Position = Mapping[str, Any]

CURE = (
    "let all decide alike: by hg.mean(value), hg.agree(flag), or a scheduler given to "
    "prepare(scheduler=); see docs/distributed.md"
)
_PLACE = ("what", "phase", "epoch", "loader", "batch", "step")
_CLOSE = 1e-4
"""Relative differences of settings below this may come from the last bits of sums."""
_ROUNDED = 0.025
"""Differences of a weight's numbers up to this may come from rounding."""
_SHOWN = 3


class WorkersDiffer(RuntimeError):
    """The workers of a synchronous job do different things. The message says what differs, where,
    and what to do.
    """


def difference(positions: Mapping[int, Position]) -> str:
    """What differs between the workers, where, and what to do; empty if nothing relevant differs.
    Positions are by worker index.
    """
    first = next(iter(positions.values()))
    if any(
        _differ(first.get(name), other.get(name)) for other in positions.values() for name in _PLACE
    ):
        places = _describe_groups(positions, place)
        return f"the workers are at different places of the script: {places}; {CURE}"
    if any(other.get("rounds") != first.get("rounds") for other in positions.values()):
        counts = _describe_groups(
            positions, lambda position: f"took {position['rounds']} steps with others"
        )
        return f"the workers do not take the same steps: {counts} ({place(first)}); {CURE}"
    settings = _differing_settings(positions)
    if settings:
        return (
            f"the workers train with different settings: {'; '.join(settings)} "
            f"({place(first)}); {CURE}"
        )
    weights = [other.get("weights") for other in positions.values()]
    if any(_drawn_apart(weights[0], weight) for weight in weights):
        return (
            "the workers' weights are not the same any more. The script changed them after "
            "prepare, or set gradients that no backward made, as those of torch.autograd.grad, "
            f"with numbers that differ between workers ({place(first)}). Change them before "
            "prepare, or by numbers that are the same in all workers"
        )
    buffers = _differing_buffers(positions)
    if buffers:
        return (
            f"the workers' buffers are not the same any more: {buffers}. The model changes them "
            f"while it computes, each worker by its own samples ({place(first)}). Say how they go "
            "together, by hg.keep(module, across='mean') or across='sum', or run with --strategy "
            "single"
        )
    if any(other.get("data") != first.get("data") for other in positions.values()):
        return (
            "the workers draw different batches from a loader. Its sampler has a random generator "
            "of its own (seed it alike in all, or let it draw from the global one of torch or "
            "NumPy), or not all workers have iterated over the same prepared loaders "
            f"({place(first)})"
        )
    return ""


def place(position: Position) -> str:
    """A place in the script, in words. Epochs and batches are counted from 0."""
    words = [str(position["what"])] if position.get("what") else []
    where = [
        f"{name} {position[name]}" for name in ("epoch", "batch") if position.get(name) is not None
    ]
    if where and not words:
        where[0] = f"at {where[0]}"
    words += where
    if position.get("step") is not None:
        words.append(f"after step {position['step']}")
    return ", ".join(words) or "somewhere"


def _describe_groups(positions: Mapping[int, Position], words: Any) -> str:
    """Describe each worker's position, and group workers whose descriptions are equal."""
    alike: dict[str, list[int]] = {}
    for index, position in positions.items():
        alike.setdefault(str(words(position)), []).append(index)
    groups = [f"{names(indices)} {place}" for place, indices in list(alike.items())[:_SHOWN]]
    return ", ".join(groups) + (f", and {len(alike) - _SHOWN} more" if len(alike) > _SHOWN else "")


def names(indices: Iterable[int]) -> str:
    """The names of workers."""
    workers = [f"worker-{index}" for index in indices]
    if len(workers) <= _SHOWN:
        return " and ".join(workers)
    return f"{workers[0]} and {len(workers) - 1} others"


def _differing_settings(positions: Mapping[int, Position]) -> list[str]:
    differing: list[str] = []
    of_workers = {index: position.get("settings") or [] for index, position in positions.items()}
    if len({len(optimizers) for optimizers in of_workers.values()}) > 1:
        counts = {i: {"n": len(optimizers)} for i, optimizers in of_workers.items()}
        return [
            f"optimizers that took a step: {_describe_groups(counts, lambda count: count['n'])}"
        ]
    for number in range(max(map(len, of_workers.values()))):
        held = {index: optimizers[number] for index, optimizers in of_workers.items()}
        for name in dict.fromkeys(name for settings in held.values() for name in settings):
            values = {index: settings.get(name) for index, settings in held.items()}
            first = next(iter(values.values()))
            if any(_differ(first, value) for value in values.values()):
                shown = ", ".join(
                    f"{_short(value)} in worker-{index}"
                    for index, value in list(values.items())[:_SHOWN]
                )
                more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
                differing.append(f"{name} is {shown}{more}")
    return [
        *differing[:_SHOWN],
        *([f"and {len(differing) - _SHOWN} more"] if len(differing) > _SHOWN else []),
    ]


def _differ(one: Any, other: Any) -> bool:
    if (
        isinstance(one, (list, tuple))
        and isinstance(other, (list, tuple))
        and len(one) == len(other)
    ):
        return any(_differ(a, b) for a, b in zip(one, other))
    if isinstance(one, float) and isinstance(other, float):
        return not (
            math.isclose(one, other, rel_tol=_CLOSE) or (math.isnan(one) and math.isnan(other))
        )
    return bool(one != other)


def _drawn_apart(one: Any, other: Any) -> bool:
    both = isinstance(one, float) and isinstance(other, float)
    return (
        both
        and abs(one - other) > _ROUNDED * max(1.0, abs(one))
        and not (math.isnan(one) and math.isnan(other))
    )


def _differing_buffers(positions: Mapping[int, Position]) -> str:
    """The names of buffers that differ between workers."""
    held = [entry.get("buffers") or {} for entry in positions.values()]
    names = []
    for name in dict.fromkeys(name for buffers in held for name in buffers):
        values = [buffers[name] for buffers in held if name in buffers]
        shape, is_saved, *numbers = values[0]
        if any(entry[0] != shape for entry in values) or len(values) < len(held):
            differs = is_saved  # else what a layer makes anew for the samples that it sees
        else:
            differs = any(_differ(numbers, entry[2:]) for entry in values)
        if differs:
            names.append(name)
    return ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = ", ".join(map(_short, value[:_SHOWN]))
        return f"[{shown}{', …' if len(value) > _SHOWN else ''}]"
    return str(value)[:40]
