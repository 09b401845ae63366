"""Starts the first worker of a script for torchrun, and hosts the store by which all its workers meet.

torchrun's agent does the same (`TORCHELASTIC_USE_AGENT_STORE`). If the first worker hosted the store itself, the store
would be gone as soon as that worker has ended, and the others would fail or abort while they still need it.

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
from importlib import import_module
from pathlib import Path

_LOOK_SECONDS = 0.1
_ESTABLISHED = "01"
_OF_THIS_PROCESS = frozenset(
    {*("SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCHLD", "SIGPIPE", "SIGSEGV", "SIGBUS", "SIGFPE")}
    | {"SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGPROF"}
)


def main(address: str, port: int, workers: int, command: list[str]) -> int:
    """Run a command beside the store. Once it has ended well, wait until the other workers have left the store.

    Returns:
        The exit code of the command. If a signal ended it, the same signal ends this process.
    """
    child = subprocess.Popen(command)
    for each in signal.Signals:
        if each.name not in _OF_THIS_PROCESS:
            signal.signal(each, lambda number, _: child.send_signal(number))
    try:
        store = _store(address, port, workers)
    except BaseException:
        child.kill()
        raise
    code = child.wait()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own
        with contextlib.suppress(OSError):  # of a signal that has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    while code == 0 and store is not None and _connections(port) > 1:  # one is this process's own
        time.sleep(_LOOK_SECONDS)
    return code


def _store(address: str, port: int, workers: int) -> object | None:
    """The store, which is there as long as the object is; None where this Python has no PyTorch, so that none is
    needed."""
    try:
        distributed = import_module("torch.distributed")
    except ImportError:
        return None
    store: object = distributed.TCPStore(address, port, workers, is_master=True, wait_for_workers=False)
    return store


def _connections(port: int) -> int:
    """How many connections there are to a port of this machine."""
    count = 0
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                _, here, _, state = line.split()[:4]
                count += state == _ESTABLISHED and int(here.rpartition(":")[2], 16) == port
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
