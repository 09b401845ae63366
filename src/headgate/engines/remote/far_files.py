"""Files of the hub's machine, for a bridge on another machine."""

from __future__ import annotations

import threading
from typing import Any, cast

from headgate.engines.remote.files import Files
from headgate.engines.remote.pipe import Pipe
from headgate.engines.remote.wire import Answered, FileAsked
from headgate.isolation.base import Launch
from headgate.model.errors import HeadgateError

OPERATIONS = frozenset({"pack", "sizes", "read", "write", "rename"})


class FarFiles(Files):
    """Asks the hub for each operation; answers come to `answered`.

    Every operation raises `HeadgateError` if it fails, with the hub's words, or if the hub is gone.
    """

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._answers: dict[int, Answered | None] = {}
        self._count = 0
        self._gone = False
        self._came = threading.Condition()

    def allow(self, launch: Launch) -> None:
        """Nothing to do: the hub knows what it started."""

    def pack(self, folder: str) -> bytes:
        return cast(bytes, self._ask("pack", folder))

    def sizes(self, path: str) -> dict[str, int] | None:
        return cast("dict[str, int] | None", self._ask("sizes", path))

    def read(self, path: str, offset: int, count: int) -> bytes:
        return cast(bytes, self._ask("read", path, offset, count))

    def write(self, path: str, offset: int, data: bytes) -> None:
        self._ask("write", path, offset, data)

    def rename(self, path: str, to: str) -> None:
        self._ask("rename", path, to)

    def answered(self, answer: Answered) -> None:
        """Take in an answer of the hub."""
        with self._came:
            if answer.number in self._answers:
                self._answers[answer.number] = answer
                self._came.notify_all()

    def gone(self) -> None:
        """End all questions: the hub is gone."""
        with self._came:
            self._gone = True
            self._came.notify_all()

    def _ask(self, operation: str, *arguments: object) -> object:
        with self._came:
            self._count += 1
            number = self._count
            self._answers[number] = None
        self._pipe.send(FileAsked(number, operation, arguments))
        with self._came:
            self._came.wait_for(lambda: self._gone or self._answers[number] is not None)
            answer = self._answers.pop(number)
        if answer is None:
            raise HeadgateError("the hub is gone")
        if answer.error:
            raise HeadgateError(answer.error)
        return answer.value


def answer(files: Files, asked: FileAsked) -> Answered:
    """Do what a bridge asked for, and answer."""
    try:
        if asked.operation not in OPERATIONS:
            raise HeadgateError(f"no operation {asked.operation!r} on files")
        method: Any = getattr(files, asked.operation)
        return Answered(asked.number, method(*asked.arguments))
    except (HeadgateError, OSError, TypeError) as error:
        return Answered(asked.number, None, str(error) or type(error).__name__)
