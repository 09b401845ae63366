"""Which server adds up which bytes: every worker computes the same from the sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

CHUNK_BYTES = 512 * 1024
"""Largest part that is sent as one message: smaller ones cost more CPU, with larger ones push and
pull overlap less.
"""
_SMALL_CHUNK_BYTES = 64 * 1024
_CHUNKS = 48
"""Of each server, if they need not be smaller than small ones: while the first is pushed and the
last is pulled, nothing goes the other way.
"""
_GRAIN_BYTES = 1024
"""Smallest part that a buffer is split into."""
_ALIGN_BYTES = 64


class Chunk(NamedTuple):
    """A part of a buffer.

    Args:
        number: Of all chunks, in the order in which they are pushed.
        buffer: Index of the buffer.
        offset: Where in the buffer it begins, in bytes.
        size: Bytes.
        server: Index of the server that adds it up.
        place: Where it begins among all the bytes of that server.
    """

    number: int
    buffer: int
    offset: int
    size: int
    server: int
    place: int


@dataclass(frozen=True)
class ChunkLayout:
    """How buffers are spread over servers.

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
    """Split buffers over servers, each so that all servers have had the same by then: early buffers
    keep all at work.

    Args:
        sizes: Bytes of each buffer, in the order in which they become ready.
        servers: How many servers there are.
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
        # One of each server in turn, so that no server waits for the parts of another.
        for rank in range(max(map(len, queues), default=0)):
            for server, begin, piece in (queue[rank] for queue in queues if rank < len(queue)):
                chunks.append(Chunk(number, buffer, begin, piece, server, loads[server]))
                number += 1
                loads[server] += piece
                counts[server] += 1
        buffers.append(tuple(chunks))
    return ChunkLayout(tuple(buffers), tuple(loads), tuple(counts))


def _parts(size: int, loads: Sequence[int]) -> list[tuple[int, int]]:
    """Server and bytes of each part of a buffer: the servers that had least so far are filled up to
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
    """`size` in parts of about the same size, none larger than `most`, or hardly."""
    count = -(-size // most)
    piece = -(-size // (count * _ALIGN_BYTES)) * _ALIGN_BYTES
    return [min(piece, size - begin) for begin in range(0, size, piece)]
