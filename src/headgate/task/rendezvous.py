"""Starts the first worker of a torchrun script, and the store by which all its workers meet.

torchrun's agent hosts the store too (`TORCHELASTIC_USE_AGENT_STORE`). If the first worker hosted
the store, the store would end with that worker, and others that still need it would fail.

    python -m headgate.task.rendezvous ADDRESS PORT WORKERS COMMAND...
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

_LOOK_SECONDS = 0.1
_ESTABLISHED = "01"
_OF_THIS_PROCESS = frozenset(
    {
        *(
            "SIGKILL",
            "SIGSTOP",
            "SIGTSTP",
            "SIGTTIN",
            "SIGTTOU",
            "SIGCHLD",
            "SIGPIPE",
            "SIGSEGV",
            "SIGBUS",
            "SIGFPE",
        )
    }
    | {"SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGPROF"}
)


def main(address: str, port: str, workers: str, command: list[str]) -> int:
    """Run a command beside the store. After a successful end, wait until the other workers have
    left the store.

    Returns:
        The exit code of the command, or of the store if that ends first. If a signal ended the
        command, the same signal ends this process.
    """
    child = subprocess.Popen(command)
    for signal_number in signal.Signals:
        if signal_number.name not in _OF_THIS_PROCESS:
            signal.signal(signal_number, lambda number, _: child.send_signal(number))
    if find_spec("torch") is None:  # then nobody needs the store
        return _as_it_ended(child.wait())
    host = subprocess.Popen(
        [sys.executable, "-m", "headgate.torch.rendezvous_store", address, port, workers]
    )
    ended, status = os.wait()
    while ended not in (child.pid, host.pid):
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    if ended == host.pid:
        child.kill()
        return code
    while code == 0 and _connections(int(port)) > 1:  # one is the host's own
        time.sleep(_LOOK_SECONDS)
    host.kill()
    return _as_it_ended(code)


def _as_it_ended(code: int) -> int:
    """The exit code of the command. If a signal ended it, end this process by the same signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own
        with contextlib.suppress(OSError):  # of a signal that has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _connections(port: int) -> int:
    """Number of connections to a port of this machine."""
    count = 0
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                count += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
