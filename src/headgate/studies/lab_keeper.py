"""Labs of a study, which go with it: a small process outlives a study that is killed, and takes
down what is up.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headgate import lab
from headgate.model.errors import HeadgateError


class LabKeeper:
    """Brings labs up and down. Its process, which the first lab starts, hears of each before it is
    there; when this end closes without a word, it takes them down.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @contextmanager
    def up(self, name: str, file: str) -> Iterator[str]:
        """A lab is up for as long as the context, which gives its name.

        Args:
            name: Of the lab.
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
            # In a session of its own no Ctrl-C and no closed terminal reaches it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, text=True, start_new_session=True
            )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed it
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()


def main() -> None:
    """Take down the labs that were told of as up, once the input has ended."""
    up = set[str]()
    for line in sys.stdin:
        (up.add if line[0] == "+" else up.discard)(line[1:].rstrip("\n"))
    for name in up:
        with suppress(HeadgateError):  # it had not come up yet
            lab.down(name)


if __name__ == "__main__":
    main()
