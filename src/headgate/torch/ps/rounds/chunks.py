"""Assigns bytes to servers. Every worker computes the same assignment from the sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

CHUNK_BYTES = 512 * 1024
"""Largest part that is sent as one message. Smaller parts cost more CPU; with larger ones, push and
pull overlap less.
"""
_SMALL_CHUNK_BYTES = 64 * 1024
_CHUNKS = 48
"""Chunks per server, unless they would be smaller than the least size. Nothing is sent the other
way while the first is pushed and the last is pulled.
"""
_GRAIN_BYTES = 1024
"""Smallest part that a buffer is split into."""
_ALIGN_BYTES = 64


class Chunk(NamedTuple):
    """A part of a buffer.

    Args:
        number: Number among all chunks, in the order in which they are pushed.
        buffer: Index of the buffer.
        offset: Offset in the buffer, in bytes.
        size: Bytes.
        server: Index of the server that sums it.
        place: Offset among all bytes of that server.
    """

    number: int
    buffer: int
    offset: int
    size: int
    server: int
    place: int


@dataclass(frozen=True)
class ChunkLayout:
    """The distribution of buffers over servers.

    Args:
        buffers: The chunks of each buffer.
        loads: Bytes of each server.
        counts: Chunks of each server.
    """

    buffers: tuple[tuple[Chunk, ...], ...]
    loads: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.buffers for chunk in chunks]


def lay_out(sizes: Sequence[int], servers: int) -> ChunkLayout:
    """Split buffers over servers. After each buffer all servers have the same number of bytes, so
    that early buffers keep all at work.

    Args:
        sizes: Bytes of each buffer, in the order in which they become ready.
        servers: Number of servers.
    """
    loads, counts = [0] * servers, [0] * servers
    most = min(CHUNK_BYTES, max(_SMALL_CHUNK_BYTES, sum(sizes) // (servers * _CHUNKS)))
    buffers, number = [], 0
    for buffer, size in enumerate(sizes):
        chunks, offset, queues = [], 0, []
        for server, part in _parts(size, loads):
            pieces = _pieces(part, most)
            queue = []
            for piece in pieces:
                queue.append((server, offset, piece))
                offset += piece
            queues.append(queue)
        # A chunk for each server in turn, so that no server waits for the chunks of another.
        for rank in range(max(map(len, queues), default=0)):
            for server, begin, piece in (queue[rank] for queue in queues if rank < len(queue)):
                chunks.append(Chunk(number, buffer, begin, piece, server, loads[server]))
                number += 1
                loads[server] += piece
                counts[server] += 1
        buffers.append(tuple(chunks))
    return ChunkLayout(tuple(buffers), tuple(loads), tuple(counts))


def _parts(size: int, loads: Sequence[int]) -> list[tuple[int, int]]:
    """Server and bytes of each part of a buffer. The servers with the least bytes are filled up to
    one level.
    """
    order = sorted(range(len(loads)), key=lambda server: (loads[server], server))
    for used in range(min(len(loads), max(1, size // _GRAIN_BYTES)), 0, -1):
        filled = order[:used]
        level = (size + sum(loads[server] for server in filled)) / used
        wanted = [level - loads[server] for server in filled]
        if min(wanted) >= _GRAIN_BYTES or used == 1:
            break
    parts, left = [], size
    for server, target in zip(filled[:-1], wanted):
        part = min(left, round(target / _ALIGN_BYTES) * _ALIGN_BYTES)
        parts.append((server, part))
        left -= part
    return [*parts, (filled[-1], left)] if left else parts


def _pieces(size: int, most: int) -> list[int]:
    """`size` in parts of similar size, at most about `most`."""
    count = -(-size // most)
    piece = -(-size // (count * _ALIGN_BYTES)) * _ALIGN_BYTES
    return [min(piece, size - begin) for begin in range(0, size, piece)]
