"""What the pages look up beside what hubs tell."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.web.test_board import job, snapshot

from headgate.client.run import Run
from headgate.model.errors import StorageError
from headgate.recorded.rows import EventRow
from headgate.reports.run_verdicts import RunVerdicts
from headgate.web.board import Board
from headgate.web.looking import Lookout


class Broken(Run):
    """A run whose folder is deleted while it is looked at."""

    def verdicts(self) -> RunVerdicts:
        raise FileNotFoundError(self.path)

    def recorded_events(self, last: int) -> list[EventRow]:
        raise StorageError("it is gone")


def test_a_run_that_cannot_be_read_ends_no_look(tmp_path: Path) -> None:
    board = Board()
    board.take(snapshot(job("a"), run="r"))
    asyncio.run(Lookout(board)._look_at(Broken(tmp_path / "r")))
    assert set(board.state("r")) == {"a"}
