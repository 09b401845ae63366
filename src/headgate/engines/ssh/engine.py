"""Engine `ssh`, the hub's end. Its bridge is a thread of the hub."""

from __future__ import annotations

import queue
import re
import threading

from headgate.engines.remote.bridge import Bridge
from headgate.engines.remote.engine import AgentsEngine
from headgate.engines.remote.wire import Open, Refused, Report, Request
from headgate.engines.ssh.driver import SshDriver
from headgate.model.errors import HeadgateError, UsageError

_HOST = re.compile(r"(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9.:_][A-Za-z0-9.:_-]*")


class SshEngine(AgentsEngine):
    """Starts tasks on machines that `ssh` reaches.

    The address has the machines as the user names them to `ssh`, separated by commas.
    """

    name = "ssh"
    words = "ssh"

    def connect(self) -> Bridge:
        return ThreadBridge(hosts(self.address))


def hosts(address: str) -> tuple[str, ...]:
    """The machines of an address.

    Raises:
        UsageError: It names none, or one twice, or something else.
    """
    named = [name.strip() for name in address.split(",") if name.strip()]
    if not named:
        raise UsageError("engine ssh needs machines; name them: --address gpu1,gpu2")
    for name in named:
        if not _HOST.fullmatch(name):
            raise UsageError(
                f"--address: found {name!r}; expected HOST or USER@HOST. Ports and keys belong "
                "into ~/.ssh/config"
            )
    machines = [name.rpartition("@")[2] for name in named]
    if twice := {name for name in machines if machines.count(name) > 1}:
        raise UsageError(f"--address: {min(twice)} is there twice")
    return tuple(named)


class _ThreadLine:
    """One end of a way between two threads."""

    def __init__(
        self,
        sends: queue.SimpleQueue[Request | Report | None],
        receives: queue.SimpleQueue[Request | Report | None],
    ) -> None:
        self._sends, self._receives = sends, receives

    def send(self, what: Request | Report) -> None:
        self._sends.put(what)

    def receive(self) -> Request | Report | None:
        return self._receives.get()

    def close(self) -> None:
        self._sends.put(None)


class ThreadBridge(Bridge):
    """A bridge in a thread of the hub: what it needs is `ssh`, which ends with the hub.

    Args:
        hosts: The machines.
    """

    def __init__(self, hosts: tuple[str, ...]) -> None:
        there: queue.SimpleQueue[Request | Report | None] = queue.SimpleQueue()
        back: queue.SimpleQueue[Request | Report | None] = queue.SimpleQueue()
        self.pipe: _ThreadLine = _ThreadLine(there, back)
        self._hosts, self._end = hosts, _ThreadLine(back, there)
        self._thread = threading.Thread(target=self._serve, name="ssh-bridge", daemon=True)
        self._thread.start()

    def wait(self) -> str:
        self._thread.join()
        return "without a message"

    def kill(self) -> None:
        self._end.close()

    def _serve(self) -> None:
        wanted = self._end.receive()
        try:
            if isinstance(wanted, Open):
                driver = SshDriver(self._end, self._hosts, wanted)
                try:
                    self._end.send(driver.open())
                except HeadgateError as error:
                    driver.close()
                    self._end.send(Refused(str(error), error.exit_code))
                else:
                    driver.serve()
        finally:
            self._end.close()
