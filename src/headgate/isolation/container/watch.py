"""Watches one container: passes its output on, sees its end, and reads its usage in time."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from headgate.isolation.container.daemon import Unframer

LOOK_MILLISECONDS = 1000
"""Interval at which usage is read while it runs, because the runtime removes its cgroups right
after its end.
"""
HOLD_MILLISECONDS = 100
"""Longest wait for the rest of a line."""
DRAIN_SECONDS = 10.0
"""Longest wait for the rest of its output after its end."""
_READ_BYTES = 1 << 16
_WRITE_BYTES = 4096
"""Bytes that a writable pipe takes at once."""


class ContainerWatch:
    """Watches a container in its own thread until it has ended and all its output was passed on.
    Then `exit_fd` turns readable.

    Args:
        stream: Descriptor of its output in frames; closed here.
        output: Descriptor for the output; closed here.
        pidfd: That of its first process, None if it is gone already; closed here.
        look: Reads its usage so far; called each second and at its end.
        ended: Called at its end, before `exit_fd` turns readable; may block. Its argument tells
            whether the output ended earlier and did not come back, because the daemon was gone.
        again: Returns another `stream` from a daemon that is back and let the container run on;
            None: not yet. Called each second once the output has ended.
    """

    def __init__(
        self,
        name: str,
        stream: int,
        output: int,
        pidfd: int | None,
        look: Callable[[], None],
        ended: Callable[[bool], None],
        again: Callable[[], int | None],
    ) -> None:
        self.exit_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self.over = threading.Event()
        """Set once its first process has ended."""
        self._stream = stream
        self._output = output
        self._pidfd = pidfd
        self._look = look
        self._ended = ended
        self._again = again
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"container {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. The container is gone, or goes once its daemon is back. Its further
        output is lost.
        """
        self._abandoned.set()
        self._thread.join()
        os.close(self.exit_fd)

    def _run(self) -> None:
        try:
            cut = self._relay_output()
            self.over.set()
            self._ended(cut)
        finally:
            for fd in (self._stream, self._output, self._pidfd):
                if fd is not None:
                    os.close(fd)
            os.eventfd_write(self.exit_fd, 1)

    def _relay_output(self) -> bool:
        """Pass on its output until it has ended. Returns whether the output ended earlier and did
        not come back.
        """
        frames, poller = Unframer(), select.poll()
        poller.register(self._stream, select.POLLIN)
        lives = self._pidfd is not None
        if self._pidfd is not None:
            poller.register(self._pidfd, select.POLLIN)
        last = time.monotonic() + DRAIN_SECONDS
        streams, cut, looked = True, False, time.monotonic()
        while not self._abandoned.is_set() and (lives or (streams and time.monotonic() < last)):
            ready = {
                fd
                for fd, _ in poller.poll(HOLD_MILLISECONDS if frames.holds else LOOK_MILLISECONDS)
            }
            if not ready and frames.holds:
                self._write(frames.rest())
            if self._pidfd in ready or time.monotonic() - looked >= LOOK_MILLISECONDS / 1000:
                self._look()
                looked = time.monotonic()
                if cut and self._pidfd not in ready and (stream := self._again()) is not None:
                    os.close(self._stream)
                    self._stream = stream
                    poller.register(stream, select.POLLIN)
                    self._write(frames.rest())
                    frames, streams, cut = Unframer(), True, False
            if lives and self._pidfd in ready:
                lives, last = False, time.monotonic() + DRAIN_SECONDS
                self.over.set()
                poller.unregister(self._pidfd)
            if self._stream in ready:
                try:
                    data = os.read(self._stream, _READ_BYTES)
                except OSError:
                    data = b""
                if data:
                    self._write(frames.feed(data))
                else:
                    streams, cut = False, lives
                    poller.unregister(self._stream)

        self._write(frames.rest())
        return cut

    def _write(self, data: bytes) -> None:
        poller = select.poll()
        poller.register(self._output, select.POLLOUT)
        while data and not self._abandoned.is_set():
            if not poller.poll(LOOK_MILLISECONDS):
                continue
            try:
                data = data[os.write(self._output, data[:_WRITE_BYTES]) :]
            except OSError:  # nobody reads it any more
                return
