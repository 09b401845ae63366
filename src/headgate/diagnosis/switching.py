"""Separate changes that follow neighbours from changes that happen anyway.

A job has a course of its own: its steps change with epochs, sequences, and thawing layers. So not
all times with and without a neighbour are compared. Instead the few windows before each switch (an
arrival or departure) are compared with the few after it. A trend raises the apparent effect of
arrivals as much as it lowers that of departures. Changes within stretches without a switch show the
course of the job, which may also change at a switch. The changes at all switches are fitted by the
changes of each neighbour's cores. The band comes from the scatter of the switches or the changes
elsewhere, whichever is greater: consecutive windows are not independent.

A single arrival is no proof, and a single stay little: the job may have changed by itself at that
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headgate.recorded.usage import Array

_SPAN, _NEAR = 5, 2
"""Windows on each side of a switch, and those next to it."""
_AGREES, _MISSES_OF = 0.4, 6
"""Fraction of its effect required at each switch of a neighbour, except one of this many."""
_MOST_BETWEEN = 3
"""Most windows during which a neighbour may arrive or leave; a slower change is not a switch."""
_LEAST_CORES, _COMES, _GOES = 0.15, 0.55, 0.3
"""Cores by which a neighbour has to vary, and fractions of its range: above the first it is
present, below the second away.
"""
_SURE = 3
"""Switches of a neighbour, including both arrivals and departures, from which on its effect is
known.
"""
_STUDENT = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
"""The 95th percentile of Student's distribution by degrees of freedom, from 1."""
_NORMAL = 1.645
_SEEN = 1e-6
"""Least independent fraction of a neighbour's cores that separates its effect from that of
others.
"""


class SwitchEffect(NamedTuple):
    """Increase of a quantity for each core of a neighbour, with a 90 % band.

    Args:
        switches: Number of its arrivals and departures.
        sure: Whether these were enough and apart from other neighbours; else the change may be the
            job's own.
        agrees: Whether the quantity changed accordingly at each switch itself, which the job's own
            course hardly does by chance.
    """

    each: float
    low: float
    high: float
    switches: int
    sure: bool
    agrees: bool = True


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Windows with the same neighbours present."""

    begin: int
    end: int
    there: tuple[int, ...]


class _Switch(NamedTuple):
    """A change of the quantity and of each neighbour's cores, with the numbers of windows before
    and after.

    Args:
        at_once: The change of the quantity in the adjacent windows alone.
        turns: For each neighbour: 1 arrived, -1 left, 0 stayed or was away, regardless of its
            cores.
    """

    change: float
    at_once: float
    cores: Array
    turns: Array
    before: int
    after: int

    @property
    def spread(self) -> float:
        """Its variance, relative to that of a window."""
        return 1.0 / self.before + 1.0 / self.after


def effects(values: Array, cores: Array) -> list[SwitchEffect | None]:
    """The effect of each neighbour on a quantity; None: unknown.

    Args:
        values: The quantity in each window, in the order of time.
        cores: Cores of each neighbour in each window, a row for each neighbour.
    """
    stretches = _stretches(cores)
    values = values - _slope(values, stretches) * np.arange(len(values))
    switches = list(_switches(values, cores, stretches))
    if not switches:
        return [None] * len(cores)
    moved = np.array([switch.cores for switch in switches])
    weight = 1.0 / np.sqrt([switch.spread for switch in switches])
    columns, changes = (
        moved * weight[:, None],
        np.array([switch.change for switch in switches]) * weight,
    )
    asarray: Array = np.asarray(np.linalg.lstsq(columns, changes, rcond=None)[0], dtype=np.float64)
    free = len(switches) - int(np.linalg.matrix_rank(columns))
    residual = float(np.sum((changes - columns @ asarray) ** 2))
    usual = _usual(values, stretches)
    variance = max(residual / free if free else 0.0, usual)
    inverse = np.linalg.pinv(columns.T @ columns)
    band = _student(free if residual / max(free, 1) > usual else max(free, _SPAN)) * np.sqrt(
        variance * np.diag(inverse)
    )
    # else it switched together with another
    known = np.diag(inverse @ (columns.T @ columns)) > 1.0 - _SEEN
    switch_effects: list[SwitchEffect | None] = []
    for index, (per_core, error) in enumerate(zip(asarray, band, strict=True)):
        came, went = (
            sum(bool(switch.turns[index] == turn) for switch in switches) for turn in (1, -1)
        )
        sure = bool(known[index] and came and went and came + went >= _SURE)
        agrees = _agrees(index, asarray, switches)
        effect = SwitchEffect(
            float(per_core),
            float(per_core - error),
            float(per_core + error),
            came + went,
            sure,
            agrees,
        )
        switch_effects.append(effect if came + went else None)
    return switch_effects


def _agrees(index: int, values: Array, switches: Sequence[_Switch]) -> bool:
    """Whether the quantity changed with nearly every switch of one neighbour."""
    own = [switch for switch in switches if switch.turns[index]]
    others = np.where(np.arange(len(values)) == index, 0.0, values)
    missed = 0
    for switch in own:
        expected = float(switch.cores[index] * values[index])
        seen = (change - float(switch.cores @ others) for change in (switch.change, switch.at_once))
        missed += any(change * expected < _AGREES * expected**2 for change in seen)
    return missed <= len(own) // _MISSES_OF


def least_of(cores: Array) -> float:
    """Usual cores of a neighbour while away."""
    return float(np.median(cores[_part_of(cores) <= _GOES]))


def usual_of(cores: Array) -> float:
    """Usual cores of a neighbour while present; the maximum if it was never present for long."""
    present = cores[_part_of(cores) >= _COMES]
    return float(np.median(present)) if len(present) else float(np.max(cores))


def _part_of(cores: Array) -> Array:
    """Presence of a neighbour in each window, from 0 to about 1."""
    low, high = float(np.min(cores)), float(np.quantile(cores, 0.9))
    return (cores - low) / max(high - low, _LEAST_CORES)


def _states(cores: Array) -> npt.NDArray[np.int_]:
    """State of a neighbour in each window: present (1), away (0), or switching (-1)."""
    part = _part_of(cores)
    return np.where(part >= _COMES, 1, np.where(part <= _GOES, 0, -1))


def _stretches(cores: Array) -> list[_Stretch]:
    states = np.array([_states(used) for used in cores])
    stretches: list[_Stretch] = []
    for at, state in enumerate(map(tuple, states.T.tolist())):
        if -1 in state:
            continue
        if stretches and stretches[-1].there == state and stretches[-1].end == at:
            stretches[-1] = _Stretch(stretches[-1].begin, at + 1, state)
        else:
            stretches.append(_Stretch(at, at + 1, state))
    return stretches


def _slope(values: Array, stretches: Sequence[_Stretch]) -> float:
    """Increase of the quantity from window to window without switches."""
    rises = [
        values[stretch.begin + _SPAN : stretch.end] - values[stretch.begin : stretch.end - _SPAN]
        for stretch in stretches
        if stretch.end - stretch.begin > _SPAN
    ]
    all_of_them = np.concatenate(rises) if rises else np.empty(0)
    return float(np.median(all_of_them)) / _SPAN if len(all_of_them) else 0.0


def _switches(values: Array, cores: Array, stretches: Sequence[_Stretch]) -> list[_Switch]:
    switches = []
    for before, after in pairwise(stretches):
        if before.there == after.there or after.begin - before.end > _MOST_BETWEEN:
            continue
        old = slice(max(before.begin, before.end - _SPAN), before.end)
        new = slice(after.begin, min(after.begin + _SPAN, after.end))
        change = float(np.median(values[new]) - np.median(values[old]))
        moved = np.median(cores[:, new], axis=1) - np.median(cores[:, old], axis=1)
        last, first = (
            slice(max(old.stop - _NEAR, old.start), old.stop),
            slice(new.start, min(new.start + _NEAR, new.stop)),
        )
        at_once = float(np.median(values[first]) - np.median(values[last]))
        turns = np.subtract(after.there, before.there, dtype=float)
        switches.append(
            _Switch(change, at_once, moved, turns, old.stop - old.start, new.stop - new.start)
        )
    return switches


def _usual(values: Array, stretches: Sequence[_Stretch]) -> float:
    """Variance of a window, from changes between adjacent windows without switches."""
    for span in range(_SPAN, 0, -1):
        changes = [
            float(np.median(values[at : at + span]) - np.median(values[at - span : at]))
            for stretch in stretches
            for at in range(stretch.begin + span, stretch.end - span + 1)
        ]
        if len(changes) >= 2 * _SPAN or (changes and span == 1):
            return float(np.mean(np.square(changes))) * span / 2.0
    return 0.0


def _student(free: int) -> float:
    return _STUDENT[free - 1] if 0 < free <= len(_STUDENT) else _NORMAL
