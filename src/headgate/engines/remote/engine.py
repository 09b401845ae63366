"""An engine with an agent on each node, the hub's end: it sends requests to the bridge, and passes
on what comes back.
"""

from __future__ import annotations

import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

from headgate.engines.base import Engine, Listener, Slot
from headgate.engines.log import TaskLog
from headgate.engines.remote import far_files, wire
from headgate.engines.remote.bridge import Bridge
from headgate.engines.remote.files import Files
from headgate.engines.remote.questions import Questions
from headgate.engines.remote.speeds import CoreSpeeds
from headgate.engines.remote.wire import ApplyShare, Command, StartLaunch
from headgate.isolation.base import Box, Launch
from headgate.model.cluster import Cluster, Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.identifiers import JobId, TaskId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import Share, Uncontrolled

T = TypeVar("T")

CLOSE_SECONDS = 60.0
"""How long `close` waits for the bridge to end everything."""


@dataclass(slots=True)
class _FarTask:
    id: TaskId
    node: str
    log: TaskLog
    held: list[Command] | None = None
    """Commands to send once the reservation is granted; None if it is granted, or if there is
    none.
    """
    complained: str | None = field(default=None)


@dataclass(slots=True)
class _PendingReservation:
    key: str
    granted: wire.Granted | None = None
    wait_reason: str = ""
    """The reason for the wait, as last reported."""
    refused: str = ""
    """Why the reservation is impossible."""


class AgentsEngine(Engine):
    """Starts tasks on the nodes of a cluster, through a bridge that puts an agent on each.

    Args:
        address: Where the cluster is; empty: the engine starts one of its own on this machine, and
            ends it.
        shared_files: Whether the nodes see this machine's files under the same paths. Then no files
            are sent.
        speeds: JSON file that keeps the measured speeds of kinds of nodes. None: measure them each
            time.
    """

    words: str
    """The cluster's name in messages."""

    def __init__(
        self, address: str = "", *, shared_files: bool = False, speeds: Path | None = None
    ) -> None:
        self.address = address
        self._shared = shared_files or not address
        self._speeds = None if speeds is None else CoreSpeeds(speeds)
        self._nodes: dict[str, Node] = {}
        self._away: set[str] = set()
        self._files = Files()
        self._uncontrolled: tuple[Uncontrolled, ...] = ()
        self._called = ""
        self._tasks: dict[TaskId, _FarTask] = {}
        self._slots: dict[TaskId, tuple[Slot, _PendingReservation]] = {}
        self._reservations: dict[str, _PendingReservation] = {}
        self._count = 0
        self._lock = threading.RLock()
        self._open = False
        self._closing = False

    @abstractmethod
    def connect(self) -> Bridge:
        """Start the bridge.

        Raises:
            UsageError: The address makes no sense.
            HeadgateError: Nobody answers there.
        """

    # --- the contract -----------------------------------------------------------------------------

    def open(self, listener: Listener) -> None:
        """Connect; takes some seconds.

        Raises:
            UsageError: The address is malformed, or versions differ.
            HeadgateError: Nobody answers, or no agent can run on the cluster.
        """
        self._listener = listener
        self._bridge = self.connect()
        self._pipe = self._bridge.pipe
        at = wire.HERE if self._bridge.is_far else self.address
        self._pipe.send(
            wire.Open(at, self._shared, {} if self._speeds is None else self._speeds.known())
        )
        while not isinstance(answer := self._pipe.receive(), wire.Opened):
            if isinstance(answer, wire.Warned):
                listener.warned(None, answer.what)
                continue
            self._pipe.close()
            how = self._bridge.wait()
            if isinstance(answer, wire.Refused):
                is_usage = answer.exit_code == UsageError.exit_code
                error = UsageError(answer.text) if is_usage else HeadgateError(answer.text)
                error.exit_code = answer.exit_code
                raise error
            raise HeadgateError(
                f"the process that connects to {self.words} ended before it was connected: {how}"
            )
        # a cluster started here is a different one each time
        self._called = f"{self.name}-{answer.head}" if self.address else ""
        self._questions = Questions(self._pipe.send)
        if at != wire.HERE:
            self.address = answer.address
        self._nodes = {node.name: node for node in answer.nodes}
        self._uncontrolled = answer.uncontrolled
        if self._speeds is not None:
            self._speeds.keep(answer.nodes)
        self._open = True
        self._reader = threading.Thread(target=self._read, name=self.name, daemon=True)
        self._reader.start()

    def cluster(self) -> Cluster:
        with self._lock:
            return Cluster(tuple(self._nodes.values()))

    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        return self._uncontrolled

    def called(self) -> str:
        return self._called

    def ask(self, node: str, function: Callable[..., T], *arguments: object) -> T:
        return cast(T, self._questions.ask(node, function, arguments))

    def reserve(self, job: JobId, attempt: int, slots: Mapping[TaskId, Slot]) -> None:
        with self._lock:
            self._count += 1
            reservation = _PendingReservation(f"{job}#{attempt}#{self._count}")
            self._give_back(slots)  # what is set aside now takes its place
            self._reservations[reservation.key] = reservation
            self._slots |= {task: (slot, reservation) for task, slot in slots.items()}
            self._pipe.send(wire.Reserve(reservation.key, dict(slots)))

    def release(self, job: JobId, attempt: int, tasks: Collection[TaskId]) -> None:
        with self._lock:
            of_attempt = f"{job}#{attempt}#"
            had = [task for task in tasks if task in self._slots]
            self._give_back(
                [task for task in had if self._slots[task][1].key.startswith(of_attempt)]
            )

    def _give_back(self, tasks: Iterable[TaskId]) -> None:
        given: dict[str, list[TaskId]] = {}
        for task in tasks:
            if (kept := self._slots.pop(task, None)) is not None:
                given.setdefault(kept[1].key, []).append(task)
        used = {kept.key for _, kept in self._slots.values()}
        for key, given_back in given.items():
            if key not in used:
                del self._reservations[key]
            self._pipe.send(wire.Release(key, tuple(given_back)))

    def waiting(self) -> frozenset[JobId]:
        with self._lock:
            begun = {task.id.job for task in self._tasks.values() if task.held is None}
            jobs = {
                id.job
                for id, (_, reservation) in self._slots.items()
                if id in self._tasks and reservation.granted is None and reservation.wait_reason
            }
            return frozenset(jobs - begun)

    def start(self, launch: Launch, share: Share, log: str) -> None:
        task, refusal, lost = launch.task, "", False
        waits = ""
        with self._lock:
            if task in self._tasks:
                self._listener.warned(task, Reason(ReasonKind.RUNS_ALREADY))
                return
            slot, reservation = self._slots.get(task, (None, None))
            node = slot.node if slot is not None else next(iter(self._nodes), "")
            if not self._open or self._closing:
                refusal = "this engine is closing"
            elif reservation is not None and reservation.refused:
                refusal = reservation.refused
            elif node not in self._nodes:
                refusal, lost = (
                    f"node {node} is gone" if node else f"the {self.words} cluster is gone",
                    True,
                )
            else:
                self._files.allow(launch)
                held = reservation is not None and reservation.granted is None
                made = self._tasks[task] = _FarTask(task, node, TaskLog(log), [] if held else None)
                waits = reservation.wait_reason if reservation is not None and held else ""
                granted = None if reservation is None else reservation.granted
                self._do(
                    made,
                    StartLaunch(launch if granted is None else _with_gpus(launch, granted), share),
                )
        if refusal:
            self._listener.exited(
                task, Exit(code=None, reason=f"could not be started: {refusal}", lost=lost)
            )
        elif waits:
            self._listener.waits(task, waits)

    def set_share(self, task: TaskId, share: Share) -> None:
        self._ask(task, ApplyShare(task, share))

    def send(self, task: TaskId, message: Mapping[str, object]) -> None:
        self._ask(task, wire.Send(task, message))

    def stop(self, task: TaskId, grace: float) -> None:
        with self._lock:
            far_task = self._tasks.get(task)
            waiting = far_task is not None and far_task.held is not None
            if far_task is not None and waiting:
                del self._tasks[task]
        if far_task is not None and waiting:
            self._end(
                far_task,
                Exit(
                    code=None,
                    signal=signal.SIGTERM,
                    reason=f"it was stopped while it waited for {self.words}",
                ),
            )
        else:
            self._ask(task, wire.EndTask(task, grace))

    def boxes(self) -> Mapping[TaskId, Box]:
        return {}

    def close(self) -> None:
        with self._lock:
            if not self._open or self._closing:
                return
            self._closing = True
        self._pipe.send(wire.Close())
        self._reader.join(CLOSE_SECONDS)
        if self._reader.is_alive():
            self._bridge.kill()
            self._reader.join()
        self._bridge.wait()
        self._pipe.close()
        self._open = False

    # --- to the bridge ----------------------------------------------------------------------------

    def _ask(self, task: TaskId, command: Command) -> None:
        with self._lock:
            if (far_task := self._tasks.get(task)) is not None:
                self._do(far_task, command)

    def _do(self, task: _FarTask, command: Command) -> None:
        if task.held is not None:
            task.held.append(command)
        else:
            self._pipe.send(wire.To(task.node, command))

    # --- from the bridge --------------------------------------------------------------------------

    def _read(self) -> None:
        while (report := self._pipe.receive()) is not None:
            try:
                self._hear(report)
            except Exception as error:  # noqa: BLE001  # one that cannot be told must not silence the others
                text = f"engine {self.name!r} met an error and goes on"
                met = Reason.of(ReasonKind.INTERNAL_ERROR, text=text, error=repr(error))
                self._listener.warned(None, met)
        self._questions.end(
            "this engine is closing" if self._closing else f"the connection to {self.words} is gone"
        )
        if self._closing:
            for task in list(self._tasks.values()):
                del self._tasks[task.id]
                self._end(task, Exit(code=None, reason="it was ended because its engine closed"))
        for name in [] if self._closing else [*self._nodes, *self._away]:
            self._leave(name, f"the connection to {self.words} is gone", for_good=True)

    def _hear(self, report: object) -> None:
        match report:
            case wire.Started(task, pid):
                far_task = self._tasks.get(task)
                # and not a task that waits after its node was lost
                if far_task is not None and far_task.held is None:
                    self._listener.started(task, pid)
            case wire.Output(task, data):
                self._write(task, bytes(data))
            case wire.TaskMessage(task, message):
                self._listener.message(task, message)
            case wire.Exited(task, exit):
                with self._lock:
                    far_task = self._tasks.pop(task, None)
                if far_task is not None:
                    self._end(far_task, exit)
            case wire.Warned(about, what):
                self._listener.warned(about, what)
            case wire.SampledUsage(target, reading):
                self._listener.usage(target, reading)
            case wire.FileAsked():
                threading.Thread(target=self._give, args=(report,), daemon=True).start()
            case wire.Returned():
                self._questions.answered(report)
            case _:
                self._hear_of_nodes(report)

    def _hear_of_nodes(self, report: object) -> None:
        """Take in what is reserved or cannot be, and which nodes joined or left."""
        match report:
            case wire.Granted():
                self._granted(report)
            case wire.ReservationWaits(key, text):
                self._waits(key, text)
            case wire.Impossible(key, text):
                with self._lock:
                    if key in self._reservations:
                        self._reservations[key].refused = text
                for far_task in self._waiting_for(key, take=True):
                    self._end(far_task, Exit(code=None, reason=f"could not be started: {text}"))
            case wire.Joined(node):
                with self._lock:
                    self._nodes[node.name] = node
                    self._away.discard(node.name)
                self._listener.joined(node)
            case wire.NodeGone(name, reason):
                self._leave(name, reason)

    def _give(self, asked: wire.FileAsked) -> None:
        self._pipe.send(far_files.answer(self._files, asked))

    def _write(self, id: TaskId, data: bytes) -> None:
        """Append output to the task's log, and report its lines."""
        if (task := self._tasks.get(id)) is None:
            return
        if lines := task.log.write(data, time.monotonic()):
            self._listener.output(id, lines)
        if task.log.trouble != task.complained:
            task.complained = task.log.trouble
            self._listener.warned(id, task.log.state())

    def _end(self, task: _FarTask, exit: Exit) -> None:
        if lines := task.log.rest():
            self._listener.output(task.id, lines)
        task.log.close()
        self._listener.exited(task.id, exit)

    def _granted(self, granted: wire.Granted) -> None:
        with self._lock:
            if (reservation := self._reservations.get(granted.key)) is None:
                return
            reservation.granted = granted
            for task in self._waiting_for(granted.key):
                commands, task.held = task.held or (), None
                for command in commands:
                    if isinstance(command, StartLaunch):
                        command = StartLaunch(_with_gpus(command.launch, granted), command.share)
                    self._do(task, command)

    def _waits(self, key: str, text: str) -> None:
        with self._lock:
            if key in self._reservations:
                self._reservations[key].wait_reason = text
            waiting = self._waiting_for(key)
        for task in waiting:
            self._listener.waits(task.id, text)

    def _waiting_for(self, key: str, take: bool = False) -> list[_FarTask]:
        """The tasks that wait for a reservation; with `take`, remove them."""
        with self._lock:
            tasks_of_key = [
                task
                for id, task in self._tasks.items()
                if task.held is not None and id in self._slots and self._slots[id][1].key == key
            ]
            if take:
                for task in tasks_of_key:
                    del self._tasks[task.id]
            return tasks_of_key

    def _leave(self, name: str, reason: str, for_good: bool = False) -> None:
        with self._lock:
            self._nodes.pop(name, None)
            self._away.add(name)
            gone = [
                self._tasks.pop(task.id) for task in list(self._tasks.values()) if task.node == name
            ]
        self._listener.left(name, reason, for_good)
        for task in gone:
            self._end(task, Exit(code=None, reason=f"node {name} is gone: {reason}", lost=True))


def _with_gpus(launch: Launch, granted: wire.Granted) -> Launch:
    """A launch with the GPUs that its task was given."""
    ids = granted.gpus.get(launch.task)
    if ids is None:
        return launch
    numbers = tuple(int(id) for id in ids) if all(id.isdecimal() for id in ids) else launch.gpus
    return replace(launch, gpus=numbers, env={**launch.env, "CUDA_VISIBLE_DEVICES": ",".join(ids)})
