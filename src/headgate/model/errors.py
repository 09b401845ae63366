"""All errors that Headgate raises on purpose, with their exit codes.

HeadgateError                1   a request could not be carried out
├── UsageError               2   bad input: option, file, value
│   └── InvalidFileError     2   a user's file, with all its problems at once
├── MissingExtraError        3   an optional part is not installed
├── StorageError             4   the run folder: no permission, no space, not ours
├── NotFoundError            5   no such run, job or task
├── HubError                 6   the hub does not answer or speaks another version
└── IsolationError           7   a task could not be sandboxed or its share not be set
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.model.extras import install


class HeadgateError(Exception):
    """An error whose message says what was found, what was expected and what to do. Shown without a
    traceback.
    """

    exit_code = 1


class UsageError(HeadgateError):
    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a user's file."""

    where: str
    line: int | None
    found: str
    cure: str

    def __str__(self) -> str:
        line = f"line {self.line}: " if self.line is not None else ""
        return f"{line}{self.where}: {self.found}; {self.cure}"


class InvalidFileError(UsageError):
    """A user's file with all its problems, not only the first."""

    def __init__(self, path: str, problems: Sequence[Problem]) -> None:
        self.path = path
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n  ".join([f"{path}: {count}", *map(str, self.problems)]))


class MissingExtraError(HeadgateError):
    """An optional part is not installed; the message says what to install."""

    exit_code = 3

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs a package that is not installed: {install(extra)}")


class StorageError(HeadgateError):
    exit_code = 4


def writing_cure(error: OSError) -> str:
    """What to do where this error kept something from being written."""
    if error.errno == errno.EROFS:
        return "mount its disk so that it can be written"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "allow yourself to write there"
    return "free some space there"


class NotFoundError(HeadgateError):
    exit_code = 5


class HubError(HeadgateError):
    exit_code = 6


class IsolationError(HeadgateError):
    exit_code = 7
