"""What a worker gives to rounds and gets from them: buffers, their sums, and the state of the round
that runs.
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
    """Buffers whose sums are formed, in one round after another, and where the sums go.

    Args:
        buffers: Flat contiguous tensors of the CPU.
        servers: How many servers there are.

    Attributes:
        sums: One for each buffer.
        layout: Which chunk is whose.
        chunks: All of them, by number.
        dtypes: Type of each buffer, as in a header.
        regions: Memory shared with servers beside this worker, by server.
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
        """Where the bytes of the sum go."""
        return self._sums[chunk.buffer][chunk.offset : chunk.offset + chunk.size]

    def scale(self, chunk: Chunk, factor: float) -> None:
        """Multiply the sum of a chunk."""
        width = self.sums[chunk.buffer].element_size()
        self.sums[chunk.buffer][chunk.offset // width : (chunk.offset + chunk.size) // width].mul_(
            factor
        )

    def offer(self, server: int) -> dict[str, object] | None:
        """New memory to share with a server beside this worker, as it is told of it; None where
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
        """A server has mapped what it was offered."""
        region = self._offered.get(server)
        if region is not None and region.descriptor == descriptor:
            self.regions[server] = self._offered.pop(server)
            region.release()

    def withdraw(self, server: int) -> None:
        """The server is not there any more."""
        self.regions.pop(server, None)
        if server in self._offered:
            self._offered.pop(server).release()


class Traffic:
    """Bytes that went to a server and came from it in a round, and when, by our clock.

    Attributes:
        pushed: When the first left and the last arrived there.
        pulled: When the first left there and the last arrived here.
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
    """A round as one worker takes part in it.

    Args:
        number: Counts the rounds of the job, from 0.
        exchange: What is summed.
        weight: What this worker's contribution counts.
        lowest_only: Whether only the lowest worker contributes: the others push zeros.
        step: Number of the worker's step that it is of, from 1; 0 where it is of none.

    Attributes:
        under: View of the attempt whose sums are in the exchange; -1: none.
        target: View of the attempt that this worker is after; None while that is not settled.
        pulling: Whether that attempt is complete on all servers, so that nothing is to be pushed.
        launched: Buffers that hold the contribution.
        received: For the chunks whose sum is there, the memory that it came in (None: zeros); kept
            until the next round is as far, because a server that is started again may have to be
            told.
        weights: The weight of each of these sums.
        late: Whether some sum was formed without this worker.
        ahead: Servers that have all sums of the round already.
        again: Whether it had to be pushed again.
        moved: When something of it last arrived.
        waited: Tasks that were seen to be waited for.
        changed: Whether the view changed while it ran.
        arrived: For each buffer, whether its sum is there.
        done: Whether all are, or nothing will come any more.
        last: When the push of the chunk that came last arrived at its server, when its sum was
            sent, and when it came.
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
        """Nothing will come any more: whoever waits is not to."""
        for event in (*self.arrived, self.done):
            event.set()

    @property
    def whole(self) -> bool:
        """Whether all sums are there."""
        return len(self.received) == len(self.exchange.chunks)

    def missing(self, server: int) -> list[int]:
        """The chunks of a server whose sums are not there though this worker has pushed them."""
        launched = [
            chunk for index in self.launched for chunk in self.exchange.layout.buffers[index]
        ]
        return [
            chunk.number
            for chunk in launched
            if chunk.server == server and chunk.number not in self.received
        ]

    def aim(self, view: int, pulling: bool) -> None:
        """Go for the attempt under that view."""
        if self.under != view:
            self.again = self.under >= 0
            self.received.clear()
            self.weights.clear()
            self.ahead.clear()
        self.under = self.target = view
        self.pulling = pulling
