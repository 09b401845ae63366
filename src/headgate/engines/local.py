"""Engine `local`: tasks on this machine and the places on it, watched by one thread."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.engines import per_task_executor
from headgate.engines.base import Engine, Listener
from headgate.engines.channel import Connection
from headgate.engines.connections import Connections
from headgate.engines.log import TaskLog, unread_lines
from headgate.engines.oom import LOOK_SECONDS, OomMonitor
from headgate.engines.per_task_executor import PerTaskExecutor
from headgate.engines.pseudo_terminal import terminal
from headgate.engines.tasks import BoxRegistry, PendingStart, Task
from headgate.isolation.base import Box, Isolation, Launch
from headgate.machine.processes import at_work
from headgate.model.cluster import Cluster, Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError, IsolationError, UsageError
from headgate.model.identifiers import TaskId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import Share, Uncontrolled

_READ_BYTES = 1 << 16
_DRAIN_READS = 64

REST_SECONDS = 2.0
"""Time before the end of a task's grace at which its remaining processes are asked to end. The
first process was asked earlier.
"""
LEFT_SECONDS = 1.0
"""Time for processes left behind by a task's first process to end by themselves, as its helpers
do.
"""
_LOOK_SECONDS = 0.05
CLOSE_SECONDS = 15.0
"""Longest time that `close` waits for tasks that it killed."""
FILES_OF_A_TASK = 12
"""Its output, log, end, keeper and connection, files of its cgroups, and some during its start."""
_OTHER_FILES = 32
"""For the stores of runs, clients and samplers."""
_AMPLE_FILES = 4096  # of some 360 tasks


class LocalEngine(Engine):
    """Starts tasks on this machine, in boxes of `isolation`.

    Args:
        cluster: This machine, or nodes that are places on it; a single one is possible.
        isolation: The isolation of the tasks.
        channel: Path of the task channel's socket, in a folder that only this user can enter.
        registry: Registers each box, so that it does not outlive this process for longer than it
            should.
        logs: Makes the log of a task's output from the `log` of `start`.
        others: Makes the isolation of a name that a launch asks for; None: there is no other.
    """

    name = "local"

    def __init__(
        self,
        cluster: Cluster | Node,
        isolation: Isolation,
        channel: Path,
        registry: BoxRegistry | None = None,
        logs: Callable[[str], TaskLog] = TaskLog,
        others: Callable[[str], Isolation] | None = None,
    ) -> None:
        self._cluster = Cluster((cluster,)) if isinstance(cluster, Node) else cluster
        self._isolation = isolation
        self._channel = channel
        self._registry = registry
        self._logs = logs
        self._others = others
        self._isolations = {"": isolation, isolation.name: isolation}
        self._commands: deque[Callable[[], None]] = deque()
        self._starts: dict[TaskId, PendingStart] = {}
        self._tasks: dict[TaskId, Task] = {}
        self._executor = PerTaskExecutor(self._do)
        self._closing_at: float | None = None
        self._looks_at = 0.0
        self._open = False
        self._thread = threading.Thread(target=self._watch, name="engine", daemon=True)

    # --- the contract, called from any thread -----------------------------------------------------

    def open(self, listener: Listener) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(
            self._channel, self._selector, self._key_of, self._greeted, self._said, listener
        )
        self._wake_out, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._descriptors = Descriptors()
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._woken)
        self._thread.start()
        self._open = True

    def cluster(self) -> Cluster:
        return self._cluster

    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        return self._isolation.uncontrolled()

    def start(self, launch: Launch, share: Share, log: str) -> None:
        self._do(lambda: self._start(launch, share, log))

    def take_up(self, record: Mapping[str, Any], share: Share, log: str) -> None:
        """Take up a task that outlived its hub, by its box's record in the registry; as `start`
        else.
        """
        self._do(lambda: self._take_up(record, share, log))

    def set_share(self, task: TaskId, share: Share) -> None:
        self._do_once_it_runs(task, lambda: self._apply(task, share))

    def send(self, task: TaskId, message: Mapping[str, object]) -> None:
        self._do_once_it_runs(task, lambda: self._send(task, message))

    def stop(self, task: TaskId, grace: float) -> None:
        self._do(lambda: self._stop(task, grace))

    def boxes(self) -> Mapping[TaskId, Box]:
        return {id: task.box for id, task in list(self._tasks.items())}

    def close(self) -> None:
        if not self._open:
            return
        self._do(self._kill_all)
        self._thread.join()
        self._executor.close()
        self._open = False
        self._obey()  # what came while the thread ended is refused, not forgotten
        self._connections.close()
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    # --- the thread -------------------------------------------------------------------------------

    def _do(self, command: Callable[[], None]) -> None:
        if not self._open:
            return
        self._commands.append(command)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_in, b"!")

    def _do_once_it_runs(self, id: TaskId, command: Callable[[], None]) -> None:
        self._do(lambda: self._once_it_runs(id, command))

    def _once_it_runs(self, id: TaskId, command: Callable[[], None]) -> None:
        if (start := self._starts.get(id)) is not None:
            start.held.append(command)
        else:
            command()

    def _in_turn(
        self,
        id: TaskId,
        isolation: Isolation,
        act: Callable[[], object],
        then: Callable[[Future[Any]], None],
    ) -> None:
        """Queue an operation on a task's box; run it off this thread if it may block."""
        if isolation.waits:
            self._executor.do(id, act, then)
        else:
            per_task_executor.now(act, then)

    def _obey(self) -> None:
        while self._commands:
            self._guarded(self._commands.popleft())

    def _guarded(self, act: Callable[[], object]) -> None:
        """Call `act`. An error of one task must not end the thread that serves all of them."""
        try:
            act()
        except Exception as error:  # noqa: BLE001
            text = f"engine {self.name!r} met an error and goes on"
            met = Reason.of(ReasonKind.INTERNAL_ERROR, text=text, error=repr(error))
            self._listener.warned(None, met)

    def _kill_all(self) -> None:
        self._closing_at = time.monotonic()
        for id in self._starts:
            self._stop_start(id)
        for task in self._tasks.values():
            self._kill(task)

    def _kill(self, task: Task) -> None:
        task.killed = True
        if task.isolation.waits:
            self._executor.do_at_once(task.box.kill, lambda done: self._guarded(done.result))
        else:
            self._guarded(task.box.kill)

    def _watch(self) -> None:
        while self._starts or self._tasks or self._closing_at is None:
            for key, _ in self._selector.select(self._next_time()):
                # An earlier event may have closed it: a task's end closes its output and its
                # connection.
                if self._selector.get_map().get(key.fd) is key:
                    self._guarded(key.data)
            self._obey()
            now = time.monotonic()
            if self._closing_at is not None and now >= self._closing_at + CLOSE_SECONDS:
                break
            for task in list(self._tasks.values()):
                if task.rest_at is not None and now >= task.rest_at:
                    task.rest_at = None
                    self._guarded(task.box.terminate)
                if task.kill_at is not None and now >= task.kill_at:
                    task.kill_at = None
                    task.overdue = True
                    self._kill(task)
                if task.waits_until is not None and (
                    now >= task.waits_until or not task.box.pids()
                ):
                    self._guarded(lambda: self._conclude(task))  # noqa: B023  # it is called at once
                if task.reads_again is not None and now >= task.reads_again:
                    self._read_on(task)
            self._look_for_kills(now)
            self._connections.read_on(now)
        while self._tasks:  # the records of their boxes stay, for the next who cleans up
            _, task = self._tasks.popitem()
            if task.exit is not None:
                self._listener.warned(task.id, Reason(ReasonKind.BOX_LEFT))
            self._listener.exited(task.id, task.presumed_exit())

    def _next_time(self) -> float | None:
        times = [t.kill_at for t in self._tasks.values() if t.kill_at is not None]
        times += [t.rest_at for t in self._tasks.values() if t.rest_at is not None]
        times += [t.reads_again for t in self._tasks.values() if t.reads_again is not None]
        times += [
            time.monotonic() + _LOOK_SECONDS
            for t in self._tasks.values()
            if t.waits_until is not None
        ]
        times += self._connections.reads_again()
        times += [self._looks_at] if self._tasks else []
        times += [self._closing_at + CLOSE_SECONDS] if self._closing_at is not None else []
        return max(min(times) - time.monotonic(), 0.0) if times else None

    def _look_for_kills(self, now: float) -> None:
        if now < self._looks_at:
            return
        self._looks_at = now + LOOK_SECONDS
        self._connections.keep()
        for task in self._tasks.values():
            if task.exit is None and (killed := task.kills.look(now)) is not None:
                self._listener.warned(task.id, killed)

    def _woken(self) -> None:
        os.read(self._wake_out, 4096)

    def _start(self, launch: Launch, share: Share, log: str) -> None:
        if launch.task in self._tasks or launch.task in self._starts:
            self._listener.warned(launch.task, Reason(ReasonKind.RUNS_ALREADY))
            return
        try:
            if self._closing_at is not None:
                raise HeadgateError("this engine is closing")
            self._connections.keep()
            self._descriptors.check(len(self._tasks) + len(self._starts) + 1)
            isolation = self._isolation_of(launch)
        except Exception as error:  # noqa: BLE001  # whatever it is, the job has to hear of it
            self._not_started(launch.task, error)
            return
        key = secrets.token_hex(16)
        added = {"HEADGATE_CHANNEL": f"unix:{self._channel}", "HEADGATE_KEY": key}
        full_launch = replace(
            launch, env={**launch.env, **added}, reads=(*launch.reads, str(self._channel))
        )
        start = self._starts[launch.task] = PendingStart(key)
        self._in_turn(
            launch.task,
            isolation,
            lambda: self._box(isolation, start.stopped, full_launch, share),
            lambda done: self._begun(launch, isolation, log, done),
        )

    def _begun(
        self, launch: Launch, isolation: Isolation, log: str, done: Future[tuple[Box, int]]
    ) -> None:
        id = launch.task
        start = self._starts.pop(id)
        try:
            box, read_end = done.result()
        except Exception as error:  # noqa: BLE001  # as above
            if start.stopped.is_set():
                reason = "it was stopped before it started"
                self._listener.exited(id, Exit(code=None, signal=signal.SIGTERM, reason=reason))
            else:
                self._not_started(id, error)
            return
        if self._closing_at is not None:
            os.close(read_end)
            refusal = HeadgateError("this engine is closing")
            self._in_turn(id, isolation, box.close, lambda _: self._not_started(id, refusal))
            return
        asks = launch.stop_signal
        task = self._tasks[id] = Task(
            id, isolation, box, start.key, read_end, self._logs(log), OomMonitor(box), asks
        )
        if self._registry is not None:
            if launch.outlives:
                box.plan_keeping(log, self._channel.parent)
            gpus = None if launch.gpus is None else list(launch.gpus)
            of_launch = {"stop_signal": asks, "key": start.key, "gpus": gpus}
            of_launch |= {"attempt": launch.attempt, "isolation": isolation.name}
            self._registry.add(task.id, {**of_launch, **box.record()}, read_end, log)
            box.keep(read_end)
        self._attend(task)
        for command in start.held:
            self._guarded(command)

    def _attend(self, task: Task) -> None:
        self._selector.register(task.output, selectors.EVENT_READ, lambda: self._readable(task))
        self._selector.register(task.box.exit_fd, selectors.EVENT_READ, lambda: self._ended(task))
        self._listener.started(task.id, task.box.pid)

    def _take_up(self, record: Mapping[str, Any], share: Share, log: str) -> None:
        id, isolation = TaskId(record["task"]), self._isolations[record["isolation"]]
        try:
            self._descriptors.check(len(self._tasks) + len(self._starts) + 1)
            box, output, unread = isolation.take_up(record)
        except (HeadgateError, OSError) as error:
            self._guarded(lambda: isolation.sweep(record))
            if self._registry is not None:
                self._registry.remove(id)
            lost = Exit(code=None, reason=f"was lost with its hub: {error}", lost=True)
            self._listener.exited(id, lost)
            return
        monitor = OomMonitor(box)
        asks = record["stop_signal"]
        task = self._tasks[id] = Task(
            id, isolation, box, record["key"], output, self._logs(log), monitor, asks
        )
        if self._registry is not None:
            self._registry.add(id, record, output, log)
        isolation.release(record)  # the hub that is gone may have held it
        self._attend(task)
        if lines := unread_lines(log, unread):
            monitor.read(lines)
            self._listener.output(id, lines)
        self._apply(id, share)

    def _not_started(self, id: TaskId, error: BaseException) -> None:
        self._listener.exited(id, Exit(code=None, reason=f"could not be started: {error}"))

    def _isolation_of(self, launch: Launch) -> Isolation:
        if (isolation := self._isolations.get(launch.isolation)) is None:
            if self._others is None:
                raise UsageError(
                    f"isolation {launch.isolation!r} is for tasks on this machine; leave it out"
                )
            isolation = self._isolations[launch.isolation] = self._others(launch.isolation)
        return isolation

    def _stop_start(self, id: TaskId) -> None:
        """End a start that has not begun, or that waits for others to be ready."""
        self._starts[id].stopped.set()
        self._executor.forgo(id)

    def _box(
        self, isolation: Isolation, stopped: threading.Event, launch: Launch, share: Share
    ) -> tuple[Box, int]:
        """Start a task. Returns its box, and the descriptor of its output."""
        columns = launch.env.get("COLUMNS", "")
        read_end, write_end = terminal(columns) if launch.tty else os.pipe2(os.O_CLOEXEC)
        try:
            box = isolation.start_unless(stopped, launch, share, write_end)
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        return box, read_end

    def _apply(self, id: TaskId, share: Share) -> None:
        if (task := self._tasks.get(id)) is None:
            return
        task.wanted.append(share)
        self._in_turn(id, task.isolation, task.change, lambda done: self._changed(task, done))

    def _changed(self, task: Task, done: Future[tuple[Uncontrolled, ...]]) -> None:
        try:
            uncontrolled = done.result()
        except IsolationError as error:
            refused = Reason.of(ReasonKind.SHARE_NOT_SET, text=str(error))
            self._listener.warned(task.id, refused)
            return
        for limit in task.news(uncontrolled):
            self._listener.warned(task.id, limit.warning())

    def _send(self, id: TaskId, message: Mapping[str, object]) -> None:
        task, connection = self._tasks.get(id), self._connections.of(id)
        if task is None or connection is None or connection.send(message):
            return
        if not connection.over and task.kill_at is None:  # one that ends need not hear it
            not_taken = Reason.of(ReasonKind.MESSAGE_NOT_TAKEN, type=str(message.get("type")))
            self._listener.warned(id, not_taken)

    def _stop(self, id: TaskId, grace: float) -> None:
        if id in self._starts:
            self._stop_start(id)
            self._once_it_runs(id, lambda: self._stop(id, grace))
            return
        if (task := self._tasks.get(id)) is None:
            return
        if grace <= 0 or task.waits_until is not None:
            self._kill(task)
            return
        kill_at = time.monotonic() + grace
        if task.kill_at is None:
            connection = self._connections.of(id)
            task.kill_at, task.grace = kill_at, grace
            if connection is None or connection.observes or not connection.send({"type": "stop"}):
                task.box.ask(task.stop_signal)
                task.rest_at = kill_at - min(REST_SECONDS, grace / 2)
            task.box.wake()
        elif task.rest_at is not None and kill_at < task.kill_at:
            task.rest_at = min(task.rest_at, kill_at - min(REST_SECONDS, grace / 2))
        task.kill_at = min(task.kill_at, kill_at)

    def _key_of(self, id: TaskId) -> str | None:
        known = self._starts.get(id) or self._tasks.get(id)
        return known.key if known is not None else None

    def _greeted(self, id: TaskId, connection: Connection) -> None:
        self._once_it_runs(id, lambda: self._welcome(id, connection))

    def _welcome(self, id: TaskId, connection: Connection) -> None:
        if connection.observes:
            return
        if self._registry is not None:
            self._registry.connected(id)
        if self._tasks[id].kill_at is not None:
            connection.send({"type": "stop"})

    def _said(self, id: TaskId, message: Mapping[str, object]) -> None:
        self._once_it_runs(id, lambda: self._listener.message(id, message))

    # --- output -----------------------------------------------------------------------------------

    def _readable(self, task: Task) -> None:
        ended = not self._read(task)
        pause = task.log.resumes_in(now := time.monotonic())
        if ended or pause > 0:
            self._selector.unregister(task.output)
            task.reads_again = None if ended else now + pause

    def _read(self, task: Task) -> bool:
        """Read once. Returns False at the end of the output."""
        try:
            data = os.read(task.output, _READ_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # the end of a pseudo-terminal
        if lines := task.log.write(data, time.monotonic()):
            task.kills.read(lines)
            self._listener.output(task.id, lines)
        if task.log.trouble != task.complained:
            task.complained = task.log.trouble
            self._listener.warned(task.id, task.log.state())
        return bool(data)

    def _read_on(self, task: Task) -> None:
        task.reads_again = None
        self._selector.register(task.output, selectors.EVENT_READ, lambda: self._readable(task))

    # --- the end ----------------------------------------------------------------------------------

    def _ended(self, task: Task) -> None:
        self._selector.unregister(task.box.exit_fd)
        task.exit = Exit(code=None, reason="it ended, and how cannot be told")
        try:
            task.exit = task.box.reap()
            by_itself = (
                task.exit.ok and task.kill_at is None and not (task.killed or task.isolation.waits)
            )
            if by_itself and task.box.pids():
                task.waits_until = time.monotonic() + LEFT_SECONDS
        finally:
            if task.waits_until is None:
                self._conclude(task)

    def _conclude(self, task: Task) -> None:
        """Finish a task that has ended, and report its end."""
        exit = task.exit or task.presumed_exit()
        try:
            if task.waits_until is not None:
                exit = task.exit = replace(
                    exit, left=() if task.killed else tuple(at_work(task.box.pids()))
                )
            # Processes that it left behind would hold its output and its share. If removing its box
            # may block, another thread does it.
            if not task.isolation.waits:
                task.box.kill()
            self._connections.settle(task.id)
            for _ in range(_DRAIN_READS):
                if not self._read(task):
                    break
            exit, killed = task.kills.ended(exit, time.monotonic(), task.killed)
            exit = task.exit = replace(exit, overdue_seconds=task.grace if task.overdue else None)
            if killed is not None:
                self._listener.warned(task.id, killed)
        finally:
            self._forget(task, exit)

    def _forget(self, task: Task, exit: Exit) -> None:
        if task.output in self._selector.get_map():
            self._selector.unregister(task.output)
        if lines := task.log.rest():
            self._listener.output(task.id, lines)
        task.log.close()
        os.close(task.output)
        task.kill_at = task.rest_at = task.reads_again = task.waits_until = None
        self._in_turn(
            task.id, task.isolation, task.box.close, lambda done: self._gone(task, exit, done)
        )

    def _gone(self, task: Task, exit: Exit, done: Future[None]) -> None:
        self._guarded(done.result)
        if self._registry is not None:
            self._registry.remove(task.id)
        # otherwise it was given up when this engine closed
        if self._tasks.pop(task.id, None) is not None:
            self._listener.exited(task.id, exit)


class Descriptors:
    """Counts how many tasks the limit on open files allows (`ulimit -n`). One task too many would
    cost others their output.

    It counts the other open files of this process when it is made.
    """

    def __init__(self) -> None:
        self._besides = len(os.listdir("/proc/self/fd")) + _OTHER_FILES

    def check(self, tasks: int) -> None:
        """Check that `tasks` tasks can run at once.

        Raises:
            HeadgateError: They cannot. The message says which limit to raise.
        """
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if self._besides + tasks * FILES_OF_A_TASK <= most:
            return
        fitting, ample = (
            max(most - self._besides, 0) // FILES_OF_A_TASK,
            max(_AMPLE_FILES, 4 * most),
        )
        where = "`ulimit -n`, /etc/security/limits.conf, LimitNOFILE of a service"
        raise HeadgateError(
            f"{most} open files are allowed here (`ulimit -Hn`), enough for {fitting} tasks at "
            f"once; have fewer, or raise it to {ample} ({where}) where the hub is started, once "
            "the one that runs has ended"
        )
