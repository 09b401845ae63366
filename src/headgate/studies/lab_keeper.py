"""Labs of a study that end with it: a small process outlives a killed study and removes its
labs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headgate import lab
from headgate.model.errors import HeadgateError


class LabKeeper:
    """Brings labs up and down. The first lab starts its process, which learns of each lab in
    advance. If this end closes unexpectedly, the process removes the labs.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @contextmanager
    def up(self, name: str, file: str) -> Iterator[str]:
        """Keep a lab up within the context, which gives its name.

        Args:
            name: Name of the lab.
            file: Its file.
        """
        self._tell(f"+{name}")
        try:
            lab.up(file)
            try:
                yield name
            finally:
                lab.down(name)
        finally:
            self._tell(f"-{name}")

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()

    def _tell(self, line: str) -> None:
        if self._process is None:
            command = [sys.executable, "-m", "headgate.studies.lab_keeper"]
            # In its own session neither a Ctrl-C nor a closed terminal reaches it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, text=True, start_new_session=True
            )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed it
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()


def main() -> None:
    """Remove the announced labs once the input has ended."""
    up = set[str]()
    for line in sys.stdin:
        (up.add if line[0] == "+" else up.discard)(line[1:].rstrip("\n"))
    for name in up:
        with suppress(HeadgateError):  # it was not up yet
            lab.down(name)


if __name__ == "__main__":
    main()
