"""The one thread of a task that drives its sockets. Other threads hand work to it."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

_AT_A_TIME = 16
"""Messages taken from one socket before the others have their turn."""


class Loop:
    """Polls sockets and runs calls of other threads. Make and use sockets only in its thread.

    Args:
        name: Name of the thread.
        failed: Called in the thread with an uncaught exception, which ends the thread.

    Attributes:
        context: Makes the sockets. It is not the process's own context, which may be the script's.
        idle_seconds: Seconds spent waiting so far.
    """

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.idle_seconds = 0.0
        self._failed = failed
        self._receivers: dict[Any, Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._ending = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the thread make this call soon. Calls keep their order. From any thread."""
        self._calls.append((function, arguments))
        try:
            os.write(self._wake_write, b"w")
        except OSError:
            return  # the pipe is full, so the thread is waking up already; or it has ended

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Have the thread make this call in `seconds`. Only from its thread."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), function))

    def add(self, socket: zmq.Socket[bytes], receive: Callable[[], None]) -> None:
        """Call `receive` whenever the socket has a message, until it raises `zmq.Again`. Only from
        the thread.
        """
        self._receivers[socket] = receive
        self._poller.register(socket, zmq.POLLIN)

    def remove(self, socket: zmq.Socket[bytes]) -> None:
        """Forget the socket. Its owner closes it."""
        del self._receivers[socket]
        self._poller.unregister(socket)

    def close(self, linger_seconds: float = 0.0) -> None:
        """End the thread and close all sockets.

        Args:
            linger_seconds: Longest time to send pending messages.
        """
        if self._ending or os.getpid() != self._pid:
            return  # the thread and the sockets of a forked child are its parent's
        self.call(self._end, linger_seconds)
        self._thread.join()

    def _end(self, linger_seconds: float) -> None:
        for socket in self._receivers:
            socket.close(linger=int(1000 * linger_seconds))
        self._ending = True

    def _run(self) -> None:
        try:
            while not self._ending:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - whoever waits for this thread has to hear of it
            self._ending = True
            for socket in self._receivers:
                socket.close(linger=0)
            self._failed(error)
        self.context.term()
        os.close(self._wake_write)
        os.close(self._wake_read)

    def _turn(self) -> None:
        before = time.monotonic()
        timeout = (
            None if not self._timers else max(0, math.ceil(1000 * (self._timers[0][0] - before)))
        )
        ready = self._poller.poll(timeout)
        now = time.monotonic()
        self.idle_seconds += now - before
        for socket, _ in ready:
            if self._ending:  # what came before it in this turn has closed all sockets
                return
            if socket == self._wake_read:
                os.read(self._wake_read, 4096)
                self._take_calls()
            elif socket in self._receivers:  # not removed by what came before it in this turn
                self._receive(self._receivers[socket])
        while self._timers and self._timers[0][0] <= now and not self._ending:
            heapq.heappop(self._timers)[2]()

    def _take_calls(self) -> None:
        for _ in range(len(self._calls)):
            if self._ending:
                return
            function, arguments = self._calls.popleft()
            function(*arguments)

    def _receive(self, receive: Callable[[], None]) -> None:
        try:
            for _ in range(_AT_A_TIME):
                receive()
        except zmq.Again:
            return
