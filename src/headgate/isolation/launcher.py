"""Runs in a new task's process until its box is ready, then becomes the task.

Started as `python -I -S launcher.py FD [KEEPER OUTLIVES]`. With KEEPER, it forks: the child becomes
the task, the parent its keeper (`keeper.py`), with the socket KEEPER to the hub. There the child
tells its process id, and its peak memory so far. In a guest, its parent waits for it, and it forks
no keeper. The child waits for its order on FD, a socket to the hub. Meanwhile the hub puts it into
its box, so that no instruction of the task runs elsewhere. The child
answers `+` when it is about to become the task, and the error number if that fails. A task that has
begun has closed FD. If it cannot enter the place in its order, it answers `-`, the error number, a
space and what it tried. It tells its keeper, too, of each end before the task has begun, as the hub
may be gone.
"""

from __future__ import annotations

import errno
import marshal
import os
import resource
import signal
import sys

BEGINS = b"+"
REFUSED = b"-"


def main() -> None:
    channel, *keeping = map(int, sys.argv[1:])
    refusal = _fork_below_keeper(channel, *keeping) if keeping else -1
    order = b""
    try:
        while part := os.read(channel, 1 << 16):
            order += part
        program, argv, env, (umask, nice, limits), place = marshal.loads(order)
    except (OSError, EOFError, ValueError, TypeError):  # the one who started it is gone
        _refuse(refusal, 125)
    os.set_inheritable(channel, False)
    if place is not None:
        try:
            _enter(place)
        except OSError as error:
            why = os.fsencode(f"{error.errno} {os.fsdecode(error.filename)}")
            _answer(channel, REFUSED + why)
            _refuse(refusal, 126)
    _answer(channel, BEGINS)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(umask)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except PermissionError:  # whoever started it has a lower one, and may not raise it
        pass
    for number, soft, hard in limits:
        _limit(number, soft, hard)
    try:
        os.execve(program, argv, env)
    except OSError as error:
        _answer(channel, str(error.errno).encode())
    except ValueError:  # what no program can be given, a NUL in an argument say
        _answer(channel, str(errno.EINVAL).encode())
    _refuse(refusal, 127)


def _answer(channel: int, answer: bytes) -> None:
    try:
        os.write(channel, answer)
    except OSError:  # the hub is gone: whoever keeps this process tells its end
        pass


def _refuse(refusal: int, status: int) -> None:
    """End without having become the task."""
    if refusal >= 0:
        _answer(refusal, REFUSED)
    os._exit(status)


def _limit(number: int, soft: int, hard: int) -> None:
    if number == resource.RLIMIT_DATA and (boxed := resource.getrlimit(number)[0]) != -1:
        # the box's fallback for a memory limit
        soft = boxed if soft == -1 else min(soft, boxed)
    try:
        resource.setrlimit(number, (soft, hard))
    except (OSError, ValueError):  # more than whoever started it has, and may give: as much as that
        _, most = resource.getrlimit(number)
        resource.setrlimit(number, (most if soft == -1 else min(soft, most), most))


def _fork_below_keeper(channel: int, keeper: int, outlives: int) -> int:
    """Go on in a child, whose keeper this process becomes. Returns where the child tells it that it
    has not begun.
    """
    refused, refusal = os.pipe()
    if child := os.fork():
        os.close(channel)
        os.close(refusal)
        _keep(child, keeper, bool(outlives), refused)
        os._exit(0)
    os.close(refused)
    os.setsid()
    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.write(keeper, b"%d %d" % (os.getpid(), floor))
    os.close(keeper)
    return refusal


def _keep(child: int, keeper: int, outlives: bool, refused: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.chdir("/")
    sys.path.append(os.path.dirname(__file__))
    __import__("keeper").Keeper(child, keeper, outlives, refused).run()


def _enter(place: tuple[bytes, bytes, bytes]) -> None:
    # In a separate file, because this one is compiled for every task.
    sys.path.append(os.path.dirname(__file__))
    __import__("nsenter").enter(*place)


if __name__ == "__main__":
    main()
