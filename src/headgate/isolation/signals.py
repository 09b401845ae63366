"""Selects the processes of a task that are asked to end by a signal.

A script that saves on a signal needs its helpers meanwhile, such as the workers of its data loader.
So only the script is asked. A process that merely waits for the script (`sh -c`, `conda run`, a
custom launcher) is not asked, because its end would be the end of the task.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from headgate.machine.processes import PROC, Process, look

SHELLS = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "mksh", "sh", "zsh"})
_LAUNCHERS = frozenset(
    {"accelerate", "conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "uv"}
)
"""Programs that wait for another in a way that the kernel does not show."""
_TELL_ALL = frozenset({"accelerate", "dumb-init", "timeout", "torch", "torchrun"})
"""Programs that pass a signal on to a whole process group, including helpers."""
_HELPERS = (b"multiprocessing.", b"loky.", b"torch.utils.data")
"""Parts of the command lines of helper processes that a script starts."""
_WAITS = "do_wait"


def targets(first: Process, number: int, pids: Iterable[int] | None = None) -> list[Process]:
    """The processes to signal: the first, or those that it waits for and that handle the signal.

    A process with a handler gets the signal, whatever it has started: it saves, or passes the
    signal on. For SIGINT shells and launchers are excepted, because shells and Python always have a
    handler. A program that would pass it on to helpers does not get it. A shell that waits for a
    program in its foreground runs its trap after that program has ended, so the program gets the
    signal too. If a shell's trap could only reach the wrapper of a script, the script is asked
    instead.

    Args:
        first: The task's first process.
        number: The signal.
        pids: All of its processes; None: search all of the machine.
    """
    children: dict[int, list[Process]] = {}
    for pid in (
        (int(name) for name in os.listdir(PROC) if name.isdecimal()) if pids is None else pids
    ):
        if (process := look(pid)) is not None:
            children.setdefault(process.parent, []).append(process)
    return _receivers(first, children, number)


def _receivers(process: Process, children: dict[int, list[Process]], number: int) -> list[Process]:
    command = _command(process)
    name = _name(command)
    known = name in SHELLS | _LAUNCHERS | _TELL_ALL
    if not known and not _is_waiting(process):
        return [process]
    shell = name in SHELLS
    programs = [
        child for child in children.get(process.pid, []) if shell or _is_program(child, command)
    ]
    itself = number != signal.SIGINT and name not in _TELL_ALL and _catches(process, number)
    if itself and not shell:
        return [process]
    processes: list[Process] = []
    for child in programs:
        # A child that a script waits for is a helper, unless it is a script too.
        below = [
            receiver
            for receiver in _receivers(child, children, number)
            if _catches(receiver, number)
        ]
        below = [pid for pid in below if known or _is_python(pid)]
        if itself and not _is_in_front(child, process):
            # The trap is meant for this child. A wrapper would keep the signal from its script, or
            # pass it on to helpers.
            below = [pid for pid in below if pid != child]
            itself = not below
        processes += below
    return [process, *processes] if itself else processes or [process]


def _command(process: Process) -> list[bytes]:
    try:
        return (PROC / str(process.pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []


def _name(command: list[bytes]) -> str:
    """The program that a process runs; for an interpreter, the script or the package."""
    words = [os.fsdecode(word) for word in command]
    if not words or not _base(words[0]).startswith("python"):
        return _base(words[0]) if words else ""
    for i, word in enumerate(words[1:], start=1):
        if word == "-m":
            return words[i + 1].partition(".")[0] if i + 1 < len(words) else ""
        if not word.startswith("-"):
            return _base(word)
    return ""


def _base(word: str) -> str:
    return os.path.basename(word).lstrip("-")  # a login shell


def _is_python(process: Process) -> bool:
    command = _command(process)
    return bool(command) and os.path.basename(command[0]).startswith(b"python")


def _is_program(child: Process, command: list[bytes]) -> bool:
    """Whether a child runs its own program, and is no worker forked by its parent, whose command
    line is `command`.
    """
    own = _command(child)
    return (
        bool(own)
        and own != command
        and not any(helper in word for word in own for helper in _HELPERS)
    )


def _is_waiting(process: Process) -> bool:
    """Whether its first thread waits for a child."""
    try:
        return (PROC / str(process.pid) / "wchan").read_text() == _WAITS
    except OSError:
        return False


def _is_in_front(child: Process, shell: Process) -> bool:
    """Whether a shell waits for this child before it runs a trap. False if unknown: with job
    control, or if the shell itself ignores the signals that its background ignores.
    """
    try:
        controlled = os.getpgid(child.pid) != os.getpgid(shell.pid)
    except ProcessLookupError:
        return False
    return not controlled and not any(
        _has(process, "SigIgn", signal.SIGQUIT) for process in (child, shell)
    )


def _catches(process: Process, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    return _has(process, "SigCgt", number)


def _has(process: Process, mask: str, number: int) -> bool:
    try:
        status = (PROC / str(process.pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    masks = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return bool(int(masks.get(mask, "0"), 16) >> (number - 1) & 1)
