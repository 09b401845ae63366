"""Divides a job's exposed communication: what its NIC caused, and what neighbours on the same NIC
did.

Sampled steps tell which part of its time a job waited for communication that backward did not hide.
At the rate of the NIC, its own bytes need a known part of each second: that is what it would wait
without anybody else. While the NIC is full, any longer wait is lost to the neighbours whose bytes
went through it, and never more than their part of all its bytes. A full NIC is never idle, so that
part is one of its time too: headers and what is sent again are in nobody's bytes. What its own
bytes need is the NIC's. Anything else stays communication: the peers, their cores, the latency.

No step is sampled before the first, and none at all of a script without Headgate's libraries, such
as one for torchrun. There the job waited for communication while it was idle and its tasks
exchanged more than the few bytes of those that only keep in touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headgate.recorded.usage import Array, ratio

_FULL = 0.75
"""Part of a NIC's rate, from which on it is full: headers count, and no second is full from end to
end.
"""
_EXCHANGES = 0.01
"""Part of a NIC's rate, from which on tasks exchange more than signs of life."""


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
        rate: Bytes a second each way.
        own: Its own bytes.
        neighbours: The bytes of each other job, and of programs outside.
    """

    rate: float
    own: NicTraffic
    neighbours: Mapping[str, NicTraffic]


@dataclass(frozen=True, slots=True, eq=False)
class Exposed:
    """Parts of each bucket, 0 to 1: arrays over the grid.

    Args:
        by: Lost to each neighbour, by its name.
        by_nic: Waited as long as its own bytes need.
    """

    by: Mapping[str, Array]
    by_nic: Array


def spread(exposed: float, idle: Array, own: Array, inside: Array) -> Array:
    """Place so many seconds of exposed communication in time: first where the job was idle, then
    evenly.

    Args:
        idle: Part of each bucket in which it was neither ready nor blocked.
        own: Part of each bucket that it lost to nobody so far.
        inside: Seconds of each bucket that belong to its steps.
    """
    stepped = inside > 0.0
    part = np.where(stepped, idle * _at_most_one(exposed, float(np.sum(idle * inside))), 0.0)
    left = np.where(stepped, np.maximum(own - part, 0.0), 0.0)
    more = max(exposed - float(np.sum(part * inside)), 0.0)
    return part + left * _at_most_one(more, float(np.sum(left * inside)))


def exchanges(nics: Sequence[OnNic], like: Array) -> Array:
    """Whether a job exchanged anything to speak of, in each bucket of a grid `like` this."""
    moved = [np.maximum(*map(np.nan_to_num, nic.own)) >= _EXCHANGES * nic.rate for nic in nics]
    exchanged: Array = np.any([np.zeros(len(like), dtype=bool), *moved], axis=0)
    return exchanged


def exposed_to_nics(waited: Array, nics: list[OnNic]) -> Exposed:
    """Divide the time that a job waited for communication: in each bucket by the node on which
    neighbours took most.

    Args:
        waited: Part of each bucket.
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
            whole = sum(used.values(), np.zeros_like(waited))
            theirs = ratio(whole, own[way] + whole)
            worse = (own[way] + whole >= _FULL) & (own[way] > 0.0) & (theirs > taken)
            taken = np.where(worse, theirs, taken)
            shares = {
                name: np.where(worse, used.get(name, 0.0) / np.maximum(whole, 1e-12), share)
                for name, share in shares.items()
            }
        clip = np.clip(waited - need, 0.0, taken)
        worst = clip > lost
        by = {name: np.where(worst, clip * shares[name], before) for name, before in by.items()}
        lost, needed = np.maximum(lost, clip), np.maximum(needed, need)
    rest = waited - lost
    return Exposed(by=by, by_nic=np.where(needed >= _FULL, rest, np.minimum(rest, needed)))


def _at_most_one(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0.0 else 0.0
