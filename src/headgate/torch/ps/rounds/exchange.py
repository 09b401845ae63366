"""What a worker contributes to rounds and receives: buffers, their sums, and the state of the
running round.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import torch

from headgate.torch.ps.rounds.chunks import Chunk, lay_out
from headgate.torch.ps.transport.shared_memory import Region
from headgate.torch.ps.transport.wire import DTYPES, Buffer, memory


class Exchange:
    """Buffers that are summed in one round after another, and their sums.

    Args:
        buffers: Flat contiguous CPU tensors.
        servers: Number of servers.

    Attributes:
        sums: A sum for each buffer.
        layout: The assignment of chunks to servers.
        chunks: All chunks, by number.
        dtypes: Type of each buffer, as in a header.
        regions: Memory shared with servers on this node, by server.
    """

    def __init__(self, buffers: Sequence[torch.Tensor], servers: int) -> None:
        self.buffers = buffers
        self.sums = [torch.empty_like(buffer) for buffer in buffers]
        self.layout = lay_out(
            [buffer.numel() * buffer.element_size() for buffer in buffers], servers
        )
        self.chunks = self.layout.chunks
        self.dtypes = [DTYPES.index(buffer.dtype) for buffer in buffers]
        self.regions: dict[int, Region] = {}
        self._offered: dict[int, Region] = {}
        self._contributions = [memory(buffer) for buffer in buffers]
        self._sums = [memory(total) for total in self.sums]

    def contribution(self, chunk: Chunk) -> memoryview:
        """The bytes that this worker contributes."""
        return self._contributions[chunk.buffer][chunk.offset : chunk.offset + chunk.size]

    def total(self, chunk: Chunk) -> memoryview:
        """The memory for the bytes of the sum."""
        return self._sums[chunk.buffer][chunk.offset : chunk.offset + chunk.size]

    def scale(self, chunk: Chunk, factor: float) -> None:
        width = self.sums[chunk.buffer].element_size()
        self.sums[chunk.buffer][chunk.offset // width : (chunk.offset + chunk.size) // width].mul_(
            factor
        )

    def offer(self, server: int) -> dict[str, object] | None:
        """New memory to share with a server on this node, as the message to the server. None if
        there is none.
        """
        self.withdraw(server)
        size = self.layout.loads[server]
        try:
            region = self._offered[server] = Region.make(size)
        except (OSError, ValueError):
            return None
        return {"pid": os.getpid(), "descriptor": region.descriptor, "size": size}

    def accepted(self, server: int, descriptor: int) -> None:
        """Note that a server has mapped the offered memory."""
        region = self._offered.get(server)
        if region is not None and region.descriptor == descriptor:
            self.regions[server] = self._offered.pop(server)
            region.release()

    def withdraw(self, server: int) -> None:
        """Withdraw the memory from a server that is gone."""
        self.regions.pop(server, None)
        if server in self._offered:
            self._offered.pop(server).release()


class Traffic:
    """Bytes sent to and received from a server in a round, with times of this worker's clock.

    Attributes:
        pushed: When the first byte was sent, and when the last arrived at the server.
        pulled: When the server sent the first byte, and when the last arrived here.
    """

    def __init__(self) -> None:
        self.bytes_out = 0
        self.bytes_in = 0
        self.pushed = (0.0, 0.0)
        self.pulled = (0.0, 0.0)

    def goes(self, size: int, now: float) -> None:
        self.pushed = (self.pushed[0] if self.bytes_out else now, self.pushed[1])
        self.bytes_out += size

    def came(self, size: int, arrived: float, sent: float, now: float) -> None:
        self.pushed = (self.pushed[0], max(self.pushed[1], arrived))
        self.pulled = (self.pulled[0] if self.bytes_in else sent, now)
        self.bytes_in += size


class Round:
    """A round, as one worker takes part in it.

    Args:
        number: Number among the rounds of the job, from 0.
        exchange: The buffers that are summed.
        weight: Weight of this worker's contribution.
        lowest_only: Whether only the lowest worker contributes and the others push zeros.
        step: Number of the worker's step, from 1; 0: not part of a step.

    Attributes:
        under: View of the attempt whose sums are in the exchange; -1: none.
        target: View of the attempt that this worker takes part in; None while that is undecided.
        pulling: Whether that attempt is complete on all servers, so that nothing is to be pushed.
        launched: Buffers that hold the contribution.
        received: Memory of the received sums by chunk (None: zeros). It is kept until the next
            round has come as far, because a restarted server may need it.
        weights: The weight of each of these sums.
        late: Whether a sum was formed without this worker.
        ahead: Servers that have all sums of the round already.
        again: Whether it had to be pushed again.
        moved: When a message of it last arrived.
        waited: Tasks that the round was seen to wait for.
        changed: Whether the view changed while it ran.
        arrived: Event for each buffer's sum.
        done: Event for all sums, or for the end of the round without them.
        last: Times of the last chunk: when its push arrived at its server, when its sum was sent,
            and when it arrived.
    """

    def __init__(
        self, number: int, exchange: Exchange, weight: float, lowest_only: bool, step: int
    ) -> None:
        self.number = number
        self.exchange = exchange
        self.weight = weight
        self.lowest_only = lowest_only
        self.step = step
        self.begun = self.moved = time.monotonic()
        self.under = -1
        self.target: int | None = None
        self.pulling = False
        self.launched: list[int] = []
        self.received: dict[int, Buffer | None] = {}
        self.weights: dict[int, float] = {}
        self.late = False
        self.ahead: set[int] = set()
        self.again = False
        self.waited: frozenset[str] = frozenset()
        self.changed = False
        self.noted = False
        self.last = (self.begun, self.begun, self.begun)
        self.traffic = [Traffic() for _ in exchange.layout.loads]
        self.arrived = [threading.Event() for _ in exchange.buffers]
        self.done = threading.Event()

    def end(self) -> None:
        """End the round, so that nothing waits for it any longer."""
        for event in (*self.arrived, self.done):
            event.set()

    @property
    def whole(self) -> bool:
        """Whether all sums have arrived."""
        return len(self.received) == len(self.exchange.chunks)

    def missing(self, server: int) -> list[int]:
        """Chunks of a server that this worker has pushed and whose sums have not arrived."""
        launched = [
            chunk for index in self.launched for chunk in self.exchange.layout.buffers[index]
        ]
        return [
            chunk.number
            for chunk in launched
            if chunk.server == server and chunk.number not in self.received
        ]

    def aim(self, view: int, pulling: bool) -> None:
        """Take part in the attempt under that view."""
        if self.under != view:
            self.again = self.under >= 0
            self.received.clear()
            self.weights.clear()
            self.ahead.clear()
        self.under = self.target = view
        self.pulling = pulling
