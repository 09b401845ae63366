"""Identifies processes by /proc and start times, and never signals a wrong one."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A living process. `started` is in clock ticks since boot, and distinguishes it from a later
    process with the same `pid`.
    """

    pid: int
    parent: int
    session: int
    started: int


def look(pid: int) -> Process | None:
    """The living process with that number. None if there is none, or only a zombie."""
    stat = _stat(pid)
    return stat[1] if stat is not None and stat[0] not in "ZX" else None


def still(process: Process) -> bool:
    """Whether the number still belongs to it, alive or not yet waited for."""
    stat = _stat(process.pid)
    return stat is not None and stat[1].started == process.started


def _stat(pid: int) -> tuple[str, Process] | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # Fields after the command, which is in parentheses and may contain any character; proc(5)
    # counts from 1.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], Process(
        pid=pid, parent=int(fields[1]), session=int(fields[3]), started=int(fields[19])
    )


def stopped(pids: Iterable[int]) -> list[Process]:
    """Those that a signal has stopped (SIGSTOP, SIGTSTP)."""
    return [stat[1] for pid in pids if (stat := _stat(pid)) is not None and stat[0] == "T"]


def wake(pids: Iterable[int]) -> None:
    """Continue stopped processes, because these receive no other signal."""
    send(stopped(pids), signal.SIGCONT)


def at_work(pids: Iterable[int]) -> list[str]:
    """The command lines of those that are alive."""
    commands = []
    for pid in pids:
        if look(pid) is not None:
            with suppress(OSError):
                words = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                commands.append(shlex.join(os.fsdecode(word) for word in words))
    return commands


def has_processes(uid: int) -> bool:
    """Whether a user has a living process. The owner of its folder would be root for some."""
    line = f"\nUid:\t{uid}\t"
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended
                text = (folder / "status").read_text(errors="replace")
                if line in text and look(int(folder.name)) is not None:
                    return True
    return False


def boot_id() -> str:
    """An id that changes with every boot. Process ids and start times of another boot are
    meaningless.
    """
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def send(processes: Iterable[Process], number: int) -> None:
    """Signal processes that are still the same. Others are left alone."""
    for process in processes:
        try:
            fd = os.pidfd_open(process.pid)
        except OSError:
            continue
        try:
            if still(process):
                signal.pidfd_send_signal(fd, number)
        except OSError:
            pass  # ended meanwhile, or no longer ours (set-user-id)
        finally:
            os.close(fd)
