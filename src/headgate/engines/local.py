"""Engine `local`: tasks on this machine and the places on it, watched by one thread."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.engines import per_task_executor
from headgate.engines.base import Engine, Listener
from headgate.engines.channel import Connection
from headgate.engines.command_loop import CommandLoop
from headgate.engines.connections import Connections
from headgate.engines.log import TaskLog, unread_lines
from headgate.engines.oom import LOOK_SECONDS, OomMonitor
from headgate.engines.per_task_executor import PerTaskExecutor
from headgate.engines.pseudo_terminal import terminal
from headgate.engines.task_output import TaskOutput
from headgate.engines.tasks import BoxRegistry, Descriptors, GraceStep, PendingStart, Task
from headgate.isolation.base import Box, Isolation, Launch
from headgate.machine.processes import at_work
from headgate.model.cluster import Cluster, Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError, IsolationError, UsageError
from headgate.model.identifiers import TaskId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import Share, Uncontrolled

LEFT_SECONDS = 1.0
"""Time for processes left behind by a task's first process to end by themselves, as its helpers
do.
"""
EXPECTED_SECONDS = 1.0
"""Longest time for which a start waits for `expected`."""
CLOSE_SECONDS = 15.0
"""Longest time that `close` waits for tasks that it killed."""


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
        expected: Called before each start of a task, with what has it begin, which any thread may
            call. It must not wait. None: a task begins at once.
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
        expected: Callable[[TaskId, Callable[[], None]], None] | None = None,
    ) -> None:
        self._cluster = Cluster((cluster,)) if isinstance(cluster, Node) else cluster
        self._isolation = isolation
        self._channel = channel
        self._registry = registry
        self._logs = logs
        self._others = others
        self._expected = expected
        self._isolations = {"": isolation, isolation.name: isolation}
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
        self._loop = CommandLoop(self._failed)
        self._selector = self._loop.selector
        self._connections = Connections(
            self._channel, self._selector, self._key_of, self._greeted, self._said, listener
        )
        self._descriptors = Descriptors()
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
        self._loop.obey()  # what came while the thread ended is refused, not forgotten
        self._connections.close()
        self._loop.close()

    # --- the thread -------------------------------------------------------------------------------

    def _do(self, command: Callable[[], None]) -> None:
        if self._open:
            self._loop.do(command)

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

    def _failed(self, error: Exception) -> None:
        text = f"engine {self.name!r} met an error and goes on"
        met = Reason.of(ReasonKind.INTERNAL_ERROR, text=text, error=repr(error))
        self._listener.warned(None, met)

    def _kill_all(self) -> None:
        self._closing_at = time.monotonic()
        for id in list(self._starts):
            self._stop_start(id)
        for task in self._tasks.values():
            self._kill(task)

    def _kill(self, task: Task) -> None:
        task.killed = True
        if task.isolation.waits:
            self._executor.do_at_once(task.box.kill, lambda done: self._loop.guarded(done.result))
        else:
            self._loop.guarded(task.box.kill)

    def _watch(self) -> None:
        while self._starts or self._tasks or self._closing_at is None:
            self._loop.turn(self._next_time())
            now = time.monotonic()
            for start in list(self._starts.values()):
                if now >= start.begin_by:
                    self._loop.guarded(start.begin)
            if self._closing_at is not None and now >= self._closing_at + CLOSE_SECONDS:
                break
            for task in list(self._tasks.values()):
                if GraceStep.TERMINATE in (due := task.grace.due(now)):
                    self._loop.guarded(task.box.terminate)
                if GraceStep.KILL in due:
                    self._kill(task)
                if task.waits_until is not None and (
                    now >= task.waits_until or not task.box.pids()
                ):
                    self._loop.guarded(lambda: self._conclude(task))  # noqa: B023  # it is called at once
                if task.output.reads_again is not None and now >= task.output.reads_again:
                    task.output.watch()
            self._look_for_kills(now)
            self._connections.read_on(now)
        while self._tasks:  # the records of their boxes stay, for the next who cleans up
            _, task = self._tasks.popitem()
            if task.exit is not None:
                self._listener.warned(task.id, Reason(ReasonKind.BOX_LEFT))
            self._listener.exited(task.id, task.presumed_exit())

    def _next_time(self) -> float | None:
        now = time.monotonic()
        times = list[float]()
        for task in self._tasks.values():
            times += task.times(now)
        times += [start.begin_by for start in self._starts.values() if not start.has_begun]
        times += self._connections.reads_again()
        times += [self._looks_at] if self._tasks else []
        times += [self._closing_at + CLOSE_SECONDS] if self._closing_at is not None else []
        return max(min(times) - now, 0.0) if times else None

    def _look_for_kills(self, now: float) -> None:
        if now < self._looks_at:
            return
        self._looks_at = now + LOOK_SECONDS
        self._connections.keep()
        for task in self._tasks.values():
            if task.exit is None and (killed := task.kills.look(now)) is not None:
                self._listener.warned(task.id, killed)

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

        def begin() -> None:
            self._in_turn(
                launch.task,
                isolation,
                lambda: self._box(isolation, start, full_launch, share, log),
                lambda done: self._begun(launch, isolation, log, done),
            )

        start = PendingStart(key, begin, time.monotonic() + EXPECTED_SECONDS)
        self._starts[launch.task] = start
        if self._expected is None:
            start.begin()
        else:
            self._expected(launch.task, lambda: self._do(start.begin))

    def _begun(
        self, launch: Launch, isolation: Isolation, log: str, done: Future[tuple[Box, int]]
    ) -> None:
        id = launch.task
        start = self._starts.pop(id)
        is_closing = self._closing_at is not None
        if start.is_registered and self._registry and (is_closing or done.exception()):
            self._registry.remove(id)
        try:
            box, read_end = done.result()
        except Exception as error:  # noqa: BLE001  # as above
            if start.stopped.is_set():
                reason = "it was stopped before it started"
                self._listener.exited(id, Exit(code=None, signal=signal.SIGTERM, reason=reason))
            else:
                self._not_started(id, error)
            return
        if is_closing:
            os.close(read_end)
            refusal = HeadgateError("this engine is closing")
            self._in_turn(id, isolation, box.close, lambda _: self._not_started(id, refusal))
            return
        asks = launch.stop_signal
        task = self._task(id, isolation, box, start.key, read_end, log, asks)
        self._attend(task)
        for command in start.held:
            self._loop.guarded(command)

    def _task(
        self,
        id: TaskId,
        isolation: Isolation,
        box: Box,
        key: str,
        fd: int,
        log: str,
        stop_signal: int,
    ) -> Task:
        """The record of a task that prints to `fd`."""
        kills = OomMonitor(box)
        output = TaskOutput(
            fd,
            self._logs(log),
            self._selector,
            lambda lines: self._printed(id, kills, lines),
            lambda trouble: self._listener.warned(id, trouble),
        )
        task = self._tasks[id] = Task(id, isolation, box, key, output, kills, stop_signal)
        return task

    def _printed(self, id: TaskId, kills: OomMonitor, lines: list[str]) -> None:
        kills.read(lines)
        self._listener.output(id, lines)

    def _attend(self, task: Task) -> None:
        task.output.watch()
        self._selector.register(task.box.exit_fd, selectors.EVENT_READ, lambda: self._ended(task))
        self._listener.started(task.id, task.box.pid)

    def _take_up(self, record: Mapping[str, Any], share: Share, log: str) -> None:
        id, isolation = TaskId(record["task"]), self._isolations[record["isolation"]]
        try:
            self._descriptors.check(len(self._tasks) + len(self._starts) + 1)
            box, output, unread = isolation.take_up(record)
        except (HeadgateError, OSError) as error:
            self._loop.guarded(lambda: isolation.sweep(record))
            if self._registry is not None:
                self._registry.remove(id)
            lost = Exit(code=None, reason=f"was lost with its hub: {error}", lost=True)
            self._listener.exited(id, lost)
            return
        asks = record["stop_signal"]
        task = self._task(id, isolation, box, record["key"], output, log, asks)
        if self._registry is not None:
            self._registry.add(id, record, output, log)
        isolation.release(record)  # the hub that is gone may have held it
        self._attend(task)
        if lines := unread_lines(log, unread):
            self._printed(id, task.kills, lines)
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
        start = self._starts[id]
        start.stopped.set()
        self._executor.forgo(id)
        self._loop.guarded(start.begin)  # which ends it

    def _box(
        self, isolation: Isolation, start: PendingStart, launch: Launch, share: Share, log: str
    ) -> tuple[Box, int]:
        """Start a task. Returns its box, and the descriptor of its output."""
        if start.stopped.is_set():
            raise HeadgateError("it was stopped")
        columns = launch.env.get("COLUMNS", "")
        read_end, write_end = terminal(columns) if launch.tty else os.pipe2(os.O_CLOEXEC)

        def made(box: Box) -> None:
            if self._registry is None:
                return
            if launch.outlives:
                box.plan_keeping(log, self._channel.parent)
            record = start.record(launch, isolation, box)
            self._registry.add(launch.task, record, read_end, log)
            start.is_registered = True
            box.keep(read_end)

        try:
            box = isolation.start(launch, share, write_end, start.stopped, made)
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
        if not connection.over and not task.grace.runs:  # one that ends need not hear it
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
        was_asked = task.grace.runs
        task.grace.grant(time.monotonic(), grace)
        if was_asked:
            return
        connection = self._connections.of(id)
        if connection is None or connection.observes or not connection.send({"type": "stop"}):
            task.box.ask(task.stop_signal)
            task.grace.terminates = True
        task.box.wake()

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
        if self._tasks[id].grace.runs:
            connection.send({"type": "stop"})

    def _said(self, id: TaskId, message: Mapping[str, object]) -> None:
        self._once_it_runs(id, lambda: self._listener.message(id, message))

    # --- the end ----------------------------------------------------------------------------------

    def _ended(self, task: Task) -> None:
        self._selector.unregister(task.box.exit_fd)
        task.exit = Exit(code=None, reason="it ended, and how cannot be told")
        try:
            task.exit = task.box.reap()
            by_itself = (
                task.exit.ok and not task.grace.runs and not (task.killed or task.isolation.waits)
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
            task.output.drain()
            exit, killed = task.kills.ended(exit, time.monotonic(), task.killed)
            exit = task.exit = replace(exit, overdue_seconds=task.grace.overdue_seconds)
            if killed is not None:
                self._listener.warned(task.id, killed)
        finally:
            self._forget(task, exit)

    def _forget(self, task: Task, exit: Exit) -> None:
        task.output.close()
        task.grace.end()
        task.waits_until = None
        self._in_turn(
            task.id, task.isolation, task.box.close, lambda done: self._gone(task, exit, done)
        )

    def _gone(self, task: Task, exit: Exit, done: Future[None]) -> None:
        self._loop.guarded(done.result)
        if self._registry is not None:
            self._registry.remove(task.id)
        # otherwise it was given up when this engine closed
        if self._tasks.pop(task.id, None) is not None:
            self._listener.exited(task.id, exit)
