"""Runs slow operations off the engine's thread, in order for each task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headgate.model.identifiers import TaskId

AT_ONCE = 16
"""Most operations that run at the same time."""

Act = Callable[[], Any]
Then = Callable[["Future[Any]"], None]


def now(act: Act, then: Then) -> None:
    """Run an operation in this thread, and pass on its result as `PerTaskExecutor.do` would."""
    done = Future[Any]()
    try:
        done.set_result(act())
    except Exception as error:  # noqa: BLE001  # handed on, as from a thread
        done.set_exception(error)
    then(done)


class PerTaskExecutor:
    """Threads for operations that may block.

    Args:
        hand_back: Has a function called in the engine's thread.
    """

    def __init__(self, hand_back: Callable[[Callable[[], None]], None]) -> None:
        self._hand_back = hand_back
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="beside")
        self._urgent = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="urgent")
        self._waiting: dict[TaskId, deque[tuple[Act, Then]]] = {}
        self._first: dict[TaskId, Future[Any]] = {}
        self._closed = False

    def do(self, task: TaskId, act: Act, then: Then) -> None:
        """Run an operation after all earlier ones of this task. Call it in the engine's thread.

        Args:
            then: Called in the engine's thread with the result.
        """
        waiting = self._waiting.setdefault(task, deque())
        waiting.append((act, then))
        if len(waiting) == 1:
            self._submit(task)

    def do_at_once(self, act: Act, then: Then) -> None:
        """Run an operation before all that wait. Call it in the engine's thread.

        Args:
            then: As in `do`.
        """
        self._urgent.submit(act).add_done_callback(lambda done: self._hand_back(lambda: then(done)))

    def forgo(self, task: TaskId) -> None:
        """Skip the next operation of a task, unless it has begun. Its result is then a
        `CancelledError`.
        """
        if (first := self._first.get(task)) is not None:
            first.cancel()

    def close(self) -> None:
        """Wait for operations that run or are next. Their results are still passed on. Later
        operations run at once, in the calling thread.
        """
        self._urgent.shutdown()
        self._pool.shutdown()
        self._closed = True

    def _submit(self, task: TaskId) -> None:
        act, _ = self._waiting[task][0]
        if self._closed:
            now(act, lambda done: self._done(task, done))
            return
        first = self._first[task] = self._pool.submit(act)
        first.add_done_callback(lambda done: self._hand_back(lambda: self._done(task, done)))

    def _done(self, task: TaskId, done: Future[Any]) -> None:
        waiting = self._waiting[task]
        _, then = waiting[0]
        try:
            then(done)
        finally:
            waiting.popleft()
            if waiting:
                self._submit(task)
            else:
                del self._waiting[task]
                self._first.pop(task, None)
