"""Memory shared by a worker and a server on the same node, so that only headers go through a
socket.

It has no name in any folder (`memfd_create`). The server opens it through `/proc` of the worker.
Nothing is left when both are gone, however they ended. If the server cannot open it, for example
from another container, the socket carries everything.
"""

from __future__ import annotations

import mmap
import os

import torch

from headgate.torch.ps.transport.wire import DTYPES


class Region:
    """The bytes of one server in a layout, twice: first the worker's pushes, then the sums.

    Args:
        descriptor: Descriptor of the memory.
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
        """Make new memory. It has to be kept open until the other side has mapped it.

        Raises:
            OSError: The kernel cannot make it.
            ValueError: The kernel cannot make it.
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
        """Map the memory behind a descriptor of another process.

        Raises:
            OSError: It cannot be opened from this process.
            ValueError: It has less than the expected size.
        """
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(opened, size)
        finally:
            os.close(opened)

    def release(self) -> None:
        """Close the descriptor: the other side has mapped the memory, or never will."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def put(self, offset: int, content: memoryview) -> None:
        """Write a worker's push."""
        self._bytes[offset : offset + len(content)] = content

    def pushed(self, offset: int, size: int, dtype: int) -> torch.Tensor:
        """A worker's push at that offset, as a flat tensor in this memory."""
        kind = DTYPES[dtype]
        return torch.frombuffer(self._map, dtype=kind, count=size // _width(kind), offset=offset)

    def summed(self, offset: int, size: int) -> memoryview:
        """The memory of the sum of what the worker pushed at `offset`."""
        return self._bytes[self._size + offset : self._size + offset + size]


def _width(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()
