"""The cost of waiting for cores for a task, bucket by bucket: by neighbour, own cap and own
threads.

For each thread the kernel counts the time it ran, and the time it was ready without a core.
Together these show how much the task would have run alone. For each second, with R core-seconds run
and W thread-seconds waited on a node of N cores:

| | | |
|---|---|---|
| ready | A | the part of the second in which its busiest thread ran or waited |
| free | F = min(R + W, A N) | core-seconds that it would have run alone, without a cap |
| capped | C = min(F, cap) | the same with its own cap |
| alone | D = min(C, R + U) | others cannot have kept it from more than the U that they ran |

It lost A (1 - R / D) to others and, if its cap throttled it, A (R / D) (1 - C / F) to that. Threads
that no core could have run anyway wait as well, through no neighbour's fault.

This holds for independent threads, such as those of several processes. Compute threads of one
process meet at a barrier many times in a step, and all stop there while one waits for a core. If
each of T threads waits for the fraction u = 1 - R / D of the time, some thread waits for 1 - (1 -
u)^T of it. If two never wait at once, it is T u, at most all. Threads that sleep at the barrier
lose the first: when one has to wait, the others find a core. Threads that spin there occupy cores
without progress, and lose the mean of both. T is D over the demand of the busiest thread: the
number of equal threads. Time stolen by the hypervisor counts neither as running nor as waiting.
Each running task loses the fraction of it that the node loses on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.recorded.usage import Array, around, ratio

_NOISE_CORES = 0.03
"""Readings of two targets differ in time. A neighbour that used fewer cores may not have run at
all.
"""
_LEAST_READY = 0.02
"""If a task was ready for a smaller part of a second, its losses are within rounding."""
_AROUND = 5
"""Buckets over which the number of threads is estimated, because CPU readings are coarse."""
THROTTLED = 0.01
"""A cap that held back fewer core-seconds a second held back nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class OnNode:
    """Activity of a task on its node in each bucket of a grid: arrays of one length; NaN: no
    reading.

    Args:
        ran: Cores in use.
        waited: Threads that waited for a core.
        ready: Fraction of the bucket in which its busiest thread ran or waited.
        throttled: Cores that its own cap held back.
        cap: That cap in cores; infinite: no cap.
        meets: Whether its threads synchronize many times in a step.
        spins: Whether they spin at the barrier.
        busiest: Fraction of the bucket in which its busiest thread ran or waited; None: as `ready`.
    """

    ran: Array
    waited: Array
    ready: Array
    throttled: Array
    cap: Array
    meets: npt.NDArray[np.bool_] | bool = False
    spins: npt.NDArray[np.bool_] | bool = False
    busiest: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Contended:
    """Fractions of each bucket, 0 to 1: arrays over the grid.

    Args:
        ready: It ran or could have run.
        by: Lost to each neighbour, by its name.
        most: The same if all of its threads stopped whenever one waited.
        stolen: Lost to the hypervisor.
        by_cap: Lost to its own cap.
        excess: Number of threads that waited although no core could have run them.
    """

    ready: Array
    by: Mapping[str, Array]
    most: Mapping[str, Array]
    stolen: Array
    by_cap: Array
    excess: Array


def contended(
    task: OnNode, neighbours: Mapping[str, Array], stolen: Array, cores: float
) -> Contended:
    """Losses of a task in each bucket, divided among neighbours by the cores that they used.

    Args:
        neighbours: Cores used by each on the same node; NaN: not present.
        stolen: Cores that the hypervisor stole from the node.
        cores: Cores of the node; infinite: unknown.
    """
    ran, waited = np.nan_to_num(task.ran), np.nan_to_num(task.waited)
    ready = np.nan_to_num(task.ready)
    runnable = np.multiply(ready, cores, where=ready > 0.0, out=np.zeros_like(ready))
    free = np.maximum(np.minimum(ran + waited, runnable), ran)
    capped = np.maximum(np.minimum(free, task.cap), ran)
    kept = np.nan_to_num(stolen)
    used = {name: _beyond_noise(neighbour) for name, neighbour in neighbours.items()}
    taken = sum(used.values(), np.zeros_like(ran))
    alone = np.minimum(capped, ran + taken)
    is_known = (ready > _LEAST_READY) & (alone > 0.0)
    waits = np.where(is_known, 1.0 - ratio(ran, alone), 0.0)  # for each of its threads
    busiest = around(np.nan_to_num(ready if task.busiest is None else task.busiest), _AROUND)
    threads = np.maximum(around(alone, _AROUND) / np.maximum(busiest, _LEAST_READY), 1.0)
    most, some = np.minimum(threads * waits, 1.0), 1.0 - np.power(1.0 - waits, threads)
    lost = ready * np.where(task.spins, (some + most) / 2.0, np.where(task.meets, some, waits))
    throttled = is_known & (np.nan_to_num(task.throttled) > THROTTLED)
    return Contended(
        ready=ready,
        by={name: lost * ratio(cores_of_task, taken) for name, cores_of_task in used.items()},
        most={
            name: ready * most * ratio(cores_of_task, taken) for name, cores_of_task in used.items()
        },
        stolen=ready * ratio(kept, ran + taken + kept),
        by_cap=np.where(throttled, (ready - lost) * (1.0 - ratio(capped, free)), 0.0),
        excess=np.maximum(ran + waited - free, 0.0),
    )


def _beyond_noise(cores: Array) -> Array:
    known = np.nan_to_num(cores)
    return np.where(known > _NOISE_CORES, known, 0.0)
