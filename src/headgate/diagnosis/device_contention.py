"""Losses of a job through resources other than cores: disk, NIC, GPU, and its own memory limit.

Each part is taken from the time not lost through cores (`headgate.diagnosis.contention`). First
comes the time blocked on a disk, then waiting for communication, then the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headgate.diagnosis.attribution import (
    ITSELF,
    NODE,
    OTHERS,
    Evidence,
    LostTime,
    Resource,
    within,
)
from headgate.diagnosis.blocked import Blocked, OnDisk, blocked_on_disk
from headgate.diagnosis.exposed_communication import (
    NicTraffic,
    OnNic,
    exchanges,
    exposed_to_nics,
    spread,
)
from headgate.diagnosis.gpu_contention import (
    OnGpu,
    lasting,
    lost_by_turns,
    lost_on_gpu,
    unknown_on_gpu,
)
from headgate.model.identifiers import TaskOfRun
from headgate.recorded.jobs import Neighbour, RecordedJob, RecordedNode, RecordedTask
from headgate.recorded.usage import Array, around, ratio
from headgate.sampling.columns import Column

_WAYS: tuple[Column, Column] = ("tcp_in", "tcp_out")
_ERROR = 0.3
"""Relative error, to one side of a 90 % band."""
_STRANGE = 0.2
"""Fraction of a NIC's rate: less unattributed traffic may be headers and retransmissions."""
_LEAST_BUCKETS = 3
_LOOK_SECONDS = 5.0
"""Jobs of other users are looked at so often."""
_GONE = 0.1
"""Fraction of the unattributed traffic: if at most this is left without a job, the traffic belongs
to the job.
"""
_OTHERS_USE = 0.1
"""Fraction of a GPU: less unattributed use may be rounding by NVML."""


@dataclass(frozen=True, slots=True, eq=False)
class Outside:
    """Fractions of each bucket that a job lost, 0 to 1: arrays over the grid.

    Args:
        by: Lost to each neighbour, by resource and name.
        by_memory: Blocked by its own memory limit.
        reread: The kernel's CPU time for reads that this limit caused, within its own work.
        by_disk: Blocked on the disk without a culprit.
        unsure: The part of `by_disk` in which neighbours moved more than it did, at unknown cost.
        by_nic: Waited for communication as long as its own bytes need at the NIC's rate.
        idle: The part of all these except `by_nic` in which neither its cores nor its GPU were
            busy.
        evidence: Evidence of losses by resource, if not counted by the kernel.
        disk_mover: The neighbour that moved most on its disk while it made steps.
        gpu_user: The neighbour that used its full GPU most, at unknown cost.
        may_have_lost: Seconds that it may have lost there, if unknown.
        on_gpu: The neighbours that used its GPU.
    """

    by: Mapping[tuple[Resource, str], Array]
    by_memory: Array
    reread: Array
    by_disk: Array
    unsure: Array
    by_nic: Array
    idle: Array
    evidence: Mapping[Resource, Evidence] = field(default_factory=dict)
    disk_mover: str = ""
    gpu_user: str = ""
    may_have_lost: float = 0.0
    on_gpu: Collection[str] = ()

    @property
    def lost(self) -> Array:
        """Lost to neighbours and to its own memory limit."""
        return sum(self.by.values(), self.by_memory)

    def through(self, resource: Resource) -> Array:
        """Lost to all neighbours through one resource."""
        return sum(
            (part for (through, _), part in self.by.items() if through == resource),
            np.zeros_like(self.idle),
        )

    def losses(self, inside: Array, elapsed: float) -> list[LostTime]:
        """Losses to neighbours.

        Args:
            inside: Seconds of each bucket within its start and its steps.
        """
        return [
            LostTime(
                to,
                through,
                within(_total(part, inside), _ERROR, elapsed),
                self.evidence.get(through, "counted"),
            )
            for (through, to), part in self.by.items()
        ]

    def of_its_own(
        self, inside: Array, stepping: Array, reread: float, elapsed: float
    ) -> list[LostTime]:
        """Losses to its own memory limit, to the disk and to its NIC.

        Args:
            reread: Seconds that it waited for the kernel to read dropped pages again.
        """
        parts: Sequence[tuple[str, Resource, float]] = (
            (ITSELF, "memory", _total(self.by_memory, inside) + reread),
            (NODE, "disk", _total(self.by_disk, stepping)),
            (NODE, "network", _total(self.by_nic, stepping)),
        )
        return [
            LostTime(to, resource, within(seconds, _ERROR, elapsed), "counted")
            for to, resource, seconds in parts
        ]


def _total(part: Array, seconds: Array) -> float:
    return float(np.sum(part * seconds))


class Devices:
    """Activity of a run's tasks on disks, NICs and GPUs, bucket by bucket.

    Args:
        edges: Evenly spaced edges of the buckets.
    """

    def __init__(
        self, jobs: Sequence[RecordedJob], nodes: Mapping[str, RecordedNode], edges: Array
    ) -> None:
        self._jobs = jobs
        self._nodes = nodes
        self._edges = edges
        self._known: dict[tuple[int, Column], Array] = {}

    def lost(
        self,
        job: RecordedJob,
        own: Array,
        ready: Mapping[TaskOfRun, Array],
        saving: Array,
        stepping: Array,
    ) -> Outside:
        """Losses of a job.

        Args:
            own: Fraction of each bucket that it lost to nobody so far.
            ready: Fraction of each bucket in which the busiest thread of a worker ran or waited, by
                task id.
            saving: Fraction of each bucket in which it saved a checkpoint.
            stepping: Seconds of each bucket within its steps.
        """
        busy = np.nan_to_num(self._mean(job, "gpu_busy"))
        idle = np.clip(1.0 - np.maximum(np.max(list(ready.values()), axis=0), busy), 0.0, own)
        inside = stepping / (self._edges[1] - self._edges[0])
        disk = self._disk(
            job,
            own,
            {id: np.maximum(busiest, busy) for id, busiest in ready.items()},
            saving,
            inside,
        )
        by: dict[tuple[Resource, str], Array] = {
            ("disk", name): part for name, part in disk.by.items()
        }
        taken = sum(disk.by.values(), disk.rest) + disk.by_memory
        of_idle = np.minimum(taken, idle)
        nics = list(self._nics(job)) if job.distributed else []
        waited = spread(self._exposed(job, own, stepping), idle - of_idle, own - taken, stepping)
        sampled = (stepping > 0.0) & (job.exposed_fraction is not None)
        waited = np.where(sampled, waited, np.where(exchanges(nics, own), idle - of_idle, 0.0))
        exposed = exposed_to_nics(waited, nics)
        by |= {("network", name): part for name, part in exposed.by.items()}
        taken = taken + sum(exposed.by.values(), np.zeros_like(own))
        gpu = self._gpu(job, stepping)
        for name, part in gpu.by.items():
            by["gpu", name] = np.minimum(part, np.maximum(own - taken, 0.0))
            taken = taken + by["gpu", name]
        return Outside(
            *(
                by,
                disk.by_memory,
                disk.reread,
                disk.rest,
                disk.unsure,
                exposed.by_nic,
                np.minimum(taken, idle),
            ),
            evidence={"gpu": gpu.evidence},
            disk_mover=self._mover(job, stepping),
            gpu_user=gpu.user,
            may_have_lost=gpu.may_have_lost,
            on_gpu=gpu.neighbours,
        )

    def tell_blocked(self, job: RecordedJob) -> bool:
        """Whether any reading shows how long it was blocked on disks."""
        nodes = [self._nodes[name] for name in job.nodes if name in self._nodes]
        own = (task.signal(column) for task in job.tasks for column in ("psi_io", "disk_waiting"))
        return any(map(len, own)) or any(len(node.signal("psi_io")) for node in nodes)

    def _mean(
        self, of: RecordedJob | RecordedTask | RecordedNode | Neighbour, column: Column
    ) -> Array:
        """The mean of each bucket; NaN: unknown. A first reading has no rates, so the second stands
        for it.
        """
        key = id(of), column
        if (known := self._known.get(key)) is not None:
            return known
        values: Array = of.signal(column).buckets(self._edges).mean
        started = getattr(of, "started", None)
        first = int(np.argmax(np.isfinite(values)))
        if first and started is not None and np.isfinite(values[first]):
            values[(self._edges[1:] > started) & (np.arange(len(values)) < first)] = values[first]
        self._known[key] = values
        return values

    def _here(self, node: str) -> Iterator[tuple[RecordedJob, RecordedTask]]:
        return ((job, task) for job in self._jobs for task in job.tasks if task.node == node)

    # --- disk -------------------------------------------------------------------------------------

    def _disk(
        self,
        job: RecordedJob,
        own: Array,
        working: Mapping[TaskOfRun, Array],
        saving: Array,
        inside: Array,
    ) -> Blocked:
        """The cost of being blocked: that of the worker with the greatest loss, because the others
        wait for it.
        """
        tasks = [task for task in job.tasks if task.id in working]
        blocked = [
            self._disk_of(job, task, own, working[task.id], saving, inside) for task in tasks
        ]
        if len(blocked) == 1:
            return blocked[0]
        slowest = np.argmax(
            [
                sum(worker_loss.by.values(), worker_loss.rest) + worker_loss.by_memory
                for worker_loss in blocked
            ],
            axis=0,
        )
        at, empty = np.arange(len(own)), np.zeros_like(own)

        def chosen(parts: Iterable[Array]) -> Array:
            of_slowest: Array = np.array(list(parts))[slowest, at]
            return of_slowest

        neighbours = set().union(*(worker_loss.by for worker_loss in blocked))
        return Blocked(
            by={
                name: chosen(worker_loss.by.get(name, empty) for worker_loss in blocked)
                for name in neighbours
            },
            by_memory=chosen(worker_loss.by_memory for worker_loss in blocked),
            reread=chosen(worker_loss.reread for worker_loss in blocked),
            rest=chosen(worker_loss.rest for worker_loss in blocked),
            unsure=chosen(worker_loss.unsure for worker_loss in blocked),
        )

    def _disk_of(
        self,
        job: RecordedJob,
        task: RecordedTask,
        own: Array,
        working: Array,
        saving: Array,
        inside: Array,
    ) -> Blocked:
        neighbours, own_bytes = self._moved(job, task.node)
        node = self._nodes.get(task.node)
        idle = np.clip(1.0 - working, 0.0, own) * (1.0 - saving)
        blocked, shared = self._blocked(task)
        return blocked_on_disk(
            OnDisk(
                blocked=np.minimum(blocked * (1.0 - saving), idle),
                idle=idle,
                shared=shared,
                moved=own_bytes,
                read=self._mean(task, "disk_read"),
                refaulted=self._mean(task, "refaults"),
                kernel=self._mean(task, "cpu_system")
                / np.maximum(np.nan_to_num(self._mean(task, "helper_cores")), 1.0),
                pressure=self._mean(task, "psi_memory"),
                memory_bytes=self._mean(task, "memory_bytes")
                + np.nan_to_num(self._mean(task, "cache_bytes")),
                memory_limit=job.limit("memory_bytes") or math.inf,
            ),
            neighbours,
            node.disk_bytes_per_second if node is not None else None,
            own,
            inside,
        )

    def _blocked(self, task: RecordedTask) -> tuple[Array, bool]:
        """Fraction of each bucket in which it was blocked on a disk, and whether others may have
        been instead. From the task's pressure, or its threads' delays, or else the node's pressure.
        """
        delays = np.minimum(self._mean(task, "disk_waiting"), 1.0)
        for blocked in (self._mean(task, "psi_io"), delays):
            if np.isfinite(blocked).any():
                return np.nan_to_num(blocked), False
        node = self._nodes.get(task.node)
        if node is None:
            return np.zeros(len(self._edges) - 1), True
        return np.nan_to_num(self._mean(node, "psi_io")), True

    def _moved(self, job: RecordedJob, node: str) -> tuple[dict[str, Array], Array]:
        """Bytes a second of others on the disk of a node, by name, and those of a job.

        Writes of programs outside count as far as they were seen, when a page became dirty: the
        kernel may write it much later, and the disk does not show whose it was.
        """
        used: dict[str, Array] = {}
        read = np.zeros(len(self._edges) - 1)
        for other, task in self._here(node):
            reads = np.nan_to_num(self._mean(task, "disk_read"))
            read = read + reads
            used[other.name] = (
                used.get(other.name, 0.0) + reads + np.nan_to_num(self._mean(task, "disk_write"))
            )
        own_bytes = used.pop(job.name, np.zeros_like(read))
        if (recorded := self._nodes.get(node)) is None:
            return used, own_bytes
        rest = np.maximum(np.nan_to_num(self._mean(recorded, "disk_read")) - read, 0.0)
        reads_by = {
            name: np.nan_to_num(self._mean(neighbour, "disk_read"))
            for name, neighbour in recorded.neighbours.items()
            if name != OTHERS
        }
        # they were looked at more seldom than the disk, which shows when their bytes passed
        window = max(round(_LOOK_SECONDS / float(self._edges[1] - self._edges[0])), 1)
        named = around(sum(reads_by.values(), np.zeros_like(rest)), window)
        whole = np.maximum(around(rest, window), named)
        for name, reads in reads_by.items():
            used[name] = rest * ratio(around(reads, window), whole)
        used[OTHERS] = rest * (1.0 - ratio(named, whole))
        for name, neighbour in recorded.neighbours.items():
            used[name] = used[name] + np.nan_to_num(self._mean(neighbour, "disk_write"))
        return used, own_bytes

    def _mover(self, job: RecordedJob, stepping: Array) -> str:
        """The neighbour that moved most on its disks while it made steps; empty: none did."""
        moved: dict[str, float] = {}
        for node in job.nodes:
            for name, bytes_used in self._moved(job, node)[0].items():
                moved[name] = moved.get(name, 0.0) + _total(bytes_used, stepping)
        worst = max(moved, key=lambda name: moved[name], default="")
        return worst if moved.get(worst) else ""

    # --- network ----------------------------------------------------------------------------------

    def _exposed(self, job: RecordedJob, own: Array, stepping: Array) -> float:
        """Seconds that it waited for communication, from its sampled steps."""
        return (job.exposed_fraction or 0.0) * _total(own, stepping)

    def _nics(self, job: RecordedJob) -> Iterator[OnNic]:
        empty = NicTraffic(*[np.zeros(len(self._edges) - 1)] * 2)
        for name in sorted(job.nodes):
            node = self._nodes.get(name)
            if node is None or not node.nic_bytes_per_second:
                continue
            if any(
                not len(task.signal("tcp_in")) for other, task in self._here(name) if other is job
            ):
                continue  # its bytes cannot be attributed
            known: dict[str, NicTraffic] = {}
            for other, task in self._here(name):
                used = NicTraffic(*(np.nan_to_num(self._mean(task, way)) for way in _WAYS))
                known[other.name] = known.get(other.name, empty).plus(used)
            unattributed = self._rest(node, list(known.values()), node.nic_bytes_per_second)
            own_traffic = known.pop(job.name)
            if (owner := self._whose(unattributed, known)) is not None:
                known[owner] = known.get(owner, empty).plus(unattributed)
            yield OnNic(node.nic_bytes_per_second, own_traffic, known)

    def _rest(self, node: RecordedNode, known: Sequence[NicTraffic], rate: float) -> NicTraffic:
        """NIC traffic without a task's connection; a small rest may be headers and is ignored."""
        passed = NicTraffic(self._mean(node, "net_in"), self._mean(node, "net_out"))
        unattributed = [
            np.nan_to_num(way) - sum(passed_way[index] for passed_way in known)
            for index, way in enumerate(passed)
        ]
        return NicTraffic(
            *(
                lasting(np.where(passed_way >= _STRANGE * rate, passed_way, 0.0))
                for passed_way in unattributed
            )
        )

    def _whose(self, rest: NicTraffic, jobs: Collection[str]) -> str | None:
        """The owner of the rest. It is a job if the traffic comes and goes with that job, and
        programs outside if there is no other job. None: unknown.
        """
        if not jobs:
            return OTHERS
        [name, *more] = jobs
        present = np.zeros(len(self._edges) - 1, dtype=bool)
        for job in self._jobs:
            for task in job.tasks if job.name == name else ():
                end = task.ended if task.ended is not None else math.inf
                present |= (self._edges[1:] > (task.started or 0.0)) & (self._edges[:-1] < end)
        total = rest.received + rest.sent
        if more or np.count_nonzero(~present) < _LEAST_BUCKETS or not present.any():
            return None
        left = float(np.mean(total[~present]))
        return name if left <= _GONE * float(np.mean(total[present])) else None

    # --- GPU --------------------------------------------------------------------------------------

    def _gpu(self, job: RecordedJob, stepping: Array) -> OnGpu:
        """Losses on a shared GPU. On a node with several GPUs, each task's GPU has to be known. Of
        a job with several tasks on GPUs, only who used one of these is known.
        """
        node = self._nodes.get(job.tasks[0].node)
        if node is None or not node.gpus or not len(job.tasks[0].signal("gpu_busy")):
            return OnGpu({})
        if len(job.tasks) > 1:
            return self._beside_several(job, stepping)
        [task] = job.tasks
        using = [
            (other.name, other_task)
            for other, other_task in self._here(task.node)
            if len(other_task.signal("gpu_busy"))
        ]
        if node.gpus > 1:
            if len(task.gpus) != 1 or not all(other_task.gpus for _, other_task in using):
                return OnGpu({})
            using = [
                (name, other_task) for name, other_task in using if other_task.gpus & task.gpus
            ]
        used = self._of_neighbours(node, task.gpus if node.gpus > 1 else None)
        for name, other_task in using:
            used[name] = used.get(name, 0.0) + np.nan_to_num(self._mean(other_task, "gpu_busy"))
        own_busy = used.pop(job.name)
        if node.gpus == 1:
            used.pop(OTHERS, None)
            unattributed = np.nan_to_num(self._mean(node, "gpu_busy")) - sum(
                used.values(), own_busy
            )
            used[OTHERS] = lasting(np.where(unattributed >= _OTHERS_USE, unattributed, 0.0))
        used = {name: parts for name, parts in used.items() if parts.any()}
        if held := job.asides.get("turns", 0.0):
            lost = OnGpu(lost_by_turns(held, used, stepping), "counted")
        else:
            lost = lost_on_gpu(self._mean(task, "gpu_busy"), used, stepping)
        return lost._replace(neighbours=tuple(used))

    def _of_neighbours(self, node: RecordedNode, gpus: Collection[int] | None) -> dict[str, Array]:
        """Use of GPUs of a node by jobs of other users and programs outside. None: of all GPUs."""
        used: dict[str, Array] = {}
        for name, neighbour in node.neighbours.items():
            for gpu, signal in neighbour.by_gpu.items():
                if gpus is None or gpu in gpus:
                    busy = np.nan_to_num(signal.buckets(self._edges).mean)
                    used[name] = used.get(name, np.zeros_like(busy)) + busy
        return used

    def _beside_several(self, job: RecordedJob, stepping: Array) -> OnGpu:
        """Who used GPUs of a job with several tasks, at unknown cost: its tasks wait for each
        other, so their losses do not add up.
        """
        used: dict[str, Array] = {}
        for name in job.nodes:
            gpus = {gpu for task in job.tasks if task.node == name for gpu in task.gpus}
            if gpus and (node := self._nodes.get(name)) is not None:
                for culprit, busy in self._of_neighbours(node, gpus).items():
                    used[culprit] = used.get(culprit, np.zeros_like(busy)) + busy
        return unknown_on_gpu(used, stepping)
