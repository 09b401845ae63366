"""How much a job lost to others on its GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from headgate.diagnosis.attribution import Evidence
from headgate.recorded.usage import Array

_AWAY, _FULL = 0.05, 0.9
"""Fractions of a GPU: neighbours up to the first count as away; from the second on, the GPU is
full.
"""
_MUCH = 0.1
"""Fraction of a job's steps: a verdict has to mention a neighbour with a greater possible cost."""


def lasting(values: Array) -> Array:
    """Remove traffic shorter than three buckets: closed connections are not counted to their end.
    Lasting traffic stays: it varies with what the job leaves of the NIC.
    """

    def beside(bucket: Array) -> list[Array]:
        wider = np.pad(bucket, 1)
        return [wider[:-2], bucket, wider[2:]]

    lasts = np.maximum.reduce(beside(np.minimum.reduce(beside(values)))) > 0.0
    return np.where(lasts, values, 0.0)


class OnGpu(NamedTuple):
    """Fractions of each bucket that a job lost to each neighbour on its GPU; or the neighbour with
    most use, if these are unknown.
    """

    by: Mapping[str, Array]
    evidence: Evidence = "compared"
    user: str = ""
    may_have_lost: float = 0.0
    neighbours: Collection[str] = ()


def lost_by_turns(held: float, neighbours: Mapping[str, Array], inside: Array) -> dict[str, Array]:
    """Fractions of each bucket that a job waited for its turn, `held` seconds in all, placed where
    its neighbours used the GPU between its steps. Other arguments as of `lost_on_gpu`.
    """
    taken = sum(neighbours.values(), np.zeros_like(inside))
    total_taken = float(np.sum(taken * inside))
    return (
        {
            name: np.minimum(held * neighbour / total_taken, 1.0)
            for name, neighbour in neighbours.items()
        }
        if total_taken > 0.0
        else {}
    )


def lost_on_gpu(busy: Array, neighbours: Mapping[str, Array], inside: Array) -> OnGpu:
    """Losses to each neighbour on its GPU: its kernels wait while those of others run.

    NVML gives the fraction of time in which each process's kernels ran. If a job used B of the GPU
    alone, and R while others used U, it lost 1 - R / min(B, R + U) of that time. A loss needs a
    full GPU. It also needs three consecutive seconds alone on the GPU, because nothing else shows
    B.

    Args:
        busy: Fraction of each bucket in which its kernels ran; NaN: no reading.
        neighbours: The same of each job on the same GPU.
        inside: Seconds of each bucket within its steps.
    """
    ran = np.nan_to_num(busy)
    taken = sum(neighbours.values(), np.zeros_like(ran))
    full = (ran > 0.0) & (taken > _AWAY) & (ran + taken >= _FULL)
    alone = lasting(np.where(np.isfinite(busy) & (taken <= _AWAY) & (inside > 0.0), 1.0, 0.0)) > 0.0
    if not alone.any():
        return unknown_on_gpu(
            {name: np.where(full, used, 0.0) for name, used in neighbours.items()}, inside
        )
    would = np.minimum(float(np.median(ran[alone])), ran + taken)
    lost = np.where(full, 1.0 - ran / np.maximum(would, np.maximum(ran, 1e-9)), 0.0)
    return OnGpu(
        {name: lost * neighbour / np.maximum(taken, 1e-9) for name, neighbour in neighbours.items()}
    )


def unknown_on_gpu(neighbours: Mapping[str, Array], inside: Array) -> OnGpu:
    """The neighbour that used a job's GPU most, where nothing tells what that cost; nobody if it
    was little. Arguments as of `lost_on_gpu`.
    """
    seconds = {name: float(np.sum(used * inside)) for name, used in neighbours.items()}
    if sum(seconds.values()) <= _MUCH * float(np.sum(inside)):
        return OnGpu({})
    worst = max(seconds, key=lambda name: seconds[name])
    return OnGpu({}, user=worst, may_have_lost=min(sum(seconds.values()), float(np.sum(inside))))
