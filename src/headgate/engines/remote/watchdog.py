"""The watchdog: a small process beside an agent that clears up what a killed agent leaves.

It is no child of the agent, because a cluster may end children with their parent. Once the agent's
end of the socket closes, for whatever reason, the watchdog acts. It kills what is left in the boxes
that it was told of, and removes them and the agent's folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from headgate import isolation
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import TaskId

_SWEEPS = "swept"  # as a group of boxes: it starts none
_MESSAGE_BYTES = 1 << 20


class AgentWatchdog:
    """The agent's end: it tells the watchdog of boxes (a `BoxRegistry`).

    Args:
        folder: The agent's folder. It is removed once this is closed, or once the agent is gone.
    """

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "headgate.engines.remote.watchdog",
                    str(theirs.fileno()),
                    str(folder),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
        self._socket = ours

    def add(self, task: TaskId, record: Mapping[str, object], output_fd: int, log: str) -> None:
        self._tell({"task": task, "record": record})

    def connected(self, task: TaskId) -> None:
        """Nothing to do: the watchdog kills at once what is left, since nobody could take what it
        would save.
        """

    def remove(self, task: TaskId) -> None:
        self._tell({"task": task, "record": None})

    def close(self) -> None:
        """Wait until the folder is gone."""
        self._socket.shutdown(socket.SHUT_WR)
        self._socket.recv(1)
        self._socket.close()

    def _tell(self, message: Mapping[str, object]) -> None:
        try:
            self._socket.send(json.dumps(message).encode())
        except OSError:
            # it was killed; the boxes are removed all the same, unless this process is too
            return


def _watch(agent: socket.socket, folder: Path) -> None:
    records: dict[str, Mapping[str, object]] = {}
    while data := _received(agent):
        message = json.loads(data)
        if message["record"] is None:
            records.pop(message["task"], None)
        else:
            records[message["task"]] = message["record"]
    for record in records.values():
        try:
            isolation.make(str(record["isolation"]), _SWEEPS).sweep(record)
        except (HeadgateError, OSError) as error:
            print(
                f"the box of task {record.get('task')} could not be removed: {error}",
                file=sys.stderr,
            )
    shutil.rmtree(folder, ignore_errors=True)


def _received(agent: socket.socket) -> bytes:
    try:
        return agent.recv(_MESSAGE_BYTES)
    except OSError:
        return b""


def main() -> None:
    if os.fork() > 0:
        os._exit(0)
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    os.chdir("/")
    with socket.socket(fileno=int(sys.argv[1])) as agent:
        _watch(agent, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
