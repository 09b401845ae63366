"""Finds the processes of a task that train. Those that only read data for another one, such as
loader workers, do not.
"""

from __future__ import annotations

import re
from pathlib import Path

_LOADS = "pt_data_worker"
"""PyTorch's name for the workers of a `DataLoader`."""
_NAMES_THEM = (2, 6)
"""The first version of PyTorch that names them. From it on, a process without that name is no
worker.
"""
_OF_MULTIPROCESSING = (b"multiprocessing", b"--multiprocessing-fork", b"popen_loky")
_LOCK = "/dev/shm/sem."
"""Path of the C library's named semaphores, even after they are unlinked."""
_PYTHON = re.compile(rb"(?:.*/)?(?:python|pypy)[\d.t]*$")
_TORCH = re.compile(r"\s(/\S*/torch)/lib/libtorch")
_VERSION = re.compile(r"__version__ = ['\"](\d+)\.(\d+)")


def trains_by_itself(proc: str, pid: int, parent: int) -> bool:
    """Whether a process that another one of the task started is no helper of that one.

    It is either a Python program of its own, started by a command line or a launcher. Or it is a
    copy of its parent, by fork or `spawn`, and no worker of a loader. PyTorch names its workers.
    Otherwise only processes that take work from a queue count as helpers.

    Args:
        proc: Where /proc is mounted.
    """
    try:
        if Path(proc, str(pid), "comm").read_text(errors="replace").startswith(_LOADS):
            return False
        words, parent_words = (
            Path(proc, str(process_id), "cmdline").read_bytes().split(b"\0")
            for process_id in (pid, parent)
        )
    except OSError:  # it ended
        return False
    copied = words == parent_words or any(
        mark in word for word in words for mark in _OF_MULTIPROCESSING
    )
    if not copied:
        return _PYTHON.match(words[0]) is not None
    process = Path(proc, str(pid))
    return _names_loader_workers(process) or not _takes_from_queue(process)


def _takes_from_queue(process: Path) -> bool:
    """Whether a process may take work from a queue of `multiprocessing`. Such a queue has a lock
    shared between processes, as a named semaphore. A copy of a process has its parent's as well.
    """
    try:
        with (process / "maps").open(errors="replace") as maps:
            return any(_LOCK in line for line in maps)
    except OSError:
        return True


def _names_loader_workers(process: Path) -> bool:
    """Whether a process has loaded a PyTorch that names its loader workers."""
    try:
        with (process / "maps").open(errors="replace") as maps:
            folder = next(
                (match[1] for line in maps if (match := _TORCH.search(line)) is not None), None
            )
        text = Path(f"{process}/root{folder}/version.py").read_text() if folder is not None else ""
    except OSError:
        return False
    version = _VERSION.search(text)
    return version is not None and (int(version[1]), int(version[2])) >= _NAMES_THEM
