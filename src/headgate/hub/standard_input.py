"""Standard input of a command for its only job: the descriptor itself is passed, so that only the
job reads from it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import socket
import stat
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from headgate.model.errors import HeadgateError, HubError
from headgate.recorded import runs

_STDIN = 0
_TAKE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StandardInput:
    """A process's standard input, unless it is closed, a terminal or /dev/null.

    Args:
        descriptor: Its descriptor.
        is_file: Whether it is a file, which can be read again.
    """

    descriptor: int
    is_file: bool

    @classmethod
    def of_this_process(cls) -> StandardInput | None:
        """Standard input of this process; None: it has none to pass on."""
        # it was closed at the start: another file may have its number by now
        if sys.stdin is None:
            return None
        about = os.fstat(_STDIN)
        # it is not readable
        if fcntl.fcntl(_STDIN, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            return None
        if os.isatty(_STDIN) or _is_null(about) or stat.S_ISDIR(about.st_mode):
            return None
        return cls(_STDIN, stat.S_ISREG(about.st_mode))

    def holds_data(self) -> bool:
        """Whether data is available now, without reading it."""
        about = os.fstat(self.descriptor)
        if self.is_file:
            return about.st_size > os.lseek(self.descriptor, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(about.st_mode) or stat.S_ISSOCK(about.st_mode):
            [count] = struct.unpack("i", fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4)))
            return bool(count)
        return True  # a device

    def is_whole(self) -> bool:
        """Whether no more data can arrive: it is a file, or nobody has the other end open."""
        if self.is_file:
            return True
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    def let_go(self) -> None:
        """Replace it by /dev/null, so that a pipe's writer notices when the last reader is gone."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, self.descriptor)
        os.close(null)


def _is_null(about: os.stat_result) -> bool:
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == os.stat(os.devnull).st_rdev


@contextmanager
def offered(given: StandardInput) -> Iterator[str]:
    """Offer the descriptor to the first caller of a socket. Yields the socket's path.

    The caller of this function is connected to the hub: sockets without a connection are removed.
    """
    path = runs.sockets() / f"{secrets.token_hex(3)}.sock"  # no longer than `channel.sock`

    def give() -> None:
        with suppress(OSError), listener.accept()[0] as taker:  # nobody came
            socket.send_fds(taker, [b"+"], [given.descriptor])

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        listener.bind(str(path))
        listener.listen(1)
        giving = threading.Thread(target=give, name="stdin", daemon=True)
        giving.start()
        try:
            yield str(path)
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends the wait for a caller
            giving.join()
            path.unlink(missing_ok=True)


def taken(path: str) -> int:
    """Take the descriptor offered at a path.

    Raises:
        HubError: It is no longer offered.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as giver:
        giver.settimeout(_TAKE_SECONDS)
        try:
            giver.connect(path)
            _, descriptors, _, _ = socket.recv_fds(giver, 1, 1)
        except OSError as error:
            raise HubError(
                f"the standard input of the command cannot be had: {error.strerror}"
            ) from error
    if not descriptors:
        raise HubError("the standard input of the command cannot be had; try again")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


class GivenInput:
    """Standard input for each attempt of a job's only task.

    Args:
        descriptor: The descriptor, owned from now on.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        given = StandardInput(descriptor, stat.S_ISREG(os.fstat(descriptor).st_mode))
        self._begins = os.lseek(descriptor, 0, os.SEEK_CUR) if given.is_file else None
        self.held_data = given.holds_data()
        self.is_whole = given.is_whole()
        """Whether all of it was available at submission."""

    def of_an_attempt(self) -> int:
        """The descriptor, at the position of the first attempt.

        Raises:
            HeadgateError: An earlier attempt has read it, and it cannot be read again.
        """
        if self._descriptor is None:
            raise HeadgateError(
                "an earlier attempt has read its standard input, which was a pipe; give it a file "
                "(`< FILE`), which can be read again"
            )
        if self._begins is not None:
            os.lseek(self._descriptor, self._begins, os.SEEK_SET)
        return self._descriptor

    def started(self) -> None:
        """An attempt has started: it alone keeps the reading end of a pipe."""
        if self._begins is None:
            self.close()

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
