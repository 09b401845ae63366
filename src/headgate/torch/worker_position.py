"""A worker's position in the script, and the settings of its optimizers' parameter groups when they
stepped.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from headgate.task import Channel, Stop
from headgate.task.script_position import CURE, difference, place
from headgate.task.sync_points import SyncPoints
from headgate.torch.backend import REMOTE
from headgate.torch.buffers import Buffers
from headgate.torch.control_vector import MARKS
from headgate.torch.sharding import Assigned

_OURS = {"params", "param_names"}
_PLAIN = {int, float, bool, str, type(None)}
_LOOK_AT_GPU = 50
"""Steps between two reads of settings on a GPU, because each read waits for the GPU."""
_MOST_VALUES = 1 << 16
_PARAMETERS = 8
"""Number of a model's parameters that are compared at the end: the last ones, which any difference
reaches.
"""
_ELEMENTS = 4096
"""Number of elements that are compared of each."""

_Groups = list[list[tuple[str, Any]]]


class WorkerPosition:
    """The position of a worker's next exchange of gradients.

    Args:
        place: Returns the current phase and epoch; -1 outside.
        step: Returns the number of the running step.
        buffers: The buffers that the models change.

    Attributes:
        used: The settings of each optimizer that took a step since the latest exchange.
    """

    def __init__(
        self, place: Callable[[], tuple[int, int]], step: Callable[[], int], buffers: Buffers
    ) -> None:
        self._place = place
        self._step = step
        self._buffers = buffers
        self.used: list[_Groups] = []
        self._latest: dict[int, _Groups] = {}
        self._marks: dict[int, int] = {}
        self._told: deque[dict[str, Any]] = deque(maxlen=2)

    def steps(self, optimizer: Any) -> None:
        """Note that an optimizer takes a step, with the present settings of its groups."""
        groups = getattr(optimizer, "param_groups", None)
        if groups is None:
            return
        looks = self._step() % _LOOK_AT_GPU == 1
        held = [
            [(n, _value(v, looks)) for n, v in group.items() if n not in _OURS] for group in groups
        ]
        known = self._latest.get(id(optimizer))
        if known is None or known != held:
            known = self._latest[id(optimizer)] = held
        self.used.append(known)

    def exchanges(
        self, batch: tuple[int, Assigned] | None, rounds: int, parameter: torch.Tensor | None = None
    ) -> int:
        """The mark of a due exchange: a digest that is the same in all workers with the same
        position and settings, and almost never in others.

        Args:
            batch: Number of the loader that fed it, and this worker's part of its batch; None: all
                workers have the same.
            rounds: Number of earlier exchanges.
            parameter: A trained parameter, by which workers with other values are detected.
        """
        position = self.now(rounds)
        if parameter is not None and (not parameter.is_cuda or self._step() % _LOOK_AT_GPU == 1):
            position["weights"] = _direction(parameter)
        changed = self._buffers.mark()
        if changed:
            position["changed"] = changed
        if batch is not None:
            loader, assigned = batch
            position |= {"batch": assigned.number, "loader": loader, "data": assigned.mark}
        self._marks = {
            id(used): self._marks.get(id(used)) or zlib.crc32(repr(used).encode())
            for used in self.used
        }
        marks = [self._marks[id(used)] for used in self.used]
        self._told.append({**position, "used": self.used})
        self.used = []
        return zlib.crc32(repr([*position.values(), *marks]).encode()) % MARKS

    def now(self, rounds: int) -> dict[str, Any]:
        """The worker's position between exchanges."""
        phase, epoch = self._place()
        return {
            "rounds": rounds,
            "phase": phase,
            "epoch": None if epoch < 0 else epoch,
            "step": self._step() - 1,
        }

    def end(self, rounds: int, sizes: Mapping[str, float]) -> dict[str, Any]:
        """The worker's position at its end, with the settings used after the last exchange, and
        sizes of the trained parameters.
        """
        return {
            **self.now(rounds),
            "settings": [*(_columns(groups) for groups in self.used), sizes],
        }

    def exchanged(self, before: int = 0) -> dict[str, Any]:
        """The position of the latest exchange's mark, or of the one before it."""
        position = dict(self._told[-1 - before])
        position["settings"] = [_columns(groups) for groups in position.pop("used")]
        position["buffers"] = self._buffers.described()
        position.pop("changed", None)
        return position


class PositionComparison:
    """Compares where the workers of a job stand, so that those which differ fail instead of waiting
    for each other.

    Args:
        position: This worker's position.
        channel: The channel to the engine.
        in_step: Whether the workers step together.
        rounds: Returns the number of finished rounds.

    Attributes:
        position: As given.
        sync_points: The barriers with the other workers.
    """

    def __init__(
        self,
        position: WorkerPosition,
        channel: Channel,
        in_step: bool,
        rounds: Callable[[], int],
    ) -> None:
        self.position = position
        self._channel = channel
        self._in_step = in_step
        self._rounds = rounds
        self._sizes: dict[str, float] = {}
        self.sync_points = SyncPoints(channel, self._standing)

    def look(self) -> None:
        """Look whether the others can still come to the round that this worker waits in."""
        self.sync_points.look({**self._standing(), "rounds": self._rounds() + 1})

    def differs(self, before: int, alone: bool) -> None:
        """Find out what differs, after the marks of a round differed.

        Args:
            before: How many rounds ago that was.
            alone: Whether only this worker's mark differs.

        Raises:
            WorkersDiffer: Something relevant differs.
            Stop: The job ends meanwhile.
        """
        position = self.position.exchanged(before)
        if alone:
            self.sync_points.fail(
                f"worker-{int(self._channel.welcome['index'])} does not do what the other workers "
                f"do: it is {place(position)}; {CURE}"
            )
        given = self.sync_points.barrier(position)
        if given is None:
            raise Stop
        text = difference({index: entry for index, (entry, _) in given.items()})
        if text:
            self.sync_points.fail(text)

    def exchanged(self) -> None:
        """Note the end of a round. It may have been ended without a worker that has left."""
        if self._channel.positions:
            self.sync_points.look(self._standing())

    def left(self, models: Iterable[nn.Module]) -> None:
        """Note that the script has left a loop over epochs."""
        if self._in_step:
            self.sync_points.left()
            self._sizes = sizes(models)

    def close(self, by_itself: bool) -> None:
        """Note the end of the script. `by_itself`: it was not asked to end."""
        compares = by_itself and self._in_step
        self.sync_points.close(self.position.end(self._rounds(), self._sizes) if compares else None)

    def _standing(self) -> Mapping[str, Any]:
        """The position of this worker between two rounds, without fields that differ if workers do
        not step together.
        """
        position = self.position.now(self._rounds())
        if self._in_step:
            return position
        return {name: position[name] for name in ("rounds", "phase", "epoch")}


@torch.no_grad()
def _direction(parameter: torch.Tensor) -> float | None:
    """A number near 1 that differs if a parameter was initialized differently, but not by the last
    bits of its values.
    """
    values = parameter.detach().reshape(-1)[:_MOST_VALUES]
    if not values.is_floating_point() or not len(values):
        return None
    return round(float(values.sum() / values.norm().clamp_min(torch.finfo(values.dtype).tiny)), 2)


def _value(value: Any, looks: bool) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        if value.is_cuda and not looks:
            return None
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, (list, tuple)):
        return [_value(element, looks) for element in value]
    return float(value) if hasattr(value, "__float__") else type(value).__name__


def _columns(groups: _Groups) -> dict[str, Any]:
    """The settings of groups by name; a single value if all groups have the same."""
    columns: dict[str, list[Any]] = {}
    for group in groups:
        for name, value in group:
            columns.setdefault(name, []).append(value)
    return {
        name: column[0] if column.count(column[0]) == len(column) else column
        for name, column in columns.items()
    }


@torch.no_grad()
def sizes(models: Iterable[nn.Module]) -> dict[str, float]:
    """Mean absolute values of some of the models' parameters, by name, by which workers are
    compared.
    """
    parts = {
        f"mean |{name}|" + (f" of model {number}" if number else ""): parameter.detach().reshape(
            -1
        )[:_ELEMENTS]
        for number, model in enumerate(models)
        for name, parameter in list(model.named_parameters())[-_PARAMETERS:]
        if not hasattr(parameter, REMOTE) and parameter.numel()
    }
    return {name: part.abs().double().mean().item() for name, part in parts.items()}
