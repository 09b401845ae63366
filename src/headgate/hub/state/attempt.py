"""The tasks of one attempt of a job: messages to each about the others (docs/channel.md), and their
common progress.
"""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headgate.hub.messages import OPEN, PAUSED, strictest
from headgate.hub.state.merged_progress import MergedProgress
from headgate.hub.state.peers import AttemptSyncPoints, Peers
from headgate.hub.state.stragglers import Stragglers
from headgate.hub.state.task import LiveTask, ObservedTask
from headgate.isolation.base import Holder
from headgate.model.endings import Checkpoint, Exit
from headgate.model.identifiers import EVALUATOR, JobId, TaskId, TaskName
from headgate.model.plans import Plan
from headgate.model.progress import Progress
from headgate.output.patterns import ProgressReader
from headgate.scripts.contracts import is_out_of_memory, out_of_gpu_memory, port_taken
from headgate.task.membership import LOOPBACK

APART_SECONDS = 10.0
"""Workers that report progress in their output for this long without connecting share nothing."""


_UNHEARD = 3
"""Reports of another worker before which the first worker may still report."""
_MOST_FILES = 10_000
"""Most files written by workers that are remembered."""
_MOST_FILES_TOLD = 5
"""Most warnings of files written by two workers."""

_OF_ONE_FILE = re.compile(
    r"FileExistsError|AlreadyExistsError|Directory not empty|No such file or directory: .+ -> "
    r"|unable to lock file"
    r"|Failed to rename|_temp/part-|database is locked"
)
"""Errors about files and folders that several processes make or move at once."""
_MAY_BE_OF_ONE_FILE = re.compile(
    r"FileNotFoundError|NotFoundError|No such "
    r"file|EOFError|PytorchStreamReader|BadZipFile|UnpicklingError|truncated"
    r"|JSONDecodeError|DataLossError|not a zip file|file signature not found"
)
"""The same about files that a script read or wrote successfully before."""

Send = Callable[[TaskId, Mapping[str, object]], None]


_FIXED_THREADS = frozenset({"keras", "jax"})
"""Frameworks that keep their initial thread count; Keras does unless PyTorch is its back end."""


class Attempt:
    """The tasks of one attempt, from its start on.

    A worker that joins running ones waits for their state. One running worker, the donor, is told
    to save it and to pause. After that the waiting workers get the file and count from the next
    view on. Then the donor is released.

    Args:
        job: Id of the job.
        number: Number of the attempt, from 1.
        plan: Its plan.
        encrypt: Whether traffic between the tasks is encrypted.
        send: Sends a message to a task.
        ports: Rendezvous ports of workers with another launcher's contract, or ports of tasks of
            roles; empty: neither.
        roles: Names of the tasks of roles, in the order of the ports.
        grace: Seconds that tasks have to save when asked to end; None: they are not told.
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
        """The secret by which the workers at these ports recognize each other."""
        self.resumes_from: Checkpoint | None = None
        """The checkpoint that its first task is given."""
        self.stragglers = Stragglers()
        self.tasks: dict[TaskName, LiveTask] = {}
        self._job = job
        self._peers = Peers(plan, encrypt)
        self._send = send
        self._keyless = plan.strategy == "allreduce" or not encrypt
        self._connected: set[TaskName] = set()
        self._observed: set[TaskName] = set()  # whose steps are seen without their scripts' doing
        self._course = MergedProgress()
        self._reports = Counter[TaskName]()
        self.sync_points = AttemptSyncPoints(
            self._peers.workers, lambda name, message: send(job.task(name), message)
        )
        self._waiting: list[TaskName] = []
        self._donor: TaskName | None = None  # while it saves
        self._met = False  # whether a worker has connected
        # since when workers train without having connected
        self._trained_since: float | None = None
        self._told_apart = False
        # a warning that the workers share nothing was given before the start
        self.forewarned = False
        self._told_open = False
        # the worker that wrote each file; None: several, already reported
        self._written: dict[str, TaskName | None] = {}
        self._told_files = 0
        self._holders: set[Holder] = set()

    @property
    def plan(self) -> Plan:
        return self._peers.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._peers.plan = plan

    @property
    def lowest(self) -> TaskName | None:
        """The worker that represents the job: the first that has its state and is not leaving."""
        return self._peers.donor()

    def port_of(self, name: TaskName) -> int:
        """The port assigned to a task; 0: none."""
        return self._own_ports.get(name, self.ports[0] if self.ports else 0)

    def is_connected(self, name: TaskName) -> bool:
        return name in self._connected

    def hears(self, name: TaskName) -> bool:
        """Whether a task follows threads and gates."""
        return name in self._connected or name in self._observed

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
        """A task starts on the node of this address.

        Args:
            reader: Reads its output.
            joins: It joins running tasks.
            stated: Threads stated by its job.
        """
        state = "joining" if joins else "running"
        self.tasks[name] = LiveTask(name, node, reader, state=state, stated_threads=stated)
        self._peers.start(name, node, address, joins)
        self._tell()

    def connect(self, name: TaskName, framework: str = "") -> None:
        """A task connected and named its framework."""
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

    def observe(self, name: TaskName, framework: str) -> None:
        """A task reports what is observed of its script."""
        self._observed.add(name)
        task = self.tasks[name]
        task.observed, task.follows_threads = ObservedTask(), framework not in _FIXED_THREADS
        task.grant_threads(task.granted_threads)
        self._send(
            self._job.task(name),
            {"type": "welcome", "v": 1, "threads": task.threads, "spin": task.spin},
        )
        task.held_by = OPEN
        self.send_gates()

    def keeps_threads(self, name: TaskName, threads: int) -> None:
        """The script of an observed task sets its threads itself."""
        task = self.tasks[name]
        task.follows_threads, task.threads = False, threads

    def listen(self, name: TaskName, endpoints: Sequence[str]) -> bool:
        """A task reported its address. Returns whether people beyond its machine can reach it
        without a key; True once.
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
        """A worker wrote a file. Returns a warning if another worker writes it too; empty: none.

        Args:
            name: The worker.
            path: The file.
            folder: Identifies its folder: across tasks if all are on one machine, else within its
                node.
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
        """A task has ended, successfully or not."""
        self.tasks[name].state, self.tasks[name].usage = "ended", None
        self._connected.discard(name)
        self._observed.discard(name)
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
        """A task's exit, corrected by reports of other tasks. A synchronous worker that made steps
        of its own has failed. A failure with a file may come from another worker that writes it
        too.
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
            # Other ports that it opens later are its own affair.
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
        if self.hears(name):
            task = self.tasks[name]
            order = {"type": "threads", "threads": task.threads, "spin": task.spin}
            self._send(self._job.task(name), order)

    def send_gates(self) -> None:
        """Send tasks their gates if these have changed. Among synchronous workers one is throttled
        for all.
        """
        workers = [
            task_of_attempt
            for name, task_of_attempt in self.tasks.items()
            if name.is_worker and task_of_attempt.state != "ended"
        ]
        together = self.plan.in_step
        common_gate = strictest([worker.gate for worker in workers]) if together else OPEN
        for task in workers:
            gate = task.gate
            if together:
                gate = common_gate if task.name == self.lowest else OPEN
            gate = PAUSED if self._holders else gate
            if self.hears(task.name) and gate != task.held_by:
                task.held_by = gate
                self._send(self._job.task(task.name), gate)

    @property
    def pauses_by_gate(self) -> bool:
        """Whether its workers are paused between two steps: they use GPUs, where others may wait
        for them.
        """
        workers = [
            task for name, task in self.tasks.items() if name.is_worker and task.state != "ended"
        ]
        return any(task.gpus for task in workers) and all(self.hears(task.name) for task in workers)

    def pause(self, paused: bool, by: Holder = Holder.PROOF) -> None:
        """Keep its workers from starting a step, or let them if nobody else holds them."""
        self._holders = self._holders | {by} if paused else self._holders - {by}
        self.send_gates()

    # --- joining ----------------------------------------------------------------------------------

    def join(self, name: TaskName) -> None:
        """A joining task has made its objects and waits for the state of the others."""
        if name not in self._waiting:
            self._waiting.append(name)
        self._order()

    def saved(self, name: TaskName, path: str) -> list[TaskName]:
        """The donor saved the state. Returns the tasks that count now."""
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
        """A state for joining tasks could not be saved or read: they are served next time."""
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
        """Add a task's report. Returns the job's progress if there is a new one."""
        if len(self.tasks) == 1 or self.lowest is None:
            return progress
        if progress.task.name == EVALUATOR and self.plan.strategy != "roles":
            return None  # its losses are not training losses
        self._reports[progress.task.name] += 1
        return self._course.add(progress, self._job.task(self._speaker(self.lowest)))

    def _speaker(self, lowest: TaskName) -> TaskName:
        """The worker whose reports count for the job: the lowest. Without a library, it is the
        lowest that reports anything, because the first may print nothing.
        """
        if not self.ports or self._reports[lowest]:
            return lowest
        speakers = [name for name, count in self._reports.items() if count >= _UNHEARD]
        return min(speakers, key=lambda name: name.index, default=lowest)

    def are_apart(self, now: float, ended: bool = False) -> bool:
        """Whether the workers were found to share nothing: none connected, and one succeeded or
        showed progress for a while. True once.

        Args:
            now: When a worker showed progress in its output, or ended; seconds on any clock.
            ended: Whether it ended.
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
    """Whether a task may have failed because another one writes the same file. `begun`: it had
    started to train, so its inputs existed.
    """
    return bool(_OF_ONE_FILE.search(reason) or (begun and _MAY_BE_OF_ONE_FILE.search(reason)))
