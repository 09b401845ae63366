"""A step of a job, replayed with faster parts.

A step is a graph of spans. The loader's processes read beside it. The training process waits for
the batch, then computes on cores and on a GPU. It exchanges the gradients that are ready while it
still computes:

    reading --> compute, before the first gradient --> compute that hides the exchange --> what is
    left of the exchange
                                                  \\-> network --> servers --> network /

Each part takes the seconds that were measured, divided by how much faster its resource is. A step
takes its longest path, and never less than what runs beside it: the loader, the disk, and all its
CPU time on the cores that it may have. So a second bottleneck behind the first is seen. This is
blocked-time analysis (Ousterhout et al., NSDI 2015), with the step as a graph as in Daydream (ATC
2020) and dPRO (MLSys 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headgate.recorded.usage import Array

_HALVINGS = 40
_CALM = 0.03
"""Part of the threads that wait for a core, up to which the cores held nothing back."""
_LAST_CHUNK = 0.05
"""Part of an exchange that cannot begin before backward is done: its last bucket of gradients."""
_TINY = 1e-9


class Faster(NamedTuple):
    """How many times faster each resource is; infinity means without limit."""

    cores: float = 1.0
    network: float = 1.0
    disk: float = 1.0
    loader: float = 1.0
    servers: float = 1.0
    gpu: float = 1.0


@dataclass(frozen=True, slots=True)
class CoresUsed:
    """How a task used cores, on average while it went through steps.

    Args:
        ran: Cores in use.
        waited: Threads that were ready and had no core.
        threads: The most threads that it has ready at once.
        ready: Part of the time in which some thread ran or waited, 0 to 1.
        capped: Whether its own cap made threads wait.
        grows: Whether it has more threads with more cores.
    """

    ran: float
    waited: float
    threads: float
    ready: float = 1.0
    capped: bool = False
    grows: bool = False

    @property
    def calm(self) -> bool:
        """Whether its threads hardly waited."""
        return self.waited <= _CALM * (self.ran + self.waited)

    def speed(self, times: float) -> float:
        """How many times faster it computes on so many times the cores. One thread does a part of
        its work, and all threads at once do the rest (Amdahl 1967). Both follow from the mean
        number of ready threads.
        """
        if self.ready <= 0.0 or self.ran <= 0.0:
            return 1.0
        one, many, cores = self._work()
        threads = self.threads * times if self.grows else self.threads

        def seconds(threads: float, cores: float) -> float:
            if self.capped:  # a cap lets short bursts pass, and then holds all threads
                return max(one + many / threads, (one + many) / cores)
            return one / min(1.0, cores) + many / min(threads, cores)

        now, then = seconds(self.threads, cores), seconds(max(threads, 1.0), cores * times)
        return max(now / then, 1.0) if then > 0.0 else math.inf

    def _work(self) -> tuple[float, float, float]:
        """CPU seconds a second of its serial and of its parallel work, and the cores that it had
        for them.
        """
        ran, wanted = self.ran / self.ready, (self.ran + self.waited) / self.ready
        threads = max(self.threads, wanted, 1.0)
        if self.capped:
            wide = (
                _root(lambda part: _held(part, ran, threads) - (wanted - ran))
                if threads > 1.0
                else 0.0
            )
            free = 1.0 + wide * (threads - 1.0)
            runs = min(ran / free, 1.0)
            return runs * (1.0 - wide), runs * wide * threads, ran
        wide = min(max((wanted - 1.0) / (threads - 1.0), 0.0), 1.0) if threads > 1.0 else 0.0
        if self.calm:
            return 1.0 - wide, wide * threads, threads
        part = _root(lambda x: (1.0 - wide) * min(1.0, x * threads) + wide * x * threads - ran)
        cores = max(part * threads, _TINY)
        return (1.0 - wide) * min(1.0, cores), wide * min(threads, cores), cores


def _held(part: float, ran: float, threads: float) -> float:
    """Threads that a cap holds on average, if all threads work in this part of the free time. A
    burst of more threads uses the cap up sooner.
    """
    free = 1.0 + part * (threads - 1.0)
    return max(1.0 - ran / free, 0.0) * (1.0 + part * (threads**2 - 1.0)) / free


def _root(rising: Callable[[float], float]) -> float:
    """Where in [0, 1] a rising function passes 0; an end of the interval if it does not."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The seconds of one step along its slowest worker.

    Args:
        reading: The training process itself read.
        blocked: The part of `reading` that was blocked on a disk.
        waiting: It waited for the loader's processes.
        compute: It computed on cores.
        gpu: It computed on a GPU.
        hidden: It computed on cores meanwhile.
        exposed: It only waited for other tasks.
        exchange: From the first byte of the exchange to the last. Computing hides a part of it.
        server_nic: The part of the exchange in which the NIC of the busiest node with servers was
            full.
        worker_nic: The same of a node with workers.
        serving: The part of the exchange in which servers computed.
        server_cores: What the busiest server does for a step, if it has all its cores for that.
        weight: How many steps it stands for.
    """

    reading: float = 0.0
    blocked: float = 0.0
    waiting: float = 0.0
    compute: float = 0.0
    gpu: float = 0.0
    hidden: float = 0.0
    exposed: float = 0.0
    exchange: float = 0.0
    server_nic: float = 0.0
    worker_nic: float = 0.0
    serving: float = 0.0
    server_cores: float = 0.0
    weight: float = 1.0

    @property
    def seconds(self) -> float:
        return self.reading + self.waiting + self.compute + self.gpu + self.exposed

    def replayed(self, faster: Faster, cores: float) -> float:
        """Replayed seconds of a step, without reading and without waiting for the loader's
        processes.

        Args:
            cores: How many times faster the work on cores becomes.
        """
        compute = self.compute / cores + max(self.gpu / faster.gpu, self.hidden / cores)
        return compute + self._left(faster, cores, compute)

    def _left(self, faster: Faster, cores: float, compute: float) -> float:
        """Seconds of the exchange that computing does not hide."""
        computed = self.compute + self.gpu
        exchange = max(self.exchange, self.exposed)
        hidden = min(exchange - self.exposed, computed)
        hides = hidden * compute / computed if computed > 0.0 else 0.0
        nic = max(self.server_nic, self.worker_nic)
        full = max(nic, self.server_cores)  # a server computes, copies and sends at the same time
        passing = min(full, exchange)
        serving = min(
            self.serving if full == nic else max(self.serving - full, 0.0), exchange - passing
        )
        idle = exchange - passing - serving
        for_gradients = min(idle, hidden)  # nothing was there to be sent yet
        rest = (idle - for_gradients) / cores
        sent = max(self.server_nic / faster.servers, self.worker_nic) / faster.network
        sent = (
            passing
            / max(full, _TINY)
            * max(sent, self.server_cores / faster.servers / faster.cores)
        )
        served = serving / faster.servers / cores
        late = _LAST_CHUNK * (sent + served)
        gradients = for_gradients * hides / hidden if hidden > 0.0 else 0.0
        return max(sent + served + rest + gradients - hides, min(late, self.exposed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What runs beside the steps of a job.

    Args:
        cores: How its slowest task used cores.
        most_cores: The most cores that it may have: those of the node that neighbours leave, or its
            cap. Infinite if not known.
        readers: Processes that read its input beside it. 0 if the training process reads; None if
            not known.
        loading: Seconds that all readers together take for the input of a step; None if the step
            does not wait for them.
        loading_blocked: Part of the time in which the readers are blocked on a disk, 0 to 1.
        reading_computes: Part of the rest of the reading time in which it needs a core, 0 to 1.
    """

    cores: CoresUsed
    most_cores: float = math.inf
    readers: int | None = 0
    loading: float | None = None
    loading_blocked: float = 0.0
    reading_computes: float = 1.0


def step_seconds(paths: Sequence[Path], beside: Surroundings, faster: Faster) -> Array:
    """Seconds of each step, replayed."""
    cores = beside.cores.speed(faster.cores)
    own = np.array([path.replayed(faster, cores) for path in paths])
    now = mean(paths, [path.seconds for path in paths])

    def read(seconds: float, blocked: float) -> float:
        free = seconds - blocked
        computes = free * beside.reading_computes
        return blocked / faster.disk + computes / cores + free - computes

    least = 0.0
    if beside.loading is not None:
        least = read(beside.loading, beside.loading_blocked * beside.loading) / faster.loader
    else:
        reading = np.array([read(path.reading, path.blocked) for path in paths])
        if beside.readers == 0 and faster.loader > 1.0:
            # The first process beside the training one reads as fast as that one did.
            least = mean(paths, reading) / (faster.loader - 1.0)
        else:
            own = own + reading
        own = own + np.array([path.waiting for path in paths])
    busy = beside.cores.ran * now / (beside.most_cores * faster.cores)
    # The mean step cannot be shorter than what runs beside it; each step is longer by the same.
    return own + max(max(least, min(busy, now)) - mean(paths, own), 0.0)


def mean(paths: Sequence[Path], values: Sequence[float] | Array) -> float:
    """The mean of a value of the paths, over all steps that the paths stand for."""
    return float(np.average(values, weights=[path.weight for path in paths]))
