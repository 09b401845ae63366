"""A formula for the time of a step with positive parameters, and their usual values.

Its form follows published models:

- Pollux (OSDI 2021): all-reduce within and across nodes, and overlap of communication with compute.
- Optimus (EuroSys 2018): parameter servers, with the cost of each task.
- BytePS (OSDI 2020): bytes through the busiest NIC.
- A closed queueing network, by Schweitzer's approximation of its mean values (1979): asynchronous
  workers.

Nothing is fitted here; `planning.fitting` does that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.planning.features import Features, Floats, repeated

TERMS: Mapping[str, tuple[float, float]] = {
    "alpha": (0.3, 1.2),  # compute that does not depend on the batch
    "beta": (0.5, 1.2),  # compute of a typical batch
    "reading": (0.02, 1.5),  # reading a typical batch in the training process
    # each factor e of workers on a node, which share host, memory and I/O
    "contention": (0.01, 1.2),
    "ring": (0.3, 1.5),  # the model once through a NIC, in an all-reduce
    "ring_worker": (0.01, 1.5),  # each worker of an all-reduce past the second, across nodes
    "ring_node": (0.02, 1.5),  # each node past the second
    "inside": (0.05, 1.5),  # the model once from worker to worker inside a node
    "inside_worker": (0.005, 1.5),  # each worker past the second, inside a node
    "to_servers": (0.15, 1.5),  # the model once through the NIC of a server
    "to_workers": (0.05, 1.5),  # the model once through the NIC of a worker
    "handling": (1e-4, 0.5),  # a worker of one core sends and receives the model
    "collective": (1e-4, 0.5),  # a worker of one core in an all-reduce, for each other worker
    "update": (0.02, 1.5),  # a server of one core applies the whole model once
    "exchange": (1e-4, 0.5),  # a worker of one core with parameter servers, whatever it sends
    "worker": (0.002, 1.5),  # each worker, for a server of one core
    "server": (0.002, 1.5),  # each server, for a worker of one core
}
"""Time parameters as fractions of a typical step, each with the standard deviation of its
logarithm.
"""

FACTORS: Mapping[str, tuple[float, float]] = {
    # how much slower the slowest worker is, for each factor e of workers
    "straggling": (0.05, 1.0),
    # Pollux's exponent minus one: 0 hides no communication behind compute, a large value hides all
    "hiding": (1.0, 0.8),
    "cores": (0.7, 0.3),  # exponent of a worker's cores in its speed
    # an exponent minus one: 0 if NICs and servers take turns, large if they overlap
    "streaming": (0.02, 0.3),
    # the part of compute that hides no communication: no gradient exists yet
    "forward": (1e-3, 0.1),
}
"""Parameters without a unit."""

NAMES = (*TERMS, *FACTORS)
"""The parameters in order. After them comes the speed of each kind of node except the first."""
RESOURCES = ("compute", "network", "server", "tasks")
OF: Mapping[str, str] = {
    "alpha": "compute",
    "beta": "compute",
    "reading": "compute",
    "contention": "compute",
    "straggling": "compute",
    **dict.fromkeys(("ring", "ring_worker", "ring_node", "inside", "inside_worker"), "network"),
    **dict.fromkeys(("to_servers", "to_workers", "handling", "collective"), "network"),
    "update": "server",
    **dict.fromkeys(("exchange", "worker", "server"), "tasks"),
}
"""The resource of each part of a step."""
_KIND_DEVIATION = 0.6
# worker classes times parameters in one computation: as much as caches hold
_AT_ONCE = 20_000
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior of the parameters: means and standard deviations of their logarithms."""

    mean: Floats
    deviation: Floats


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """Predicted steps of plans, (plans,).

    Args:
        throughput: Samples a second.
        terms: Seconds of each part, named as in `OF`, before overlap.
        resources: Seconds of each of `RESOURCES`.
    """

    throughput: Floats
    terms: Mapping[str, Floats]
    resources: Mapping[str, Floats]


def prior(step_seconds: float, batch: float, kinds: int) -> Prior:
    """The prior of an unknown job.

    Args:
        step_seconds: Seconds of a typical step.
        batch: Samples of a worker in it.
        kinds: Number of kinds of nodes, each with a speed of its own.
    """
    means = [math.log(part * step_seconds) for part, _ in TERMS.values()]
    for name in ("beta", "reading"):
        means[NAMES.index(name)] -= math.log(batch)
    means += [math.log(factor) for factor, _ in FACTORS.values()]
    deviations = [deviation for _, deviation in (*TERMS.values(), *FACTORS.values())]
    more = kinds - 1  # speeds are relative to the first kind
    return Prior(np.array(means + [0.0] * more), np.array(deviations + [_KIND_DEVIATION] * more))


def seconds(parameters: Floats, of: Features) -> StepEstimate:
    """Predict the step of each plan.

    Args:
        parameters: Logarithms in the order of `NAMES`, then the speed of each kind of node except
            the first. One row for all plans, or a row for each.
        of: Features of the plans.
    """
    p = by_name(parameters)
    more = np.exp(np.clip(parameters[..., len(NAMES) :], -10.0, 10.0))
    speeds = np.concatenate([np.ones_like(parameters[..., :1]), more], -1)
    speed = speeds[of.kinds] if parameters.ndim == 1 else np.take_along_axis(speeds, of.kinds, 1)
    fixed, sample, read = compute(p, of.overhead, of.work, of.reads, of.cores, speed)
    step_seconds = fixed + (sample + read) * of.batches
    is_used = of.counts > 0
    at = np.where(is_used, step_seconds, -1.0).argmax(1)
    rows = np.arange(at.size)
    slowest = step_seconds[rows, at]
    has_servers = of.servers > 0
    left_out = np.log(of.waited_for) - np.log(of.workers - of.waited_for + 1)
    slowest_thread = np.where(is_used, np.minimum(of.cores, 1.0), 1.0).min(1)
    past_two = np.maximum(of.workers - 2, 0)
    on_cores = (of.hosts * is_used).max(1)
    terms = {
        "alpha": fixed[rows, at],
        "beta": (sample * of.batches)[rows, at],
        "reading": (read * of.batches)[rows, at],
        "contention": p["contention"] * of.crowded,
        "straggling": slowest * p["straggling"] * np.maximum(left_out, 0.0),
        "ring": p["ring"] * of.ring,
        "ring_worker": (of.ring > 0) * p["ring_worker"] * past_two,
        "ring_node": (of.ring > 0) * p["ring_node"] * np.maximum(of.nodes - 2, 0),
        "inside": p["inside"] * of.inside,
        "inside_worker": of.inside_slowness * p["inside_worker"] * past_two,
        "to_servers": p["to_servers"] * of.to_servers,
        "to_workers": p["to_workers"] * of.to_workers,
        "handling": p["handling"] * of.handled / slowest_thread,
        "collective": (of.servers == 0)
        * on_cores
        * p["collective"]
        * (of.workers - 1)
        / slowest_thread,
        "update": has_servers
        * p["update"]
        * of.applied
        * of.workers
        / np.maximum(of.servers, 1)
        / of.server_cores,
        "exchange": has_servers * p["exchange"] / slowest_thread,
        "worker": has_servers * p["worker"] * of.workers / np.minimum(of.server_cores, 1.0),
        "server": has_servers * p["server"] * of.servers / slowest_thread,
    }
    together, resources = _synchronous(p, slowest, _busy(p, step_seconds, of), terms, of)
    throughput = of.samples / together
    if (of.synchronous == 0).any():
        apart, parts = _asynchronous(p, step_seconds, terms, of)
        throughput = np.where(of.synchronous > 0, throughput, apart)
        resources = {
            name: np.where(of.synchronous > 0, resources[name], parts[name]) for name in RESOURCES
        }
    return StepEstimate(np.asarray(throughput), terms, resources)


def by_name(parameters: Floats) -> dict[str, Floats]:
    """The parameters without logarithm: numbers, or a column for the rows of `parameters`."""
    return dict(zip(NAMES, np.exp(np.clip(parameters.T, -40.0, 40.0))))


def compute(
    p: Mapping[str, Floats],
    overhead: Floats,
    work: Floats,
    reads: Floats,
    cores: Floats,
    speed: Floats | float,
) -> tuple[Floats, Floats, Floats]:
    """Seconds of a worker's compute: the fixed part, the part for each sample, and the part to read
    a sample.
    """
    # Less than a core slows the whole step. More cores speed up what grows with the batch, except
    # reading, which is one thread.
    thread_speed = np.minimum(cores, 1.0) * speed
    alpha, beta, reading, power = (
        p[name][..., None] for name in ("alpha", "beta", "reading", "cores")
    )
    return (
        alpha * overhead / thread_speed,
        beta * work / np.maximum(cores, 1.0) ** power / thread_speed,
        reading * reads / thread_speed,
    )


def _busy(p: Mapping[str, Floats], seconds_of_part: Floats, of: Features) -> Floats:
    """Seconds of work for the cores of the busiest node with workers: its tasks compute, send and
    serve one after the other. Overlap with the network does not reduce it.
    """
    exchanges = (of.servers > 0) * p["exchange"]
    sends = (p["handling"] * of.handled + p["server"] * of.servers + exchanges)[:, None] / of.cores
    serves = ((p["update"] * of.applied + p["worker"] * of.servers) * of.workers)[
        :, None
    ] * of.beside
    return np.asarray(
        np.where(of.counts > 0, of.hosts * (seconds_of_part + sends + serves), 0.0).max(1)
    )


def _synchronous(
    p: Mapping[str, Floats],
    slowest: Floats,
    busy: Floats,
    terms: Mapping[str, Floats],
    of: Features,
) -> tuple[Floats, dict[str, Floats]]:
    """Seconds of a synchronous step, in all and by resource.

    Communication hides behind compute, except for gradients that exist only after compute. On less
    than one core nothing hides: its tasks pause together, so CPU and NIC times add up.
    """
    waiting = slowest + terms["straggling"] + terms["contention"]
    around = ("ring", "ring_worker", "ring_node", "inside", "inside_worker", "collective")
    ring = sum((terms[name] for name in around), 0.0 * slowest)
    at_once = 1 + p["streaming"]
    nics = _norm(at_once, ring, terms["to_servers"], terms["to_workers"], terms["handling"])
    moving = _norm(at_once, nics, terms["update"])
    tasks = terms["exchange"] + terms["worker"] + terms["server"]
    behind = p["forward"] * waiting + np.maximum((1 - p["forward"]) * waiting, moving)
    hidden = _norm(1 + p["hiding"], waiting, moving)
    # servers on nodes with workers are part of `busy`
    apart = np.where(of.beside.max(1) > 0, 0.0, terms["update"])
    wires = _norm(at_once, ring, terms["to_servers"], terms["to_workers"], apart)
    pauses = (of.hosts * (of.counts > 0) * (of.cores < 1.0)).max(1)
    hiding = np.maximum.reduce((hidden, behind, waiting + of.late * moving)) + tasks
    together = np.maximum(hiding, busy + pauses * wires)
    parts = dict(zip(RESOURCES, (waiting, nics, terms["update"], tasks)))
    return np.asarray(together), parts


def _asynchronous(
    p: Mapping[str, Floats], work: Floats, terms: Mapping[str, Floats], of: Features
) -> tuple[Floats, dict[str, Floats]]:
    """Samples a second without synchronization, and seconds of one worker's step by resource.

    Workers take turns at the busiest server, which needs `demand` seconds for each. In between each
    worker is independent.
    """
    at_server = _norm(1 + p["streaming"], terms["to_servers"], terms["update"])
    demand = (at_server + terms["worker"]) / of.workers
    # A lone transfer streams through both NICs at once: only the worker's time beyond the server's
    # part counts.
    beyond = np.maximum(terms["to_workers"] + terms["handling"] - demand, 0.0)
    own = terms["exchange"] + terms["server"]
    alone = beyond + own + terms["contention"]
    by_itself = np.maximum(work + alone[:, None], _TINY)
    usual = of.workers / np.maximum((of.counts / by_itself).sum(1), _TINY)
    short = of.workers * demand - usual
    response = 0.5 * (short + np.sqrt(short**2 + 4 * demand * usual))
    rate = 1 / (by_itself + response[:, None])
    # With bounded staleness all workers run at the pace of the slowest in the long run.
    slowest = np.where(of.counts > 0, rate, np.inf).min(1)
    rate = np.where(of.bounded[:, None] > 0, slowest[:, None], rate)
    throughput = (of.counts * of.batches * rate).sum(1)
    busy_seconds = np.maximum(at_server + terms["worker"], _TINY)
    moved = np.minimum(terms["to_servers"] / busy_seconds, 1.0)
    applied = np.minimum(terms["update"] / busy_seconds, 1.0 - moved)
    computing = (of.counts * work).sum(1) / of.workers + terms["contention"]
    own_seconds = response * np.maximum(1 - moved - applied, 0.0) + own
    network = beyond + response * moved
    return throughput, dict(zip(RESOURCES, (computing, network, response * applied, own_seconds)))


def _norm(power: Floats, *parts: Floats) -> Floats:
    """(Σ partᵖ)^(1/p): their sum at p = 1, the longest at infinity."""
    longest = np.maximum(np.maximum.reduce(parts), _TINY)
    return np.asarray(longest * sum((part / longest) ** power for part in parts) ** (1 / power))


def slopes(parameters: Floats, of: Features, steps: Floats | float = 1e-4) -> tuple[Floats, Floats]:
    """Logarithm of the throughput, (plans,), and its derivative by each parameter, (plans,
    parameters).

    Args:
        parameters: As of `seconds`.
        of: Features of the plans.
        steps: Step of each parameter for the difference quotient.
    """
    moved = np.concatenate(
        [parameters[None, :], parameters + np.diag(np.broadcast_to(steps, parameters.shape))]
    )
    plans, at_once = len(of.workers), max(_AT_ONCE // of.counts.size, 1)
    logs = []
    for first in range(0, len(moved), at_once):
        some = moved[first : first + at_once]
        throughput = seconds(np.repeat(some, plans, 0), repeated(of, len(some))).throughput
        logs.append(np.log(throughput).reshape(len(some), plans))
    base, *gradients = np.concatenate(logs)
    return base, ((np.stack(gradients) - base).T) / steps
