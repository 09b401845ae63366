"""One thread's loop over descriptors, and over what other threads ask it to do."""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class CommandLoop:
    """Waits on descriptors, and runs the commands of other threads between two waits.

    Args:
        failed: Called with an error of a command or of a descriptor's function. It must not end the
            thread that serves all tasks.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._commands: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._is_closed = False
        self._wake_out, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector = selectors.DefaultSelector()
        """The data of each entry is the function to call."""
        self.selector.register(self._wake_out, selectors.EVENT_READ, self._woken)

    def do(self, command: Callable[[], None]) -> None:
        """Have the loop's thread run a command, unless it is closed. Any thread may call it."""
        with self._lock, suppress(BlockingIOError):
            if not self._is_closed:
                self._commands.append(command)
                os.write(self._wake_in, b"!")

    def turn(self, timeout: float | None) -> None:
        """Wait for descriptors or commands (at most `timeout` seconds; None: without end), and
        serve them.
        """
        for key, _ in self.selector.select(timeout):
            # An earlier event may have closed it: a task's end closes its output and its
            # connection.
            if self.selector.get_map().get(key.fd) is key:
                self.guarded(key.data)
        self.obey()

    def obey(self) -> None:
        """Run the commands that have come."""
        while self._commands:
            self.guarded(self._commands.popleft())

    def guarded(self, act: Callable[[], object]) -> None:
        """Call `act`, and report its error."""
        try:
            act()
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    def close(self) -> None:
        """Give up the descriptors. The loop's thread is gone."""
        with self._lock:
            self._is_closed = True
        self.selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _woken(self) -> None:
        os.read(self._wake_out, 4096)
