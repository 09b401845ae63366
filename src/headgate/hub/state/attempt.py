"""The tasks of one attempt of a job: what each is told of the others (docs/channel.md), what they
report together.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.hub.messages import OPEN, PAUSED, RunningMean, strictest
from headgate.hub.state.peers import AttemptSyncPoints, Peers
from headgate.hub.state.stragglers import Stragglers
from headgate.model.events import Exit, Progress
from headgate.model.identifiers import EVALUATOR, JobId, TaskId, TaskName
from headgate.model.plans import Plan
from headgate.output.failures import FailureReader
from headgate.output.patterns import ProgressReader
from headgate.sampling.columns import Column
from headgate.scripts.contracts import is_out_of_memory, out_of_gpu_memory, port_taken
from headgate.task.membership import LOOPBACK
from headgate.task.progress import weighted_mean

_SHOWN: tuple[Column, ...] = (
    "cpu_cores",
    "memory_bytes",
    "gpu_busy",
    "gpu_memory_bytes",
    "net_in",
    "net_out",
)

APART_SECONDS = 10.0
"""How long workers that have not connected tell of progress in their output before they are taken
for strangers.
"""

_UNHEARD = 3
"""Reports of a worker before which the first worker may still tell something."""
_MOST_FILES = 10_000
"""Files that workers write which are remembered."""
_MOST_FILES_TOLD = 5
"""Files that two workers write: so many are told."""

_OF_ONE_FILE = re.compile(
    r"FileExistsError|AlreadyExistsError|Directory not empty|No such file or directory: .+ -> "
    r"|unable to lock file"
    r"|Failed to rename|_temp/part-|database is locked"
)
"""What is said of files and folders that several processes make, or move, at once."""
_MAY_BE_OF_ONE_FILE = re.compile(
    r"FileNotFoundError|NotFoundError|No such "
    r"file|EOFError|PytorchStreamReader|BadZipFile|UnpicklingError|truncated"
    r"|JSONDecodeError|DataLossError|not a zip file|file signature not found"
)
"""The same of files that a script read or wrote well before."""

Send = Callable[[TaskId, Mapping[str, object]], None]


_FIXED_THREADS = frozenset({"keras", "jax"})
"""Frameworks that keep the threads that they began with. Keras does so unless PyTorch is its back
end.
"""


@dataclass(slots=True)
class LiveTask:
    """How a task stands now; `state` is `running`, `joining`, `leaving` or `ended`."""

    name: TaskName
    node: str
    reader: ProgressReader
    reader_failed: bool = False
    reports_itself: bool = False
    complaints: int = 0  # warnings of what it said
    failure: FailureReader = field(default_factory=FailureReader)
    state: str = "running"
    began: float = field(default_factory=time.time)  # seconds since the epoch
    stated_threads: int | None = None  # by its job
    threads: int = 0
    granted_threads: int = 0  # what it would have if it could change them
    follows_threads: bool = False
    spin: bool = True
    entitled_cores: float = 0.0
    idle: bool = False
    gpus: tuple[int, ...] = ()  # that it said it uses
    held_gpus: tuple[int, ...] = ()  # that it holds memory on
    gate: Mapping[str, object] = field(default_factory=lambda: OPEN)  # of its own
    held_by: Mapping[str, object] = field(default_factory=lambda: OPEN)  # that it was told of
    usage: Mapping[Column, float] | None = None
    mean: RunningMean = field(default_factory=RunningMean)

    def grant_threads(self, threads: int) -> None:
        """It may have so many from now on. A task without Headgate's library keeps those that it
        began with.
        """
        self.granted_threads = threads
        if self.stated_threads is not None:
            self.threads = self.stated_threads
        elif self.follows_threads or not self.threads:
            self.threads = threads

    def snapshot(self) -> dict[str, Any]:
        """What a live view shows of it."""
        used = self.usage or {}
        return {
            "task": self.name,
            "node": self.node,
            "state": self.state,
            "threads": self.threads,
            "entitled_cores": self.entitled_cores,
            "gpus": list(self.held_gpus or self.gpus),
            **{column: used.get(column) for column in _SHOWN},
        }


class Attempt:
    """The tasks of one attempt, from its start on.

    A worker that joins others at work waits for their state. One of these, the donor, is told to
    save it and to hold. When it has saved, the waiting workers get the file and count from the next
    view on. Then the donor is released.

    Args:
        job: Id of the job.
        number: Which attempt it is, from 1.
        plan: What is started.
        encrypt: Whether what the tasks send each other is encrypted.
        send: Sends a message down to a task.
        ports: Where workers meet that find each other by another launcher's contract, or those of
            tasks of roles; empty: neither.
        roles: The names of the tasks of roles, whose ports these are.
        grace: Seconds that tasks have to save once they are asked to end; None: they are not told.
    """

    def __init__(
        self,
        job: JobId,
        number: int,
        plan: Plan,
        encrypt: bool,
        send: Send,
        ports: tuple[int, ...] = (),
        roles: Sequence[TaskName] = (),
        grace: float | None = None,
    ) -> None:
        self._grace = grace
        self.number = number
        self.ports = ports
        self._own_ports = dict(zip(roles, ports))
        self._port_variables = "HEADGATE_PORT" if roles else "MASTER_ADDR and MASTER_PORT"
        self.key = secrets.token_hex(16)
        """By which the workers know each other that meet at these ports."""
        self.stragglers = Stragglers()
        self.tasks: dict[TaskName, LiveTask] = {}
        self._job = job
        self._peers = Peers(plan, encrypt)
        self._send = send
        self._keyless = plan.strategy == "allreduce" or not encrypt
        self._connected: set[TaskName] = set()
        self._course = MergedProgress()
        self._reports = Counter[TaskName]()
        self.sync_points = AttemptSyncPoints(
            self._peers.workers, lambda name, message: send(job.task(name), message)
        )
        self._waiting: list[TaskName] = []
        self._donor: TaskName | None = None  # while it was told to save and has not
        self._met = False  # whether a worker has connected
        self._trained_since: float | None = None  # without one having connected
        self._told_apart = False
        self.forewarned = False  # that the workers share nothing was said before the start
        self._told_open = False
        # by file, which worker did; None: several, which was told
        self._written: dict[str, TaskName | None] = {}
        self._told_files = 0
        self._paused = False

    @property
    def plan(self) -> Plan:
        return self._peers.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._peers.plan = plan

    @property
    def lowest(self) -> TaskName | None:
        """The worker that speaks for all: the first that has the job's state and stays."""
        return self._peers.donor()

    def port_of(self, name: TaskName) -> int:
        """The port that a task was told of; 0: none."""
        return self._own_ports.get(name, self.ports[0] if self.ports else 0)

    def is_connected(self, name: TaskName) -> bool:
        return name in self._connected

    # --- what happens to tasks --------------------------------------------------------------------

    def start(
        self,
        name: TaskName,
        node: str,
        address: str,
        reader: ProgressReader,
        joins: bool,
        stated: int | None = None,
    ) -> None:
        """A task is started, on a node of that address; `reader` reads its output. Its job has
        `stated` its threads.
        """
        state = "joining" if joins else "running"
        self.tasks[name] = LiveTask(name, node, reader, state=state, stated_threads=stated)
        self._peers.start(name, node, address, joins)
        self._tell()

    def connect(self, name: TaskName, framework: str = "") -> None:
        """A task said hello, and what it trains or serves with."""
        self._connected.add(name)
        self._keyless = self._keyless or framework == "keras"
        self._peers.meet(name, framework)
        self._met = self._met or name.is_worker
        task = self.tasks[name]
        task.follows_threads = framework not in _FIXED_THREADS
        task.grant_threads(task.granted_threads)
        grace = {} if self._grace is None else {"grace": self._grace}
        self._send(
            self._job.task(name),
            {**self._peers.welcome(name, task.threads), "spin": task.spin, **grace},
        )
        if self._together:
            self._send(self._job.task(name), self._peers.view())
        task.held_by = OPEN
        self.send_gates()
        self._order()

    def listen(self, name: TaskName, endpoints: Sequence[str]) -> bool:
        """A task said where the others reach it; whether people beyond its machine do too, with no
        key. True once.
        """
        self._peers.listen(name, endpoints)
        self._tell()
        tells = (
            self._keyless
            and not self._told_open
            and not all(f"//{LOOPBACK}:" in endpoint for endpoint in endpoints)
        )
        self._told_open = self._told_open or tells
        return tells

    def wrote(self, name: TaskName, path: str, folder: str) -> TaskName | None:
        """A worker has written a file. The worker that writes it too, which is told once; None:
        there is none.

        Args:
            name: The worker.
            path: The file.
            folder: Tells its folder from all others, where all tasks are on one machine; else from
                those of its node.
        """
        file = f"{folder}/{os.path.basename(path)}"
        if len(self._written) >= _MOST_FILES:
            return None
        writer = self._written.setdefault(file, name)
        if writer in (name, None) or self._told_files == _MOST_FILES_TOLD:
            return None
        self._told_files += 1
        self._written[file] = None
        return writer

    def mark_leaving(self, name: TaskName) -> None:
        """A worker is to end before the others."""
        self.tasks[name].state = "leaving"
        self._peers.mark_leaving(name)
        self._tell()
        self.sync_points.settle()

    def remove(self, name: TaskName, well: bool) -> None:
        """A task has ended, well or not."""
        self.tasks[name].state, self.tasks[name].usage = "ended", None
        self._connected.discard(name)
        if not well:
            self._course.drop(self._job.task(name))
            self._written = {
                file: writer for file, writer in self._written.items() if writer != name
            }
        self._peers.remove(name)
        self.sync_points.remove(name)
        self.stragglers.drop(name)
        self._waiting = [waiting_task for waiting_task in self._waiting if waiting_task != name]
        self._tell()
        self.send_gates()
        if name == self._donor:
            self._donor = None
            self._order()

    def explain_exit(self, name: TaskName, exit: Exit) -> Exit:
        """How a task has ended, by what other tasks tell of it. Where workers step together, a
        worker that takes steps of its own has failed. A failure with a file may come from another
        worker that writes it too.
        """
        text = self.sync_points.fault(name, exit.code) if self.plan.in_step else ""
        if text:
            return replace(exit, code=1, reason=text)
        if not exit.ok and is_out_of_memory(exit.reason or ""):
            words = out_of_gpu_memory(exit.reason or "", bool(self.tasks[name].gpus))
            return replace(exit, over_memory=True, on_gpu=bool(words), reason=words or exit.reason)
        last_line, port = exit.reason or "", self.port_of(name)
        taken = port_taken(last_line, port, self._port_variables)
        if self.ports and not exit.ok and taken:
            # What it listens at besides, later on, is its own affair.
            if str(port) in last_line or not self._reports:
                return replace(exit, port_taken=True, reason=taken)
            return exit
        if (
            exit.ok
            or self.plan.workers < 2
            or not _of_one_file(exit.reason or "", self.tasks[name].reports_itself)
        ):
            return exit
        advice = (
            f"all {self.plan.workers} workers run the whole script: let one write files, "
            "under `if hg.is_main():`"
        )
        return replace(exit, reason=f"{exit.reason}; {advice}")

    def thread(self, name: TaskName) -> None:
        """Tell a task how to use its threads."""
        if name in self._connected:
            task = self.tasks[name]
            order = {"type": "threads", "threads": task.threads, "spin": task.spin}
            self._send(self._job.task(name), order)

    def send_gates(self) -> None:
        """Tell tasks what their steps are held to, where that has changed. Of workers that wait for
        each other in every step, one is held for all.
        """
        workers = [
            task_of_attempt
            for name, task_of_attempt in self.tasks.items()
            if name.is_worker and task_of_attempt.state != "ended"
        ]
        together = self.plan.in_step
        whole = strictest([worker.gate for worker in workers]) if together else OPEN
        for task in workers:
            gate = task.gate
            if together:
                gate = whole if task.name == self.lowest else OPEN
            gate = PAUSED if self._paused else gate
            if task.name in self._connected and gate != task.held_by:
                task.held_by = gate
                self._send(self._job.task(task.name), gate)

    @property
    def pauses_by_gate(self) -> bool:
        """Whether its workers are paused between two steps: they use GPUs, on which others may wait
        for them.
        """
        workers = [
            task for name, task in self.tasks.items() if name.is_worker and task.state != "ended"
        ]
        return any(task.gpus for task in workers) and all(
            self.is_connected(task.name) for task in workers
        )

    def pause(self, paused: bool) -> None:
        """Have its workers begin no step, or let them."""
        self._paused = paused
        self.send_gates()

    # --- joining ----------------------------------------------------------------------------------

    def join(self, name: TaskName) -> None:
        """A task that joins has made its objects, and waits for the state of the others."""
        if name not in self._waiting:
            self._waiting.append(name)
        self._order()

    def saved(self, name: TaskName, path: str) -> list[TaskName]:
        """The donor saved what it was told to; the tasks that count now."""
        joined = list[TaskName]()
        if name == self._donor:
            joined, self._waiting, self._donor = self._waiting, [], None
        for joined_task in joined:
            self._send(self._job.task(joined_task), {"type": "state", "path": path})
            self.tasks[joined_task].state = "running"
        if joined:
            self._peers.activate(*joined)
            self._tell()
        self._release(name)
        self._order()
        return joined

    def failed(self, name: TaskName) -> None:
        """A state that joiners wait for could not be saved, or not be had: they are served at the
        next occasion.
        """
        if name == self._donor:
            self._donor = None
            self._release(name)

    def _release(self, name: TaskName) -> None:
        self._send(self._job.task(name), {"type": "release"})

    def _order(self) -> None:
        donor = self.lowest
        if (
            self._donor is not None
            or not self._waiting
            or donor is None
            or donor not in self._connected
        ):
            return
        self._donor = donor
        self._send(self._job.task(donor), {"type": "checkpoint", "hold": True})

    # --- progress ---------------------------------------------------------------------------------

    def progressed(self, progress: Progress) -> Progress | None:
        """Take in what a task reported; the job's progress, where that follows from it."""
        if len(self.tasks) == 1 or self.lowest is None:
            return progress
        if progress.task.name == EVALUATOR and self.plan.strategy != "roles":
            return None  # its losses are not those of the training
        self._reports[progress.task.name] += 1
        return self._course.add(progress, self._job.task(self._speaker(self.lowest)))

    def _speaker(self, lowest: TaskName) -> TaskName:
        """The worker whose reports are the job's: the lowest. Of workers that find each other by
        themselves it is the lowest that tells anything, as the first may print nothing.
        """
        if not self.ports or self._reports[lowest]:
            return lowest
        speakers = [name for name, count in self._reports.items() if count >= _UNHEARD]
        return min(speakers, key=lambda name: name.index, default=lowest)

    def are_apart(self, now: float, ended: bool = False) -> bool:
        """Whether the workers turn out to share nothing: none has connected, and one has ended
        well, or has shown progress in its output for a while. True once.

        Args:
            now: When a worker told of progress in its output, or ended; seconds on any clock.
            ended: It ended.
        """
        if self._met or self._told_apart or self.plan.workers < 2 or self.ports:
            return False
        if self._trained_since is None:
            self._trained_since = now
        self._told_apart = ended or now - self._trained_since >= APART_SECONDS
        return self._told_apart

    # --- small things -----------------------------------------------------------------------------

    @property
    def _together(self) -> bool:
        return self.plan.trains_together

    def _tell(self) -> None:
        if self._together:
            view = self._peers.view()
            for name in self._connected:
                self._send(self._job.task(name), view)


def _of_one_file(reason: str, begun: bool) -> bool:
    """Whether a task may have failed because another one writes the same file. `begun`: it trained
    already, so that what it reads was there.
    """
    return bool(_OF_ONE_FILE.search(reason) or (begun and _MAY_BE_OF_ONE_FILE.search(reason)))


class MergedProgress:
    """Merges what the workers of a job report.

    Steps, epochs and samples are those of the worker with the lowest number, and each of its
    reports makes one of the job. Losses and metrics are means over what each worker reported since
    then, or before if it had nothing new. They are weighted by how many losses each stands for, and
    by what these weigh: as the gradients are.
    """

    def __init__(self) -> None:
        self._waiting: dict[TaskId, Progress] = {}
        self._told: dict[TaskId, Progress] = {}

    def add(self, progress: Progress, lowest: TaskId) -> Progress | None:
        """Take in a report; the job's progress, if it was that of the lowest worker."""
        before = self._waiting.get(progress.task)
        self._waiting[progress.task] = progress if before is None else before.merged(progress)
        if progress.task != lowest:
            return None
        self._told |= self._waiting
        self._waiting.clear()
        own, every = self._told[lowest], self._told.values()
        losses = [
            (report.loss, report.count * report.weight)
            for report in every
            if report.loss is not None
        ]
        names = dict.fromkeys(name for report in every for name in report.metrics)
        return replace(
            own,
            loss=_mean(losses) if losses else None,
            count=sum(report.count for report in every if report.loss is not None) or own.count,
            weight=1.0,
            metrics={
                name: _mean(
                    [
                        (report.metrics[name], report.count * report.weight)
                        for report in every
                        if name in report.metrics
                    ]
                )
                for name in names
            },
        )

    def drop(self, task: TaskId) -> None:
        """A worker was lost: what it reported last is no part of the mean any more."""
        self._waiting.pop(task, None)
        self._told.pop(task, None)


def _mean(values: list[tuple[float, float]]) -> float:
    # a part in which nothing counts has no loss
    weighing = [(value, weight) for value, weight in values if weight > 0]
    return weighted_mean(weighing or [(value, 1.0) for value, _ in values])
