"""The messages that a worker sends in a round: its contribution, chunk by chunk, and requests for
sums.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

from headgate.torch.ps.rounds.chunks import Chunk
from headgate.torch.ps.rounds.exchange import Round
from headgate.torch.ps.rounds.window import SendWindow, SumInterval
from headgate.torch.ps.transport import wire
from headgate.torch.ps.transport.links import Links
from headgate.torch.ps.transport.loop import Loop
from headgate.torch.ps.transport.wire import Header, MessageKind


class Pusher:
    """Sends the messages of the running round. Use only in the loop's thread.

    Args:
        links: Links to the servers.
        loop: Drives the links.
    """

    def __init__(self, links: Links, loop: Loop) -> None:
        self._links = links
        self._loop = loop
        self._intervals = [SumInterval() for _ in range(links.servers)]
        self._windows: list[SendWindow] = []

    def open(self, running: Round) -> None:
        """Begin another attempt at the round. Pending pushes of the last attempt are dropped."""
        self.close()
        self._windows = [
            SendWindow(self._loop, interval, lambda chunk: self._push(running, chunk))
            for interval in self._intervals
        ]

    def close(self) -> None:
        """Push nothing more, because the attempt to take part in is undecided."""
        for window in self._windows:
            window.close()

    def came(self, server: int, now: float) -> None:
        """Note that a sum arrived from a server."""
        self._windows[server].came(now)

    def again(self, running: Round, server: int, chunks: Sequence[int]) -> None:
        """Push chunks again that a server has not got."""
        self._windows[server].forget(chunks)
        for number in chunks:
            self._push(running, running.exchange.chunks[number])

    def give(self, running: Round, chunks: Sequence[Chunk]) -> None:
        """Push these chunks, paced by the send window."""
        for chunk in chunks:
            if chunk.server in running.exchange.regions or self._gives_zeros(running):
                self._push(running, chunk)  # takes nothing of the network
            else:
                self._windows[chunk.server].add(chunk)

    def _gives_zeros(self, running: Round) -> bool:
        return running.lowest_only and self._links.index != min(self._links.view.active)

    def _push(self, running: Round, chunk: Chunk) -> None:
        exchange, server = running.exchange, chunk.server
        assert running.target is not None
        if server in running.ahead:
            self.pull(running, {chunk.number})
            return
        zeros = self._gives_zeros(running)
        header = Header(
            MessageKind.PUSH,
            flags=(wire.EMPTY if zeros else 0) | (wire.ALL if running.lowest_only else 0),
            dtype=exchange.dtypes[chunk.buffer],
            view=running.target,
            round=running.number,
            chunk=chunk.number,
            chunks=exchange.layout.counts[server],
            size=chunk.size,
            weight=running.weight,
            step=running.step,
        )
        running.traffic[server].goes(chunk.size, time.monotonic())
        region = exchange.regions.get(server)
        if region is not None:
            if not zeros:
                region.put(chunk.place, exchange.contribution(chunk))
            self._links.send(
                server, header._replace(flags=header.flags | wire.SHARED, offset=chunk.place)
            )
        elif zeros:
            self._links.send(server, header)
        else:
            self._links.send(server, header, exchange.contribution(chunk))

    def pull(self, running: Round, only: Container[int] | None = None) -> None:
        """Ask for missing sums; only for those of the chunks in `only`, if given."""
        assert running.target is not None
        header = Header(MessageKind.PULL, view=running.target, round=running.number)
        for server in range(self._links.servers):
            missing = [
                number for number in running.missing(server) if only is None or number in only
            ]
            if missing:
                self._links.send_json(server, header, {"chunks": missing})
