"""What the hub asks of nodes and waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headgate.engines.remote.wire import Ask, Returned
from headgate.errors import HeadgateError


class Questions:
    """Those that are not answered yet; may be used from any thread.

    Args:
        send: To the bridge.
    """

    def __init__(self, send: Callable[[Ask], None]) -> None:
        self._send = send
        self._open: dict[int, Future[Any]] = {}
        self._count = 0
        self._ended = ""
        self._lock = threading.Lock()

    def ask(self, node: str, function: Callable[..., object], arguments: tuple[object, ...]) -> Any:
        """Have a function called on a node; what it returned.

        Raises:
            HeadgateError: It raised, or nobody answers any more.
        """
        with self._lock:
            if self._ended:
                raise HeadgateError(self._ended)
            self._count += 1
            number, answer = self._count, Future[Any]()
            self._open[number] = answer
        self._send(Ask(number, node, function, arguments))
        return answer.result()

    def told(self, answer: Returned) -> None:
        """One is answered."""
        with self._lock:
            asked = self._open.pop(answer.number)
        if answer.error:
            asked.set_exception(HeadgateError(answer.error))
        else:
            asked.set_result(answer.value)

    def end(self, why: str) -> None:
        """None will be answered from here on."""
        with self._lock:
            self._ended = why
            left = list(self._open)
        for number in left:
            self.told(Returned(number, None, why))
