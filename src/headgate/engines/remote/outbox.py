"""Keeps an agent's events until the bridge has them."""

from __future__ import annotations

import pickle
import threading
from collections import deque

from headgate.engines.log import TaskLog
from headgate.engines.remote.wire import Event, Output
from headgate.model.identifiers import TaskId

BATCH_BYTES = 64 * 2**10
"""Output in one batch. It has to fit into the answer of one call: some clusters send larger answers
on a slower way.
"""

HELD_BYTES = 2 * 2**20
"""Output of one task that may wait to be fetched. Beyond it, the task waits."""

PAUSE_SECONDS = 0.02
_BATCH_EVENTS = 500


class Outbox:
    """Events in the order in which they were put, handed out in numbered batches. An answer may be
    lost on the way, so a batch is handed out again until the bridge says that it has arrived. Any
    thread may use an outbox.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._held: dict[TaskId, int] = {}
        self._changed = threading.Condition()
        self._number = 0
        self._batch: bytes | None = None
        self._closed = False

    def put(self, event: Event) -> None:
        """Add an event. Output is joined to the output just before it, if that is of the same
        task.
        """
        with self._changed:
            if isinstance(event, Output):
                self._held[event.task] = self._held.get(event.task, 0) + len(event.data)
                last = self._events[-1] if self._events else None
                if (
                    isinstance(last, Output)
                    and last.task == event.task
                    and len(last.data) < BATCH_BYTES
                ):
                    last.data += event.data
                    return
            self._events.append(event)
            self._changed.notify()

    def held(self, task: TaskId) -> int:
        """Bytes of a task's output that wait to be fetched."""
        return self._held.get(task, 0)

    def take(self, arrived: int, seconds: float) -> tuple[int, bytes]:
        """Wait for the next batch. Return its number and its content, a pickled list.

        Args:
            arrived: Number of the last batch that arrived, 0 at first.
            seconds: Longest to wait; after that, the batch is empty.
        """
        with self._changed:
            if self._batch is None or arrived == self._number:
                if not self._closed:
                    self._changed.wait_for(lambda: self._events or self._closed, seconds)
                self._number = arrived + 1
                self._batch = pickle.dumps(self._next())
            return self._number, self._batch

    def close(self) -> None:
        """Let whoever waits go on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def empty(self) -> bool:
        return not self._events

    def _next(self) -> list[Event]:
        events: list[Event] = []
        size = 0
        while self._events and size < BATCH_BYTES and len(events) < _BATCH_EVENTS:
            event = self._events.popleft()
            events.append(event)
            if isinstance(event, Output):
                size += len(event.data)
                self._held[event.task] -= len(event.data)
                if not self._held[event.task]:
                    del self._held[event.task]
        return events


class RelayedLog(TaskLog):
    """A task's output on its way to the hub's machine. Here it goes to no file, and is not divided
    into lines.
    """

    def __init__(self, task: TaskId, outbox: Outbox) -> None:
        super().__init__("")
        self._task = task
        self._outbox = outbox

    def write(self, data: bytes, now: float) -> list[str]:
        if data:
            self._outbox.put(Output(self._task, bytearray(data)))
        return []

    def resumes_in(self, now: float) -> float:
        return PAUSE_SECONDS if self._outbox.held(self._task) > HELD_BYTES else 0.0
