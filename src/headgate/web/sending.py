"""Keeps a board up to date, and hands its figures on: to a file, or over OTLP."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from headgate.model.errors import StorageError, UsageError
from headgate.web import metrics
from headgate.web.board import Board
from headgate.web.looking import Lookout
from headgate.web.metrics import Readings

FILE_SECONDS = 15.0
"""How often a file for node_exporter is written."""

Tell = Callable[[str], None]


class Receiver(ABC):
    """Takes figures now and then.

    Args:
        seconds: How often.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @abstractmethod
    def send(self, readings: Readings) -> None:
        """Hand figures on; called in a thread.

        Raises:
            StorageError: That failed; it is tried again with the next ones.
        """

    @abstractmethod
    def close(self) -> None:
        """End: no more figures come."""


class MetricsFile(Receiver):
    """A file for node_exporter's textfile collector. It is removed in the end, so that nobody
    takes old figures for present ones.

    Args:
        path: The file.

    Raises:
        UsageError: Its name or its folder cannot be.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(FILE_SECONDS)
        self._path = path
        self._writing, self._is_closed = threading.Lock(), False
        if path.suffix != ".prom":
            raise UsageError(
                f"found --metrics-file {path}; expected a name that ends in .prom, because "
                "node_exporter reads no other"
            )
        try:
            self.send(metrics.read(Board()))
        except StorageError as error:
            raise UsageError(f"{error}; give a file in a folder that you can write") from error

    def send(self, readings: Readings) -> None:
        text = metrics.exposition(readings)
        try:
            with self._writing:
                if not self._is_closed:
                    metrics.write(text, self._path)
        except OSError as error:
            raise StorageError(
                f"cannot write --metrics-file {self._path}: {error.strerror}"
            ) from error

    def close(self) -> None:
        with self._writing, contextlib.suppress(OSError):
            self._is_closed = True
            self._path.unlink()


@contextlib.asynccontextmanager
async def kept_up(board: Board, receivers: Sequence[Receiver], tell: Tell) -> AsyncIterator[None]:
    """Keep a board up to date meanwhile, and hand its figures on.

    Args:
        board: The board.
        receivers: What takes figures; they are closed in the end.
        tell: Called with a line for people when handing on begins to fail, and works again.
    """
    tasks = [asyncio.create_task(Lookout(board).run())]
    tasks += [asyncio.create_task(send_on(board, receiver, tell)) for receiver in receivers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for receiver in receivers:
            receiver.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def send_on(board: Board, receiver: Receiver, tell: Tell) -> None:
    """Hand the figures of a board on, again and again; see `kept_up`."""
    trouble = ""
    while True:
        before, trouble = trouble, ""
        try:
            await asyncio.to_thread(receiver.send, metrics.read(board))
        except (StorageError, OSError) as error:
            trouble = str(error)
        if trouble != before:
            tell(f"{trouble}; trying again" if trouble else "figures are handed on again")
        await asyncio.sleep(receiver.seconds)
