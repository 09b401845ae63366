"""A Docker Engine of its own, which may be stopped and leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.isolation.container.daemon import Daemon
from headgate.model.errors import IsolationError
from headgate.testing.wait import until

SECONDS = 60.0


class Dockerd:
    """A Docker Engine in a folder.

    Attributes:
        url: Where it listens.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.url = f"unix://{folder}/socket"
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait for its first answer.

        Raises:
            IsolationError: It ended.
        """
        folder = self._folder
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "dockerd",
                    *("--host", self.url),
                    *("--data-root", folder / "data"),
                    *("--exec-root", folder / "exec"),
                    *("--pidfile", folder / "pid"),
                    # else a lab's bridge would be filtered
                    *("--bridge", "none", "--iptables=false"),
                    *self._options,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        until(self._answers, SECONDS, f"an answer of dockerd (its log: {folder / 'log'})")

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise IsolationError(f"dockerd ended: {(self._folder / 'log').read_text()}")
        try:
            Daemon(self.url)
        except IsolationError:
            return False
        return True

    def stop(self) -> None:
        """Stop it, and with it its containers."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(SECONDS)
            self._process = None

    def kill(self) -> None:
        """kill -9: its containers run on, until another one is started here and ends them."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(SECONDS)
            self._process = None
            # That of its containerd, which ends with it: the next one takes a number that was not
            # waited for as alive.
            (self._folder / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)


@contextmanager
def own_dockerd(*options: str) -> Iterator[Dockerd]:
    """A Docker Engine that runs, with these options besides, and is gone afterwards.

    Raises:
        IsolationError: This process may not run one, or none is installed.
    """
    if os.geteuid() != 0:
        raise IsolationError("a Docker daemon of its own needs root")
    if shutil.which("dockerd") is None:
        raise IsolationError("Docker Engine is not installed (apt-get install docker.io)")
    # Not below another folder for temporary files: the names of sockets have to be short.
    folder = Path(tempfile.mkdtemp(prefix="hg-docker-", dir="/tmp"))
    dockerd = Dockerd(folder, *options)
    try:
        dockerd.start()
        yield dockerd
    finally:
        dockerd.stop()
        for path in _mounted_in(folder):  # the namespace of its network, which it leaves
            subprocess.run(["umount", path], check=True)
        shutil.rmtree(folder)


def _mounted_in(folder: Path) -> list[str]:
    """Where something is mounted below a folder, the innermost first."""
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)
