"""Small tasks for contract suites. Each prints `ready` once it does what its name says.

The file runs alone, with any Python and without Headgate.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

BREED_MOST = 200


def argv(name: str, *arguments: object) -> tuple[str, ...]:
    """Command line of a program."""
    assert name in PROGRAMS, f"there is no program {name!r}"
    return (*_start(), name, *map(str, arguments))


def parse(command: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Name and arguments of the program that a command line starts; None when it starts something
    else.
    """
    if len(command) < 5 or tuple(command[:4]) != _start():
        return None
    return command[4], tuple(command[5:])


def _start() -> tuple[str, ...]:
    """What the command lines of all programs begin with."""
    return (sys.executable, "-I", "-S", os.path.abspath(__file__))


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def rest() -> None:
    say("ready")
    while True:
        signal.pause()


def where() -> None:
    """Print the session, the open descriptors and the cgroups of the process."""
    say(f"session {os.getsid(0)}")
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    say(
        "descriptors "
        + " ".join(str(fd) for fd in sorted(descriptors) if os.path.exists(f"/proc/self/fd/{fd}"))
    )
    with open("/proc/self/cgroup") as file:
        for line in file:
            say(f"cgroup {line.rstrip()}")
    rest()


def leave(code: str) -> None:
    """Exit at once."""
    sys.exit(int(code))


def spin(count: str = "1") -> None:
    """Use that many cores in full, one process each."""
    for _ in range(int(count) - 1):
        if os.fork() == 0:
            break
    else:
        say("ready")
    while True:
        pass


def hold(count: str) -> None:
    """Hold that many bytes."""
    held = bytearray(b"x") * int(count)
    say(f"holds {len(held)}")
    rest()


def nurse(count: str) -> None:
    """Have a child hold that many bytes. Fail when it ends."""
    child = os.fork()
    if child == 0:
        hold(count)
    os.waitpid(child, 0)
    sys.exit(1)


def daemon() -> None:
    """Fork a daemon in its own session, whose parent is gone. Print its process id."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.read(reads, 1)
            say(f"daemon {os.getpid()}")
            rest()
        os._exit(0)
    os.waitpid(child, 0)
    os.write(writes, b"x")  # its parent is gone
    while True:
        signal.pause()


def breed() -> None:
    """Fork one daemon after the other."""
    say("ready")
    for _ in range(BREED_MOST):
        if os.fork() == 0:
            os.setsid()
            while True:
                signal.pause()
        signal.sigtimedwait((), 0.002)
    while True:
        signal.pause()


def stubborn() -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rest()


def read(path: str) -> None:
    """Read a file without the page cache. Print how many seconds it took, and when it began."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, 1 << 16)  # O_DIRECT wants an aligned buffer
    began = time.monotonic()
    while os.readv(file, [page]) > 0:
        pass
    say(f"seconds {time.monotonic() - began}")
    say(f"began {began}")


PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program
    for program in (rest, where, leave, spin, hold, nurse, daemon, breed, stubborn, read)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
