"""Sees when tasks of roles are ready: a program listens at their port, or they have printed a line."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from headgate.engines.base import LOCAL
from headgate.errors import HeadgateError
from headgate.events import Action, Event, StartTask, TaskExited, TaskReady, TaskStarted
from headgate.hub.parts.engines import Engines
from headgate.hub.state.live_runs import Component, LiveRuns
from headgate.identifiers import TaskId
from headgate.roles import Ready
from headgate.telemetry.connections import listens
from headgate.telemetry.expressions import Expression, TooSlowError
from headgate.units import say_seconds

_SOONEST_SECONDS, _LATEST_SECONDS, _RARER = 0.05, 0.5, 1.3
"""Between two looks at a port, at first and later on, and how much longer each pause is than the one before."""
_TAIL = 5
"""Lines of its output that are quoted of a task which does not become ready."""


@dataclass(slots=True)
class _Unready:
    """A task that is not ready yet."""

    ready: Ready
    port: int
    expression: Expression | None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))
    looking: asyncio.Task[None] | None = None

    def end(self) -> None:
        if self.looking is not None:
            self.looking.cancel()


class Readiness(Component):
    """Tells the controller of tasks that are ready, and of those that have not become so in time.

    Args:
        live_runs: Where the runs are.
        engines: What is asked of ports on other machines.
        step: Tells the controller.
    """

    def __init__(self, live_runs: LiveRuns, engines: Engines, step: Callable[[Event], None]) -> None:
        self._live_runs = live_runs
        self._engines = engines
        self._step = step
        self._watched: dict[TaskId, _Unready] = {}
        self._loop = asyncio.get_running_loop()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case TaskStarted(task, pid) if (watched := self._watched.get(task)) is not None:
                watched.looking = self._loop.create_task(self._look(task, watched, pid))
            case TaskExited(task):
                self._drop(task)
        for action in actions:  # it may be the same task's next start
            if isinstance(action, StartTask):
                self._expect(action)

    def printed(self, task: TaskId, lines: Sequence[str]) -> None:
        """A task has printed lines."""
        if (watched := self._watched.get(task)) is None:
            return
        watched.tail += [line for line in lines if line.strip()]
        if (expression := watched.expression) is None:
            return
        try:
            if any(expression.search(line) for line in lines):
                self._told(task)
        except TooSlowError as error:
            self._told(task, f"the expression {expression.pattern!r} of its `ready` {error}")

    def forget(self, run: str) -> None:
        for task in [task for task in self._watched if task.run == run]:
            self._drop(task)

    def close(self) -> None:
        for task in list(self._watched):
            self._drop(task)

    def _expect(self, start: StartTask) -> None:
        role = start.spec.role_of(start.task.name)
        _, live = self._live_runs.find(start.task)
        if role is None or role.ready is None or live.current is None:
            return
        ready = role.ready
        port = live.current.port_of(start.task.name) if ready.port is True else int(ready.port)
        expression = Expression(ready.line) if ready.line is not None else None
        self._watched[start.task] = _Unready(ready, port, expression)

    async def _look(self, task: TaskId, watched: _Unready, pid: int) -> None:
        """Look for a task's port until it is there, or its time is over."""
        ready = watched.ready
        with suppress(TimeoutError):
            async with asyncio.timeout(ready.timeout):
                pause = _SOONEST_SECONDS
                while ready.line is not None or not await self._listens(task, pid, watched.port):
                    await asyncio.sleep(pause)
                    pause = min(pause * _RARER, _LATEST_SECONDS)
                self._loop.call_soon(self._told, task)
                return
        text = f"not ready within {say_seconds(ready.timeout)}: {ready.in_words(watched.port)}"
        last = " | ".join(watched.tail)
        text += f"; it printed last: {last}" if last else "; it printed nothing"
        self._loop.call_soon(self._told, task, text)

    async def _listens(self, task: TaskId, pid: int, port: int) -> bool:
        """Whether a program listens at a port where a task runs."""
        spec = self._engines.spec_of(task.run)
        if spec == LOCAL:
            return listens(pid, port)
        run, live = self._live_runs.find(task)
        node = live.current.tasks[task.name].node if live.current is not None else ""
        try:
            return await asyncio.to_thread(self._engines.of(run.id).ask, node, listens, pid, port)
        except HeadgateError:  # it does not answer now; a node that is gone ends the task
            return False

    def _told(self, task: TaskId, failure: str | None = None) -> None:
        """A task is ready, or has not become so."""
        if task not in self._watched:
            return
        self._drop(task)
        run, live = self._live_runs.find(task)
        if failure is None:
            self._live_runs.event(run, "note", f"{task.name} is ready", live.spec.name, task)
        self._step(TaskReady(task, failure))

    def _drop(self, task: TaskId) -> None:
        if (watched := self._watched.pop(task, None)) is not None:
            watched.end()
