"""The steps of a job that are replayed with more of a resource, and what they had to wait for."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from headgate.diagnosis.attribution import Resource
from headgate.diagnosis.replay import CoresUsed, Path, Surroundings, mean
from headgate.recorded.jobs import RecordedJob, RecordedNode, RecordedTask, running
from headgate.recorded.sampled import StepTransfer, TracedStep
from headgate.recorded.steps import EXPOSED
from headgate.recorded.usage import EMPTY, Array, Signal

NOISE, OF_GAIN = 0.12, 0.25
"""Least half width of a 90 % band (the difference of two runs of a job on a virtual machine), and
its additional fraction of the gain; benchmarks/more_really.py checks both.
"""
TINY = 1e-9


RESOURCES: tuple[Resource, ...] = ("cores", "network", "disk", "loader", "servers", "gpu")
"""Resources whose gain a replay can predict."""
_WIRE = 1.04
"""Bytes on the wire relative to bytes of messages."""
_THROTTLED_CORES = 0.01
_WAITS = 0.05
"""A smaller fraction of a step is not waiting for the loader: handing over a batch takes as
long.
"""
_BUSY_READERS, _ONE = 0.6, (0.75, 1.15)
"""Busy fraction below which loader processes wait; and their total cores if they take turns, as for
a lock. More processes would hide the latency of a remote server, but not share a lock better.
"""
_FULL = 0.8
"""Fraction of a disk's rate from which on reading waits for the disk."""
_READS = 1e6
"""Bytes a second below which a job hardly reads."""
_PAUSE = 20.0
"""A report late by this many mean steps means that the job did something else; batches come in
small bursts.
"""


Counts = npt.NDArray[np.int64]


class NoFigure(StrEnum):
    """Why there is no figure for more of a resource."""

    FEW_STEPS = "few-steps"
    REPLAY_OFF = "replay-off"
    ENDED_EARLY = "ended-early"
    NO_CORE_WAITS = "no-core-waits"
    ONE_THREAD = "one-thread"
    NO_DISK_WAITS = "no-disk-waits"
    NO_SPANS = "no-spans"
    NOT_SAMPLED = "not-sampled"
    NO_NIC_RATE = "no-nic-rate"
    READERS_NOT_KNOWN = "readers-not-known"
    READERS_TAKE_TURNS = "readers-take-turns"


@dataclass(frozen=True, slots=True)
class StepsToReplay:
    """Steps to replay.

    Args:
        rows: For each path, the number of its series of consecutive steps.
    """

    paths: Sequence[Path]
    rows: Counts
    beside: Surroundings
    error: float | None
    lacks: Mapping[Resource, NoFigure]


def stretch_of_steps(job: RecordedJob) -> tuple[float, float] | None:
    """First and last report of steps in its last attempt; None: fewer than two steps."""
    ran, progress = running(job.phases), job.progress
    if not ran or not job.tasks:
        return None
    kept = np.isfinite(progress.step) & (progress.t >= ran[-1][0]) & (progress.t <= ran[-1][1])
    times, steps = progress.t[kept], progress.step[kept]
    if not len(times) or steps.max() <= steps[0] or times[-1] <= times[0]:
        return None
    return float(times[0]), float(times[-1])


class ReplayedJob:
    """A job during its steps.

    Args:
        stretch: Begin and end, seconds of the run.
    """

    def __init__(
        self, job: RecordedJob, nodes: Mapping[str, RecordedNode], stretch: tuple[float, float]
    ) -> None:
        self._job = job
        self._nodes = nodes
        self._stretch = stretch
        began = running(job.phases)[-1][0]
        self._traced = [step for step in job.traced if step.told.t >= began]
        workers = [task for task in job.tasks if task.is_worker] or list(job.tasks)
        self._worker = max(workers, key=lambda task: self._mean(task.signal("cpu_waiting")) or 0.0)

    def steps(self) -> StepsToReplay:
        """The steps to replay."""
        return (
            self._sampled()
            if any(step.told.task.name.is_worker for step in self._traced)
            else self._unsampled()
        )

    def _mean(self, signal: Signal) -> float | None:
        return signal.within(*self._stretch).mean

    # --- known of every job
    # -------------------------------------------------------------------------

    def _may_have(self, task: RecordedTask, entitled: float = 0.0) -> float:
        """Cores that other tasks on its node leave to a task, at most its cap; infinite:
        unknown.
        """
        node, cap, ran = (
            self._nodes.get(task.node),
            self._mean(task.cap),
            self._mean(task.signal("cpu_cores")),
        )
        most = math.inf if node is None or node.cores is None else node.cores
        if ran is not None and node is not None:
            left = most - max((self._mean(node.signal("cpu_cores")) or 0.0) - ran, 0.0)
            most = min(max(left, entitled, ran), most)
        return min(most, cap) if cap is not None else most

    def _served(self) -> float:
        """Fraction of time that the busiest server's work takes on all its cores."""
        servers = [task for task in self._job.tasks if task.is_server]
        used = [(self._mean(task.signal("cpu_cores")), self._may_have(task)) for task in servers]
        return max((min(ran / cores, 1.0) for ran, cores in used if ran), default=0.0)

    def _cores(self, readers: int) -> tuple[CoresUsed | None, float, NoFigure | None]:
        """Core use of its worker, the most cores available, and why the use is unknown, if so."""
        task = self._worker
        ran, waited = self._mean(task.signal("cpu_cores")), self._mean(task.signal("cpu_waiting"))
        most = self._may_have(
            task, (None if self._job.distributed else self._mean(self._job.entitled)) or 0.0
        )
        # rates need a second reading
        if waited is None and len(task.signal("memory_bytes")) == 1:
            return None, most, NoFigure.ENDED_EARLY
        if ran is None or waited is None:
            return None, most, NoFigure.NO_CORE_WAITS
        granted = self._mean(task.threads)
        grows = granted is not None and "OMP_NUM_THREADS" not in self._job.spec.env
        throttled = (self._mean(task.signal("cpu_throttled")) or 0.0) > _THROTTLED_CORES
        ready = min(ran + waited, 1.0)
        threads = max((granted or 1.0) + readers, (ran + waited) / ready if ready > 0.0 else 1.0)
        used = CoresUsed(
            ran, waited, threads, ready, throttled and self._mean(task.cap) is not None, grows
        )
        # what neighbours leave would be within the noise
        hardly = waited <= NOISE * (ran + waited)
        if hardly and grows and round(granted or 0.0) == 1 and ran > 0.8:
            return used, most, NoFigure.ONE_THREAD
        return used, most, None

    def _blocked(self) -> tuple[float | None, NoFigure | None]:
        """Fraction of time in which it was blocked on a disk; if unknown, why."""
        task = self._worker
        read = task.signal("disk_read")
        node = self._nodes.get(task.node)
        rate = node.disk_bytes_per_second if node is not None else None
        full = replace(read, value=(read.value >= _FULL * rate).astype(float)) if rate else EMPTY
        waits = [
            self._mean(signal)
            for signal in (full, task.signal("psi_io"), task.signal("disk_waiting"))
        ]
        if known := [min(signal, 1.0) for signal in waits if signal is not None]:
            return max(known), None
        if (self._mean(read) or 0.0) < _READS:
            return 0.0, None
        return None, NoFigure.NO_DISK_WAITS

    # --- scripts without spans --------------------------------------------------------------------

    def _unsampled(self) -> StepsToReplay:
        """Steps of a script without spans: one second of its training stands for a step."""
        lacks: dict[Resource, NoFigure] = {"loader": NoFigure.NO_SPANS}
        cores, most, why = self._cores(0)
        if why is not None:
            lacks["cores"] = why
        blocked, why = self._blocked()
        if why is not None:
            lacks["disk"] = why
        if self._job.distributed:
            lacks |= dict.fromkeys(RESOURCES, NoFigure.NOT_SAMPLED)
        cores = cores or CoresUsed(1.0, 0.0, 1.0)
        gpu = self._mean(self._job.signal("gpu_busy")) or 0.0
        on_disk = min(blocked or 0.0, 1.0 - gpu)
        compute = min(max(cores.ready - gpu, 0.0), 1.0 - gpu - on_disk)
        idle = max(1.0 - gpu - on_disk - compute, 0.0)
        path = Path(reading=on_disk, blocked=on_disk, compute=compute, gpu=gpu, waiting=idle)
        return StepsToReplay(
            [path],
            np.zeros(1, dtype=int),
            Surroundings(cores=cores, most_cores=most, readers=None),
            None,
            lacks,
        )

    # --- sampled steps ----------------------------------------------------------------------------

    def _sampled(self) -> StepsToReplay:
        """The sampled steps of its workers, and their parallel parts."""
        lacks: dict[Resource, NoFigure] = {}
        counts = [step.loader_workers for step in self._traced if step.told.task.name.is_worker]
        readers = counts[-1] if counts else None
        cores, most, why = self._cores(readers or 0)
        if why is not None:
            lacks["cores"] = why
        blocked, why = self._blocked()
        if why is not None:
            lacks["disk"] = why
        gpu = self._mean(self._job.signal("gpu_busy")) or 0.0
        slowest = self._slowest()
        rows, (apart, measured) = _rows(slowest), self._measured()
        exchange = _Exchange(self._job, self._traced, self._nodes, self._served() * measured)
        if self._job.distributed and not exchange.rates_known and len(self._job.nodes) > 1:
            lacks["network"] = NoFigure.NO_NIC_RATE
        paths = [
            replace(
                _path(step, gpu * apart, readers == 0, blocked or 0.0, exchange),
                weight=float(weight),
            )
            for step, weight in zip(slowest, _stand_for(slowest, rows, readers or 1), strict=True)
        ]
        if gpu > 0.0:
            paths = _overlapped(paths, measured)
        now, waits = (
            mean(paths, [path.seconds for path in paths]),
            mean(paths, [path.waiting for path in paths]),
        )
        waited = waits > _WAITS * now
        computes = _computes(cores, paths, now, readers or 0, waited) if cores is not None else 1.0
        if readers is None and waited:
            lacks["loader"] = NoFigure.READERS_NOT_KNOWN
        elif (
            waited
            and readers
            and computes < _BUSY_READERS
            and _ONE[0] <= computes * readers <= _ONE[1]
        ):
            lacks["loader"] = NoFigure.READERS_TAKE_TURNS
        beside = Surroundings(
            cores=cores or CoresUsed(1.0, 0.0, 1.0),
            most_cores=most,
            readers=readers,
            loading=now if waited and readers else None,
            loading_blocked=blocked or 0.0,
            reading_computes=computes,
        )
        return StepsToReplay(paths, rows, beside, now / measured - 1.0, lacks)

    def _slowest(self) -> list[TracedStep]:
        """The slowest worker of each step: it waited least, and the others waited for it."""
        steps: dict[object, list[TracedStep]] = defaultdict(list)
        synchronous = self._job.synchronous
        for step in self._traced:
            if step.told.task.name.is_worker:
                steps[step.told.step if synchronous else step.told].append(step)
        slowest = [min(workers, key=_exposed) for workers in steps.values()]
        return sorted(slowest, key=lambda step: step.told)

    def _measured(self) -> tuple[float, float]:
        """Mean seconds from step to step, from its reports, without pauses for evaluations and
        checkpoints; and the part of the step itself. The rest is waiting for its turn on a GPU.
        """
        progress, (start, end) = self._job.progress, self._stretch
        kept = np.isfinite(progress.step) & (progress.t >= start) & (progress.t <= end)
        reached, first = np.unique(np.maximum.accumulate(progress.step[kept]), return_index=True)
        steps, seconds = np.diff(reached), np.diff(progress.t[kept][first])
        usual = seconds <= (steps + _PAUSE) * seconds.sum() / steps.sum()
        apart = float(seconds[usual].sum())
        waited = min(self._job.asides.get("turns", 0.0), apart * (1.0 - TINY))
        return apart / steps[usual].sum(), (apart - waited) / steps[usual].sum()


def _computes(
    cores: CoresUsed, paths: Sequence[Path], now: float, readers: int, waited: bool
) -> float:
    """Fraction of its reading that uses or waits for a core: the demand of its threads beyond
    computing.
    """
    wanted = (cores.ran + cores.waited) * now - mean(paths, [path.compute for path in paths])
    reading = readers * now if waited else mean(paths, [path.reading for path in paths])
    return min(max(wanted / reading, 0.0), 1.0) if reading > 0.0 else 1.0


def _rows(steps: Sequence[TracedStep]) -> Counts:
    """For each step, the number of its series of consecutive steps."""
    numbers = np.array([step.told.step for step in steps])
    return np.concatenate([[0], np.cumsum(np.diff(numbers) != 1)]).astype(np.int64)


def _stand_for(steps: Sequence[TracedStep], rows: Counts, readers: int) -> Array:
    """How many steps each sampled one stands for: an equal part of those nearest to its series.

    The first steps are sampled more densely. Batches come in bursts of one from each reading
    process. Each position in a burst counts equally if all were sampled.
    """
    numbers = np.array([step.told.step for step in steps])
    first, count = np.unique(rows, return_index=True, return_counts=True)[1:]
    weights = np.ones(len(numbers))
    if len(first) > 1:
        begin, end = numbers[first], numbers[first + count - 1]
        between = np.maximum(begin[1:] - end[:-1], 0.0) / 2
        covered = end - begin + np.append(between, between[-1]) + np.append(between[0], between)
        weights = np.asarray((covered / count)[rows])
    places = numbers % readers
    sampled = np.bincount(places, weights, readers)
    return weights / sampled[places] if sampled.all() else weights


def _exposed(step: TracedStep) -> float:
    return sum(step.seconds.get(name, 0.0) for name in EXPOSED)


def _overlapped(paths: Sequence[Path], measured: float) -> list[Path]:
    """Paths of steps on a GPU, corrected for sampling. A sampled step waits for its kernels to time
    its spans. In other steps the host runs ahead, and its work is hidden as far as those steps were
    shorter.

    Args:
        measured: Mean seconds of a step.
    """
    seconds = [path.seconds for path in paths]
    host = mean(paths, [path.compute for path in paths])
    longer = mean(paths, seconds) - measured
    kept = 1.0 - min(max(longer / host, 0.0), 1.0) if host > 0.0 else 1.0
    return [
        replace(
            path, compute=path.compute * kept, hidden=min(path.compute * (1.0 - kept), path.gpu)
        )
        for path in paths
    ]


def _path(
    step: TracedStep, gpu_seconds: float, reads: bool, blocked: float, exchange: _Exchange
) -> Path:
    step_seconds, waits, exposed = (
        sum(step.seconds.values()),
        step.seconds.get("input", 0.0),
        _exposed(step),
    )
    own = max(step_seconds - waits - exposed, 0.0)
    on_gpu = min(gpu_seconds, own)
    path = Path(
        reading=waits if reads else 0.0,
        blocked=min(blocked * step_seconds, waits) if reads else 0.0,
        waiting=0.0 if reads else waits,
        compute=own - on_gpu,
        gpu=on_gpu,
        exposed=exposed,
    )
    return exchange.of(step, path)


class _Exchange:
    """Load of a job's NICs while its tasks exchanged gradients, and of its servers.

    Args:
        server_cores: Seconds of a step that the busiest server works on all its cores.
    """

    def __init__(
        self,
        job: RecordedJob,
        traced: Sequence[TracedStep],
        nodes: Mapping[str, RecordedNode],
        server_cores: float,
    ) -> None:
        self._server_cores = server_cores
        self._tasks: Mapping[str, RecordedTask] = {task.name: task for task in job.tasks}
        self._rates = {
            name: nodes[name].nic_bytes_per_second for name in job.nodes if name in nodes
        }
        self._with_servers = {task.node for task in job.tasks if task.is_server}
        self.rates_known = bool(self._rates) and all(self._rates.values())
        self._rounds: dict[int, float] = {}
        for step in traced:
            if not step.told.task.name.is_worker:
                busy = sum(step.seconds.get(name, 0.0) for name in ("update", "send"))
                self._rounds[step.told.step] = max(busy, self._rounds.get(step.told.step, 0.0))
        self._usual = float(np.median(list(self._rounds.values()))) if self._rounds else 0.0
        self._moved: dict[int, dict[tuple[str, str], float]] = defaultdict(
            lambda: defaultdict(float)
        )
        for step in traced:
            if step.told.task.name.is_worker:
                for node, way, size in self._passages(step):
                    self._moved[step.told.step][node, way] += size

    def _passages(self, step: TracedStep) -> Iterator[tuple[str, str, float]]:
        """A worker's traffic in a step: node, push or pull, and bytes."""
        node = self._tasks[step.told.task.name].node
        for transfer in step.transfers:
            peer = self._tasks.get(transfer.peer)
            if peer is not None and peer.node != node:
                yield node, transfer.way, transfer.bytes
                if not peer.is_worker:  # a worker reports its own
                    yield peer.node, transfer.way, transfer.bytes

    def of(self, step: TracedStep, path: Path) -> Path:
        """The path with the part of its exchange for each resource."""
        if not step.transfers:
            return path
        begin, end = (
            min(transfer.begin for transfer in step.transfers),
            max(transfer.end for transfer in step.transfers),
        )
        full = {node: self._full(node, step) for node in self._rates}
        with_servers = max((full[node] for node in full if node in self._with_servers), default=0.0)
        others = max((full[node] for node in full if node not in self._with_servers), default=0.0)
        serving = self._rounds.get(step.told.step, self._usual)
        nics = {"server_nic": with_servers, "worker_nic": others}
        return replace(
            path,
            exchange=max(end - begin, 0.0),
            serving=serving,
            server_cores=self._server_cores,
            **nics,
        )

    def _full(self, node: str, step: TracedStep) -> float:
        """Seconds of a step in which a node's NIC was full. Gradients and sums may pass at the same
        time.
        """
        rate, moved = self._rates[node], self._moved[step.told.step]
        if not rate:
            return 0.0
        windows = {
            way: _window([transfer for transfer in step.transfers if transfer.way == way])
            for way in ("push", "pull")
        }
        busy = {way: moved[node, way] * _WIRE / rate for way in windows}
        (from_push, to_push), (from_pull, to_pull) = windows["push"], windows["pull"]
        both = max(min(to_push, to_pull) - max(from_push, from_pull), 0.0)
        part = min(busy[way] / (to - at) if to > at else 0.0 for way, (at, to) in windows.items())
        return max(busy["push"] + busy["pull"] - both * min(part, 1.0), 0.0)


def _window(transfers: Sequence[StepTransfer]) -> tuple[float, float]:
    if not transfers:
        return 0.0, 0.0
    return min(transfer.begin for transfer in transfers), max(
        transfer.end for transfer in transfers
    )
