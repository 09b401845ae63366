"""What runs in a new task's process until the box is closed around it; then it becomes the task.

Started as `python -I -S launcher.py FD`. It waits for its order on FD, a socket to the one who started it; in the
meantime it is put into its box from outside, so that no instruction of the task runs elsewhere. It answers `+` when it
is about to become the task, and the error number if that fails; a task that has begun has closed FD. Where it cannot
enter the place that it was ordered to, it answers `-`, the error number, a space and what it tried.
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
    channel = int(sys.argv[1])
    order = b""
    while part := os.read(channel, 1 << 16):
        order += part
    if not order:  # the one who started it is gone
        os._exit(125)
    program, argv, env, files, place = marshal.loads(order)
    os.set_inheritable(channel, False)
    if place is not None:
        try:
            _enter(place)
        except OSError as error:
            os.write(channel, REFUSED + os.fsencode(f"{error.errno} {os.fsdecode(error.filename)}"))
            os._exit(126)
    os.write(channel, BEGINS)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    try:
        os.execve(program, argv, env)
    except OSError as error:
        os.write(channel, str(error.errno).encode())
    except ValueError:  # what no program can be given, a NUL in an argument say
        os.write(channel, str(errno.EINVAL).encode())
    os._exit(127)


def _enter(place: tuple[bytes, bytes, bytes]) -> None:
    # In a file of its own, since this one is compiled for every task that is started.
    sys.path.append(os.path.dirname(__file__))
    __import__("entering").enter(*place)


if __name__ == "__main__":
    main()
