"""Other state of a script than models and optimizers, and how its copies in several workers relate.

When a checkpoint is saved, workers compare a few numbers of each tensor in their states. The worker
that saves then gathers the states that differ by worker.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headgate.task.saving import ResumeError

EQUAL, MEAN, WORKER = "equal", "mean", "worker"
ACROSS = (EQUAL, MEAN, WORKER)
"""How states relate: the same in all workers, to be averaged, or each worker's own."""
_CLOSE = 1e-4
"""Relative differences below this may come from the last bits of sums."""
_SHOWN = 3
_NUMBERS = (bool, int, float, complex)

Gather = Callable[[Any], Mapping[int, Any]]
"""Takes a value of tensors and plain values. Returns the values of all workers by index. All
workers call it.
"""


@dataclass(frozen=True)
class KeptObject:
    """An object given to `keep`.

    Args:
        object: The object, with `state_dict` and `load_state_dict`.
        across: One of `ACROSS`; None: not declared.
    """

    object: Any
    across: str | None


@dataclass(frozen=True)
class WorkerStates:
    """States that the saving worker does not have by itself.

    Args:
        own: By name, each worker's own state by index.
        means: By name, the mean.
        notes: Notes for the user.
    """

    own: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    means: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def compared(kept: Mapping[str, KeptObject], gather: Gather) -> WorkerStates:
    """Compare the states of the workers, and return what a checkpoint has to hold of them."""
    states = {name: entry.object.state_dict() for name, entry in kept.items()}
    marks = {
        name: _digests(state, _own_statistics(kept[name].object)) for name, state in states.items()
    }
    given = gather(marks)
    first = given[min(given)]
    notes, wanted = [], []
    for name, entry in kept.items():
        differs = _differences(first[name], [of[name] for of in given.values()])
        if entry.across == WORKER or (differs and entry.across != EQUAL):
            wanted.append(name)
        if differs and entry.across in (None, EQUAL):
            notes.append(_note(name, entry.across, differs))
    if not wanted:
        return WorkerStates(notes=notes)
    all_states = gather({name: states[name] for name in wanted})
    by_name = {name: {index: of[name] for index, of in all_states.items()} for name in wanted}
    return WorkerStates(
        own={name: of for name, of in by_name.items() if kept[name].across != MEAN},
        means={
            name: _mean(list(of.values()))
            for name, of in by_name.items()
            if kept[name].across == MEAN
        },
        notes=notes,
    )


def of_worker(
    resume: Mapping[str, Any], name: str, across: str | None, index: int, workers: int
) -> tuple[Mapping[Any, Any], Any]:
    """The location of a worker's state in a checkpoint: a mapping, and a key that may be missing.

    Raises:
        ResumeError: The checkpoint holds the states of another number of workers.
    """
    own: Mapping[int, Any] | None = resume.get("own", {}).get(name)
    if own is None or across in (EQUAL, MEAN):
        return resume["kept"], name
    if len(own) != workers:
        raise ResumeError(
            f"what the script keeps as {name} is each worker's own, and the checkpoint has that of "
            f"{len(own)} workers; found {workers}: resume with --workers {len(own)}, or use "
            "keep(across='equal') to resume from that of the first"
        )
    return own, index


def _note(name: str, across: str | None, differs: Sequence[str]) -> str:
    which = ", ".join(differs[:_SHOWN]) + (
        f" and {len(differs) - _SHOWN} more" if len(differs) > _SHOWN else ""
    )
    if across == EQUAL:
        return (
            f"what the script keeps as {name} differs between the workers ({which}), though "
            "keep(across='equal') says "
            "that it is the same: the checkpoint holds that of the first worker"
        )
    return (
        f"what the script keeps as {name} differs between the workers ({which}): the checkpoint "
        "holds each worker's own, and only the same number of workers can resume from it; "
        "state how they relate by keep(across=...)"
    )


# --- comparing ------------------------------------------------------------------------------------


def _leaves(state: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """All leaf values in a state, each with its path."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from _leaves(value, f"{where}.{key}" if where else str(key))
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from _leaves(value, f"{where}[{number}]")
    else:
        yield where, state


@torch.no_grad()
def _digests(state: Any, left_out: frozenset[str]) -> dict[str, list[float]]:
    """For each value in a state, a few numbers that distinguish it from others."""
    marks = {}
    for where, value in _leaves(state):
        if where in left_out:
            continue
        if isinstance(value, torch.Tensor):
            flat = (
                (torch.view_as_real(value) if value.is_complex() else value)
                .detach()
                .reshape(-1)
                .double()
            )
            ramp = torch.linspace(1.0, 2.0, flat.numel(), dtype=flat.dtype, device=flat.device)
            sums = [flat.abs().sum(), flat.sum(), (flat * ramp).sum()] if flat.numel() else []
            marks[where] = [float(flat.numel()), *map(float, sums)]
        elif type(value) in _NUMBERS:
            number = complex(value)
            marks[where] = [0.0, abs(number), number.real, number.imag]
        else:
            marks[where] = [-1.0, float(zlib.crc32(repr(value).encode()))]
    return marks


def _differences(
    first: Mapping[str, Sequence[float]], others: Sequence[Mapping[str, Sequence[float]]]
) -> list[str]:
    """The paths where states differ."""
    names = dict.fromkeys(name for state in others for name in state)
    return [
        name for name in names if any(_differ(first.get(name), state.get(name)) for state in others)
    ]


def _differ(one: Sequence[float] | None, other: Sequence[float] | None) -> bool:
    if one is None or other is None or len(one) != len(other) or one[0] != other[0]:
        return True
    if one[0] < 0:
        return one != other
    size = max(abs(one[1]), abs(other[1])) if len(one) > 1 else 0.0
    return any(
        not math.isclose(a, b, rel_tol=_CLOSE, abs_tol=_CLOSE * size)
        and not (math.isnan(a) and math.isnan(b))
        for a, b in zip(one, other)
    )


def _own_statistics(kept: Any) -> frozenset[str]:
    """The buffers of batch normalisation in a kept module. As in the model, each worker has the
    statistics of its own samples.
    """
    if not isinstance(kept, nn.Module):
        return frozenset()
    return frozenset(
        f"{name}.{buffer}" if name else buffer
        for name, module in kept.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase)
        for buffer, _ in module.named_buffers(recurse=False)
    )


def _mean(states: Sequence[Any]) -> Any:
    """The first worker's state, with each floating-point number averaged over all states."""
    first = states[0]
    if isinstance(first, dict):
        return type(first)({key: _mean([state[key] for state in states]) for key in first})
    if isinstance(first, (list, tuple)):
        return type(first)(_mean(list(values)) for values in zip(*states))
    if isinstance(first, torch.Tensor) and (first.is_floating_point() or first.is_complex()):
        return torch.stack([state.to(first.device, first.dtype) for state in states]).mean(0)
    return sum(states) / len(states) if type(first) is float else first
