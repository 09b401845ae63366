"""An engine in memory: a test drives its tasks and its clock.

It fulfils `EngineContract`, with the programs of `headgate.testing.programs` and
`headgate.testing.engine_programs`. A test drives any other command:

    engine = MemoryEngine()
    engine.open(listener)
    engine.start(launch, share, log)
    task = engine.tasks[launch.task]
    task.connect()
    task.send({"type": "progress", "step": 1, "loss": 0.5})
    task.finish(Exit(code=0))

All reports about a call are made before it returns, in the same thread.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Collection, Mapping

from headgate.engines.base import Engine, Listener, Slot
from headgate.engines.log import TaskLog
from headgate.isolation.base import Box, Launch
from headgate.model.cluster import Cluster, Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError, IsolationError
from headgate.model.identifiers import JobId, TaskId
from headgate.model.shares import Share
from headgate.testing import engine_programs
from headgate.testing.memory_isolation import MemoryBox, MemoryIsolation, Row

NODE = Node("memory", cores=2, memory_bytes=8 << 30)


class MemoryEngine(Engine):
    """Starts tasks in boxes of a `MemoryIsolation`."""

    name = "memory"

    def __init__(self, node: Node = NODE) -> None:
        self.now = 0.0
        self.isolation = self.make_isolation(node)
        self.tasks: dict[TaskId, MemoryTask] = {}
        """The running tasks."""
        self.held_back: dict[TaskId, tuple[Launch, Share, str]] = {}
        """The tasks that wait for their reservations."""
        self._node = node
        self._slots: dict[TaskId, tuple[JobId, int, Slot]] = {}
        self._had: set[TaskId] = set()

    def make_isolation(self, node: Node) -> MemoryIsolation:
        return MemoryIsolation(cores=max(1, int(node.cores)))

    def make_task(self, box: MemoryBox, output: int, log: str) -> MemoryTask:
        return MemoryTask(self, box, output, TaskLog(log))

    # --- the contract

    def open(self, listener: Listener) -> None:
        self.listener = listener

    def cluster(self) -> Cluster:
        return Cluster((self._node,))

    def reserve(self, job: JobId, attempt: int, slots: Mapping[TaskId, Slot]) -> None:
        self._slots |= {task: (job, attempt, slot) for task, slot in slots.items()}
        self._account()

    def release(self, job: JobId, attempt: int, tasks: Collection[TaskId]) -> None:
        gone = {
            task
            for task in tasks
            if task in self._slots and self._slots[task][:2] == (job, attempt)
        }
        self._slots = {task: kept for task, kept in self._slots.items() if task not in gone}
        self._had &= self._slots.keys()
        self._account()

    def start(self, launch: Launch, share: Share, log: str) -> None:
        slot = self._slots[launch.task][2] if launch.task in self._slots else None
        if slot is None or launch.task in self._had:
            self._start(launch, share, log)
        elif slot.cores > self._node.cores:
            text = f"could not be started: asked for {slot.cores:g} cores of {self._node.cores:g}"
            self.listener.exited(launch.task, Exit(code=None, reason=text))
        else:
            self.held_back[launch.task] = launch, share, log
            self.listener.waits(launch.task, f"for {slot.cores:g} cores")

    def waiting(self) -> frozenset[JobId]:
        jobs = {task.job for task in self.held_back}
        return frozenset(jobs - {task.job for task in self.tasks})

    def _account(self) -> None:
        """Grant free resources in the order of the requests, and start the tasks that waited for
        them.
        """
        for task, (_, _, slot) in self._slots.items():
            free = self._node.cores - sum(self._slots[had][2].cores for had in self._had)
            if task not in self._had and slot.cores <= free:
                self._had.add(task)
        for task in self._had & self.held_back.keys():
            self._start(*self.held_back.pop(task))

    def _start(self, launch: Launch, share: Share, log: str) -> None:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not os.path.isdir(launch.cwd):
                raise HeadgateError(f"{launch.task}: its folder {launch.cwd!r} does not exist")
            box = self.isolation.start(launch, share, writing)
        except HeadgateError as error:
            os.close(reading)
            self.listener.exited(
                launch.task, Exit(code=None, reason=f"could not be started: {error}")
            )
            return
        finally:
            os.close(writing)
        task = self.tasks[launch.task] = self.make_task(box, reading, log)
        self.listener.started(launch.task, box.pid)
        task.begin()
        task.settle()

    def set_share(self, task: TaskId, share: Share) -> None:
        if (memory_task := self.tasks.get(task)) is None:
            return
        try:
            uncontrolled = memory_task.box.apply(share)
        except IsolationError as error:
            self.listener.warned(task, str(error))
            return
        for limit in uncontrolled:
            self.listener.warned(task, limit.warning())

    def send(self, task: TaskId, message: Mapping[str, object]) -> None:
        if (memory_task := self.tasks.get(task)) is not None and memory_task.connected:
            memory_task.receive(message)

    def stop(self, task: TaskId, grace: float) -> None:
        if self.held_back.pop(task, None) is not None:
            self.listener.exited(
                task,
                Exit(code=None, signal=signal.SIGTERM, reason="it was stopped while it waited"),
            )
        if (memory_task := self.tasks.get(task)) is not None:
            memory_task.stop(grace)
            memory_task.settle()

    def boxes(self) -> Mapping[TaskId, Box]:
        return {id: task.box for id, task in self.tasks.items()}

    def close(self) -> None:
        for id in list(self.held_back):
            self.stop(id, 0)
        for task in list(self.tasks.values()):
            task.box.kill()
            task.settle()

    # --- controls for a test

    def advance(self, seconds: float) -> None:
        """Let time pass: output floods, and tasks past their grace are killed."""
        self.now += seconds
        self.isolation.advance(seconds)
        for task in list(self.tasks.values()):
            task.passed()
            task.settle()

    def alive(self, pid: int) -> bool:
        return self.isolation.alive(pid)


class MemoryTask:
    """A task of a `MemoryEngine`."""

    def __init__(self, engine: MemoryEngine, box: MemoryBox, output: int, log: TaskLog) -> None:
        self.engine = engine
        self.box = box
        self.id = box.task
        self.log = log
        self.connected = False
        self.received: list[Mapping[str, object]] = []
        """Messages that it received."""
        self.kill_at: float | None = None
        self._output = output
        self._torn = b""
        self._name, self._arguments = engine_programs.parse(box.launch.argv) or ("", ())

    # --- actions of the task

    def say(self, data: bytes) -> None:
        """Write output."""
        if lines := self.log.write(data, self.engine.now):
            self.engine.listener.output(self.id, lines)

    def connect(self, framework: str = "none") -> None:
        """Join the channel with the right key."""
        self.connected = True
        if self.kill_at is not None:
            self.receive({"type": "stop"})
        self.tell({"type": "hello", "v": 1, "task": self.id, "framework": framework})

    def hang_up(self) -> None:
        """Leave the channel."""
        self.connected = False
        self._torn = b""

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message to the engine."""
        self.transmit(json.dumps(message).encode() + b"\n")

    def transmit(self, data: bytes) -> None:
        """Send any bytes to the engine."""
        *lines, self._torn = (self._torn + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(message, dict):
                self.tell(message)

    def finish(self, exit: Exit) -> None:
        """Let its first process end like this."""
        self.box.finish(exit)
        self.settle()

    # --- actions of its engine

    def tell(self, message: Mapping[str, object]) -> None:
        if self.admits(message):
            self.engine.listener.message(self.id, message)

    def admits(self, message: Mapping[str, object]) -> bool:
        """Whether it may send: it said hello with its key."""
        return self.connected

    def receive(self, message: Mapping[str, object]) -> None:
        """Handle a message of the engine."""
        self.received.append(message)
        if self._name in ("obedient", "heedless"):
            self.send({"type": "echo", "of": message})
        if self._name == "obedient" and message.get("type") == "stop":
            self.finish(Exit(code=engine_programs.STOPPED))

    def stop(self, grace: float) -> None:
        if grace <= 0:
            self.box.kill()
            return
        kill_at = self.engine.now + grace
        first, self.kill_at = self.kill_at is None, min(self.kill_at or kill_at, kill_at)
        if first:
            self.ask()

    def ask(self) -> None:
        """Ask it to end."""
        if self.connected:
            self.receive({"type": "stop"})
        else:
            self.box.terminate()

    def passed(self) -> None:
        """Handle the passing of time."""
        if self._name == "flood":
            self.say(b"x" * engine_programs.MIB)
        if self.kill_at is not None and self.engine.now >= self.kill_at:
            self.box.kill()

    def settle(self) -> None:
        """Read what its box printed and, if that has ended, end it."""
        if self.engine.tasks.get(self.id) is not self:
            return
        while select.select([self._output], [], [], 0)[0] and (
            data := os.read(self._output, 1 << 16)
        ):
            self.say(data)
        if not select.select([self.box.exit_fd], [], [], 0)[0]:
            return
        exit = self.box.reap()
        if lines := self.log.rest():
            self.engine.listener.output(self.id, lines)
        self.end(exit)

    def end(self, exit: Exit) -> None:
        """Remove the box, then report how it ended."""
        self.discard()
        self.engine.listener.exited(self.id, exit)

    def discard(self) -> None:
        self.log.close()
        self.box.close()
        os.close(self._output)
        del self.engine.tasks[self.id]

    # --- the programs

    def begin(self) -> None:
        """Run the program."""
        match self._name:
            case "write":
                for piece in self._arguments:
                    self.say(piece.encode().decode("unicode_escape").encode())
                self.box.finish(Exit(code=0))
            case "count":
                for i in range(int(self._arguments[0])):
                    self.say(f"line {i}\n".encode())
                self.box.finish(Exit(code=0))
            case "abandon":
                daemon = Row(self.engine.isolation.new_pid(), ignores_terminate=True)
                self.box.rows.append(daemon)
                self.say(f"daemon {daemon.pid}\n".encode())
                self.box.finish(Exit(code=0))
            case "talk":
                self.connect()
                for n in range(int(self._arguments[0])):
                    self.send({"type": "count", "n": n})
                self.box.finish(Exit(code=0))
            case "obedient" | "heedless":
                self.box.rows[0].ignores_terminate = True
                self.connect()
                self.say(b"ready\n")
            case "parting":
                self.connect()
                self.hang_up()
                self.say(b"ready\n")
            case "impostor":
                self.send({"type": "count", "n": -1})
                self.say(b"refused\n")
            case "garbled":
                self._garble()

    def _garble(self) -> None:
        self.connect()
        for number, line in enumerate(engine_programs.BAD_LINES):
            self.transmit(line + b"\n")
            self.send({"type": "count", "n": number})
        for byte in b'{"type": "pieces"}\n':
            self.transmit(bytes([byte]))
        self.send({"type": "long", "text": "x" * engine_programs.BIG_BYTES})
        self.send({"type": "last"})
        self.transmit(b'{"type": "torn"')
        self.box.finish(Exit(code=0))

    def killed(self) -> None:
        """Let its first process be killed by somebody else."""
        self.finish(Exit(code=None, signal=signal.SIGKILL))
