"""Offers servers beside a worker memory to share, and follows what becomes of that."""

from __future__ import annotations

from headgate.torch.ps.board import Board
from headgate.torch.ps.links import Links
from headgate.torch.ps.views import View
from headgate.torch.ps.wire import Header, Kind, Message


class Offers:
    """What is offered for the board that rounds are held on. In the loop's thread only.

    Args:
        links: To the servers.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._board: Board | None = None
        self._lives: dict[int, int] = {}
        links.handlers[Kind.MAPPED] = self._mapped
        links.watchers.append(self._entered)

    def make(self, board: Board) -> None:
        """Share the memory of this board from now on, and of no other."""
        self._board = board
        self._lives.clear()
        self._offer()

    def _entered(self, former: View) -> None:
        self._offer()

    def _offer(self) -> None:
        """Offer memory to each life of a server beside this worker once; take it back from one that is gone."""
        board = self._board
        if board is None:
            return
        for server in range(self._links.servers):
            member = self._links.member(server)
            if member is None or member.node != self._links.node:
                self._lives.pop(server, None)
                board.withdraw(server)
            elif self._lives.get(server) != member.life and (offered := board.offer(server)) is not None:
                self._lives[server] = member.life
                self._links.send_json(server, Header(Kind.SHARE, view=self._links.view.number), offered)

    def _mapped(self, server: int, message: Message) -> None:
        if self._board is not None:
            self._board.accepted(server, message.json()["descriptor"])
