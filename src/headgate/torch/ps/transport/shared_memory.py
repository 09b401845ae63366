"""Memory that a worker and the server beside it both map, so that only headers go through a socket.

It has no name in any folder (`memfd_create`): the server opens it through `/proc` of the worker,
and nothing is left when both are gone, however they ended. Where the server cannot open it, as from
another container, the socket carries everything.
"""

from __future__ import annotations

import mmap
import os

import torch

from headgate.torch.ps.transport.wire import DTYPES


class Region:
    """The bytes of one server in a layout, twice: first what the worker pushes, then the sums.

    Args:
        descriptor: Of the memory.
        size: Bytes of one half.

    Attributes:
        descriptor: Open on the worker's side until `release`.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self._size = size
        self._map = mmap.mmap(descriptor, 2 * size)
        self._bytes = memoryview(self._map)

    @classmethod
    def make(cls, size: int) -> Region:
        """New memory; has to be kept open until the other side has mapped it.

        Raises:
            OSError: There is none.
            ValueError: The same.
        """
        descriptor = os.memfd_create("headgate-ps", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, 2 * size)
            return cls(descriptor, size)
        except (OSError, ValueError):
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, pid: int, descriptor: int, size: int) -> Region:
        """The memory behind a descriptor of another process.

        Raises:
            OSError: It cannot be opened from here.
            ValueError: It is not as large.
        """
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(opened, size)
        finally:
            os.close(opened)

    def release(self) -> None:
        """The other side has mapped it, or never will."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def put(self, offset: int, content: memoryview) -> None:
        """The worker pushes this."""
        self._bytes[offset : offset + len(content)] = content

    def pushed(self, offset: int, size: int, dtype: int) -> torch.Tensor:
        """What the worker pushed there, as a flat tensor in this memory."""
        kind = DTYPES[dtype]
        return torch.frombuffer(self._map, dtype=kind, count=size // _width(kind), offset=offset)

    def summed(self, offset: int, size: int) -> memoryview:
        """Where the sum of what the worker pushed at `offset` is."""
        return self._bytes[self._size + offset : self._size + offset + size]


def _width(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()
