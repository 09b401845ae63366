"""Questions of the hub to nodes, and the wait for their answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headgate.engines.remote.wire import Ask, Returned
from headgate.model.errors import HeadgateError


class Questions:
    """The questions that are not answered yet. Any thread may use it.

    Args:
        send: Sends a question to the bridge.
    """

    def __init__(self, send: Callable[[Ask], None]) -> None:
        self._send = send
        self._open: dict[int, Future[Any]] = {}
        self._count = 0
        self._ended = ""
        self._lock = threading.Lock()

    def ask(self, node: str, function: Callable[..., object], arguments: tuple[object, ...]) -> Any:
        """Have a function called on a node, and return its result.

        Raises:
            HeadgateError: The function raised, or nobody answers any more.
        """
        with self._lock:
            if self._ended:
                raise HeadgateError(self._ended)
            self._count += 1
            number, answer = self._count, Future[Any]()
            self._open[number] = answer
        self._send(Ask(number, node, function, arguments))
        return answer.result()

    def answered(self, answer: Returned) -> None:
        """Take in an answer."""
        with self._lock:
            asked = self._open.pop(answer.number)
        if answer.error:
            asked.set_exception(HeadgateError(answer.error))
        else:
            asked.set_result(answer.value)

    def end(self, why: str) -> None:
        """Fail all open questions, and all from here on."""
        with self._lock:
            self._ended = why
            left = list(self._open)
        for number in left:
            self.answered(Returned(number, None, why))
