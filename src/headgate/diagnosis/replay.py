"""Replay a step of a job with faster parts.

A step is a graph of spans. The loader's processes read in parallel. The training process waits for
the batch, then computes on cores and on a GPU. It exchanges finished gradients while it still
computes:

    reading → first compute → compute that hides the exchange → rest of the exchange
                           ↘ network → servers → network ↗

Each part takes its measured seconds divided by the speedup of its resource. A step takes its
longest path, and never less than its parallel parts: the loader, the disk, and all its CPU time on
the available cores. So a second bottleneck behind the first shows too. This is blocked-time
analysis (Ousterhout et al., NSDI 2015), with the step as a graph as in Daydream (ATC 2020) and dPRO
(MLSys 2022).
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
"""Fraction of threads waiting for a core up to which the cores held nothing back."""
_LAST_CHUNK = 0.05
"""Fraction of an exchange that cannot begin before backward ends: its last bucket of gradients."""
_TINY = 1e-9


class Faster(NamedTuple):
    """Speedup of each resource; infinity means without limit."""

    cores: float = 1.0
    network: float = 1.0
    disk: float = 1.0
    loader: float = 1.0
    servers: float = 1.0
    gpu: float = 1.0


@dataclass(frozen=True, slots=True)
class CoresUsed:
    """Mean use of cores by a task during its steps.

    Args:
        ran: Cores in use.
        waited: Threads that were ready and had no core.
        threads: The most threads ready at once.
        ready: Fraction of time in which some thread ran or waited, 0 to 1.
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
        """Speedup of its compute on `times` times the cores. One thread does a part of the work and
        all threads together do the rest (Amdahl 1967). Both follow from the mean number of ready
        threads.
        """
        if self.ready <= 0.0 or self.ran <= 0.0:
            return 1.0
        serial, parallel, cores = self._work()
        threads = self.threads * times if self.grows else self.threads

        def seconds(threads: float, cores: float) -> float:
            if self.capped:  # a cap lets short bursts pass, and then stops all threads
                return max(serial + parallel / threads, (serial + parallel) / cores)
            return serial / min(1.0, cores) + parallel / min(threads, cores)

        now = seconds(max(self.threads, 1.0), cores)
        then = seconds(max(threads, 1.0), cores * times)
        return max(now / then, 1.0) if then > 0.0 else math.inf

    def _work(self) -> tuple[float, float, float]:
        """CPU seconds a second of its serial and parallel work, and the cores it had for these."""
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
    """Mean number of threads stopped by a cap if all threads work in this fraction of the free
    time. A burst of more threads uses the cap up sooner.
    """
    free = 1.0 + part * (threads - 1.0)
    return max(1.0 - ran / free, 0.0) * (1.0 + part * (threads**2 - 1.0)) / free


def _root(rising: Callable[[float], float]) -> float:
    """Where in [0, 1] a rising function crosses 0; the nearest end if it does not."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The seconds of one step along its slowest worker.

    Args:
        reading: Reading by the training process itself.
        blocked: The part of `reading` blocked on a disk.
        waiting: Waiting for the loader's processes.
        compute: Computing on cores.
        gpu: Computing on a GPU.
        hidden: Computing on cores at the same time.
        exposed: Only waiting for other tasks.
        exchange: From the first byte of the exchange to the last; compute hides a part.
        server_nic: The part of the exchange with a full NIC at the busiest server node.
        worker_nic: The same at a worker node.
        serving: The part of the exchange in which servers computed.
        server_cores: The busiest server's work for a step if it has all its cores.
        weight: Number of steps that it stands for.
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
        """Replayed seconds of a step, without reading and waiting for the loader.

        Args:
            cores: Speedup of the work on cores.
        """
        compute = self.compute / cores + max(self.gpu / faster.gpu, self.hidden / cores)
        return compute + self._left(faster, cores, compute)

    def _left(self, faster: Faster, cores: float, compute: float) -> float:
        """Seconds of the exchange not hidden by compute."""
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
        for_gradients = min(idle, hidden)  # no gradient was ready to send
        compute_left = (idle - for_gradients) / cores
        sent = max(self.server_nic / faster.servers, self.worker_nic) / faster.network
        sent = (
            passing
            / max(full, _TINY)
            * max(sent, self.server_cores / faster.servers / faster.cores)
        )
        served = serving / faster.servers / cores
        late = _LAST_CHUNK * (sent + served)
        gradients = for_gradients * hides / hidden if hidden > 0.0 else 0.0
        return max(sent + served + compute_left + gradients - hides, min(late, self.exposed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What runs in parallel with the steps of a job.

    Args:
        cores: Core use of its slowest task.
        most_cores: Most cores available to it: those that neighbours leave, or its cap; infinite:
            unknown.
        readers: Processes that read its input; 0: the training process reads; None: unknown.
        loading: Seconds of all readers together for the input of a step; None: the step does not
            wait for them.
        loading_blocked: Fraction of time in which the readers are blocked on a disk, 0 to 1.
        reading_computes: Fraction of the remaining reading time that needs a core, 0 to 1.
    """

    cores: CoresUsed
    most_cores: float = math.inf
    readers: int | None = 0
    loading: float | None = None
    loading_blocked: float = 0.0
    reading_computes: float = 1.0


def step_seconds(paths: Sequence[Path], beside: Surroundings, faster: Faster) -> Array:
    """Replayed seconds of each step."""
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
            # The first loader process reads as fast as the training process did.
            least = mean(paths, reading) / (faster.loader - 1.0)
        else:
            own = own + reading
        own = own + np.array([path.waiting for path in paths])
    # A job that uses no core may have none left by others.
    busy = beside.cores.ran * now / (max(beside.most_cores, _TINY) * faster.cores)
    # The mean step cannot be shorter than its parallel parts; all steps are extended equally.
    return own + max(max(least, min(busy, now)) - mean(paths, own), 0.0)


def mean(paths: Sequence[Path], values: Sequence[float] | Array) -> float:
    """The mean of a value of the paths over all steps that they stand for."""
    return float(np.average(values, weights=[path.weight for path in paths]))
