"""Tasks for the engine suite, besides `programs`: they write output and use the task channel.

The file runs alone, with any Python and without Headgate.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MIB = 1 << 20
BIG_BYTES = 3 << 16
"""Length of the text in the long message of `garbled`: more than an engine reads at once."""
BAD_LINES = (b"", b"{", b"[1, 2]", b"7", b"null", b"\xff\xfe", b"[" * 100_000, b'{"type":', b"\x00")
"""Lines of `garbled` that no engine may fail on."""
STOPPED = 5
"""Exit status of `obedient` when it was stopped through the channel."""


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
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]


def rest() -> None:
    say("ready\n")
    while True:
        signal.pause()


def write(*pieces: str) -> None:
    """Write each piece by itself, with escapes such as \\n spelled out, and exit."""
    for piece in pieces:
        say(piece.encode().decode("unicode_escape"))


def count(lines: str) -> None:
    """Write that many numbered lines, and exit."""
    for begin in range(0, int(lines), 1000):
        say("".join(f"line {i}\n" for i in range(begin, min(begin + 1000, int(lines)))))


def flood() -> None:
    """Write without end and without a line end."""
    while True:
        say("x" * MIB)


def abandon() -> None:
    """Leave a daemon behind that ignores SIGTERM and holds the output open. Print its process id
    and exit well.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say(f"daemon {os.getpid()}\n")
        os.kill(os.getppid(), signal.SIGUSR1)
        while True:
            signal.pause()
    signal.sigwait({signal.SIGUSR1})


def talk(messages: str) -> None:
    """Say hello, send that many numbered messages, and exit at once."""
    _connected().sendall(b"".join(_line({"type": "count", "n": n}) for n in range(int(messages))))


def obedient() -> None:
    """Send back every message, and end only on `stop`."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for message in _echoed():
        if message.get("type") == "stop":
            sys.exit(STOPPED)


def heedless() -> None:
    """Send back every message, and never end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in _echoed():
        continue


def parting() -> None:
    """Connect, hang up and stay."""
    _connected().close()
    rest()


def impostor(task: str) -> None:
    """Try to join as a task without its key, then without a name. Print when both were refused."""
    hello = {"type": "hello", "v": 1, "task": task}
    for tried in (
        {**hello, "key": "wrong"},
        {**hello, "key": "\ud800"},
        {**hello, "key": os.environ["HEADGATE_KEY"], "task": [task]},
        {"type": "progress", "loss": 1.0},
    ):
        connection = _connection()
        connection.sendall(_line(tried) + _line({"type": "count", "n": -1}))
        try:
            while connection.recv(4096):
                continue
        except ConnectionResetError:  # closed with our second line unread
            continue
    say("refused\n")
    rest()


def garbled() -> None:
    """Send a good message between bad ones of all kinds, one in pieces, a long one, and a last one
    without an end.
    """
    connection = _connected()
    for number, line in enumerate(BAD_LINES):
        connection.sendall(line + b"\n" + _line({"type": "count", "n": number}))
    for byte in _line({"type": "pieces"}):
        connection.sendall(bytes([byte]))
    connection.sendall(
        _line({"type": "long", "text": "x" * BIG_BYTES})
        + _line({"type": "last"})
        + b'{"type": "torn"'
    )


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _connection() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["HEADGATE_CHANNEL"].removeprefix("unix:"))
    return connection


def _connected() -> socket.socket:
    connection = _connection()
    hello = {
        "type": "hello",
        "v": 1,
        "task": os.environ["HEADGATE_TASK"],
        "key": os.environ["HEADGATE_KEY"],
    }
    connection.sendall(_line({**hello, "framework": "none"}))
    return connection


def _echoed() -> Iterator[dict[str, Any]]:
    connection = _connected()
    say("ready\n")
    for line in connection.makefile("rb"):
        message = json.loads(line)
        connection.sendall(_line({"type": "echo", "of": message}))
        yield message


PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program
    for program in (
        rest,
        write,
        count,
        flood,
        abandon,
        talk,
        obedient,
        heedless,
        parting,
        impostor,
        garbled,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
