"""How long a step takes, from what happens in it: a formula with positive parameters, and what they usually are.

The form is the general one of the published models: Pollux (OSDI 2021) for all-reduce inside and across nodes and for
how much communication hides behind compute, Optimus (EuroSys 2018) for parameter servers with what each task costs,
BytePS (OSDI 2020) for the bytes through the busiest NIC. Nothing in it is fitted here; `planning.fitting` does that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.planning.traits import Floats, Traits

TERMS: Mapping[str, tuple[float, float]] = {
    "alpha": (0.3, 1.2),  # compute that does not depend on the batch
    "beta": (0.5, 1.2),  # compute of a typical batch
    "ring": (0.3, 1.5),  # the model once through a NIC, all-reduce
    "ring_worker": (0.01, 1.5),  # each worker of an all-reduce past the second, across nodes
    "ring_node": (0.02, 1.5),  # each node past the second
    "inside": (0.05, 1.5),  # the model once from worker to worker inside a node
    "inside_worker": (0.005, 1.5),  # each worker past the second, inside a node
    "to_servers": (0.15, 1.5),  # the model once through the NIC of a server
    "to_workers": (0.05, 1.5),  # the model once through the NIC of a worker
    "update": (0.02, 1.5),  # a server of one core applies the whole model once
    "worker": (0.005, 1.5),  # each worker, under parameter servers
    "server": (0.005, 1.5),  # each server
}
"""What seconds go into, each as a part of a typical step, with the standard deviation of its logarithm."""

FACTORS: Mapping[str, tuple[float, float]] = {
    "straggling": (0.05, 1.0),  # by how much the slowest is slower, for each factor e of workers
    "hiding": (1.0, 0.8),  # the exponent of Pollux less one: 0 hides no communication behind compute, much hides all
    "cores": (0.7, 0.3),  # the power of its cores that a worker's speed grows with
}
"""Numbers without a unit."""

_NAMES = (*TERMS, *FACTORS)
_KIND_DEVIATION = 0.6
_RESOURCES = ("compute", "network", "server", "tasks")


@dataclass(frozen=True, slots=True)
class Prior:
    """What the parameters are before anything is measured: their logarithms, and standard deviations of these."""

    mean: Floats
    deviation: Floats


def prior(step_seconds: float, batch: float, kinds: int) -> Prior:
    """What is usual for a job.

    Args:
        step_seconds: Of a typical step.
        batch: Samples of a worker in it.
        kinds: Kinds of nodes, each with a speed of its own.
    """
    means = [math.log(part * step_seconds) for part, _ in TERMS.values()]
    means[_NAMES.index("beta")] -= math.log(batch)
    means += [math.log(factor) for factor, _ in FACTORS.values()]
    deviations = [deviation for _, deviation in (*TERMS.values(), *FACTORS.values())]
    more = kinds - 1  # the first is what the others are compared with
    return Prior(np.array(means + [0.0] * more), np.array(deviations + [_KIND_DEVIATION] * more))


def seconds(parameters: Floats, of: Traits) -> tuple[Floats, dict[str, Floats]]:
    """Samples a second of each plan, (plans,), and seconds of a step by resource.

    Args:
        parameters: Logarithms, in the order of `TERMS`, `FACTORS`, and the speed of each kind of node past the first.
    """
    p = dict(zip(_NAMES, np.exp(np.clip(parameters, -40.0, 40.0))))
    speeds = np.exp(np.concatenate([[0.0], np.clip(parameters[len(_NAMES) :], -10.0, 10.0)]))
    each = (p["alpha"] + p["beta"] * of.batches / of.cores ** p["cores"]) / speeds[of.kinds]
    slowest = np.where(of.counts > 0, each, 0.0).max(1)
    left_out = np.log(of.waited_for) - np.log(of.workers - of.waited_for + 1)
    waiting = slowest * (1 + p["straggling"] * np.maximum(left_out, 0.0))
    past_two = np.maximum(of.workers - 2, 0)
    network = p["ring"] * of.ring + p["inside"] * of.inside
    network = network + (of.ring > 0) * (p["ring_worker"] * past_two + p["ring_node"] * np.maximum(of.nodes - 2, 0))
    network = network + (of.inside > 0) * p["inside_worker"] * past_two
    network = network + p["to_servers"] * of.to_servers + p["to_workers"] * of.to_workers
    has_servers = of.servers > 0
    update = has_servers * p["update"] * of.workers / np.maximum(of.servers, 1) / of.server_cores
    tasks = has_servers * (p["worker"] * of.workers + p["server"] * of.servers)
    moving = network + update
    power = 1 + p["hiding"]
    longer = np.maximum(waiting, moving)
    together = longer * ((waiting / longer) ** power + (moving / longer) ** power) ** (1 / power) + tasks
    apart = (of.counts * of.batches / (each + (moving + tasks)[:, None])).sum(1)
    throughput = np.where(of.synchronous > 0, of.samples / together, apart)
    parts = dict(zip(_RESOURCES, (np.where(of.synchronous > 0, waiting, slowest), network, update, tasks)))
    return np.asarray(throughput), parts


def slopes(parameters: Floats, of: Traits) -> tuple[Floats, Floats]:
    """Logarithm of the throughput, (plans,), and how it changes with each parameter, (plans, parameters)."""
    step = 1e-4
    here = np.log(seconds(parameters, of)[0])
    columns = []
    for i in range(len(parameters)):
        moved = parameters.copy()
        moved[i] += step
        columns.append((np.log(seconds(moved, of)[0]) - here) / step)
    return here, np.stack(columns, 1)
