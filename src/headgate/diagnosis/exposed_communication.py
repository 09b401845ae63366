"""Divide a job's exposed communication between its own NIC traffic and neighbours on the NIC.

Sampled steps show the fraction of time that a job waited for communication not hidden by backward.
At the NIC's rate, its own bytes need a known fraction of each second: its wait without others.
While the NIC is full, longer waits are lost to the neighbours in proportion to their bytes, and at
most their fraction of all bytes. A full NIC is never idle, so a fraction of bytes is a fraction of
time: headers and retransmissions belong to nobody. The need of its own bytes is attributed to the
NIC. The rest stays communication: peers, their cores, latency.

Before the first sampled step, or for scripts without a library of Headgate's (for example under
torchrun), a different rule holds. The job waited for communication while it was idle and its tasks
exchanged more than keep-alive traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headgate.recorded.usage import Array, ratio

_FULL = 0.75
"""Fraction of a NIC's rate from which on it is full: headers count, and no second is full from end
to end.
"""
_EXCHANGES = 0.01
"""Fraction of a NIC's rate from which on tasks exchange more than keep-alive traffic."""


class NicTraffic(NamedTuple):
    """Bytes a second in and out, in each bucket of a grid."""

    received: Array
    sent: Array

    def plus(self, other: NicTraffic) -> NicTraffic:
        return NicTraffic(self.received + other.received, self.sent + other.sent)


@dataclass(frozen=True, slots=True, eq=False)
class OnNic:
    """A job on the NIC of a node.

    Args:
        rate: Bytes a second in each direction.
        own: Its own bytes.
        neighbours: Bytes of each other job, and of programs outside.
    """

    rate: float
    own: NicTraffic
    neighbours: Mapping[str, NicTraffic]


@dataclass(frozen=True, slots=True, eq=False)
class Exposed:
    """Fractions of each bucket, 0 to 1: arrays over the grid.

    Args:
        by: Lost to each neighbour, by its name.
        by_nic: Time that its own bytes need.
    """

    by: Mapping[str, Array]
    by_nic: Array


def spread(exposed: float, idle: Array, own: Array, inside: Array) -> Array:
    """Distribute seconds of exposed communication over time: first where the job was idle, then
    evenly.

    Args:
        idle: Fraction of each bucket in which it was neither ready nor blocked.
        own: Fraction of each bucket that it lost to nobody so far.
        inside: Seconds of each bucket within its steps.
    """
    stepped = inside > 0.0
    part = np.where(stepped, idle * _at_most_one(exposed, float(np.sum(idle * inside))), 0.0)
    left = np.where(stepped, np.maximum(own - part, 0.0), 0.0)
    more = max(exposed - float(np.sum(part * inside)), 0.0)
    return part + left * _at_most_one(more, float(np.sum(left * inside)))


def exchanges(nics: Sequence[OnNic], like: Array) -> Array:
    """Whether a job exchanged notable traffic, in each bucket of a grid `like` this."""
    moved = [np.maximum(*map(np.nan_to_num, nic.own)) >= _EXCHANGES * nic.rate for nic in nics]
    exchanged: Array = np.any([np.zeros(len(like), dtype=bool), *moved], axis=0)
    return exchanged


def exposed_to_nics(waited: Array, nics: list[OnNic]) -> Exposed:
    """Divide the time that a job waited for communication, in each bucket by the node whose
    neighbours took most.

    Args:
        waited: Fraction of each bucket.
        nics: The NICs of all nodes of its tasks, without those of unknown rate.
    """
    lost, needed = np.zeros_like(waited), np.zeros_like(waited)
    names = sorted({name for nic in nics for name in nic.neighbours})
    by = {name: np.zeros_like(waited) for name in names}
    for nic in nics:
        own = [np.nan_to_num(way) / nic.rate for way in nic.own]
        need = np.minimum(np.maximum(*own), 1.0)
        taken, shares = np.zeros_like(waited), dict.fromkeys(names, np.zeros_like(waited))
        for way in range(2):
            used = {
                name: np.nan_to_num(traffic[way]) / nic.rate
                for name, traffic in nic.neighbours.items()
            }
            total_used = sum(used.values(), np.zeros_like(waited))
            others_part = ratio(total_used, own[way] + total_used)
            worse = (own[way] + total_used >= _FULL) & (own[way] > 0.0) & (others_part > taken)
            taken = np.where(worse, others_part, taken)
            shares = {
                name: np.where(worse, used.get(name, 0.0) / np.maximum(total_used, 1e-12), share)
                for name, share in shares.items()
            }
        clip = np.clip(waited - need, 0.0, taken)
        worst = clip > lost
        by = {name: np.where(worst, clip * shares[name], before) for name, before in by.items()}
        lost, needed = np.maximum(lost, clip), np.maximum(needed, need)
    not_lost = waited - lost
    return Exposed(by=by, by_nic=np.where(needed >= _FULL, not_lost, np.minimum(not_lost, needed)))


def _at_most_one(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0.0 else 0.0
