"""The line between a guest and its monitor: messages and connections, over one byte stream.

The file is loaded alone, by any Python and without the package around it.
"""

from __future__ import annotations

import os
import select
import signal
import struct

OUTPUT = 0
"""Number of the task's output. Connections have other numbers."""
DATA, OPEN, CLOSE, READY, GO, SIGNAL, EXIT = range(7)
"""Kinds of messages. DATA, OPEN and CLOSE belong to a connection; OPEN and CLOSE have no content.
READY: the guest is up. GO: its network is, too. SIGNAL: its number, and whether all processes get
it. EXIT: how the task ended.
"""
EVERYBODY = signal.SIGRTMAX
"""The signal that makes a monitor ask all processes of its task to end."""
_HEADER = struct.Struct("!BII")
_MOST_UNSENT = 1 << 20
_PART = 1 << 15


class GuestLine:
    """One end of the line. Only `turn` blocks.

    Attributes:
        over: Whether the other end is gone.
    """

    def __init__(self, fd: int) -> None:
        self.over = False
        self._fd = fd
        self._received = b""
        self._joined: dict[int, int] = {}
        self._unsent = {fd: bytearray()}
        os.set_blocking(fd, False)

    def send(self, kind: int, content: bytes = b"", number: int = OUTPUT) -> None:
        self._unsent[self._fd] += _HEADER.pack(kind, number, len(content)) + content

    def join(self, number: int, fd: int) -> None:
        """Connect a descriptor to the line in both directions, until it ends."""
        os.set_blocking(fd, False)
        self._joined[number], self._unsent[fd] = fd, bytearray()

    def leave(self, number: int) -> None:
        """Close a descriptor that joined, once its pending data are written."""
        fd = self._joined.pop(number, None)
        if fd is not None:
            self._write(fd)
            del self._unsent[fd]
            os.close(fd)

    def turn(
        self, others: list[int], seconds: float | None = None
    ) -> tuple[list[int], list[tuple[int, int, bytes]]]:
        """Wait until there is something to do, and do it.

        Args:
            others: Further descriptors to wait for.
            seconds: Longest wait.

        Returns:
            The readable ones of the others; and the messages that arrived: kind, number and
            content.
        """
        reads = list(others)
        if sum(len(unsent) for fd, unsent in self._unsent.items() if fd != self._fd) < _MOST_UNSENT:
            reads.append(self._fd)
        if len(self._unsent[self._fd]) < _MOST_UNSENT:
            reads += self._joined.values()
        writes = [fd for fd, unsent in self._unsent.items() if unsent]
        readable, writable, _ = select.select(reads, writes, [], seconds)
        for fd in writable:
            self._write(fd)
        for number, fd in list(self._joined.items()):
            if fd in readable:
                self._take(number, fd)
        return [
            fd for fd in others if fd in readable
        ], self._receive() if self._fd in readable else []

    def drain(self) -> None:
        """Send the available output of the task, and no more of it after that."""
        fd = self._joined.get(OUTPUT)
        while fd is not None and (part := _read(fd)):
            self.send(DATA, part)
        self._joined.pop(OUTPUT, None)

    def flush(self) -> None:
        """Wait until everything is sent."""
        while not self.over and (waiting := [fd for fd, unsent in self._unsent.items() if unsent]):
            for fd in select.select([], waiting, [])[1]:
                self._write(fd)

    def _take(self, number: int, fd: int) -> None:
        part = _read(fd)
        if part is None:
            return
        self.send(DATA if part else CLOSE, part, number)
        if not part:
            self.leave(number)

    def _receive(self) -> list[tuple[int, int, bytes]]:
        part = _read(self._fd)
        if part == b"":
            self.over = True
        self._received += part or b""
        messages = []
        while len(self._received) >= _HEADER.size:
            kind, number, length = _HEADER.unpack_from(self._received)
            if len(self._received) < _HEADER.size + length:
                break
            content = self._received[_HEADER.size : _HEADER.size + length]
            self._received = self._received[_HEADER.size + length :]
            if kind == DATA and number in self._joined:
                self._unsent[self._joined[number]] += content
            elif kind == CLOSE:
                self.leave(number)
            else:
                messages.append((kind, number, content))
        return messages

    def _write(self, fd: int) -> None:
        unsent = self._unsent[fd]
        try:
            while unsent:
                del unsent[: os.write(fd, unsent[:_PART])]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            unsent.clear()
            self.over = self.over or fd == self._fd


def _read(fd: int) -> bytes | None:
    """The available data; empty at the end, None if nothing is available yet."""
    try:
        return os.read(fd, _PART)
    except BlockingIOError:
        return None
    except OSError:
        return b""
