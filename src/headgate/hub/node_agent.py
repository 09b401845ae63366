"""An agent on another machine that the hub calls over its standard input and output."""

from __future__ import annotations

import os
import pickle
import queue
import shutil
import sys
import threading
from typing import Any

from headgate.engines.remote.pipe import Pipe
from headgate.engines.remote.wire import AgentCall, CallAnswered

_ORPHANED_SECONDS = 10.0


class _Stdio:
    """Standard input and output as `Pipe` takes a socket."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes

    def recv_into(self, buffer: memoryview) -> int:
        data = os.read(self._reads, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._writes, view) :]

    def close(self) -> None:
        os.close(self._writes)


class NodeServer:
    """Calls an agent as the hub asks, each lane in order.

    Args:
        pipe: To the hub.
        folder: The agent's folder.
    """

    def __init__(self, pipe: Pipe, folder: str) -> None:
        self._pipe, self._folder = pipe, folder
        self._agent: Any = None
        self._lanes: dict[str, queue.SimpleQueue[AgentCall]] = {}
        self._has_departed = False

    def serve(self) -> None:
        """Answer until the hub hangs up; then end what runs."""
        while isinstance(call := self._pipe.receive(), AgentCall):
            if call.lane not in self._lanes:
                self._lanes[call.lane] = queue.SimpleQueue()
                threading.Thread(target=self._work, args=(call.lane,), daemon=True).start()
            self._lanes[call.lane].put(call)
        if self._agent is not None and not self._has_departed:
            self._agent.orphaned(_ORPHANED_SECONDS)

    def _work(self, lane: str) -> None:
        while True:
            call = self._lanes[lane].get()
            self._pipe.send(self._answer(call))

    def _answer(self, call: AgentCall) -> CallAnswered:
        try:
            if call.method == "open":
                self._open(*call.arguments)
                return CallAnswered(call.number)
            value = getattr(self._agent, call.method)(*call.arguments)
            self._has_departed = self._has_departed or call.method == "depart"
            return CallAnswered(call.number, value)
        except OSError as error:
            facts = (error.errno, error.strerror or str(error), error.filename)
            return CallAnswered(call.number, None, str(error), facts)
        except Exception as error:  # noqa: BLE001  # the hub is told in words
            return CallAnswered(call.number, None, f"{type(error).__name__}: {error}")

    def _open(self, settings: Any, owner: Any) -> None:
        from headgate.engines.remote.agent import Agent
        from headgate.hub.node_sharing import NodeSharing

        self._agent = Agent(
            self._folder, pickle.dumps(settings), str(owner), accounts=NodeSharing.start
        )


def main() -> None:
    """Serve the hub at the other end of standard input and output."""
    folder = sys.argv[1]
    writes = os.dup(1)
    os.dup2(2, 1)  # what anything here prints is no message
    try:
        pipe = Pipe(_Stdio(0, writes), b"", "bridge")
        NodeServer(pipe, folder).serve()
    except ImportError as error:
        sys.exit(
            f"its Python {sys.executable} lacks {error.name}; install headgate's requirements there"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
